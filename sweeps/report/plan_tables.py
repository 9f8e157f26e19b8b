"""Tables of a plan: its trials, or the search space that Optuna proposes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from sweeps.config.axes import DIGITS, Axis
from sweeps.planning.plan import Plan
from sweeps.report.console import MAX_ROWS, duration_text
from sweeps.report.fitted_table import Column, FittedTable


def plan_table(plan: Plan, updates_per_rollout: int, steps: int, seconds: Mapping[str, float] | None) -> FittedTable:
    """One row per trial. With `search.space`, the varied keys take the place of the completions per update."""
    varied = any(trial.varied for trial in plan.trials)
    table = FittedTable(
        (
            Column("trial"),
            Column("prompts x G", right=True),
            Column("varied", wraps=True) if varied else Column("completions/update", right=True, drop=1),
            Column("lr", right=True),
            Column("lr_scaling", drop=3),
            Column("seed", right=True),
            Column("steps", right=True, drop=2),
            Column("time", right=True),
        )
    )
    for trial in plan.trials[:MAX_ROWS]:
        table.add_row(
            trial.trial_id,
            f"{trial.prompts_per_step} x {trial.group_size}",
            trial.varied if varied else f"{trial.prompts_per_step * trial.group_size / updates_per_rollout:g}",
            f"{trial.lr:.{DIGITS}g}",
            ", ".join(trial.names),
            str(trial.seed),
            str(steps),
            duration_text(seconds[trial.trial_id]) if seconds else "unknown",
        )
    if len(plan.trials) > MAX_ROWS:
        table.add_row("...", f"{len(plan.trials) - MAX_ROWS} more")
    return table


def merged_text(plan: Plan) -> str:
    """The numbers of grid points and of distinct trials; empty if they are equal."""
    if plan.points <= len(plan.trials):
        return ""
    shared = any(len(trial.names) > 1 for trial in plan.trials)
    why = " (lr_scaling rules in one row give the same lr)" if shared else ""
    return f"{plan.points} grid points, {len(plan.trials)} distinct trials{why}"


def space_table(space: Sequence[Axis]) -> Table:
    """The search space, one row per key."""
    table = Table(box=None, pad_edge=False)
    for name in ("key", "values", "when"):
        table.add_column(name, no_wrap=name == "key", overflow="fold")
    for axis in space:
        table.add_row(axis.key, axis.values_text, axis.condition_text)
    return table

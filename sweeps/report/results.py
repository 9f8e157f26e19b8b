"""The results of a sweep in the terminal: trials, gate, and advice on the learning rate."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from decimal import Decimal
from textwrap import wrap

from rich.console import Console
from rich.text import Text

from rl.tasks.evaluation import average_at_k
from sweeps.config.axes import DIGITS
from sweeps.config.points import with_values
from sweeps.config.types import SweepConfig
from sweeps.journal.events import GateVerdict
from sweeps.journal.journal import SweepRecord, TrialRecord
from sweeps.journal.trial_summary import Evaluation, TrialSummary
from sweeps.protocol.lr_rule import advise
from sweeps.report.console import MAX_ROWS, STATE_STYLES, number_text, percent_text
from sweeps.report.fitted_table import Column, FittedTable

_LR_ACTIONS = {"raise": "lr may be raised", "keep": "keep lr", "lower": "lower lr", "abstain": "no advice"}


def results_table(record: SweepRecord, costs: Mapping[str, str], card_hours: Mapping[str, Decimal]) -> FittedTable:
    """One row per trial: the accuracy with its 95 % interval, card-hours and cost."""
    table = FittedTable(
        (
            Column("trial"),
            Column("point", wraps=True),
            Column("lr", right=True, drop=4),
            Column("state"),
            Column("before", right=True, drop=3),
            Column("acc after [95 %]", right=True),
            Column("clip_frac", right=True, drop=2),
            Column("card-h", right=True, drop=1),
            Column("cost", right=True),
        ),
        gap=1,
    )
    for trial in itertools.islice(record.trials.values(), MAX_ROWS):
        evaluations = [trial.summary.first_evaluation, trial.summary.last_evaluation]
        before = next((e for e in evaluations if e and e.step == 0), None)
        after = next((e for e in reversed(evaluations) if e and e.step > 0), None)
        hours = card_hours.get(trial.trial_id)
        table.add_row(
            trial.trial_id[:6],
            trial.planned.label,
            f"{trial.planned.lr:.{DIGITS}g}" if trial.planned.overrides else f"{trial.planned.lr:.1e}",
            Text(trial.state.lower(), style=STATE_STYLES.get(trial.state, "")),
            number_text(before.accuracy if before else None, 2),
            _interval_text(after),
            percent_text(trial.summary.window_clip_frac),
            "-" if hours is None else f"{hours:.3f}",
            costs.get(trial.trial_id, "-"),
        )
    if len(record.trials) > MAX_ROWS:
        table.add_row("...", f"{len(record.trials) - MAX_ROWS} more")
    return table


def print_gate(console: Console, verdict: GateVerdict) -> None:
    """The verdict of the metric gate and each of its checks."""
    status, style = "closed", "red"
    if verdict.inconclusive:
        status, style = "open, inconclusive", "yellow"
    elif verdict.healthy:
        status, style = "open", "green"
    elif verdict.open:
        status, style = f"closed, passed by gate.force: {verdict.forced}", "yellow"
    suffix = " (simulated: no evidence for a real run)" if verdict.simulated else ""
    console.print(Text.assemble(("Metric gate: ", "bold"), (status, style), suffix))
    for check in verdict.checks:
        mark, style = {True: ("ok  ", "green"), False: ("NO  ", "red"), None: ("--  ", "dim")}[check.ok]
        if check.warning:
            mark, style = "!!  ", "yellow"
        lines = wrap(f"{check.name}: {check.reason}", console.width - 6, break_on_hyphens=False)
        console.print(Text.assemble("  ", (mark, style), "\n      ".join(lines)))


def print_lr_advice(console: Console, trials: Sequence[TrialRecord], cfg: SweepConfig) -> None:
    """The advice of the clip_frac rule for each trial, and its basis."""
    judged = [trial for trial in trials if trial.summary.step]
    for trial in judged[:MAX_ROWS]:
        advice = advise(trial.summary, with_values(cfg, trial.planned.overrides).algorithm)
        action = _LR_ACTIONS[advice.action]
        console.print(Text(f"  {trial.trial_id[:6]} {trial.planned.label}: {action} ({advice.reason})"))
    if len(judged) > MAX_ROWS:
        console.print(f"  ... {len(judged) - MAX_ROWS} more")
    console.print(Text(f"  basis: {advise(TrialSummary(), cfg.algorithm).basis}", style="dim"))


def _interval_text(evaluation: Evaluation | None) -> str:
    if evaluation is None:
        return "-"
    estimate = average_at_k(evaluation.results)
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"

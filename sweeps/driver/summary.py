"""What a sweep prints: its plan and price before it runs, its results and the next command afterwards."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from cost.commands import command_text
from cost.ledger.sweep_lock import SweepLockedError
from cost.money import Money, money_text
from cost.prices.book import PriceError
from cost.records import StoreError
from cost.reports.by_trial import Report, write_csv
from cost.secrets import is_masked, mask_secrets
from rl.spec import Stop
from sweeps.config.axes import axes
from sweeps.config.types import SweepConfig
from sweeps.driver.context import DriverContext
from sweeps.forecast.step_time import StepTime, sweep_seconds
from sweeps.journal.events import GateVerdict
from sweeps.journal.journal import TrialState
from sweeps.journal.outcomes import DriverEnd
from sweeps.machines.pricing import Pricing
from sweeps.planning.plan import Plan, make_plan
from sweeps.protocol.promotion import Promotion
from sweeps.protocol.stage_rules import StageRules
from sweeps.report.console import MAX_ROWS, duration_text
from sweeps.report.mlflow_store import sqlite_uri
from sweeps.report.plan_tables import merged_text, plan_table, space_table
from sweeps.report.results import print_gate, print_lr_advice, results_table
from sweeps.search.best import Best, best, instead_of
from sweeps.search.pruning import first_evaluation, why_never_pruning
from sweeps.storage.uploads import unsaved_text

MLFLOW_RUNS = "http://127.0.0.1:5000/#/experiments?workflowType=machine_learning"
"""Where `mlflow ui` lists experiments with their runs; without the parameter, MLflow 3 opens a view of traces."""


def print_plan_time(console: Console, cfg: SweepConfig, plan: Plan, pricing: Pricing, time: StepTime) -> None:
    """How long the plan will take, what it will cost, and where that figure comes from."""
    total = sweep_seconds(plan, cfg, time)
    bound = total * time.allowance
    console.print(f"  about {duration_text(total)} and {pricing.of(total)}, at most {pricing.of(bound)}")
    console.print(f"  ({time.source})")


def print_plan(console: Console, cfg: SweepConfig, plan: Plan, pricing: Pricing, time: StepTime | None) -> None:
    machine = cfg.machine
    console.print(
        Text(f"Stage {cfg.stage.name}: {plan.size} trials of {cfg.stage.steps} steps", style="bold"),
    )
    if merged := merged_text(plan):
        console.print(f"  {merged}")
    price = f"{money_text(pricing.per_hour)} an hour" if pricing.per_hour else "UNPRICED"
    source = f" ({machine.sku}, read {pricing.row.day_read} from {_short(pricing.row.source)})" if pricing.row else ""
    console.print(Text(f"  machine {machine.name}: {machine.hardware}; {price}{source}"), soft_wrap=True)
    console.print(Text(f"  model {cfg.model.path or cfg.model.kind}, task {cfg.task.name}, {cfg.algorithm.name}"))
    seconds = {t.trial_id: time.of(t, cfg.stage.steps) for t in plan.trials} if time else None
    _print_search(console, cfg)
    if plan.trials:
        console.print(plan_table(plan, cfg.algorithm.updates_per_rollout, cfg.stage.steps, seconds))
    if time:
        print_plan_time(console, cfg, plan, pricing, time)
    else:
        unknown = "" if cfg.simulated else "model size unknown, "
        console.print(f"  Time unknown: {unknown}no earlier run on this machine. One hour costs {pricing.of(3600)}.")
    for warning in filter(None, (*plan.warnings, why_never_pruning(cfg, plan.trials or plan.typical))):
        console.print(Text(f"  warning: {warning}", style="yellow"), soft_wrap=True)


def _print_search(console: Console, cfg: SweepConfig) -> None:
    """Where the trials' points come from, unless from a grid, and when trials are pruned."""
    search = cfg.search
    if search.method != "grid":
        seeds = f", each point with seeds {', '.join(map(str, search.seeds))}" if len(search.seeds) > 1 else ""
        points = {
            "random": f"points drawn at random (search.sampler_seed={search.sampler_seed})",
            "optuna": f"points proposed by Optuna's TPE (search.sampler_seed={search.sampler_seed}), the first "
            f"{search.startup_trials} at random",
        }[search.method]
        console.print(f"  {points}{seeds}, from:")
        console.print(Padding(space_table(axes(cfg)), (0, 0, 0, 4)))
    if search.pruning != "none":
        rule = {
            "asha": f"at each rung the best 1 in {search.pruning_factor} continues",
            "median": f"trials below percentile {search.pruning_percentile:g} of the others are pruned",
        }[search.pruning]
        first = search.pruning_warmup_completions or first_evaluation(cfg)
        console.print(
            f"  search.pruning={search.pruning}: {rule}, from {first} completions and "
            f"{search.pruning_min_trials} trials of a seed on"
        )


def print_rules(console: Console, found: StageRules) -> None:
    """The gate rules that this stage is too short for."""
    if found.left_out:
        console.print("  gate rules left out, since stage.steps is too small for them:")
    for text in found.left_out:
        console.print(Text(f"    {text}"), soft_wrap=True)


def print_best(console: Console, found: Best) -> None:
    """The point with the highest accuracy, as overrides that can be typed."""
    over = f", mean over {found.seeds} seeds" if found.seeds > 1 else ""
    typed = " ".join(map(shlex.quote, (*found.batch, *found.values)))
    start = "" if found.start is None else f" (start {found.start:.3f})"
    console.print(Text(f"Best:     acc {found.accuracy:.3f}{start}{over}: {typed}"), soft_wrap=True)
    if found.start is not None and found.accuracy <= found.start:
        console.print(Text("          no point ends above its start: none is worth a longer stage", style="yellow"))
    console.print(f"          best of {found.points} points, so partly by chance: run it again with other search.seeds")


def print_promotion(console: Console, step: Promotion) -> None:
    """The sweep whose gate allows this stage, what changes since then, and why the stage cannot start, if so."""
    if step.below:
        console.print(f"Follows {step.below}, gate open. What changes:" if step.changes else f"Follows {step.below}")
    for change in step.changes:
        console.print(Text(f"  {change}"), soft_wrap=True)
    if step.problem:
        console.print(Text(f"Gate:     closed: {step.problem}", style="red"), soft_wrap=True)


def resumed_text(context: DriverContext) -> str:
    """What a resumed sweep has left to do, what it has cost, and what it will cost."""
    cfg, record, pricing, time = context.cfg, context.record, context.pricing, context.time
    left = f"{record.left} of {len(record.trials) + record.to_propose} trials left"
    if time:
        steps = cfg.stage.steps
        to_come = [time.of(t.planned, steps - (t.checkpoint.step if t.checkpoint else 0)) for t in record.unfinished]
        if record.to_propose:
            to_come += [time.of(trial, steps) for trial in make_plan(cfg).typical[-record.to_propose :]]
        left += f", about {pricing.of(sum(to_come) * cfg.search.cards_per_trial / cfg.machine.cards)} to come"
    report = context.report()
    if report.unpriced:
        return f": resuming, {left}; UNPRICED so far"
    lost = sum(r.categories.get("lost_work", 0) for r in report.trials)
    spent = money_text(Money(report.total_pico, report.currency))
    return f": resuming, {left}; {spent} so far, {money_text(Money(lost, report.currency))} of it lost work"


def print_end(
    context: DriverContext,
    report: Report,
    verdict: GateVerdict | None,
    end: DriverEnd,
    stop: Stop | None,
    *,
    mlflow_complete: bool,
) -> None:
    """The result and the cost of each trial, the gate with its reasons, and the next commands.

    Args:
        stop: why the sweep stopped early, if it did.
        mlflow_complete: MLflow has everything.
    """
    console, cfg, record, typed = context.console, context.cfg, context.record, context.typed

    def cost_text(pico: int, unpriced: bool) -> str:
        return "UNPRICED" if unpriced else money_text(Money(pico, report.currency))

    costs = {r.trial_id: cost_text(r.pico, r.unpriced) for r in report.trials}
    hours = {r.trial_id: r.card_hours for r in report.trials}
    console.print(results_table(record, costs, hours))
    total = cost_text(report.total_pico, report.unpriced)
    overheads = cost_text(report.total_pico - sum(r.pico for r in report.trials), report.unpriced)
    console.print(
        Text(f"Cost: {total}, of it {overheads} outside trials ({context.sweep_dir}/cost.csv)"), soft_wrap=True
    )
    found = best(cfg, record)
    if found:
        print_best(console, found)
    if verdict:
        print_gate(console, verdict)
        if verdict.healthy:
            console.print("Learning rate, by clip_frac of the last steps:")
            print_lr_advice(console, list(record.trials.values()), cfg)
        elif (context.sweep_dir / "ray").is_dir():
            console.print(Text(f"Logs:     {context.sweep_dir / 'ray'}/TRIAL-ATTEMPT.log"), soft_wrap=True)
    uri = mask_secrets(cfg.tracking.uri) if cfg.tracking.uri else sqlite_uri(context.root / "mlflow.db")
    if not mlflow_complete:
        arguments = (record.sweep_id, "--uri", uri) if is_masked(uri) else ()
        track = command_text("sweeps", "track", *arguments, place=context.ledger.place)
        rest = f"MLflow does not have everything yet. `{track}`, or the next sweep in this folder, delivers the rest."
        console.print(
            Text(rest, style="yellow"),
            soft_wrap=True,
        )
    console.print(Text(f"Compare:  mlflow ui --backend-store-uri {shlex.quote(uri)}"), soft_wrap=True)
    console.print(Text(f"          and open {MLFLOW_RUNS}"), soft_wrap=True)
    failed = [trial for trial in record.trials.values() if trial.state is TrialState.FAILED]
    for trial in failed[:MAX_ROWS]:
        console.print(Text(f"Failed:   {trial.trial_id}: {trial.attempts[-1].message}", style="red"), soft_wrap=True)
    if len(failed) > MAX_ROWS:
        console.print(Text(f"Failed:   ... {len(failed) - MAX_ROWS} more", style="red"))
    if verdict and failed:
        again = [t for t in typed if not t.startswith("resume=")]
        command = " ".join(["python sweep.py", *map(shlex.quote, again), "resume=failed"])
        console.print(Text(f"Again:    {command}"), soft_wrap=True)
    if end is DriverEnd.BUDGET and stop is not None:
        print_budget(console, stop.text, typed, context.ledger.place)
    elif end is DriverEnd.INTERRUPTED:
        console.print(Text(f"Resume:   {' '.join(['python sweep.py', *map(shlex.quote, typed)])}"), soft_wrap=True)
    elif verdict and verdict.open and cfg.stage.next_stage:
        command = next_command(cfg.stage.next_stage, instead_of(typed, found.values) if found else typed)
        console.print(Text(f"Next:     {command}"), soft_wrap=True)


def print_not_uploaded(context: DriverContext, lines: Sequence[str]) -> None:
    """What is not in the bucket yet, and the command that uploads it."""
    if lines:
        text = unsaved_text(context.record.sweep_id, lines, context.ledger.place)
        context.console.print(Text(text, style="yellow"), soft_wrap=True)


def print_budget(console: Console, why: str, typed: Sequence[str], place: str) -> None:
    """Why a sweep stopped at a limit, or did not start, and the command that continues it."""
    console.print(Text(f"Budget:   {why}", style="yellow"), soft_wrap=True)
    keys = [key for key in ("trial_limit", "sweep_limit", "stage_limit", "month_limit") if f"budget.{key}" in why]
    dropped = ("resume=never", *(f"budget.{key}=" for key in keys))
    kept = [t for t in typed if not t.startswith(dropped)]
    higher = [f"'budget.{key}=AMOUNT CURRENCY'" for key in keys]
    scopes = dict.fromkeys(re.findall(r"\(cost budget --set (\S+)\)", why))
    settings = [command_text("cost", "budget", "--set", f"{scope}=AMOUNT CURRENCY", place=place) for scope in scopes]
    raised = [f"{setting} &&" for setting in settings]
    command = " ".join([*raised, "python sweep.py", *map(shlex.quote, kept), *higher])
    console.print(Text(f"Continue: {command}"), soft_wrap=True)


_OF_ONE_STAGE = ("+stage=", "stage.", "search.", "search=", "resume=", "dry_run=", "gate.", "trainer.simulated.")
"""Overrides that belong to one stage only: the next stage has its own."""


def next_command(stage: str, typed: Sequence[str]) -> str:
    """The command for the next stage: the overrides of this command without those of its stage."""
    kept = [t for t in typed if not t.startswith(_OF_ONE_STAGE)]
    return " ".join(["python sweep.py", f"+stage={stage}", *map(shlex.quote, kept)])


def _short(source: str) -> str:
    return source if len(source) <= 60 else source[:57] + "..."


def print_stopped(console: Console, error: StoreError, typed: Sequence[str], place: str) -> None:
    """The ledger cannot be written any more: what was written, and what to do."""
    again = " ".join(["python sweep.py", *map(shlex.quote, typed)])
    console.print(Text(f"Stopped: {error}", style="red"), soft_wrap=True)
    if isinstance(error, SweepLockedError):
        console.print(
            "This driver had lost its lock. It has ended its trials' processes and writes nothing more. The other "
            f"driver repeats the work that was not written. See: {command_text('cost', 'leases', 'list', place=place)}",
            soft_wrap=True,
        )
        return
    console.print(
        Text(
            "The trials' processes were ended. Everything that was recorded is kept. When the problem is solved, "
            f"continue with:  {again}"
        ),
        soft_wrap=True,
    )


def report_costs(context: DriverContext) -> Report | None:
    """The sweep's cost report, also as `cost.csv`. None where the ledger's costs cannot be read.

    Nothing that is wrong with prices may keep the journal from being closed and the machine from being released.
    """
    try:
        report = context.report()
    except PriceError as error:
        again = command_text("cost", "report", "--sweep", context.record.sweep_id, place=context.ledger.place)
        context.warn(f"the costs were not reported: {error}. Afterwards: {again}")
        return None
    write_costs(context.console, report, context.sweep_dir, context.ledger.place)
    return report


def write_costs(console: Console, report: Report, sweep_dir: Path, place: str) -> None:
    """Write `cost.csv`. A full disk must not keep the ledger from being closed: the file can be written again."""
    try:
        write_csv(report, sweep_dir / "cost.csv")
    except OSError as error:
        options = ("--sweep", sweep_dir.name, "--format", "csv", "--out", str(sweep_dir / "cost.csv"))
        again = command_text("cost", "report", *options, place=place)
        text = f"warning: cost.csv was not written ({error.strerror}); write it with: {again}"
        console.print(Text(text, style="yellow"), soft_wrap=True)

"""A sweep in the terminal: its plan, what moves while it runs, and what came of it.

On a terminal a table is redrawn in place; elsewhere (a log, CI) each step is a line. Nothing is wider than 100 columns,
and colours appear only on a terminal.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rl.spec import CheckpointWritten, EvalReport, Event, Finished, Started, StepReport
from rl.tasks.evaluation import average_at_k
from sweeps.config.axes import DIGITS, Axis
from sweeps.config.points import with_values
from sweeps.config.types import SweepConfig
from sweeps.forecast.step_time import StepTime
from sweeps.journal.events import GateVerdict
from sweeps.journal.journal import SweepRecord, TrialRecord, TrialState
from sweeps.journal.trial_summary import Evaluation, TrialSummary
from sweeps.planning.plan import Plan
from sweeps.protocol.lr_rule import advise

WIDTH = 100
MOST_ROWS = 60
"""Trials that a table before or after a sweep shows; `cost.csv` has them all."""
REDRAW_SECONDS = 0.5
COST_SECONDS = 5.0
NS_PER_SECOND = 1e9

_STYLES = {
    TrialState.COMPLETED: "green",
    TrialState.RUNNING: "cyan",
    TrialState.PRUNED: "magenta",
    TrialState.FAILED: "red",
    TrialState.PREEMPTED: "yellow",
    TrialState.BUDGET_STOPPED: "yellow",
}


def make_console() -> Console:
    console = Console(highlight=False, soft_wrap=False)
    if console.width > WIDTH or not console.is_terminal:
        console = Console(highlight=False, soft_wrap=False, width=WIDTH)
    return console


def number(value: float | None, places: int = 3) -> str:
    return "-" if value is None else f"{value:.{places}f}"


def duration(seconds: float | None) -> str:
    """`45 s`, `3 min 10 s`, `2 h 05 min`."""
    if seconds is None:
        return "-"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def plan_table(plan: Plan, updates_per_rollout: int, steps: int, seconds: Mapping[str, float] | None) -> Table:
    """A row a trial. Where further keys are varied, they have the place of the completions per update."""
    table = Table(box=None, pad_edge=False)
    varied = any(trial.varied for trial in plan.trials)
    for name, right in [
        ("trial", False),
        ("prompts x G", True),
        ("varied", False) if varied else ("completions/update", True),
        ("lr", True),
        ("lr_scaling", False),
        ("seed", True),
        ("steps", True),
        ("time", True),
    ]:
        table.add_column(name, justify="right" if right else "left", no_wrap=name != "varied")
    for trial in plan.trials[:MOST_ROWS]:
        table.add_row(
            trial.trial_id,
            f"{trial.prompts_per_step} x {trial.group_size}",
            trial.varied if varied else f"{trial.prompts_per_step * trial.group_size / updates_per_rollout:g}",
            f"{trial.lr:.{DIGITS}g}",
            " = ".join(trial.names),
            str(trial.seed),
            str(steps),
            duration(seconds[trial.trial_id]) if seconds else "unknown",
        )
    _say_the_rest(table, len(plan.trials))
    return table


def space_table(space: Sequence[Axis]) -> Table:
    """What points are drawn or proposed from, a row a key."""
    table = Table(box=None, pad_edge=False)
    for name in ("key", "values", "when"):
        table.add_column(name, no_wrap=name == "key", overflow="fold")
    for axis in space:
        table.add_row(axis.key, axis.values_text, axis.condition_text)
    return table


class LiveView:
    """Shows a running sweep (`sweeps.host.View`). `costs` gives each trial's cost so far as text."""

    def __init__(
        self,
        console: Console,
        record: SweepRecord,
        steps: int,
        costs: Callable[[], Mapping[str, str]],
        time_before: StepTime | None,
    ) -> None:
        self._console, self._record, self._steps = console, record, steps
        self._costs, self._time_before = costs, time_before
        self._cost_texts: Mapping[str, str] = {}
        self._cost_at = self._drawn_at = 0.0
        self._started_at: dict[str, float] = {}
        self._doing: dict[str, str] = {}
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> LiveView:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def changed(self, trial: TrialRecord, message: Event | None) -> None:
        if message is None:
            self._doing[trial.trial_id] = "starting" if trial.state is TrialState.RUNNING else ""
        else:
            self._doing[trial.trial_id] = _doing(message, self._steps)
        if self._live is None and not isinstance(message, Finished):
            self._console.print(Text(self._line(trial, message)), soft_wrap=True)
        self.tick()

    def warn(self, text: str) -> None:
        self._console.print(Text(f"warning: {text}", style="yellow"), soft_wrap=True)

    def tick(self) -> None:
        now = time.monotonic()
        if self._live and now - self._drawn_at >= REDRAW_SECONDS:
            self._drawn_at = now
            if now - self._cost_at >= COST_SECONDS:
                self._cost_at, self._cost_texts = now, self._costs()
            self._live.update(Group(self._table(), Text("Ctrl-C stops; the sweep can be resumed.", style="dim")))
            self._live.refresh()

    def _line(self, trial: TrialRecord, message: Event | None) -> str:
        head = f"{trial.trial_id} {trial.planned.label:<14}"
        if isinstance(message, StepReport):
            curves = message.curves
            clip = curves.clip_frac.value if curves.clip_frac else None
            return (
                f"{head} step {message.step:>3}/{self._steps}  reward {number(curves.reward.value)}  "
                f"acc {number(curves.acc.value)}  clip_frac {share(clip)}  {duration(message.wall_ns / NS_PER_SECOND)}"
            )
        if isinstance(message, Started):
            return f"{head} started on {message.device} with {message.engine}, {message.parameters:,} parameters"
        if isinstance(message, EvalReport):
            return f"{head} evaluation at step {message.step}: acc {number(message.accuracy)}"
        if isinstance(message, CheckpointWritten):
            return f"{head} checkpoint at step {message.step} ({message.size_bytes / 1e6:.0f} MB)"
        attempt = trial.attempts[-1] if trial.attempts else None
        state = trial.state
        word = "starting" if state is TrialState.RUNNING else state.lower()
        if attempt and attempt.outcome and trial.retry_not_before_ns is not None:
            word = f"{attempt.outcome.replace('_', ' ')}, will be tried again"
        return f"{head} {word}: {attempt.message}" if attempt and attempt.message else f"{head} {word}"

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, expand=False)
        for name, right in [
            ("trial", False),
            ("point", False),
            ("state", False),
            ("step", True),
            ("", False),
            ("reward", True),
            ("acc", True),
            ("clip_frac", True),
            ("cost so far", True),
            ("time left", True),
        ]:
            table.add_column(name, justify="right" if right else "left", no_wrap=True)
        trials = list(self._record.trials.values())
        active = [t for t in trials if t.state is TrialState.RUNNING]
        others = [t for t in trials if t.state is not TrialState.RUNNING]
        shown = (active + others)[: max(5, self._console.height - 6)]
        for trial in sorted(shown, key=trials.index):
            last, done = trial.summary.last, trial.summary.step
            state = self._doing.get(trial.trial_id) if trial.state is TrialState.RUNNING else ""
            table.add_row(
                trial.trial_id[:6],
                trial.planned.label[:16],
                Text(state or trial.state.lower(), style=_STYLES.get(trial.state, "")),
                f"{done}/{self._steps}",
                ProgressBar(total=self._steps, completed=done, width=12),
                number(last.reward if last else None),
                number(last.acc if last else None),
                share(last.clip_frac if last else None),
                self._cost_texts.get(trial.trial_id, "-"),
                duration(self._seconds_left(trial)),
            )
        if len(shown) < len(trials):
            table.add_row("...", f"and {len(trials) - len(shown)} more")
        return table

    def _seconds_left(self, trial: TrialRecord) -> float | None:
        if trial.state in (TrialState.COMPLETED, TrialState.PRUNED):
            return 0.0
        done = trial.summary.step
        remaining = self._steps - done
        if done:
            return remaining * trial.summary.wall_ns / done / NS_PER_SECOND
        return self._time_before.of(trial.planned, self._steps) if self._time_before else None


def _doing(message: Event, steps: int) -> str:
    match message:
        case Started():
            return "evaluating" if message.step == 0 else "training"
        case StepReport() if message.step >= steps:
            return "evaluating"
        case _:
            return "training"


def results_table(record: SweepRecord, costs: Mapping[str, str], card_hours: Mapping[str, Decimal]) -> Table:
    """What came of each trial: the evaluation with its 95 % interval, card-hours and cost."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name, right in [
        ("trial", False),
        ("point", False),
        ("lr", True),
        ("state", False),
        ("before", True),
        ("acc after [95 %]", True),
        ("clip_frac", True),
        ("card-h", True),
        ("cost", True),
    ]:
        table.add_column(name, justify="right" if right else "left", no_wrap=name != "point")
    for trial in itertools.islice(record.trials.values(), MOST_ROWS):
        evaluations = [trial.summary.first_evaluation, trial.summary.last_evaluation]
        before = next((e for e in evaluations if e and e.step == 0), None)
        after = next((e for e in reversed(evaluations) if e and e.step > 0), None)
        hours = card_hours.get(trial.trial_id)
        table.add_row(
            trial.trial_id[:6],
            trial.planned.label,
            f"{trial.planned.lr:.{DIGITS}g}" if trial.planned.overrides else f"{trial.planned.lr:.1e}",
            Text(trial.state.lower(), style=_STYLES.get(trial.state, "")),
            number(before.accuracy if before else None, 2),
            _interval(after),
            share(trial.summary.window_clip_frac),
            "-" if hours is None else f"{hours:.3f}",
            costs.get(trial.trial_id, "-"),
        )
    _say_the_rest(table, len(record.trials))
    return table


def _say_the_rest(table: Table, rows: int) -> None:
    if rows > MOST_ROWS:
        table.add_row("...", f"{rows - MOST_ROWS} more")


def _interval(report: Evaluation | None) -> str:
    if report is None:
        return "-"
    estimate = average_at_k(report.results)
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def print_gate(console: Console, verdict: GateVerdict) -> None:
    word = "open" if verdict.healthy else f"closed, passed by force: {verdict.forced}" if verdict.open else "closed"
    style = "green" if verdict.healthy else "yellow" if verdict.open else "red"
    suffix = " (simulated: it says nothing of a real run)" if verdict.simulated else ""
    console.print(Text.assemble(("Metric gate: ", "bold"), (word, style), suffix))
    for check in verdict.checks:
        mark, style = {True: ("ok  ", "green"), False: ("NO  ", "red"), None: ("--  ", "dim")}[check.ok]
        console.print(Text.assemble("  ", (mark, style), f"{check.name}: {check.reason}"))


def print_lr_advice(console: Console, trials: Sequence[TrialRecord], cfg: SweepConfig) -> None:
    """What the clip_frac rule says of each trial, and on what basis."""
    judged = [trial for trial in trials if trial.summary.step]
    for trial in judged[:MOST_ROWS]:
        advice = advise(trial.summary, with_values(cfg, trial.planned.overrides).algorithm)
        console.print(Text(f"  {trial.trial_id[:6]} {trial.planned.label}: {advice.action} ({advice.reason})"))
    if len(judged) > MOST_ROWS:
        console.print(f"  ... {len(judged) - MOST_ROWS} more")
    console.print(Text(f"  basis: {advise(TrialSummary(), cfg.algorithm).basis}", style="dim"))

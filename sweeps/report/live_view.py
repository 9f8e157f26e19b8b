"""Shows a running sweep: a table that is redrawn in place, or one line per trainer message in a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from rl.spec import CheckpointWritten, EvalReport, Event, Finished, Started, StepReport
from sweeps.forecast.step_time import StepTime
from sweeps.journal.journal import SweepRecord, TrialRecord, TrialState
from sweeps.report.console import STATE_STYLES, duration_text, number_text, percent_text
from sweeps.report.fitted_table import Column, FittedTable

REDRAW_SECONDS = 0.5
COST_SECONDS = 5.0
"""Interval at which the costs in the table are read again."""
NS_PER_SECOND = 1e9


class LiveView:
    """The view of one sweep (`sweeps.driver.controller.View`). `costs` reads each trial's cost so far as text."""

    def __init__(
        self,
        console: Console,
        record: SweepRecord,
        steps: int,
        costs: Callable[[], Mapping[str, str]],
        step_time: StepTime | None,
    ) -> None:
        self._console, self._record, self._steps = console, record, steps
        self._costs, self._step_time = costs, step_time
        self._cost_texts: Mapping[str, str] = {}
        self._costs_read_at = self._drawn_at = 0.0
        self._activities: dict[str, str] = {}
        """By trial, of running ones: starting, training or evaluating."""
        self._scorer_failed: set[str] = set()
        """Trials whose first scorer error was shown."""
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
            self._activities[trial.trial_id] = "starting" if trial.state is TrialState.RUNNING else ""
        else:
            self._activities[trial.trial_id] = _activity_after(message, self._steps)
            if isinstance(message, StepReport) and message.scorer_error and trial.trial_id not in self._scorer_failed:
                self._scorer_failed.add(trial.trial_id)
                errors = message.curves.reward_errors
                self.warn(
                    f"{trial.trial_id}: the scorer failed for {errors.total:.0f} of {errors.count:.0f} completions of "
                    f"step {message.step}: {message.scorer_error}"
                )
        if self._live is None and not isinstance(message, Finished):
            self._console.print(Text(self._line(trial, message)), soft_wrap=True)
        self.tick()

    def warn(self, text: str) -> None:
        self._console.print(Text(f"warning: {text}", style="yellow"), soft_wrap=True)

    def tick(self) -> None:
        now = time.monotonic()
        if self._live and now - self._drawn_at >= REDRAW_SECONDS:
            self._drawn_at = now
            if now - self._costs_read_at >= COST_SECONDS:
                self._costs_read_at, self._cost_texts = now, self._costs()
            self._live.update(Group(self._table(), Text("Ctrl-C stops; the sweep can be resumed.", style="dim")))
            self._live.refresh()

    def _line(self, trial: TrialRecord, message: Event | None) -> str:
        head = f"{trial.trial_id} {trial.planned.label:<14}"
        match message:
            case StepReport():
                curves = message.curves
                clip = curves.clip_frac.value if curves.clip_frac else None
                return (
                    f"{head} step {message.step:>3}/{self._steps}  reward {number_text(curves.reward.value)}  "
                    f"acc {number_text(curves.acc.value)}  clip_frac {percent_text(clip)}  "
                    f"{duration_text(message.wall_ns / NS_PER_SECOND)}"
                )
            case Started():
                return (
                    f"{head} started: device {message.device}, engine {message.engine}, "
                    f"{message.parameters:,} parameters"
                )
            case EvalReport():
                return f"{head} evaluation at step {message.step}: acc {number_text(message.accuracy)}"
            case CheckpointWritten():
                return f"{head} checkpoint at step {message.step} ({_size_text(message.size_bytes)})"
            case _:
                return f"{head} {_state_text(trial)}"

    def _table(self) -> FittedTable:
        table = FittedTable(
            (
                Column("trial"),
                Column("point", drop=3),
                Column("state"),
                Column("step", right=True),
                Column("", drop=1),
                Column("reward", right=True),
                Column("acc", right=True),
                Column("clip_frac", right=True, drop=2),
                Column("cost so far", right=True),
                Column("time left", right=True),
            )
        )
        trials = list(self._record.trials.values())
        active = [t for t in trials if t.state is TrialState.RUNNING]
        others = [t for t in trials if t.state is not TrialState.RUNNING]
        shown = (active + others)[: max(5, self._console.height - 6)]
        for trial in sorted(shown, key=trials.index):
            last, done = trial.summary.last, trial.summary.step
            activity = self._activities.get(trial.trial_id) if trial.state is TrialState.RUNNING else ""
            table.add_row(
                trial.trial_id[:6],
                trial.planned.label[:16],
                Text(activity or trial.state.lower(), style=STATE_STYLES.get(trial.state, "")),
                f"{done}/{self._steps}",
                ProgressBar(total=self._steps, completed=done, width=12),
                number_text(last.reward if last else None),
                number_text(last.acc if last else None),
                percent_text(last.clip_frac if last else None),
                self._cost_texts.get(trial.trial_id, "-"),
                duration_text(self._seconds_left(trial)),
            )
        if len(shown) < len(trials):
            table.add_row("...", f"and {len(trials) - len(shown)} more")
        return table

    def _seconds_left(self, trial: TrialRecord) -> float | None:
        if trial.state in (TrialState.COMPLETED, TrialState.PRUNED):
            return 0.0
        done = trial.summary.step
        if done:
            return (self._steps - done) * trial.summary.wall_ns / done / NS_PER_SECOND
        return self._step_time.of(trial.planned, self._steps) if self._step_time else None


def _activity_after(message: Event, steps: int) -> str:
    """What a trainer does after this message."""
    match message:
        case Started():
            return "evaluating" if message.step == 0 else "training"
        case StepReport() if message.step >= steps:
            return "evaluating"
        case _:
            return "training"


def _state_text(trial: TrialRecord) -> str:
    attempt = trial.attempts[-1] if trial.attempts else None
    text = "starting" if trial.state is TrialState.RUNNING else trial.state.lower()
    if attempt and attempt.outcome and trial.retry_not_before_ns is not None:
        text = f"{attempt.outcome.replace('_', ' ')}, will be retried"
    return f"{text}: {attempt.message}" if attempt and attempt.message else text


def _size_text(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.0f} MB" if size_bytes >= 1_000_000 else f"{size_bytes / 1e3:.1f} kB"

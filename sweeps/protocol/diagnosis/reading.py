"""A run as the diagnosis reads it: first and last windows, changes, and whether there is anything left to learn.

Tested in tests/sweeps/protocol/diagnosis/test_diagnose.py.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from sweeps.protocol.diagnosis.finding import Evidence, points_of
from sweeps.protocol.diagnosis.limits import Limits
from sweeps.protocol.run_curves import Evaluation, RunCurves
from sweeps.protocol.windows import Change, Window, change, first_window, in_noise, last_window, noise_of, windows


@dataclass(frozen=True)
class EvaluationChange:
    """Two evaluations as independent samples; pairs of the same questions would see more."""

    first: Evaluation
    last: Evaluation
    standard_error: float

    @property
    def difference(self) -> float:
        return self.last.accuracy - self.first.accuracy

    @property
    def errors(self) -> float:
        """The difference in standard errors."""
        return self.difference / self.standard_error


def compare_evaluations(first: Evaluation, last: Evaluation) -> EvaluationChange | None:
    """None: a number of questions is unknown.

    With one success and one failure more on each side (Agresti and Caffo, Am. Stat. 54 (2000) 280), so that shares of 0
    and 1 have an error, too.
    """
    variance = 0.0
    for evaluation in (first, last):
        if not evaluation.questions:
            return None
        share = (evaluation.accuracy * evaluation.questions + 1.0) / (evaluation.questions + 2.0)
        variance += share * (1.0 - share) / (evaluation.questions + 2.0)
    return EvaluationChange(first, last, math.sqrt(variance))


@dataclass(frozen=True)
class Reading:
    """A run and the limits that it is judged by. Every method returns None where the curve has too few values."""

    run: RunCurves
    limits: Limits

    def first(self, curve: str) -> Window | None:
        return first_window(self.run, curve, self.limits.window_steps, self.limits.window_completions)

    def last(self, curve: str) -> Window | None:
        return last_window(self.run, curve, self.limits.window_steps, self.limits.window_completions)

    @functools.cached_property
    def _series(self) -> dict[str, tuple[Window, ...]]:
        return {}

    def series(self, curve: str) -> tuple[Window, ...]:
        """Every full window of a curve."""
        if curve not in self._series:
            limits = self.limits
            self._series[curve] = windows(self.run, curve, limits.window_steps, limits.window_completions)
        return self._series[curve]

    def ends(self, curve: str) -> tuple[Window, Window] | None:
        """The first and the last window, where they do not overlap."""
        first, last = self.first(curve), self.last(curve)
        if first is None or last is None or first.last_step >= last.first_step:
            return None
        return first, last

    def change(self, curve: str) -> Change | None:
        """The first against the last part of the run."""
        return change(self.run, curve, self.limits.window_steps, self.limits.window_completions)

    @functools.cached_property
    def improved(self) -> bool | None:
        """Whether the run is proven to have learned, by its reward or its evaluations. None: too short to judge."""
        rise = self.evaluation_change
        if rise is not None and rise.errors >= 2.0:
            return True
        found = self.change("reward")
        return None if found is None else found.noise_units >= self.limits.gain

    def distance(self, curve: str, before: Window, after: Window) -> float | None:
        """After minus before, in noise of the curve."""
        return in_noise(after.mean - before.mean, noise_of(self.run.known(curve)), before, after)

    @functools.cached_property
    def hurt(self) -> bool:
        """Whether the reward is proven to be below its best window."""
        series = self.series("reward")
        if not series:
            return False
        distance = self.distance("reward", max(series, key=lambda w: w.mean), series[-1])
        return distance is not None and distance <= -self.limits.clear

    @property
    def harmful(self) -> bool:
        """Whether something that can be normal does harm here: the reward fell, or stays away though it could rise."""
        return self.hurt or (self.improved is False and self.room_to_learn is True)

    @functools.cached_property
    def evaluation_change(self) -> EvaluationChange | None:
        """From the first evaluation to the last. None: fewer than two, or an unknown number of questions."""
        if len(self.run.evaluations) < 2:
            return None
        return compare_evaluations(self.run.evaluations[0], self.run.evaluations[-1])

    @functools.cached_property
    def room_to_learn(self) -> bool | None:
        """Whether more could be learned. None: unknown.

        By accuracy where it is known. Else by a reward between 0 and 1. Else by its right tail: a reward near its
        ceiling has no rows far above its mean.
        """
        accuracy = self.last("acc")
        if accuracy is not None:
            return accuracy.mean < self.limits.saturated
        reward, rows = self.last("reward"), self.run.known("reward")
        if reward is None:
            return None
        if min(rows) >= 0.0 and max(rows) <= 1.1:
            return reward.mean < self.limits.saturated
        spread = statistics.pstdev(rows)
        if len(rows) >= 100 and spread and (max(rows) - reward.mean) / spread >= 3.0:
            return True
        return None

    def stalled_since(self, step: int) -> bool:
        """Whether the reward has had time to rise after this step, and has not."""
        found = Reading(self.run.after(step), self.limits).change("reward")
        return found is not None and found.noise_units < self.limits.gain

    def evidence(self, curve: str, text: str, first_step: int, last_step: int | None = None) -> Evidence:
        """Evidence with a plot of the curve."""
        end = self.run.last_step if last_step is None else last_step
        return Evidence(curve, text, first_step, end, points_of(self.series(curve)))

    def since(self, curve: str, limit: float, *, above: bool, median: bool = False) -> int:
        """The first step of the newest unbroken run of windows beyond a limit."""
        return since(self.series(curve), limit, above=above, median=median)


def since(series: Sequence[Window], limit: float, *, above: bool, median: bool = False) -> int:
    """The first step of the newest unbroken run of windows beyond a limit; of the last window if that is within it."""
    start = series[-1]
    for window in reversed(series):
        value = window.median if median else window.mean
        if not (value > limit if above else value < limit):
            break
        start = window
    return start.first_step


def span(window: Window) -> str:
    """`steps 1 to 20`"""
    return f"steps {window.first_step} to {window.last_step}"

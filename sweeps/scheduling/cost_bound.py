"""The amount that is reserved for a trial: `budget.trial_bound`, or the P90 of a forecast of its time, at the machine's
price.

A forecast is a function from a trial to P50 and P90 (`TrialForecast`). `StepTimeForecast` is the one in use; another
source of forecasts takes its place in `BudgetController(forecast=...)`.

Tested in tests/sweeps/scheduling/test_budget_controller.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Protocol

from sweeps.config.types import SweepConfig
from sweeps.forecast.step_time import StepTime, measured
from sweeps.journal.journal import SweepRecord, TrialRecord

UNKNOWN = "the cost of a trial is not known yet"


@dataclass(frozen=True)
class AttemptSeconds:
    """How long an attempt takes from its start to its end, in wall-clock seconds."""

    p50: float
    p90: float
    basis: str
    """What the figures rest on, for a person."""


class TrialForecast(Protocol):
    """Forecasts attempts of one sweep."""

    def __call__(self, trial: TrialRecord, from_step: int) -> AttemptSeconds | None:
        """An attempt that starts after `from_step` steps. None: nothing is known about its time."""
        ...

    def update(self) -> bool:
        """Take in what the sweep has reported so far. Returns whether forecasts have changed."""
        ...


@dataclass(frozen=True)
class CostBound:
    """The most that one attempt is expected to cost, from its start to its end."""

    pico: int
    """1e-12 of the machine's currency, before tax."""
    cards: Decimal
    """How many of the machine's cards the amount pays for: the attempt's own, and its share of those that idle."""
    basis: str
    """What the amount rests on, for a person."""


def cost_bound(seconds: AttemptSeconds, pico_per_hour: Fraction, cards: int, trials_at_once: int) -> CostBound:
    """The cost of an attempt's P90.

    Args:
        pico_per_hour: price of the whole machine, 1e-12 of its currency.
        cards: cards of the machine.
        trials_at_once: trials that share the machine's cost.
    """
    pico = math.ceil(pico_per_hour * Fraction(seconds.p90) / 3600 / trials_at_once)
    share = (Decimal(cards) / trials_at_once).quantize(Decimal("0.000001"))
    return CostBound(pico, share, seconds.basis)


class StepTimeForecast:
    """Forecasts by the step times of this sweep, once there are any; until then by those that it was given."""

    def __init__(self, cfg: SweepConfig, record: SweepRecord, time: StepTime | None) -> None:
        """`time`: from earlier sweeps or the machine's data sheet. None: nothing is known before the first steps."""
        self._cfg, self._record, self._time = cfg, record, time
        self._ended_when_measured = 0
        """Trials that had ended when the step times of this sweep were taken last; 0: they were not taken yet."""

    def __call__(self, trial: TrialRecord, from_step: int) -> AttemptSeconds | None:
        if self._time is None:
            return None
        steps = self._cfg.stage.steps - from_step
        expected = self._time.of(trial.planned, steps)
        forecast = self._time.forecast(trial.planned, steps)
        p50, p90 = forecast or (expected, expected)
        p90 = max(expected * self._time.allowance, p90)
        return AttemptSeconds(p50, p90, f"{self._time.source}, x {self._time.allowance:g}")

    def update(self) -> bool:
        ended = sum(bool(t.attempts and t.attempts[-1].outcome) for t in self._record.trials.values())
        if self._ended_when_measured and ended < 2 * self._ended_when_measured:
            return False
        found = measured([self._record], self._cfg)
        if found is None:
            return False
        self._time, self._ended_when_measured = found, max(1, ended)
        return True

"""The most that a trial is taken to cost: what is set aside for it before it starts.

A configured amount, else its time as measured in this sweep or an earlier one, or as the machine's data sheet has it,
with an allowance, at the machine's price. Time costs the trial's cards, and its part of the cards that idle beside it.
Another forecast takes this one's place by being a `Bounds`.
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


@dataclass(frozen=True)
class Bound:
    """An amount for one attempt, from its start to its end."""

    pico: int
    """1e-12 of the machine's currency, before tax."""
    cards: Decimal
    """How many of the machine's cards that pays for."""
    source: str


class Bounds(Protocol):
    """What a trial may cost at most, from its last checkpoint on. None: nothing is known that could tell."""

    def __call__(self, trial: TrialRecord) -> Bound | None: ...

    def learn(self) -> bool:
        """Take in what the sweep has shown so far; whether its own times are known now and were not before."""
        ...


class MeasuredBounds:
    """`Bounds` by step times."""

    def __init__(
        self,
        cfg: SweepConfig,
        record: SweepRecord,
        time: StepTime | None,
        per_hour: Fraction,
        configured: int | None,
    ) -> None:
        """`time`: of earlier sweeps, or the data sheet's. `per_hour`: of the whole machine, 1e-12 of its currency.

        `configured`: `budget.trial_bound`, in 1e-12 of that currency.
        """
        self._cfg, self._record, self._time = cfg, record, time
        self.per_hour = per_hour
        """A lease of own hardware may know its watts better than the configuration does."""
        self._configured, self._left = configured, record.left
        self._measured_at = 0
        """Trials that were over when this sweep's own times were taken last; 0: they are not known."""

    def __call__(self, trial: TrialRecord) -> Bound | None:
        per_trial = Decimal(self._cfg.search.cards_per_trial)
        if self._configured is not None:
            return Bound(self._configured, per_trial, "budget.trial_bound")
        if self._time is None:
            return None
        steps = self._cfg.stage.steps - (trial.checkpoint.step if trial.checkpoint else 0)
        seconds = self._time.of(trial.planned, steps) * self._time.allowance
        forecast = self._time.forecast(trial.planned, steps)
        seconds = max(seconds, forecast[1] if forecast else 0.0)
        at_once = self._at_once()
        pico = math.ceil(self.per_hour * Fraction(seconds) / 3600 / at_once)
        cards = (Decimal(self._cfg.machine.cards) / at_once).quantize(Decimal("0.000001"))
        return Bound(pico, cards, f"{self._time.source}, x {self._time.allowance:g}")

    def learn(self) -> bool:
        self._left = self._record.left
        over = sum(bool(t.attempts and t.attempts[-1].outcome) for t in self._record.trials.values())
        if self._measured_at and over < 2 * self._measured_at:
            return False
        found = measured([self._record], self._cfg)
        if found is None:
            return False
        first, self._time, self._measured_at = not self._measured_at, found, max(1, over)
        return first

    def _at_once(self) -> int:
        """Trials among which the machine's cards are divided."""
        search, cards = self._cfg.search, self._cfg.machine.cards
        return max(1, min(search.trials_at_once(cards), self._left))

"""What attempts of one sweep need: the amount that is reserved for each, by the forecast and the machine's price.

Tested in tests/sweeps/scheduling/test_budget_controller.py.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from cost.charges.lease_charge import billing_rules
from cost.prices.billing import charge, rule_for, total
from cost.prices.book import pico_per_hour
from cost.records import Lease
from sweeps.config.types import SweepConfig
from sweeps.journal.journal import SweepRecord, TrialRecord
from sweeps.machines.pricing import Pricing
from sweeps.scheduling import budget_decisions as decisions
from sweeps.scheduling.budget_readings import BudgetReadings
from sweeps.scheduling.cost_bound import UNKNOWN, CostBound, TrialForecast, cost_bound


class AttemptBounds:
    """Bounds on the cost of attempts: `budget.trial_bound`, or the forecast, within what the trial's limit leaves."""

    def __init__(
        self,
        cfg: SweepConfig,
        record: SweepRecord,
        pricing: Pricing,
        readings: BudgetReadings,
        forecast: TrialForecast,
    ) -> None:
        self._cfg, self._record, self._readings, self._forecast = cfg, record, readings, forecast
        self._row, self._book = pricing.row, pricing.book
        self._bound_pico: int | None = None
        self._pico_per_hour = Fraction(0)
        if self._row is not None:
            if cfg.budget.trial_bound is not None:
                self._bound_pico = readings.in_machine_currency(cfg.budget.trial_bound, "budget.trial_bound")
            self._pico_per_hour = pico_per_hour(self._row, cfg.machine.cards, Decimal(str(cfg.machine.watts)))
        self._trials_left = record.left

    def use_lease(self, lease: Lease) -> None:
        """From now on attempts run on this lease. That of own hardware may have measured watts."""
        if self._row is not None:
            self._pico_per_hour = pico_per_hour(self._row, lease.cards, lease.watts or 0)

    def update(self) -> bool:
        """Take in what the sweep has reported so far. Returns whether forecasts have changed."""
        self._trials_left = self._record.left
        return self._forecast.update()

    def of(self, trial: TrialRecord, from_step: int | None = None) -> CostBound | None:
        """What to reserve for an attempt of a trial; None: nothing is known. `from_step`: None: its checkpoint's."""
        if from_step is None:
            from_step = trial.checkpoint.step if trial.checkpoint else 0
        cards = Decimal(self._cfg.search.cards_per_trial)
        expected = None
        if self._bound_pico is not None:
            expected = CostBound(self._bound_pico, cards, "budget.trial_bound")
        elif seconds := self._forecast(trial, from_step):
            at_once = max(1, min(self._cfg.search.trials_at_once(self._cfg.machine.cards), self._trials_left))
            expected = cost_bound(seconds, self._pico_per_hour, self._cfg.machine.cards, at_once)
        return decisions.amount_to_reserve(expected, self._left_of_trial_limit(trial.trial_id), cards)

    def need(self, trial: TrialRecord) -> CostBound:
        """What has to be free for an attempt of a trial."""
        return self.of(trial) or self.unknown()

    def unknown(self) -> CostBound:
        """The least that an attempt of unknown cost needs."""
        return CostBound(1, Decimal(self._cfg.search.cards_per_trial), UNKNOWN)

    def least_charge(self, now_ns: int) -> int:
        """What a machine costs that is released at once: the first granule, or the minimum."""
        row = self._row
        assert row is not None
        rule = rule_for(billing_rules(self._book), row.provider, row.purchase)
        watts = Decimal(str(self._cfg.machine.watts))
        return total(charge(now_ns, now_ns + 1, rule=rule, prices=(row,), cards=self._cfg.machine.cards, watts=watts))

    def _left_of_trial_limit(self, trial_id: str) -> int | None:
        """What `budget.trial_limit` leaves for a trial that is about to start; None: there is no such limit."""
        limit, snapshot = self._cfg.budget.trial_limit, self._readings.snapshot
        if limit is None or self._row is None:
            return None
        spent = snapshot.trial_spent(self._record.sweep_id, trial_id, limit.currency)
        return max(0, snapshot.convert(limit - spent, self._row.currency).pico)

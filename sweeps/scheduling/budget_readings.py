"""The readings that a sweep's budget is decided by: snapshots of the ledger, fresh and exact enough for a decision.

Tested in tests/sweeps/scheduling/test_budget_controller.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from cost.budgets.reader import BudgetReader
from cost.budgets.snapshot import BudgetSnapshot
from cost.clock import NS_PER_SECOND
from cost.ledger.ledger import Ledger
from cost.ledger.reservations import Reservation
from cost.money import Money
from cost.periods import utc_day
from cost.prices.fx import convert, load_rates, rate_notes
from sweeps.config.types import ConfigError, SweepConfig
from sweeps.machines.pricing import Pricing
from sweeps.scheduling.limits import applicable_limits, configured_limits, in_machine_currency, scopes_of

_T = TypeVar("_T")
FRESH_NS = NS_PER_SECOND
"""A snapshot is read again before a decision when it is older than this."""


class BudgetReadings:
    """The present snapshot of one sweep's limits, spending and reservations. Reading one writes nothing."""

    def __init__(self, cfg: SweepConfig, ledger: Ledger, sweep_id: str, pricing: Pricing) -> None:
        self._ledger, self._row = ledger, pricing.row
        self._trial_limit = cfg.budget.trial_limit
        self._rates = load_rates(pricing.book.folder)
        self._reader = BudgetReader(
            ledger,
            pricing.book,
            scopes_of(cfg, sweep_id),
            configured=configured_limits(cfg, sweep_id),
            always=[f"sweep:{sweep_id}"] if cfg.budget.trial_limit else [],
            simulated=cfg.simulated,
            stages={sweep_id: cfg.stage.name},
        )
        self.limit_problems: tuple[str, ...] = ()
        """Why limits are not applied to this machine, one sentence each."""
        self.snapshot = self.read()

    def read(self, *, exact: bool = False) -> BudgetSnapshot:
        """A snapshot of this moment, with the limits that can be applied to the machine."""
        now_ns = self._ledger.now_ns()
        snapshot = self._reader.read(now_ns, exact=exact)
        limits, self.limit_problems = applicable_limits(snapshot.limits, self._row, utc_day(now_ns), self._rates)
        return replace(snapshot, limits=limits)

    def update(self, *, exact: bool = False) -> None:
        """Make a snapshot of this moment the present one."""
        self.snapshot = self.read(exact=exact)

    def refresh(self) -> None:
        """Update a snapshot that is not fresh."""
        if self._ledger.now_ns() - self.snapshot.at_ns >= FRESH_NS:
            self.update()

    def confirmed(self, decide: Callable[[BudgetSnapshot], _T]) -> _T:
        """A decision by the present snapshot. Where an estimate gives a reason, an exact reading has to confirm it: an
        estimate may be too high."""
        found = decide(self.snapshot)
        if not found or self.snapshot.exact:
            return found
        self.update(exact=True)
        return decide(self.snapshot)

    def add_reservation(self, reservation: Reservation, from_ns: int) -> None:
        """Count a reservation that was written after the snapshot was read."""
        if reservation.key.lease_id in self.snapshot.leases:
            self.snapshot = self.snapshot.with_reservation(replace(reservation, from_ns=from_ns))

    def check_limits(self) -> tuple[str, ...]:
        """The exchange rates at which limits in other currencies are compared, one sentence each.

        Raises:
            ConfigError: a limit on a machine without a price, or without an exchange rate to its currency.
        """
        if self.limit_problems:
            raise ConfigError(self.limit_problems[0])
        given = {limit.source: limit.amount for limit in self.snapshot.limits}
        given |= {"budget.trial_limit": self._trial_limit} if self._trial_limit else {}
        for source, amount in given.items():
            self.in_machine_currency(amount, source)
        if self._row is None:
            return ()
        currency, day = self._row.currency, utc_day(self._ledger.now_ns())
        return rate_notes(convert(1, currency, amount.currency, day, self._rates) for amount in given.values())

    def in_machine_currency(self, amount: Money, source: str) -> int:
        """An amount of the configuration, 1e-12 of the machine's currency. `source`: its key, for messages."""
        return in_machine_currency(amount, self._row, source, utc_day(self._ledger.now_ns()), self._rates)

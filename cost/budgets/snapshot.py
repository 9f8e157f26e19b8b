"""Limits, and what is spent and reserved under them at one moment: immutable, and arithmetic only.

`cost.budgets.reader` makes snapshots from the ledger. Whoever decides by a budget takes a snapshot and calculates;
nothing here reads or writes anything.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from fractions import Fraction
from functools import cached_property
from math import floor

from cost.ledger.reservations import Reservation
from cost.money import Money
from cost.periods import utc_day
from cost.prices.fx import Conversion, Rate, convert, rate_notes

Amounts = Mapping[tuple[str, date], int]
"""1e-12 of a currency, by that currency and the day (UTC) whose exchange rate applies."""


@dataclass(frozen=True)
class Limit:
    """At most `amount` may be spent under `scope`: `month`, `stage:NAME` or `sweep:NAME`."""

    scope: str
    amount: Money
    config_key: str = ""
    """The configuration key that sets the limit. Empty: the ledger stores it (`python -m cost budget --set`)."""

    @property
    def source(self) -> str:
        """Where a person changes the limit."""
        return self.config_key or f"cost budget --set {self.scope}"


@dataclass(frozen=True)
class CardsInUse:
    """The cards of a lease that a running attempt uses, and since when."""

    lease_id: str
    from_ns: int
    cards: int


@dataclass(frozen=True)
class LeaseCost:
    """The charge of one lease at the moment of a snapshot. Amounts in 1e-12 of the lease's currency."""

    lease_id: str
    currency: str
    cards: int
    is_open: bool
    all_sweeps: frozenset[str]
    """Every sweep that was ever attached."""
    sweeps: frozenset[str]
    """The sweeps attached now."""
    total: int
    """Tax included."""
    prepaid: int
    """The part of `total` that pays for time still to come: the rest of a started granule or of a minimum."""
    tax: Fraction
    """Share that is added to prices."""
    pico_per_ns: Fraction
    """What the machine costs from now on, tax included; 0 once the lease is closed."""
    edges_ns: tuple[int, ...] = ()
    cost_at_edges: tuple[Fraction, ...] = ()
    """The cost of the machine's time up to each edge, before tax."""

    def cost_since(self, from_ns: int) -> Fraction:
        """The cost of the machine's time from a moment until now, before tax."""
        if not self.edges_ns or from_ns >= self.edges_ns[-1]:
            return Fraction(0)
        at = bisect_right(self.edges_ns, from_ns)
        if at == 0:
            return self.cost_at_edges[-1]
        start_ns, stop_ns = self.edges_ns[at - 1], self.edges_ns[at]
        piece = self.cost_at_edges[at] - self.cost_at_edges[at - 1]
        before = self.cost_at_edges[at - 1] + piece * Fraction(from_ns - start_ns, stop_ns - start_ns)
        return self.cost_at_edges[-1] - before


@dataclass(frozen=True)
class BudgetSnapshot:
    """What is spent, what is reserved and which limits apply, at one moment.

    Spent amounts count the charge of leases, idle time and tax included. They are exact, or an estimate that is never
    too low: see `exact`.
    """

    at_ns: int
    exact: bool
    """False: charges since `exact_at_ns` count in full under every scope that may have to pay a part of them."""
    exact_at_ns: int
    limits: tuple[Limit, ...]
    spent_by_scope: Mapping[str, Amounts]
    """For the scopes that were read."""
    spent_by_trial: Mapping[tuple[str, str], Amounts]
    """By sweep and trial, all attempts, idle cards excluded; until `exact_at_ns`."""
    leases: Mapping[str, LeaseCost]
    """Every lease that counts, by its id."""
    reservations: tuple[Reservation, ...]
    """Of the attempts that run now."""
    stages: Mapping[str, str]
    """By sweep."""
    rates: tuple[Rate, ...]
    """Exchange rates."""
    month_end_ns: int
    """When the month of `at_ns` ends."""
    unpriced: Mapping[str, str]
    """By lease: why its cost is unknown. It is in none of the amounts."""

    def spent(self, scope: str, currency: str, *, unconverted: bool = False) -> Money:
        """Amounts in other currencies are converted at the rate of their day. `unconverted`: they are left out.

        Raises:
            MissingRateError: an exchange rate is missing.
        """
        amounts = self.spent_by_scope[scope].items()
        found = (
            self._convert(pico, own, day, currency).pico
            for (own, day), pico in amounts
            if _counts(own, currency, unconverted)
        )
        return Money(sum(found), currency)

    def reserved(
        self, scope: str, currency: str, more: Mapping[str, int] | None = None, *, unconverted: bool = False
    ) -> Money:
        """What running attempts may still cost, beyond what providers have charged ahead for their machines.

        Args:
            more: further amounts before tax, by lease, as if they were reserved too; 1e-12 of the lease's currency.
            unconverted: leases in other currencies are left out.
        """
        open_amounts = dict(self._open_amounts(scope))
        for lease_id, pico in (more or {}).items():
            open_amounts[lease_id] = open_amounts.get(lease_id, Fraction(0)) + pico
        total, today = 0, utc_day(self.at_ns)
        for lease_id, amount in open_amounts.items():
            lease = self.leases[lease_id]
            if not _counts(lease.currency, currency, unconverted):
                continue
            prepaid = lease.prepaid if self._pays_alone(scope, lease) else 0
            pico = max(0, floor(amount * (1 + lease.tax)) - prepaid)
            total += self._convert(pico, lease.currency, today, currency).pico
        return Money(total, currency)

    def trial_spent(self, sweep_id: str, trial_id: str, currency: str, running: CardsInUse | None = None) -> Money:
        """What the cards of a trial have cost, all attempts.

        `running`: the cards of its running attempt. An attempt that ended after `exact_at_ns` is not counted yet.
        """
        amounts = self.spent_by_trial.get((sweep_id, trial_id), {}).items()
        total = sum(self._convert(pico, own, day, currency).pico for (own, day), pico in amounts)
        lease = self.leases.get(running.lease_id) if running else None
        if running is not None and lease is not None:
            cost = lease.cost_since(max(running.from_ns, self.exact_at_ns)) * running.cards / lease.cards
            total += self._convert(floor(cost), lease.currency, utc_day(self.at_ns), currency).pico
        return Money(total, currency)

    def spent_at_ns(self, limit: Limit) -> int | None:
        """When a limit is spent if its machines go on as now; None: not before the month ends, or not at all."""
        left = Fraction((limit.amount - self.spent(limit.scope, limit.amount.currency)).pico)
        per_ns, today = Fraction(0), utc_day(self.at_ns)
        for lease in self.leases.values():
            if lease.pico_per_ns and self._concerns(limit.scope, lease):
                factor = self._convert(0, lease.currency, today, limit.amount.currency).factor
                per_ns += lease.pico_per_ns * factor
                left += lease.prepaid * factor
        if not per_ns:
            return None
        found = self.at_ns + max(0, floor(left / per_ns))
        return None if limit.scope == "month" and found >= self.month_end_ns else found

    def convert(self, amount: Money, currency: str) -> Money:
        """An amount in another currency, at the rate of the snapshot's day. Raises MissingRateError."""
        return Money(self._convert(amount.pico, amount.currency, utc_day(self.at_ns), currency).pico, currency)

    def with_reservation(self, reservation: Reservation) -> BudgetSnapshot:
        """The same with one more reservation, in place of an earlier one of the same attempt."""
        same = (reservation.sweep_id, reservation.key)
        others = (r for r in self.reservations if (r.sweep_id, r.key) != same)
        return replace(self, reservations=(*others, reservation))

    def currencies(self, scope: str) -> list[str]:
        """The currencies in which something was spent under a scope, or may be."""
        found = {currency for currency, _ in self.spent_by_scope[scope]}
        if scope == "month":
            found |= {lease.currency for lease in self.leases.values() if lease.is_open}
        return sorted(found)

    def rate_notes(self, scope: str, currency: str) -> tuple[str, ...]:
        """The exchange rates that convert the amounts of a scope, one sentence each."""
        spent = (self._convert(0, own, day, currency) for own, day in self.spent_by_scope[scope])
        today = utc_day(self.at_ns)
        open_leases = (self.leases[lease_id] for lease_id in self._open_amounts(scope))
        reserved = (self._convert(0, lease.currency, today, currency) for lease in open_leases)
        return rate_notes([*spent, *reserved])

    @cached_property
    def _left_of_reservations(self) -> list[tuple[Reservation, Fraction]]:
        """Each reservation, and the part of it that its attempt has not cost yet, before tax."""
        found = []
        for one in self.reservations:
            lease = self.leases[one.key.lease_id]
            used = Fraction(0)
            if one.from_ns is not None:
                used = lease.cost_since(one.from_ns) * Fraction(one.cards) / lease.cards
            found.append((one, max(Fraction(0), one.amount.pico - used)))
        return found

    def _open_amounts(self, scope: str) -> Mapping[str, Fraction]:
        """What is left of the reservations of a scope, by lease."""
        kind, _, name = scope.partition(":")
        found: dict[str, Fraction] = defaultdict(Fraction)
        for one, left in self._left_of_reservations:
            if kind == "month" or name == (one.stage if kind == "stage" else one.sweep_id):
                found[one.key.lease_id] += left
        return found

    def _concerns(self, scope: str, lease: LeaseCost) -> bool:
        return may_pay(scope, lease.all_sweeps, self.stages)

    def _pays_alone(self, scope: str, lease: LeaseCost) -> bool:
        """Whether every sweep that is attached to a lease now belongs to a scope."""
        kind, _, name = scope.partition(":")
        groups = self.stages if kind == "stage" else {sweep_id: sweep_id for sweep_id in lease.sweeps}
        return kind == "month" or all(groups.get(sweep_id) == name for sweep_id in lease.sweeps)

    def _convert(self, pico: int, own: str, day: date, currency: str) -> Conversion:
        return convert(pico, own, currency, day, self.rates)


def may_pay(scope: str, sweeps: frozenset[str], stages: Mapping[str, str]) -> bool:
    """Whether a scope may have to pay a part of a lease. `sweeps`: those that were ever attached to the lease."""
    kind, _, name = scope.partition(":")
    if kind == "month":
        return True
    if kind == "sweep":
        return name in sweeps
    return any(stages.get(sweep_id, name) == name for sweep_id in sweeps)


def _counts(own: str, currency: str, unconverted: bool) -> bool:
    return own == currency or not unconverted

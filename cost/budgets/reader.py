"""Reads budget snapshots from the ledger, cheap enough to be read at every heartbeat.

An exact reading splits the charge of every lease, as a report does. Readings between two exact ones look at the leases'
charges only: what these have grown by counts under every scope that may have to pay it. Such an amount is never too
low, and it is exact wherever one sweep uses a machine alone. Simulated sweeps cost no real money: a reader counts
either simulated leases or real ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date
from fractions import Fraction
from math import floor

from sqlalchemy import func, select

from cost.budgets.snapshot import Amounts, BudgetSnapshot, LeaseCost, Limit, may_pay
from cost.charges.attribution import attribute
from cost.charges.lease_charge import ChargeInputs, billing_rules, charge_lease, load_charge_inputs, tax_rate
from cost.clock import NS_PER_HOUR, NS_PER_SECOND
from cost.ledger import queries, schema
from cost.ledger.ledger import Ledger
from cost.money import Money
from cost.periods import period_edges, period_name, utc_day
from cost.prices.billing import BillingRule, Segment
from cost.prices.book import TIME_UNITS, PriceBook, PriceRow, in_force, pico_per_hour
from cost.prices.fx import fixings, load_rates
from cost.records import LeaseState

EXACT_FOR_NS = 600 * NS_PER_SECOND
"""After this time the next reading is exact: it takes in corrections and counted resources such as disks."""
STREAM = "budget"
"""The ledger's journal of limits."""
_MONTH_NS = 32 * 86_400 * NS_PER_SECOND


@dataclass(frozen=True)
class _ExactAmounts:
    """What one exact reading found."""

    at_ns: int
    month: str
    scopes: frozenset[str]
    by_scope: Mapping[str, Amounts]
    by_trial: Mapping[tuple[str, str], Amounts]
    lease_totals: Mapping[str, int]
    """The charge of each lease at that moment, tax included."""


class BudgetReader:
    """Makes the snapshots of some scopes: `month` (the calendar month, UTC), `stage:NAME`, `sweep:NAME`.

    Every call of `read` gives the state of the ledger at that moment. What a reader keeps between two calls makes the
    next one faster and changes no result.
    """

    def __init__(
        self,
        ledger: Ledger,
        book: PriceBook,
        scopes: Iterable[str],
        *,
        configured: Sequence[Limit] = (),
        always: Iterable[str] = (),
        simulated: bool = False,
        stages: Mapping[str, str] | None = None,
        rules: Sequence[BillingRule] | None = None,
    ) -> None:
        """
        Args:
            scopes: those whose stored limits apply.
            configured: limits that apply beside the stored ones.
            always: scopes that are read even while they have no limit.
            stages: stages of sweeps, by sweep, where the ledger may not have them yet.
            rules: billing rules; None: those beside the price book.
        """
        self._ledger, self._book, self._rules, self._simulated = ledger, book, rules, simulated
        self._scopes, self._configured, self._always = tuple(scopes), tuple(configured), frozenset(always)
        self._stages = dict(stages or {})
        self._rates = load_rates(book.folder)
        self._exact: _ExactAmounts | None = None
        self._closed: dict[str, LeaseCost] = {}
        """Leases that are closed; their charge changes with exact readings only."""
        self._unpriced: dict[str, str] = {}

    def read(self, now_ns: int, *, exact: bool = False) -> BudgetSnapshot:
        """The snapshot of a moment. `exact`: an estimate is not enough.

        Raises:
            PriceError: a price, a billing rule or an exchange rate is missing.
        """
        stored = stored_limits(self._ledger)
        limits = (*self._configured, *(Limit(scope, stored[scope]) for scope in self._scopes if scope in stored))
        scopes = self._always | {limit.scope for limit in limits}
        if not scopes:
            return BudgetSnapshot(now_ns, True, now_ns, (), {}, {}, {}, (), {}, self._rates, now_ns, {})
        month = period_name(now_ns, "month", UTC)
        known = self._exact
        if known is None or (exact and known.at_ns != now_ns) or not self._still_holds(known, now_ns, month, scopes):
            known, costs = self._read_exactly(now_ns, month, scopes)
        else:
            states = self._states()
            costs = self._lease_costs(now_ns, states, load_charge_inputs(self._ledger, self._book, states, now_ns))
        by_scope = {scope: self._with_growth(scope, known, costs, now_ns) for scope in scopes}
        found = tuple(r for r in self._ledger.reservations.find_open() if r.key.lease_id in costs)
        month_end_ns = period_edges(now_ns, now_ns, "month", UTC)[-1]
        at = (now_ns, known.at_ns == now_ns, known.at_ns)
        return BudgetSnapshot(
            *(*at, limits, by_scope, known.by_trial, costs, found, dict(self._stages), self._rates, month_end_ns),
            dict(self._unpriced),
        )

    def _still_holds(self, known: _ExactAmounts, now_ns: int, month: str, scopes: frozenset[str]) -> bool:
        return known.scopes == scopes and known.month == month and 0 <= now_ns - known.at_ns < EXACT_FOR_NS

    def _with_growth(
        self, scope: str, known: _ExactAmounts, costs: Mapping[str, LeaseCost], now_ns: int
    ) -> dict[tuple[str, date], int]:
        """The amounts of an exact reading, and what leases have cost since then."""
        amounts = defaultdict(int, known.by_scope[scope])
        for lease_id, cost in costs.items():
            growth = cost.total - known.lease_totals.get(lease_id, 0)
            if growth and may_pay(scope, cost.all_sweeps, self._stages):
                amounts[cost.currency, utc_day(now_ns)] += growth
        return dict(amounts)

    def _read_exactly(
        self, now_ns: int, month: str, scopes: frozenset[str]
    ) -> tuple[_ExactAmounts, dict[str, LeaseCost]]:
        self._closed.clear()
        self._unpriced.clear()
        single = next(iter(scopes)) if len(scopes) == 1 else ""
        sweep_id = single.removeprefix("sweep:") if single.startswith("sweep:") else None
        with self._ledger.read() as connection:
            first_ns = connection.execute(select(func.min(schema.lease.c.from_ns))).scalar() or now_ns
        months = period_edges(min(first_ns, now_ns), now_ns + _MONTH_NS, "month", UTC)
        cuts = sorted({*months, *fixings(self._rates)})
        found = attribute(
            self._ledger, self._book, now_ns, sweep_id=sweep_id, cuts=cuts, rules=self._rules, by_phase=False
        )
        for (of_sweep, _), usage in found.usages.items():
            if "stage" in usage.labels:
                self._stages[of_sweep] = usage.labels["stage"]
        by_scope = {scope: defaultdict(int) for scope in scopes}
        by_trial: dict[tuple[str, str], dict[tuple[str, date], int]] = defaultdict(lambda: defaultdict(int))
        for line in found.lines:
            if line.lease.simulated != self._simulated:
                continue
            where = line.lease.currency, utc_day(line.from_ns)
            pays = {f"stage:{self._stages.get(line.sweep_id, '')}", f"sweep:{line.sweep_id}"}
            if period_name(line.from_ns, "month", UTC) == month:
                pays.add("month")
            for scope in pays & scopes:
                by_scope[scope][where] += line.pico
            if line.trial_id:
                by_trial[line.sweep_id, line.trial_id][where] += line.pico
        states = self._states()
        inputs = load_charge_inputs(self._ledger, self._book, states, now_ns)
        costs = self._lease_costs(now_ns, states, inputs)
        totals = {lease_id: cost.total for lease_id, cost in costs.items()}
        ahead = (s for s in states if s.last_heartbeat_ns > now_ns)
        totals |= {s.lease.lease_id: self._cost(s, frozenset(), now_ns, inputs).total for s in ahead}
        self._exact = _ExactAmounts(now_ns, month, scopes, by_scope, dict(by_trial), totals)
        return self._exact, costs

    def _states(self) -> list[LeaseState]:
        return [s for s in self._ledger.leases.find() if s.lease.simulated == self._simulated]

    def _lease_costs(self, now_ns: int, states: Sequence[LeaseState], inputs: ChargeInputs) -> dict[str, LeaseCost]:
        changing = [s for s in states if s.lease.lease_id not in self._closed]
        with self._ledger.read() as connection:
            attachments = queries.attachments(connection, [s.lease.lease_id for s in changing])
        sweeps: dict[str, set[str]] = defaultdict(set)
        for one in attachments:
            sweeps[one.lease_id].add(one.sweep_id)
        found = dict(self._closed)
        for state in changing:
            # The clock of another driver may be ahead, that of a simulated one by far: its time until then is charged.
            at_ns = max(now_ns, state.last_heartbeat_ns)
            cost = self._cost(state, frozenset(sweeps[state.lease.lease_id]), at_ns, inputs)
            found[cost.lease_id] = cost
            if state.to_ns is not None:
                self._closed[cost.lease_id] = cost
        return found

    def _cost(self, state: LeaseState, all_sweeps: frozenset[str], at_ns: int, inputs: ChargeInputs) -> LeaseCost:
        rules = billing_rules(self._book) if self._rules is None else self._rules
        charge = charge_lease(state, rules, at_ns, inputs)
        self._unpriced.pop(state.lease.lease_id, None)
        if charge.problem:
            self._unpriced[state.lease.lease_id] = charge.problem
        return lease_cost(state, all_sweeps, charge.segments, charge.rows, at_ns)


def lease_cost(
    state: LeaseState,
    all_sweeps: frozenset[str],
    segments: Sequence[Segment],
    rows: Mapping[str, PriceRow],
    at_ns: int,
) -> LeaseCost:
    """Sum up the charge of a lease until a moment."""
    lease, is_open = state.lease, state.to_ns is None
    total, prepaid, tax_total, tax = 0, 0, Fraction(0), Fraction(0)
    edges_ns: list[int] = []
    costs: list[Fraction] = []
    for segment in segments:
        tax = tax_rate(rows.get(segment.price_hash))
        total += segment.pico
        tax_total += tax * segment.pico
        if segment.category == "machine":
            if not edges_ns or edges_ns[-1] != segment.from_ns:
                edges_ns.append(segment.from_ns)
                costs.append(costs[-1] if costs else Fraction(0))
            edges_ns.append(segment.to_ns)
            costs.append(costs[-1] + segment.pico)
        elif segment.category == "billing_increment" and is_open and segment.to_ns > at_ns:
            prepaid += segment.pico
    prepaid += floor(prepaid * tax)
    per_ns = Fraction(0)
    if is_open:
        per_ns = _pico_per_ns(state, segments, rows, at_ns) * (1 + tax)
    return LeaseCost(
        *(lease.lease_id, lease.currency, lease.cards, is_open, all_sweeps, frozenset(state.sweeps)),
        *(total + floor(tax_total), prepaid, tax, per_ns, tuple(edges_ns), tuple(costs)),
    )


def _pico_per_ns(state: LeaseState, segments: Sequence[Segment], rows: Mapping[str, PriceRow], at_ns: int) -> Fraction:
    """What an open lease costs from now on, before tax: the price in force, or what the commitment that covers it has
    cost so far."""
    times = [s for s in segments if s.category == "machine" and s.to_ns > s.from_ns]
    if times and times[-1].price_hash not in rows:
        return Fraction(times[-1].pico, times[-1].to_ns - times[-1].from_ns)
    lease = state.lease
    row = in_force(tuple(row for row in rows.values() if row.sku == lease.sku and row.per in TIME_UNITS), at_ns)
    return pico_per_hour(row, lease.cards, lease.watts or 0) / NS_PER_HOUR if row else Fraction(0)


def stored_limits(ledger: Ledger) -> dict[str, Money]:
    """The limits that the ledger stores, by scope: of each scope the one that was set last."""
    found: dict[str, Money] = {}
    for event in ledger.events.read(STREAM):
        if event.kind == "limit":
            found.pop(event.body["scope"], None)
            if event.body["limit"] is not None:
                found[event.body["scope"]] = Money.parse(event.body["limit"])
    return found

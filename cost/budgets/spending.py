"""What has been spent under the scopes that have a limit, cheap enough to be asked at every heartbeat.

A full look splits the charge of every lease, as a report does. Between two of those only the leases' own charges are
looked at: what they have grown by is counted under every scope that it may belong to, so that an amount is never too
low, and is exact wherever one sweep has the machine to itself. A simulated sweep spends nobody's money: its lease is
counted apart from real ones, by another object. Reads only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from fractions import Fraction
from math import floor

from sqlalchemy import func, select

from cost.charges.attribution import attribute
from cost.charges.lease_charge import billing_rules, charge_lease, load_charge_inputs, tax_rate
from cost.clock import NS_PER_SECOND
from cost.ledger import queries, schema
from cost.ledger.ledger import Ledger
from cost.ledger.reservations import Reservation
from cost.periods import period_edges, period_name
from cost.prices.billing import BillingRule, Segment
from cost.prices.book import PriceBook, PriceRow
from cost.prices.fx import Conversion, convert, fixings, load_rates, rate_notes
from cost.records import LeaseState

FULL_LOOK_NS = 600 * NS_PER_SECOND
"""How long what a full look found is taken for good: corrections and counted resources come in with the next one."""

_Amounts = Mapping[tuple[str, date], int]
"""1e-12 by currency and the day (UTC) whose exchange rate counts."""


@dataclass(frozen=True)
class Holding:
    """Cards of a lease, held from a moment on."""

    lease_id: str
    from_ns: int
    cards: int


@dataclass(frozen=True)
class _Charge:
    """One lease's charge so far, with tax. Amounts in 1e-12 of its currency."""

    state: LeaseState
    sweeps: frozenset[str]
    """Whoever was ever attached to it."""
    total: int
    ahead: int
    """Of it, for time that has not passed: the rest of a granule."""
    tax: Fraction
    edges: tuple[int, ...]
    until: tuple[Fraction, ...]
    """What its machine time had cost by each of the edges, before tax."""

    def time_cost(self, from_ns: int) -> Fraction:
        """Of the machine's time from a moment on, before tax."""
        if not self.edges or from_ns >= self.edges[-1]:
            return Fraction(0)
        at = bisect_right(self.edges, from_ns)
        if at == 0:
            return self.until[-1]
        start, stop = self.edges[at - 1], self.edges[at]
        grown = (self.until[at] - self.until[at - 1]) * Fraction(from_ns - start, stop - start)
        return self.until[-1] - self.until[at - 1] - grown


class Spending:
    """Spent and reserved amounts under some scopes: `month` (the calendar month, UTC), `stage:NAME`, `sweep:NAME`."""

    def __init__(
        self,
        ledger: Ledger,
        book: PriceBook,
        scopes: Iterable[str],
        *,
        simulated: bool = False,
        stages: Mapping[str, str] | None = None,
        rules: Sequence[BillingRule] | None = None,
    ) -> None:
        """`stages`: of sweeps that may have no usage yet to tell it."""
        self._ledger, self._book, self._rules, self._simulated = ledger, book, rules, simulated
        self.scopes = tuple(scopes)
        self._stages = dict(stages or {})
        self._rates = load_rates(book.folder)
        self._used: dict[str, Conversion] = {}
        self._looked_ns: int | None = None
        self._full_ns: int | None = None
        self._month = ""
        self._spent: dict[str, _Amounts] = {}
        self._trials: dict[tuple[str, str], _Amounts] = {}
        self._at_full: dict[str, int] = {}
        self._charges: dict[str, _Charge] = {}
        self._elsewhere: set[str] = set()
        self.unpriced: dict[str, str] = {}
        """SKUs without a price, by lease: what they cost is not known, and in no amount."""
        self._reserved: list[Reservation] = []

    @property
    def exact(self) -> bool:
        """Whether the last look was a full one."""
        return self._looked_ns == self._full_ns

    @property
    def notes(self) -> tuple[str, ...]:
        """The sentences that name the exchange rates that were used."""
        return rate_notes(self._used.values())

    def look(self, now_ns: int, *, full: bool = False) -> None:
        """Bring what is spent up to a moment.

        Raises:
            PriceError: a price, a billing rule or an exchange rate is missing.
        """
        due = self._full_ns is None or now_ns - self._full_ns >= FULL_LOOK_NS
        if due or self._month != period_name(now_ns, "month", UTC) or (full and self._full_ns != now_ns):
            self._look_fully(now_ns)
        elif self._looked_ns != now_ns:
            self._look_at_leases(now_ns)
        self._looked_ns = now_ns
        self.look_at_reservations(now_ns)

    def look_at_reservations(self, now_ns: int) -> None:
        """What is reserved now: within `ReservationStore.exclusive`, until that ends."""
        found = self._ledger.reservations.find_open()
        if any(r.key.lease_id not in self._charges and r.key.lease_id not in self._elsewhere for r in found):
            self._look_at_leases(now_ns)  # another driver has come
            self._looked_ns = now_ns
        self._reserved = [r for r in found if r.key.lease_id in self._charges]

    def currencies(self, scope: str) -> list[str]:
        """Those in which something was spent, or may have been."""
        grown = {c.state.lease.currency for c in self._charges.values() if c.state.to_ns is None}
        return sorted({currency for currency, _ in self._spent[scope]} | (grown if scope == "month" else set()))

    def spent(self, scope: str, currency: str, *, only: bool = False) -> int:
        """1e-12 of a currency, by the last look. `only`: what was spent in it, and nothing that is converted to it."""
        total = self._sum({k: v for k, v in self._spent[scope].items() if not only or k[0] == currency}, currency)
        for lease_id, charge in self._charges.items():
            grown = charge.total - self._at_full.get(lease_id, 0)
            if grown and self._concerns(scope, charge) and (not only or charge.state.lease.currency == currency):
                total += self._converted(grown, charge, currency)
        return total

    def spent_by_trial(self, sweep_id: str, trial_id: str, currency: str, holding: Holding | None = None) -> int:
        """What a trial's cards have cost, all attempts, without the machine's idle ones.

        `holding`: of the attempt that runs. One that has ended since the last full look is not in it yet.
        """
        total = self._sum(self._trials.get((sweep_id, trial_id), {}), currency)
        charge = self._charges.get(holding.lease_id) if holding else None
        if holding is None or charge is None:
            return total
        grown = charge.time_cost(max(holding.from_ns, self._full_ns or 0)) * holding.cards / charge.state.lease.cards
        return total + self._converted(floor(grown), charge, currency)

    def reserved(self, scope: str, currency: str, more: Mapping[str, int] | None = None, *, only: bool = False) -> int:
        """What running attempts may still cost, beyond what their machines' providers have charged ahead.

        `more`: further amounts by lease, in 1e-12 of its currency, as though they were reserved too. `only`: of
        machines that are charged in this currency.
        """
        rest: dict[str, Fraction] = defaultdict(Fraction)
        for one in self._reserved:
            kind, _, name = scope.partition(":")
            if kind == "month" or name == (one.stage if kind == "stage" else one.sweep_id):
                charge = self._charges[one.key.lease_id]
                paid = Fraction(0)
                if one.from_ns is not None:
                    paid = charge.time_cost(one.from_ns) * Fraction(one.cards) / charge.state.lease.cards
                rest[one.key.lease_id] += max(Fraction(0), one.amount.pico - paid)
        for lease_id, pico in (more or {}).items():
            rest[lease_id] += pico
        total = 0
        for lease_id, amount in rest.items():
            charge = self._charges[lease_id]
            if only and charge.state.lease.currency != currency:
                continue
            ahead = charge.ahead if self._all_in(scope, charge) else 0
            total += self._converted(max(0, floor(amount * (1 + charge.tax)) - ahead), charge, currency)
        return total

    def _look_fully(self, now_ns: int) -> None:
        self._month, self._full_ns = period_name(now_ns, "month", UTC), now_ns
        only = self.scopes[0] if len(self.scopes) == 1 else ""
        one = only.removeprefix("sweep:") if only.startswith("sweep:") else None
        with self._ledger.read() as connection:
            first = connection.execute(select(func.min(schema.lease.c.from_ns))).scalar() or now_ns
        months = period_edges(min(first, now_ns), now_ns + 32 * 86_400 * NS_PER_SECOND, "month", UTC)
        edges = sorted({*months, *fixings(self._rates)})
        found = attribute(self._ledger, self._book, now_ns, sweep_id=one, cuts=edges, rules=self._rules, by_phase=False)
        for (sweep_id, _), usage in found.usages.items():
            if "stage" in usage.labels:
                self._stages[sweep_id] = usage.labels["stage"]
        spent = {scope: defaultdict(int) for scope in self.scopes}
        trials: dict[tuple[str, str], dict[tuple[str, date], int]] = defaultdict(lambda: defaultdict(int))
        for line in found.lines:
            if line.lease.simulated != self._simulated:
                continue
            where = line.lease.currency, _day(line.from_ns)
            mine = {
                "month": period_name(line.from_ns, "month", UTC) == self._month,
                f"stage:{self._stages.get(line.sweep_id, '')}": True,
                f"sweep:{line.sweep_id}": True,
            }
            for scope in self.scopes:
                if mine.get(scope):
                    spent[scope][where] += line.pico
            if line.trial_id:
                trials[line.sweep_id, line.trial_id][where] += line.pico
        self._spent, self._trials = dict(spent), dict(trials)
        self._charges = {}
        self._look_at_leases(now_ns)

    def _look_at_leases(self, now_ns: int) -> None:
        every = self._ledger.leases.find()
        states = [s for s in every if s.lease.simulated == self._simulated]
        self._elsewhere = {s.lease.lease_id for s in every if s.lease.simulated != self._simulated}
        new = [s for s in states if not self._is_final(s)]
        with self._ledger.read() as connection:
            attachments = queries.attachments(connection, [s.lease.lease_id for s in new])
        sweeps: dict[str, set[str]] = defaultdict(set)
        for one in attachments:
            sweeps[one.lease_id].add(one.sweep_id)
        other = load_charge_inputs(self._ledger, self._book, states, now_ns)
        rules = billing_rules(self._book) if self._rules is None else self._rules
        for state in new:
            lease_id = state.lease.lease_id
            # Another driver's clock may be ahead, a simulated one's far: what it has held by then is held.
            at_ns = max(now_ns, state.last_heartbeat_ns)
            held = frozenset(sweeps[lease_id])
            segments, rows = charge_lease(state, self._book, rules, at_ns, other)
            if not all(segment.price_hash for segment in segments):
                self.unpriced[lease_id] = state.lease.sku
            self._charges[lease_id] = _charge(state, held, segments, rows, at_ns)
            if now_ns == self._full_ns:
                if at_ns != now_ns:
                    segments, rows = charge_lease(state, self._book, rules, now_ns, other)
                self._at_full[lease_id] = _charge(state, held, segments, rows, now_ns).total

    def _is_final(self, state: LeaseState) -> bool:
        known = self._charges.get(state.lease.lease_id)
        return known is not None and known.state.to_ns is not None

    def _concerns(self, scope: str, charge: _Charge) -> bool:
        """Whether what a lease has grown by may belong to a scope."""
        kind, _, name = scope.partition(":")
        if kind == "month":
            return True
        if kind == "sweep":
            return name in charge.sweeps
        return any(self._stages.get(sweep_id, name) == name for sweep_id in charge.sweeps)

    def _all_in(self, scope: str, charge: _Charge) -> bool:
        """Whether nobody outside of a scope has a part of a lease now."""
        kind, _, name = scope.partition(":")
        whose = self._stages if kind == "stage" else {s: s for s in charge.state.sweeps}
        return kind == "month" or all(whose.get(sweep_id) == name for sweep_id in charge.state.sweeps)

    def _sum(self, amounts: _Amounts, currency: str) -> int:
        return sum(self._at_rate(pico, own, currency, day) for (own, day), pico in amounts.items())

    def _converted(self, pico: int, charge: _Charge, currency: str) -> int:
        return self._at_rate(pico, charge.state.lease.currency, currency, _day(self._looked_ns or self._full_ns or 0))

    def _at_rate(self, pico: int, own: str, currency: str, day: date) -> int:
        found = convert(pico, own, currency, day, self._rates)
        if found.text:
            self._used[found.text] = found
        return found.pico


def _charge(
    state: LeaseState,
    sweeps: frozenset[str],
    segments: Sequence[Segment],
    rows: Mapping[str, PriceRow],
    now_ns: int,
) -> _Charge:
    total, tax, ahead, rate = 0, Fraction(0), 0, Fraction(0)
    edges: list[int] = []
    until: list[Fraction] = []
    for segment in segments:
        row = rows.get(segment.price_hash)
        rate = tax_rate(row)
        total += segment.pico
        tax += rate * segment.pico
        if segment.category == "machine":
            if not edges or edges[-1] != segment.from_ns:
                edges.append(segment.from_ns)
                until.append(until[-1] if until else Fraction(0))
            edges.append(segment.to_ns)
            until.append(until[-1] + segment.pico)
        elif segment.category == "billing_increment" and state.to_ns is None and segment.to_ns > now_ns:
            ahead += segment.pico
    ahead += floor(ahead * rate)
    return _Charge(state, sweeps, total + floor(tax), ahead, rate, tuple(edges), tuple(until))


def _day(at_ns: int) -> date:
    return datetime.fromtimestamp(at_ns // NS_PER_SECOND, UTC).date()

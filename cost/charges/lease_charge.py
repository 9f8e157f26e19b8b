"""What a lease is charged: its time by price book, billing rule and commitment, then the resources metered on it.

A machine that was stopped is charged for each run separately. The split over attempts is in `allocation`. Nothing is
written here.

Tested in tests/cost/reports/test_report.py and tests/cost/close/test_close_month.py.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import floor
from pathlib import Path

from cost.charges import commitments, metered
from cost.clock import NS_PER_HOUR
from cost.ledger import machine_states
from cost.ledger.ledger import Ledger
from cost.ledger.machine_states import RUNNING, StateChange, StateSpan, state_spans
from cost.money import PICO_PER_UNIT, largest_remainder
from cost.prices.billing import BillingRule, Ended, Segment, charge, load_rules, rule_for
from cost.prices.book import TIME_UNITS, PriceBook, PriceError, PriceRow, add_command, in_force, pico_per_hour
from cost.records import Lease, LeaseState

TAKEN_BACK = "taken_back"
"""How a lease ended if the provider took its machine back."""


def billing_rules(book: PriceBook) -> tuple[BillingRule, ...]:
    """The billing rules in the folder of a price book.

    They are read again only when the file changes, because a live table asks for them every second.

    Raises:
        PriceError: they cannot be read.
    """
    file = Path(book.folder) / "billing.yaml"
    return _read_billing_rules(book.folder, file.stat().st_mtime_ns if file.exists() else 0)


@lru_cache(maxsize=8)
def _read_billing_rules(folder: str, _modified_ns: int) -> tuple[BillingRule, ...]:
    return load_rules(folder)


def lease_prices(lease: Lease, book: PriceBook) -> tuple[PriceRow, ...]:
    """The prices that a lease is charged at over time: the series of the row quoted when it was opened.

    Empty for a lease that was opened without a price and has none in the book now.

    Raises:
        MissingPriceError: the lease had a price when it was opened, and the book has none now.
    """
    quoted = book.by_hash(lease.price_hash) if lease.price_hash else None
    if quoted is not None:
        return book.series(quoted.sku, purchase=quoted.purchase, region=quoted.region, kind=quoted.kind)
    if lease.price_hash is None and lease.sku not in book.skus():
        return ()
    return book.series(lease.sku, purchase=lease.purchase, region=lease.region or None)


def charge_lease_time(
    state: LeaseState,
    prices: Sequence[PriceRow],
    rules: Sequence[BillingRule],
    now_ns: int,
    changes: Sequence[StateChange] = (),
) -> tuple[Segment, ...]:
    """The charge for a lease's time, by segment; for an open lease, up to `now_ns`.

    Without prices, the result is one segment with an empty price hash. Each run in states that the provider bills is
    charged separately, since a minimum is due at every start; time in other states costs nothing. `changes`: the
    changes of the machine's state, oldest first.
    """
    to_ns = _end_ns(state, now_ns)
    if not prices:
        return (_unpriced_time(state, now_ns),)
    lease = state.lease
    rule = rule_for(rules, prices[0].provider, prices[0].purchase)
    watts = lease.watts if lease.watts is not None else 0
    segments: list[Segment] = []
    periods = state_spans(changes, state.from_ns, to_ns) or [StateSpan(state.from_ns, to_ns, RUNNING)]
    for start, stop, billed in _runs(periods, rule):
        if not billed:
            price = in_force(tuple(prices), start) or prices[0]
            segments.append(Segment(start, stop, 0, "machine", price.hash))
            continue
        ended: Ended | None = "user"
        if stop == to_ns:
            ended = None if state.to_ns is None else "provider" if state.how == TAKEN_BACK else "user"
        segments += charge(start, stop, rule=rule, prices=prices, cards=lease.cards, watts=watts, ended=ended)
    return tuple(segments)


def _end_ns(state: LeaseState, now_ns: int) -> int:
    return max(now_ns, state.from_ns) if state.to_ns is None else state.to_ns


def _runs(periods: Sequence[StateSpan], rule: BillingRule) -> list[tuple[int, int, bool]]:
    """Start, end, and whether the provider bills the time; neighbours that are billed alike are joined."""
    runs: list[tuple[int, int, bool]] = []
    for period in periods:
        billed = period.state in rule.billed_states
        start = runs.pop()[0] if runs and runs[-1][2] == billed else period.from_ns
        runs.append((start, period.to_ns, billed))
    return runs


@dataclass(frozen=True)
class ChargeInputs:
    """What determines the cost of leases besides their time: prices, commitments, metered resources, stops, starts."""

    book: PriceBook
    """The price book, and the rows that the ledger has kept of prices that have left it."""
    commitment_usage: commitments.CommitmentUsage
    resources: Mapping[str, Sequence[metered.MeteredResource]]
    """By lease id."""
    state_changes: Mapping[str, Sequence[StateChange]]
    """By lease id."""


def load_charge_inputs(
    ledger: Ledger,
    book: PriceBook,
    states: Sequence[LeaseState],
    now_ns: int,
    *,
    cuts: Sequence[int] = (),
    as_of_ns: int | None = None,
) -> ChargeInputs:
    """Load the charge inputs from the ledger. `states`: all leases, since they share commitments."""
    entered = commitments.load_commitments(ledger, as_of_ns)
    book = book.with_kept_rows(ledger.price_archive.rows(as_of_ns))
    return ChargeInputs(
        book,
        commitments.commitment_usage(entered, states, now_ns, cuts, book),
        metered.load_resources(ledger, as_of_ns),
        machine_states.load_changes(ledger.events, as_of_ns),
    )


@dataclass(frozen=True)
class LeaseCharge:
    """The charge of a lease by segment, and the price rows of the segments by hash."""

    segments: tuple[Segment, ...]
    rows: dict[str, PriceRow]
    problem: str = ""
    """Why the lease cannot be priced; empty: it is priced. Without a price, every segment has an empty price hash."""


def charge_lease(state: LeaseState, rules: Sequence[BillingRule], now_ns: int, inputs: ChargeInputs) -> LeaseCharge:
    """The charge of a lease: of its time, then of the resources metered on it.

    Time is charged by the lease's commitment while the commitment lasts and by the price book otherwise. A lease that
    cannot be priced (a price or a billing rule is missing) is unpriced as a whole, so that one such lease never keeps
    the others out of a report.
    """
    try:
        if problem := inputs.commitment_usage.invalid.get(state.lease.lease_id):
            raise PriceError(problem)
        charge = _priced(state, rules, now_ns, inputs)
    except PriceError as error:
        return LeaseCharge((_unpriced_time(state, now_ns),), {}, str(error))
    if all(segment.price_hash for segment in charge.segments):
        return charge
    sku = state.lease.sku
    return replace(charge, problem=f"SKU {sku!r} has no price; add it with: {add_command(sku)}")


def _unpriced_time(state: LeaseState, now_ns: int) -> Segment:
    return Segment(state.from_ns, _end_ns(state, now_ns), 0, "machine", "")


def _priced(state: LeaseState, rules: Sequence[BillingRule], now_ns: int, inputs: ChargeInputs) -> LeaseCharge:
    """Raises PriceError: a price or a billing rule is missing."""
    lease_id, book = state.lease.lease_id, inputs.book
    changes = inputs.state_changes.get(lease_id, ())
    coverage = inputs.commitment_usage.covered.get(lease_id)
    time_segments, rows = _charge_time(state, book, rules, now_ns, coverage, changes)
    periods = state_spans(changes, state.from_ns, _end_ns(state, now_ns))
    resources = inputs.resources.get(lease_id, ())
    for energy in metered.metered_energy(resources, book):
        time_segments = _replace_watts(state.lease, time_segments, rows, energy)
    resource_segments, resource_rows = metered.resource_segments(
        resources, periods, _end_ns(state, now_ns), book, rules
    )
    segments = (*_mark_stopped(state.lease, time_segments, rows, periods), *resource_segments)
    return LeaseCharge(segments, {**rows, **resource_rows})


def _charge_time(
    state: LeaseState,
    book: PriceBook,
    rules: Sequence[BillingRule],
    now_ns: int,
    coverage: commitments.CommitmentCoverage | None,
    changes: Sequence[StateChange],
) -> tuple[tuple[Segment, ...], dict[str, PriceRow]]:
    if coverage is None:
        prices = lease_prices(state.lease, book)
        return charge_lease_time(state, prices, rules, now_ns, changes), {row.hash: row for row in prices}
    start, stop = coverage.segments[0].from_ns, coverage.segments[-1].to_ns
    end = _end_ns(state, now_ns)
    prices = lease_prices(state.lease, book) if state.from_ns < start or stop < end else ()
    before, after = tuple[Segment, ...](), tuple[Segment, ...]()
    if state.from_ns < start:
        before = charge_lease_time(replace(state, to_ns=start, how=""), prices, rules, now_ns, changes)
    if stop < end:
        after = charge_lease_time(replace(state, from_ns=stop), prices, rules, now_ns, changes)
    return (*before, *coverage.segments, *after), {row.hash: row for row in prices}


def _replace_watts(
    lease: Lease, segments: Sequence[Segment], rows: Mapping[str, PriceRow], energy: metered.MeteredResource
) -> tuple[Segment, ...]:
    """Charge metered energy in place of the lease's watts, spread evenly over the running time of the interval."""
    energy_end_ns = energy.from_ns if energy.to_ns is None else energy.to_ns
    pieces = cut_segments(segments, [energy.from_ns, energy_end_ns], pico_per_ns_of(lease, rows))
    within = [s for s in pieces if energy.from_ns <= s.from_ns and s.to_ns <= energy_end_ns and s.from_ns < s.to_ns]
    within = [s for s in within if s.category == "machine" and s.price_hash in rows and rows[s.price_hash].per == "kwh"]
    weigh = (lambda s: s.paid_ns) if any(s.paid_ns for s in within) else (lambda s: s.to_ns - s.from_ns)
    total_weight, exact, floored = sum(map(weigh, within)), Fraction(0), 0
    charged = []
    for segment in pieces:
        if segment in within:
            row = rows[segment.price_hash]
            exact += (
                Fraction(row.price) * PICO_PER_UNIT * Fraction(energy.quantity) * Fraction(weigh(segment), total_weight)
            )
            exact += Fraction(row.depreciation or 0) * PICO_PER_UNIT * Fraction(segment.paid_ns, NS_PER_HOUR)
            segment = replace(segment, pico=floor(exact) - floored)
            floored = floor(exact)
        charged.append(segment)
    return tuple(charged)


def _mark_stopped(
    lease: Lease, segments: Sequence[Segment], rows: Mapping[str, PriceRow], periods: Sequence[StateSpan]
) -> Sequence[Segment]:
    """The same charge with category `stopped` for the time in which the machine did not run, billed or not."""
    stopped_periods = [period for period in periods if period.state != RUNNING]
    if not stopped_periods:
        return segments
    edges = sorted({edge for period in stopped_periods for edge in (period.from_ns, period.to_ns)})
    marked = []
    for segment in cut_segments(segments, edges, pico_per_ns_of(lease, rows)):
        within = any(p.from_ns <= segment.from_ns < p.to_ns for p in stopped_periods)
        stopped = segment.category == "machine" and within
        marked.append(replace(segment, category="stopped") if stopped else segment)
    return marked


def tax_rate(row: PriceRow | None) -> Fraction:
    """The share of tax on top of a price; 0 if the price includes tax, and for None."""
    return Fraction(0) if row is None or row.tax_included else Fraction(row.tax_rate)


def total_with_tax(segments: Iterable[Segment], rows: Mapping[str, PriceRow]) -> int:
    """The sum of a charge and of the tax on top of it: what reports attribute, apart from corrections."""
    amounts = [(segment.pico, tax_rate(rows.get(segment.price_hash))) for segment in segments]
    return sum(pico for pico, _ in amounts) + floor(sum((pico * rate for pico, rate in amounts), Fraction(0)))


def cut_segments(
    segments: Iterable[Segment], cuts: Sequence[int], pico_per_ns: Callable[[Segment], Fraction] | None = None
) -> list[Segment]:
    """The same charge in segments that cross no cut.

    With `pico_per_ns`, the price of a segment in 1e-12 per nanosecond, the charge up to a cut is its exact cost,
    floored, so that the charge before a cut never changes as time passes. Where the charge is not the time at that
    price (time that a billing rule leaves unbilled), and without `pico_per_ns`, a segment is split in proportion to
    time.
    """
    pieces: list[Segment] = []
    exact, floored, run_to_ns = Fraction(0), 0, None
    for segment in segments:
        inner = cuts[bisect_right(cuts, segment.from_ns) : bisect_left(cuts, segment.to_ns)]
        edges = [segment.from_ns, *inner, segment.to_ns]
        lengths = [b - a for a, b in pairwise(edges)]
        parts = None
        if segment.from_ns != run_to_ns:
            exact, floored, run_to_ns = Fraction(0), 0, None
        if pico_per_ns is not None and segment.paid_ns == segment.to_ns - segment.from_ns:
            rate = pico_per_ns(segment)
            totals = [floor(exact + rate * (edge - segment.from_ns)) for edge in edges[1:]]
            if totals[-1] - floored == segment.pico:
                parts = [b - a for a, b in pairwise([floored, *totals])]
                exact += rate * (segment.to_ns - segment.from_ns)
                floored, run_to_ns = totals[-1], segment.to_ns
        if parts is None:
            parts = [segment.pico] if not inner else largest_remainder(segment.pico, lengths)
        paid = [segment.paid_ns] if not inner else largest_remainder(segment.paid_ns, lengths)
        for start, length, pico, paid_ns in zip(edges, lengths, parts, paid, strict=False):
            pieces.append(replace(segment, from_ns=start, to_ns=start + length, pico=pico, paid_ns=paid_ns))
    return pieces


def pico_per_ns_of(lease: Lease, rows: Mapping[str, PriceRow]) -> Callable[[Segment], Fraction]:
    """A function from a segment to its price in 1e-12 per nanosecond of the machine; 0 if it is not priced by time."""
    watts = lease.watts if lease.watts is not None else 0
    per_ns = {
        digest: pico_per_hour(row, lease.cards, watts) / NS_PER_HOUR
        for digest, row in rows.items()
        if row.per in TIME_UNITS
    }
    return lambda segment: per_ns.get(segment.price_hash, Fraction(0))

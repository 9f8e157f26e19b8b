"""What a lease is charged: its time by price book, billing rule and commitment, then what was counted on it.

A machine that was stopped is charged run by run. Nothing here knows who used the machine, and nothing is written.
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
from cost.ledger import machine_states
from cost.ledger.journal import Journal
from cost.ledger.machine_states import RUNNING, Change, Stretch, stretches
from cost.money import largest_remainder
from cost.prices.billing import BillingRule, Ended, Segment, charge, load_rules, rule_for
from cost.prices.book import NS_PER_HOUR, PER_HOUR, PICO, PriceBook, PriceRow, in_force, pico_per_hour
from cost.records import Lease, LeaseState

TAKEN_BACK = "taken_back"
"""How a lease ended whose machine the provider took back."""


def billing_rules(book: PriceBook) -> tuple[BillingRule, ...]:
    """The billing rules beside a price book. A live table asks for them every second: they are read once per change.

    Raises:
        PriceError: they cannot be read.
    """
    file = Path(book.folder) / "billing.yaml"
    return _read_billing_rules(book.folder, file.stat().st_mtime_ns if file.exists() else 0)


@lru_cache(maxsize=8)
def _read_billing_rules(folder: str, _changed_ns: int) -> tuple[BillingRule, ...]:
    return load_rules(folder)


def lease_prices(lease: Lease, book: PriceBook) -> tuple[PriceRow, ...]:
    """The prices a lease is charged at over time: the series of the row that was quoted when it was opened.

    Empty for a lease that was opened without a price and still has none.

    Raises:
        MissingPriceError: it had a price when it was opened, and the book has none any more.
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
    changes: Sequence[Change] = (),
) -> tuple[Segment, ...]:
    """What a lease has cost, by segment; while it is open, by `now_ns`. Without a price, a segment of nothing.

    Each run in states that the provider bills is charged by itself, since a minimum is owed at every start; between
    two of them nothing is. `changes`: what the machine did, oldest first.
    """
    to_ns = max(now_ns, state.from_ns) if state.to_ns is None else state.to_ns
    if not prices:
        return (Segment(state.from_ns, to_ns, 0, "machine", ""),)
    lease = state.lease
    rule = rule_for(rules, prices[0].provider, prices[0].purchase)
    watts = lease.watts if lease.watts is not None else 0
    found: list[Segment] = []
    parts = stretches(changes, state.from_ns, to_ns) or [Stretch(state.from_ns, to_ns, RUNNING)]
    for start, stop, billed in _runs(parts, rule):
        if not billed:
            price = in_force(tuple(prices), start) or prices[0]
            found.append(Segment(start, stop, 0, "machine", price.hash))
            continue
        ended: Ended | None = "user"
        if stop == to_ns:
            ended = None if state.to_ns is None else "provider" if state.how == TAKEN_BACK else "user"
        found += charge(start, stop, rule=rule, prices=prices, cards=lease.cards, watts=watts, ended=ended)
    return tuple(found)


def _runs(parts: Sequence[Stretch], rule: BillingRule) -> list[tuple[int, int, bool]]:
    """From, to, and whether the provider bills it; neighbours that are treated alike are one run."""
    runs: list[tuple[int, int, bool]] = []
    for part in parts:
        billed = part.state in rule.billed_states
        start = runs.pop()[0] if runs and runs[-1][2] == billed else part.from_ns
        runs.append((start, part.to_ns, billed))
    return runs


@dataclass(frozen=True)
class ChargeInputs:
    """What bears on the cost of leases beside their time: commitments, counted resources, stops and starts."""

    used: commitments.CommitmentUsage
    counted: Mapping[str, Sequence[metered.MeteredResource]]
    """By lease."""
    changes: Mapping[str, Sequence[Change]]
    """By lease."""


def load_charge_inputs(
    ledger: Journal,
    book: PriceBook,
    states: Sequence[LeaseState],
    now_ns: int,
    *,
    cuts: Sequence[int] = (),
    as_of_ns: int | None = None,
) -> ChargeInputs:
    """What the books know of it. `states`: all leases."""
    bought = commitments.load_commitments(ledger, as_of_ns)
    used = commitments.commitment_usage(bought, states, now_ns, cuts, book)
    return ChargeInputs(used, metered.load_resources(ledger, as_of_ns), machine_states.load(ledger, as_of_ns))


def charge_lease(
    state: LeaseState, book: PriceBook, rules: Sequence[BillingRule], now_ns: int, beside: ChargeInputs
) -> tuple[tuple[Segment, ...], dict[str, PriceRow]]:
    """What a lease has cost, and the price rows that its segments name by hash: its time by its commitment while that
    lasts, and by the price book else; then the resources that were counted.

    Raises:
        PriceError: a price or a billing rule is missing that it needs.
    """
    lease_id = state.lease.lease_id
    changes = beside.changes.get(lease_id, ())
    time, rows = _time_charged(state, book, rules, now_ns, beside.used.covered.get(lease_id), changes)
    parts = stretches(changes, state.from_ns, max(now_ns, state.from_ns) if state.to_ns is None else state.to_ns)
    counted = beside.counted.get(lease_id, ())
    for one in metered.metered_energy(counted, book):
        time = _at_the_meter(state.lease, time, rows, one)
    more, of_more = metered.resource_segments(counted, parts, book, rules)
    return (*_stopped(state.lease, time, rows, parts), *more), {**rows, **of_more}


def _time_charged(
    state: LeaseState,
    book: PriceBook,
    rules: Sequence[BillingRule],
    now_ns: int,
    covered: commitments.CommitmentCoverage | None,
    changes: Sequence[Change],
) -> tuple[tuple[Segment, ...], dict[str, PriceRow]]:
    if covered is None:
        prices = lease_prices(state.lease, book)
        return charge_lease_time(state, prices, rules, now_ns, changes), {row.hash: row for row in prices}
    start, stop = covered.segments[0].from_ns, covered.segments[-1].to_ns
    end = max(now_ns, state.from_ns) if state.to_ns is None else state.to_ns
    prices = lease_prices(state.lease, book) if state.from_ns < start or stop < end else ()
    before, after = tuple[Segment, ...](), tuple[Segment, ...]()
    if state.from_ns < start:
        before = charge_lease_time(replace(state, to_ns=start, how=""), prices, rules, now_ns, changes)
    if stop < end:
        after = charge_lease_time(replace(state, from_ns=stop), prices, rules, now_ns, changes)
    return (*before, *covered.segments, *after), {row.hash: row for row in prices}


def _at_the_meter(
    lease: Lease, time: Sequence[Segment], rows: Mapping[str, PriceRow], one: metered.MeteredResource
) -> tuple[Segment, ...]:
    """The same charge with the energy that a meter counted from one moment to another in place of the lease's watts,
    spread evenly over the time in which the machine ran."""
    pieces = cut_segments(time, [one.from_ns, one.to_ns], pico_per_ns_of(lease, rows))
    within = [s for s in pieces if one.from_ns <= s.from_ns and s.to_ns <= one.to_ns and s.from_ns < s.to_ns]
    within = [s for s in within if s.category == "machine" and s.price_hash in rows and rows[s.price_hash].per == "kwh"]
    weigh = (lambda s: s.paid_ns) if any(s.paid_ns for s in within) else (lambda s: s.to_ns - s.from_ns)
    whole, exact, floored = sum(map(weigh, within)), Fraction(0), 0
    found = []
    for segment in pieces:
        if segment in within:
            row = rows[segment.price_hash]
            exact += Fraction(row.price) * PICO * Fraction(one.quantity) * Fraction(weigh(segment), whole)
            exact += Fraction(row.depreciation or 0) * PICO * Fraction(segment.paid_ns, NS_PER_HOUR)
            segment = replace(segment, pico=floor(exact) - floored)
            floored = floor(exact)
        found.append(segment)
    return tuple(found)


def _stopped(
    lease: Lease, time: Sequence[Segment], rows: Mapping[str, PriceRow], parts: Sequence[Stretch]
) -> Sequence[Segment]:
    """The same charge with the time in which the machine did not run in a category of its own, billed or not."""
    still = [part for part in parts if part.state != RUNNING]
    if not still:
        return time
    edges = sorted({edge for part in still for edge in (part.from_ns, part.to_ns)})
    found = []
    for segment in cut_segments(time, edges, pico_per_ns_of(lease, rows)):
        stopped = segment.category == "machine" and any(p.from_ns <= segment.from_ns < p.to_ns for p in still)
        found.append(replace(segment, category="stopped") if stopped else segment)
    return found


def tax_rate(row: PriceRow | None) -> Fraction:
    """The share of tax that comes on top of a price; 0 where it is in it, and where there is no price."""
    return Fraction(0) if row is None or row.tax_included else Fraction(row.tax_rate)


def total_with_tax(segments: Iterable[Segment], rows: Mapping[str, PriceRow]) -> int:
    """A charge, and the tax that comes on top of it: what reports attribute, but for corrections."""
    charged = [(segment.pico, tax_rate(rows.get(segment.price_hash))) for segment in segments]
    return sum(pico for pico, _ in charged) + floor(sum((pico * rate for pico, rate in charged), Fraction(0)))


def cut_segments(
    segments: Iterable[Segment], cuts: Sequence[int], rate_of: Callable[[Segment], Fraction] | None = None
) -> list[Segment]:
    """The same charge in segments that cross no cut.

    `rate_of` gives a segment's price in 1e-12 per nanosecond: the charge up to a cut is then its exact cost, floored,
    so that what lies before a cut never changes as time goes on. Where the charge is not its time at that rate (time
    that a rule leaves unbilled), and without rates, a segment is split in proportion to time.
    """
    found: list[Segment] = []
    exact, whole, run_to_ns = Fraction(0), 0, None
    for segment in segments:
        inner = cuts[bisect_right(cuts, segment.from_ns) : bisect_left(cuts, segment.to_ns)]
        edges = [segment.from_ns, *inner, segment.to_ns]
        lengths = [b - a for a, b in pairwise(edges)]
        parts = None
        if segment.from_ns != run_to_ns:
            exact, whole, run_to_ns = Fraction(0), 0, None
        if rate_of is not None and segment.paid_ns == segment.to_ns - segment.from_ns:
            rate = rate_of(segment)
            totals = [floor(exact + rate * (edge - segment.from_ns)) for edge in edges[1:]]
            if totals[-1] - whole == segment.pico:
                parts = [b - a for a, b in pairwise([whole, *totals])]
                exact += rate * (segment.to_ns - segment.from_ns)
                whole, run_to_ns = totals[-1], segment.to_ns
        if parts is None:
            parts = [segment.pico] if not inner else largest_remainder(segment.pico, lengths)
        paid = [segment.paid_ns] if not inner else largest_remainder(segment.paid_ns, lengths)
        for start, length, pico, paid_ns in zip(edges, lengths, parts, paid, strict=False):
            found.append(replace(segment, from_ns=start, to_ns=start + length, pico=pico, paid_ns=paid_ns))
    return found


def pico_per_ns_of(lease: Lease, rows: Mapping[str, PriceRow]) -> Callable[[Segment], Fraction]:
    watts = lease.watts if lease.watts is not None else 0
    per_ns = {
        digest: pico_per_hour(row, lease.cards, watts) / NS_PER_HOUR
        for digest, row in rows.items()
        if row.per in PER_HOUR
    }
    return lambda segment: per_ns.get(segment.price_hash, Fraction(0))

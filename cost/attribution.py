"""From facts and prices to lines: every part of every lease's charge, with who caused it and when.

Reads the ledger, charges each lease by the price book and its provider's rule, splits the charge (`allocation`), and
adds corrections as lines of their own. Rounds nothing and shows nothing. A lease without a price gives lines that are
marked unpriced, never lines of zero cost that look like a price.
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

from sqlalchemy import Connection, select

from cost import commitments, facts, metered, schema
from cost.allocation import Allocation, LeaseFacts, Share, UsageFacts, allocate
from cost.billing import BillingRule, Ended, Segment, charge, load_rules, rule_for
from cost.journal import Journal
from cost.money import largest_remainder
from cost.price_kinds import Kinds, PriceKinds
from cost.prices import NS_PER_HOUR, PER_HOUR, PriceBook, PriceRow, pico_per_hour
from cost.records import DIED, Lease, LeaseState, Usage, UsageKey
from cost.status import Spans, invoiced_spans, status_at

BY_BILL = "bill:"
"""What the id of a correction begins with that came from a bill; all others were made by hand."""

BY_HAND = ("by_hand", "corrected")

TAKEN_BACK = "taken_back"
"""How a lease ended whose machine the provider took back."""


@dataclass(frozen=True)
class Line:
    """A part of what a lease cost: one category, one holder, one stretch of time at one price."""

    lease: Lease
    sweep_id: str
    """Empty: no sweep is answerable."""
    trial_id: str
    """Empty: overhead."""
    attempt: int
    category: str
    pico: int
    micro_card_ns: int
    from_ns: int
    to_ns: int
    price: PriceRow | None
    """None for corrections and for unpriced leases."""
    unpriced: bool
    flags: tuple[str, ...] = ()
    status: str = "estimated"
    """How firm it is: one of `status.STATUSES`."""
    commitment: str = ""
    """The commitment that it is a part of: paid for before."""
    paid_pico: int = 0
    """Of a purchase: what was paid."""
    kinds: Kinds | None = None
    """What it comes to at list, contracted and effective prices; None: at all of them what it cost."""

    @property
    def list_pico(self) -> int:
        return self.pico if self.kinds is None else self.kinds.list_pico

    @property
    def contracted_pico(self) -> int:
        return self.pico if self.kinds is None else self.kinds.contracted_pico

    @property
    def effective_pico(self) -> int:
        return self.pico if self.kinds is None else self.kinds.effective_pico

    @property
    def imputed(self) -> bool:
        """Own hardware: a cost, but on nobody's bill."""
        return self.lease.purchase == "own" or (self.price is not None and self.price.per == "kwh")

    @property
    def billed_pico(self) -> int:
        """The part that somebody sends a bill for."""
        if self.lease.simulated or self.imputed:
            return 0
        return self.paid_pico if self.commitment else self.pico


@dataclass(frozen=True)
class Lines:
    """The lines of some leases. For each lease they sum to its charge with its corrections."""

    lines: tuple[Line, ...]
    usages: dict[tuple[str, UsageKey], Usage]
    """By sweep and key."""
    leases: tuple[LeaseState, ...]


def attribute(
    ledger: Journal,
    book: PriceBook,
    now_ns: int,
    *,
    sweep_id: str | None = None,
    cuts: Sequence[int] = (),
    rules: Sequence[BillingRule] | None = None,
    as_of_ns: int | None = None,
) -> Lines:
    """All lines of all leases, or of those that a sweep was attached to (other sweeps' lines on them included).

    No line crosses one of `cuts` (sorted instants). `as_of_ns`: only what had been written down by then counts.

    Raises:
        PriceError: a price or a billing rule is missing that the lease had when it was opened.
    """
    rules = rules_of(book) if rules is None else rules
    invoiced = invoiced_spans(ledger, as_of_ns)
    with ledger.read() as connection:
        everything = _read(connection, sweep_id, as_of_ns)
        states = facts.lease_states(connection, as_of_ns=as_of_ns)
        lines = _corrections(connection, everything, as_of_ns, invoiced)
    other = beside(ledger, states, now_ns, cuts=cuts, as_of_ns=as_of_ns)
    found: list[Line] = [] if sweep_id is not None else _unused_lines(other.used, now_ns)
    usages: dict[tuple[str, UsageKey], Usage] = {}
    for one in everything:
        usages.update({(u.usage.sweep_id, u.usage.key): u.usage for u in one.usages})
        whole, rows = charged(one.state, book, rules, now_ns, other)
        spans = invoiced.get(one.state.lease.lease_id, ())
        others = PriceKinds(one.state.lease, rows, book)
        edges = sorted({*cuts, *(edge for span in spans for edge in span), *others.edges})
        segments = cut(whole, edges, _rates(one.state.lease, rows))
        statuses = [status_at(one.state, s.from_ns, spans) for s in segments]
        kinds = others.of(segments, [bool(_commitment(s)) for s in segments])
        found += _lines(one, _Parts(segments, statuses, kinds), rows, allocate(one, segments))
    return Lines((*found, *lines), usages, tuple(one.state for one in everything))


def rules_of(book: PriceBook) -> tuple[BillingRule, ...]:
    """The billing rules beside a price book. A live table asks for them every second: they are read once per change.

    Raises:
        PriceError: they cannot be read.
    """
    file = Path(book.folder) / "billing.yaml"
    return _rules_of(book.folder, file.stat().st_mtime_ns if file.exists() else 0)


@lru_cache(maxsize=8)
def _rules_of(folder: str, _changed_ns: int) -> tuple[BillingRule, ...]:
    return load_rules(folder)


def price_series(lease: Lease, book: PriceBook) -> tuple[PriceRow, ...]:
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


def lease_charge(
    state: LeaseState, prices: Sequence[PriceRow], rules: Sequence[BillingRule], now_ns: int
) -> tuple[Segment, ...]:
    """What a lease has cost, by segment; while it is open, by `now_ns`. Without a price, a segment of nothing."""
    to_ns = max(now_ns, state.from_ns) if state.to_ns is None else state.to_ns
    if not prices:
        return (Segment(state.from_ns, to_ns, 0, "machine", ""),)
    ended: Ended | None = None
    if state.to_ns is not None:
        ended = "provider" if state.how == TAKEN_BACK else "user"
    lease = state.lease
    rule = rule_for(rules, prices[0].provider, prices[0].purchase)
    watts = lease.watts if lease.watts is not None else 0
    return charge(state.from_ns, to_ns, rule=rule, prices=prices, cards=lease.cards, watts=watts, ended=ended)


@dataclass(frozen=True)
class Beside:
    """What bears on the cost of leases beside their time: commitments, and resources that were counted."""

    used: commitments.Usage
    counted: Mapping[str, Sequence[metered.Metered]]
    """By lease."""


def beside(
    ledger: Journal,
    states: Sequence[LeaseState],
    now_ns: int,
    *,
    cuts: Sequence[int] = (),
    as_of_ns: int | None = None,
) -> Beside:
    """What the books know of it. `states`: all leases."""
    bought = commitments.load(ledger, as_of_ns)
    return Beside(commitments.use(bought, states, now_ns, cuts), metered.load(ledger, as_of_ns))


def charged(
    state: LeaseState, book: PriceBook, rules: Sequence[BillingRule], now_ns: int, beside: Beside
) -> tuple[tuple[Segment, ...], dict[str, PriceRow]]:
    """What a lease has cost, and the price rows that its segments name by hash: its time by its commitment while that
    lasts, and by the price book else; then the resources that were counted.

    Raises:
        PriceError: a price or a billing rule is missing that it needs.
    """
    time, rows = _time_charged(state, book, rules, now_ns, beside.used.covered.get(state.lease.lease_id))
    more, of_more = metered.segments(beside.counted.get(state.lease.lease_id, ()), state, book, rules)
    return (*time, *more), {**rows, **of_more}


def _time_charged(
    state: LeaseState,
    book: PriceBook,
    rules: Sequence[BillingRule],
    now_ns: int,
    covered: commitments.Covered | None,
) -> tuple[tuple[Segment, ...], dict[str, PriceRow]]:
    if covered is None:
        prices = price_series(state.lease, book)
        return lease_charge(state, prices, rules, now_ns), {row.hash: row for row in prices}
    start, stop = covered.segments[0].from_ns, covered.segments[-1].to_ns
    end = max(now_ns, state.from_ns) if state.to_ns is None else state.to_ns
    prices = price_series(state.lease, book) if state.from_ns < start or stop < end else ()
    before, after = tuple[Segment, ...](), tuple[Segment, ...]()
    if state.from_ns < start:
        before = lease_charge(replace(state, to_ns=start, how=""), prices, rules, now_ns)
    if stop < end:
        after = lease_charge(replace(state, from_ns=stop), prices, rules, now_ns)
    return (*before, *covered.segments, *after), {row.hash: row for row in prices}


def _commitment(segment: Segment) -> str:
    name = segment.price_hash
    return name.removeprefix(commitments.PREFIX) if name.startswith(commitments.PREFIX) else ""


def _unused_lines(used: commitments.Usage, now_ns: int) -> list[Line]:
    """What was bought, when it was, and what of it nobody used."""
    found = []
    for one in used.bought:
        line = Line(one.lease, "", "", 0, "purchase", 0, 0, one.from_ns, one.from_ns, None, False)
        found.append(replace(line, status="provisional", commitment=one.name, paid_pico=one.price.pico))
    for rest in used.unused:
        one = rest.commitment
        status = "estimated" if now_ns < one.to_ns else "provisional"
        found.append(
            Line(
                *(one.lease, "", "", 0, "unused_commitment", rest.pico, rest.micro_card_ns),
                *(rest.from_ns, rest.to_ns, None, False, (), status, one.name),
            )
        )
    return found


def cut(
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


def _rates(lease: Lease, rows: Mapping[str, PriceRow]) -> Callable[[Segment], Fraction]:
    watts = lease.watts if lease.watts is not None else 0
    per_ns = {
        digest: pico_per_hour(row, lease.cards, watts) / NS_PER_HOUR
        for digest, row in rows.items()
        if row.per in PER_HOUR
    }
    return lambda segment: per_ns.get(segment.price_hash, Fraction(0))


def _read(connection: Connection, sweep_id: str | None, as_of_ns: int | None) -> list[LeaseFacts]:
    lease_ids: list[str] | None = None
    if sweep_id is not None:
        query = select(schema.attachment.c.lease_id).where(schema.attachment.c.sweep_id == sweep_id).distinct()
        lease_ids = list(connection.execute(query).scalars())
        if not lease_ids:
            return []
    where = {} if lease_ids is None else {"lease_id": lease_ids}
    states = facts.lease_states(connection, as_of_ns=as_of_ns, **where)
    attachments: dict[str, list] = {}
    for one in facts.attachments(connection, lease_ids, as_of_ns=as_of_ns):
        attachments.setdefault(one.lease_id, []).append(one)
    phases = facts.phase_totals(connection, lease_ids=lease_ids, as_of_ns=as_of_ns)
    lost = facts.phase_totals_after_checkpoint(connection, sorted(DIED), lease_ids=lease_ids, as_of_ns=as_of_ns)
    usages: dict[str, list[UsageFacts]] = {}
    for number, usage in facts.usages(connection, lease_ids=lease_ids, as_of_ns=as_of_ns).items():
        of_lease = usages.setdefault(usage.key.lease_id, [])
        of_lease.append(UsageFacts(number, usage, phases.get(number, {}), lost.get(number, {})))
    return [
        LeaseFacts(s, tuple(attachments.get(s.lease.lease_id, ())), tuple(usages.get(s.lease.lease_id, ())))
        for s in states
    ]


@dataclass(frozen=True)
class _Parts:
    """A lease's charge, segment by segment: how firm each is, and what it comes to at each kind of price."""

    segments: Sequence[Segment]
    statuses: Sequence[str]
    kinds: Sequence[Kinds | None]


def _lines(one: LeaseFacts, parts: _Parts, rows: dict[str, PriceRow], allocation: Allocation) -> list[Line]:
    lease, segments = one.state.lease, parts.segments
    over = {(u.usage.sweep_id, u.usage.key) for u in one.usages if u.number in allocation.over_reported}
    of_lease = ("oversubscribed",) if allocation.oversubscribed_ns else ()
    found: list[Line] = []
    by_segment: list[dict[str, int]] = [{} for _ in segments]
    kinds = _split_kinds(parts.kinds, allocation.shares)
    for share, of_share in zip(allocation.shares, kinds, strict=True):
        segment = segments[share.segment]
        key = UsageKey(share.lease_id, share.trial_id, share.attempt)
        flags = (*of_lease, "over_reported") if (share.sweep_id, key) in over else of_lease
        price = rows.get(segment.price_hash)
        line = Line(
            *(lease, share.sweep_id, share.trial_id, share.attempt, share.category, share.pico, share.micro_card_ns),
            *(segment.from_ns, segment.to_ns, price, not segment.price_hash, flags, parts.statuses[share.segment]),
            commitment=_commitment(segment),
            kinds=of_share,
        )
        totals = by_segment[share.segment]
        totals[share.sweep_id] = totals.get(share.sweep_id, 0) + share.pico
        found.append(line)
    return [*found, *_tax(lease, segments, rows, by_segment, parts.statuses)]


def _split_kinds(kinds: Sequence[Kinds | None], shares: Sequence[Share]) -> list[Kinds | None]:
    """What each share comes to at each kind of price: its part of its segment's, by card time or by cost."""
    found: list[Kinds | None] = [None] * len(shares)
    mine: dict[int, list[int]] = {}
    for position, share in enumerate(shares):
        if kinds[share.segment] is not None:
            mine.setdefault(share.segment, []).append(position)
    for index, positions in mine.items():
        whole = kinds[index]
        assert whole is not None
        weights = [shares[at].micro_card_ns for at in positions]
        weights = weights if any(weights) else [shares[at].pico for at in positions]
        for at, part in zip(positions, whole.split(weights), strict=True):
            found[at] = part
    return found


def _tax(
    lease: Lease,
    segments: Sequence[Segment],
    rows: dict[str, PriceRow],
    by_segment: Sequence[dict[str, int]],
    statuses: Sequence[str],
) -> list[Line]:
    """Tax that comes on top of the prices, in proportion to what each sweep pays before it."""
    found: list[Line] = []
    exact, floored = Fraction(0), 0
    for segment, totals, status in zip(segments, by_segment, statuses, strict=True):
        row = rows.get(segment.price_hash)
        if row is None or row.tax_included or not any(totals.values()):
            continue
        # The running total is floored, so that the tax is the same however the charge is cut.
        exact += Fraction(row.tax_rate) * segment.pico
        tax, floored = floor(exact) - floored, floor(exact)
        if not tax:
            continue
        for sweep_id, pico in zip(totals, largest_remainder(tax, list(totals.values())), strict=True):
            found.append(
                Line(
                    *(lease, sweep_id, "", 0, "tax", pico, 0, segment.from_ns, segment.to_ns, row, False),
                    status=status,
                )
            )
    return found


def _corrections(
    connection: Connection, everything: Sequence[LeaseFacts], as_of_ns: int | None, invoiced: Spans
) -> list[Line]:
    states = {one.state.lease.lease_id: one.state for one in everything}
    table = schema.correction
    query = select(table).order_by(table.c.written_ns, table.c.correction_id)
    if as_of_ns is not None:
        query = query.where(table.c.written_ns <= as_of_ns)
    return [
        Line(
            *(states[row.lease_id].lease, row.sweep_id, row.trial_id, row.attempt, row.category, row.pico, 0),
            *(row.at_ns, row.at_ns, None, False, ("corrected",) if row.correction_id.startswith(BY_BILL) else BY_HAND),
            status_at(states[row.lease_id], row.at_ns, invoiced.get(row.lease_id, ())),
        )
        for row in connection.execute(query)
        if row.lease_id in states
    ]

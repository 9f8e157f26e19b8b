"""From facts and prices to lines: every part of every lease's charge, with who caused it and when.

Reads the ledger, charges each lease by the price book and its provider's rule, splits the charge (`allocation`), and
adds corrections as lines of their own. Rounds nothing and shows nothing. A lease without a price gives lines that are
marked unpriced, never lines of zero cost that look like a price.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import floor

from sqlalchemy import Connection, select

from cost.charges import commitments
from cost.charges.allocation import AllocatedCost, Allocation, LeaseHistory, ReportedUsage, allocate
from cost.charges.charge_status import Spans, invoice_numbers, invoiced_spans, status_at
from cost.charges.lease_charge import (
    billing_rules,
    charge_lease,
    cut_segments,
    load_charge_inputs,
    pico_per_ns_of,
    tax_rate,
)
from cost.charges.price_kinds import AlternativePrices, PriceKindAmounts
from cost.ledger import queries, schema
from cost.ledger.journal import Journal
from cost.money import largest_remainder
from cost.prices.billing import BillingRule, Segment
from cost.prices.book import PriceBook, PriceRow
from cost.records import DIED, Lease, LeaseState, Usage, UsageKey

BY_BILL = "bill:"
"""What the id of a correction begins with that came from a bill; all others were made by hand."""

BY_HAND = ("by_hand", "corrected")


@dataclass(frozen=True)
class CostLine:
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
    bought_micro_card_ns: int = 0
    """Of a purchase: the card time that was bought."""
    kinds: PriceKindAmounts | None = None
    """What it comes to at list, contracted and effective prices; None: at all of them what it cost."""
    rate: str = ""
    """Where its amounts were converted: the exchange rate, its day and its source, in words."""

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
class Attribution:
    """The lines of some leases. For each lease they sum to its charge with its corrections."""

    lines: tuple[CostLine, ...]
    usages: dict[tuple[str, UsageKey], Usage]
    """By sweep and key."""
    leases: tuple[LeaseState, ...]
    invoices: Mapping[str, Sequence[tuple[int, int, str]]] = field(default_factory=dict)
    """By lease: from, to, and the number of the invoice that it is on, the latest first."""


def attribute(
    ledger: Journal,
    book: PriceBook,
    now_ns: int,
    *,
    sweep_id: str | None = None,
    cuts: Sequence[int] = (),
    rules: Sequence[BillingRule] | None = None,
    as_of_ns: int | None = None,
    by_phase: bool = True,
) -> Attribution:
    """All lines of all leases, or of those that a sweep was attached to (other sweeps' lines on them included).

    No line crosses one of `cuts` (sorted instants). `as_of_ns`: only what had been written down by then counts. Without
    `by_phase` what trials reported is not read: all time inside of a trial is of category `other`, or `lost_work`.

    Raises:
        PriceError: a price or a billing rule is missing that the lease had when it was opened.
    """
    rules = billing_rules(book) if rules is None else rules
    invoiced = invoiced_spans(ledger, as_of_ns)
    with ledger.read() as connection:
        everything = _read(connection, sweep_id, as_of_ns, by_phase)
        states = queries.lease_states(connection, as_of_ns=as_of_ns)
        lines = _corrections(connection, everything, as_of_ns, invoiced)
    other = load_charge_inputs(ledger, book, states, now_ns, cuts=cuts, as_of_ns=as_of_ns)
    found: list[CostLine] = [] if sweep_id is not None else _unused_lines(other.used, now_ns, invoiced)
    usages: dict[tuple[str, UsageKey], Usage] = {}
    for one in everything:
        usages.update({(u.usage.sweep_id, u.usage.key): u.usage for u in one.usages})
        whole, rows = charge_lease(one.state, book, rules, now_ns, other)
        spans = invoiced.get(one.state.lease.lease_id, ())
        others = AlternativePrices(one.state.lease, rows, book)
        edges = sorted({*cuts, *(edge for span in spans for edge in span), *others.edges})
        segments = cut_segments(whole, edges, pico_per_ns_of(one.state.lease, rows))
        statuses = [status_at(one.state, s.from_ns, spans) for s in segments]
        kinds = others.of(segments, [bool(_commitment(s)) for s in segments])
        flags = ("unknown_commitment",) if one.state.lease.lease_id in other.used.unknown else ()
        found += _lines(one, _Parts(segments, statuses, kinds, flags), rows, allocate(one, segments))
    numbers = invoice_numbers(ledger, as_of_ns)
    return Attribution((*found, *lines), usages, tuple(one.state for one in everything), numbers)


def _commitment(segment: Segment) -> str:
    name = segment.price_hash
    return name.removeprefix(commitments.PREFIX) if name.startswith(commitments.PREFIX) else ""


def _unused_lines(used: commitments.CommitmentUsage, now_ns: int, invoiced: Spans) -> list[CostLine]:
    """What was bought, when it was, and what of it nobody used."""
    found = []
    for one in used.bought:
        line = CostLine(one.lease, "", "", 0, "purchase", 0, 0, one.from_ns, one.from_ns, None, False)
        status = "invoiced" if invoiced.get(one.lease.lease_id) else "provisional"
        bought = one.cards * schema.MICRO_PER_CARD * (one.to_ns - one.from_ns)
        more = {"paid_pico": one.price.pico, "bought_micro_card_ns": bought}
        found.append(replace(line, status=status, commitment=one.name, **more))
    for rest in used.unused:
        one = rest.commitment
        status = "estimated" if now_ns < one.to_ns else "provisional"
        found.append(
            CostLine(
                *(one.lease, "", "", 0, "unused_commitment", rest.pico, rest.micro_card_ns),
                *(rest.from_ns, rest.to_ns, None, False, (), status, one.name),
            )
        )
    return found


def _read(connection: Connection, sweep_id: str | None, as_of_ns: int | None, by_phase: bool) -> list[LeaseHistory]:
    lease_ids: list[str] | None = None
    if sweep_id is not None:
        query = select(schema.attachment.c.lease_id).where(schema.attachment.c.sweep_id == sweep_id).distinct()
        lease_ids = list(connection.execute(query).scalars())
        if not lease_ids:
            return []
    where = {} if lease_ids is None else {"lease_id": lease_ids}
    states = queries.lease_states(connection, as_of_ns=as_of_ns, **where)
    attachments: dict[str, list] = {}
    for one in queries.attachments(connection, lease_ids, as_of_ns=as_of_ns):
        attachments.setdefault(one.lease_id, []).append(one)
    phases = lost = {}
    if by_phase:
        phases = queries.phase_totals(connection, lease_ids=lease_ids, as_of_ns=as_of_ns)
        lost = queries.phase_totals_after_checkpoint(connection, sorted(DIED), lease_ids=lease_ids, as_of_ns=as_of_ns)
    usages: dict[str, list[ReportedUsage]] = {}
    for number, usage in queries.usages(connection, lease_ids=lease_ids, as_of_ns=as_of_ns).items():
        of_lease = usages.setdefault(usage.key.lease_id, [])
        of_lease.append(ReportedUsage(number, usage, phases.get(number, {}), lost.get(number, {})))
    return [
        LeaseHistory(s, tuple(attachments.get(s.lease.lease_id, ())), tuple(usages.get(s.lease.lease_id, ())))
        for s in states
    ]


@dataclass(frozen=True)
class _Parts:
    """A lease's charge, segment by segment: how firm each is, and what it comes to at each kind of price."""

    segments: Sequence[Segment]
    statuses: Sequence[str]
    kinds: Sequence[PriceKindAmounts | None]
    flags: tuple[str, ...]
    """Of all of it."""


def _lines(one: LeaseHistory, parts: _Parts, rows: dict[str, PriceRow], allocation: Allocation) -> list[CostLine]:
    lease, segments = one.state.lease, parts.segments
    over = {(u.usage.sweep_id, u.usage.key) for u in one.usages if u.number in allocation.over_reported}
    of_lease = (*parts.flags, "oversubscribed") if allocation.oversubscribed_ns else parts.flags
    found: list[CostLine] = []
    by_segment: list[dict[str, int]] = [{} for _ in segments]
    kinds = _split_kinds(parts.kinds, allocation.shares)
    for share, of_share in zip(allocation.shares, kinds, strict=True):
        segment = segments[share.segment]
        key = UsageKey(share.lease_id, share.trial_id, share.attempt)
        flags = (*of_lease, "over_reported") if (share.sweep_id, key) in over else of_lease
        price = rows.get(segment.price_hash)
        line = CostLine(
            *(lease, share.sweep_id, share.trial_id, share.attempt, share.category, share.pico, share.micro_card_ns),
            *(segment.from_ns, segment.to_ns, price, not segment.price_hash, flags, parts.statuses[share.segment]),
            commitment=_commitment(segment),
            kinds=of_share,
        )
        totals = by_segment[share.segment]
        totals[share.sweep_id] = totals.get(share.sweep_id, 0) + share.pico
        found.append(line)
    return [*found, *_tax(lease, parts, rows, by_segment)]


def _split_kinds(
    kinds: Sequence[PriceKindAmounts | None], shares: Sequence[AllocatedCost]
) -> list[PriceKindAmounts | None]:
    """What each share comes to at each kind of price: its part of its segment's, by card time or by cost."""
    found: list[PriceKindAmounts | None] = [None] * len(shares)
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
    lease: Lease, parts: _Parts, rows: dict[str, PriceRow], by_segment: Sequence[dict[str, int]]
) -> list[CostLine]:
    """Tax that comes on top of the prices, in proportion to what each sweep pays before it; at each kind of price."""
    found: list[CostLine] = []
    running = [Fraction(0)] * 4
    every = zip(parts.segments, parts.kinds, by_segment, parts.statuses, strict=True)
    for segment, kinds, totals, status in every:
        row = rows.get(segment.price_hash)
        if not tax_rate(row) or not any(totals.values()):
            continue
        # The running totals are floored, so that the tax is the same however the charge is cut.
        net = [segment.pico] * 4
        if kinds is not None:
            net = [segment.pico, kinds.list_pico, kinds.contracted_pico, kinds.effective_pico]
        before = [floor(total) for total in running]
        running = [total + tax_rate(row) * pico for total, pico in zip(running, net, strict=True)]
        tax, listed, contracted, effective = (floor(t) - whole for t, whole in zip(running, before, strict=True))
        if not tax:
            continue
        weights = list(totals.values())
        of_sweeps = (
            [None] * len(weights) if kinds is None else PriceKindAmounts(listed, contracted, effective).split(weights)
        )
        for sweep_id, pico, of_sweep in zip(totals, largest_remainder(tax, weights), of_sweeps, strict=True):
            found.append(
                CostLine(
                    *(lease, sweep_id, "", 0, "tax", pico, 0, segment.from_ns, segment.to_ns, row, False),
                    status=status,
                    kinds=of_sweep,
                )
            )
    return found


def _corrections(
    connection: Connection, everything: Sequence[LeaseHistory], as_of_ns: int | None, invoiced: Spans
) -> list[CostLine]:
    states = {one.state.lease.lease_id: one.state for one in everything}
    table = schema.correction
    query = select(table).order_by(table.c.written_ns, table.c.correction_id)
    if as_of_ns is not None:
        query = query.where(table.c.written_ns <= as_of_ns)
    return [
        CostLine(
            *(states[row.lease_id].lease, row.sweep_id, row.trial_id, row.attempt, row.category, row.pico, 0),
            *(row.at_ns, row.at_ns, None, False, ("corrected",) if row.correction_id.startswith(BY_BILL) else BY_HAND),
            status_at(states[row.lease_id], row.at_ns, invoiced.get(row.lease_id, ())),
        )
        for row in connection.execute(query)
        if row.lease_id in states
    ]

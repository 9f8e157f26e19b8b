"""Attribute the cost of leases: one line per part of a charge, with the trial or overhead category that caused it.

Reads the ledger, charges each lease by the price book and its provider's billing rule, splits the charge
(`allocation`), and adds corrections as lines of their own. Rounds nothing. The lines of a lease without a price are
marked as unpriced, so that a missing price never looks like a cost of zero.

Tested in tests/cost/reports/test_report.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor

from sqlalchemy import Connection, select

from cost.charges import commitments
from cost.charges.allocation import AllocatedCost, Allocation, LeaseHistory, ReportedUsage, allocate
from cost.charges.charge_status import (
    BILL_PREFIX,
    AppliedBill,
    AppliedBills,
    applied_bills,
    bills_of_charge,
    bills_of_correction,
    invoice_number,
    status_of,
)
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
from cost.ledger.ledger import Ledger
from cost.money import largest_remainder
from cost.prices.billing import BillingRule, Segment
from cost.prices.book import PriceBook, PriceRow
from cost.records import LOST_WORK_OUTCOMES, Lease, LeaseState, Usage, UsageKey

_BILL_FLAGS, _HAND_FLAGS = ("corrected",), ("by_hand", "corrected")


@dataclass(frozen=True)
class CostLine:
    """A part of what a lease cost: one category, one attempt or sweep, one interval at one price."""

    lease: Lease
    sweep_id: str
    """Empty: the cost belongs to no sweep."""
    trial_id: str
    """Empty: overhead."""
    attempt: int
    category: str
    pico: int
    micro_card_ns: int
    from_ns: int
    to_ns: int
    price: PriceRow | None
    """None for corrections, for commitments, and for leases without a price."""
    unpriced: bool
    flags: tuple[str, ...] = ()
    status: str = "estimated"
    """How final the amount is: one of `charge_status.STATUSES`."""
    commitment: str = ""
    """Name of the commitment that covers this time; its purchase has paid for it."""
    paid_pico: int = 0
    """For a purchase of a commitment: the amount paid."""
    bought_micro_card_ns: int = 0
    """For a purchase of a commitment: the card time bought."""
    by_price_kind: PriceKindAmounts | None = None
    """The amounts at list, contracted and effective prices. None: each of them equals `pico`."""
    exchange_rate: str = ""
    """For converted amounts: the exchange rate, its day and its source, as text."""
    invoice: str = ""
    """Number of the invoice that the amount is on."""
    correction_id: str = ""
    """Empty: a charge."""

    @property
    def list_pico(self) -> int:
        return self.pico if self.by_price_kind is None else self.by_price_kind.list_pico

    @property
    def contracted_pico(self) -> int:
        return self.pico if self.by_price_kind is None else self.by_price_kind.contracted_pico

    @property
    def effective_pico(self) -> int:
        return self.pico if self.by_price_kind is None else self.by_price_kind.effective_pico

    @property
    def imputed(self) -> bool:
        """Whether this is the cost of own hardware, which appears on no bill."""
        return self.lease.purchase == "own" or (self.price is not None and self.price.per == "kwh")

    @property
    def billed_pico(self) -> int:
        """The part of the amount that a provider bills."""
        if self.lease.simulated or self.imputed:
            return 0
        return self.paid_pico if self.commitment else self.pico


@dataclass(frozen=True)
class Attribution:
    """The cost lines of some leases. The lines of a lease sum to its charge plus its corrections."""

    lines: tuple[CostLine, ...]
    usages: dict[tuple[str, UsageKey], Usage]
    """By sweep id and key."""
    leases: tuple[LeaseState, ...]
    problems: Mapping[str, str] = field(default_factory=dict)
    """By lease id: why a lease cannot be priced."""
    unassigned: Mapping[str, int] = field(default_factory=dict)
    """By currency: what these leases cost while no sweep was attached, if `lines` are those of one sweep."""


def attribute(
    ledger: Ledger,
    book: PriceBook,
    now_ns: int,
    *,
    sweep_id: str | None = None,
    cuts: Sequence[int] = (),
    rules: Sequence[BillingRule] | None = None,
    as_of_ns: int | None = None,
    by_phase: bool = True,
) -> Attribution:
    """The cost lines of all leases, or of the leases that a sweep was attached to, other sweeps' lines included.

    No line crosses one of `cuts` (sorted instants). `as_of_ns`: use only what the ledger contained at that moment.
    `by_phase=False` skips the phases that trials reported, which is faster: all time of a trial is then `other` or
    `lost_work`.

    A lease that cannot be priced has lines that are marked as unpriced, and a reason in `problems`.
    """
    rules = billing_rules(book) if rules is None else rules
    bills = applied_bills(ledger, as_of_ns)
    with ledger.read() as connection:
        histories = _lease_histories(connection, sweep_id, as_of_ns, by_phase)
        all_states = queries.lease_states(connection, as_of_ns=as_of_ns)
        corrections = _correction_lines(connection, histories, as_of_ns, bills)
    inputs = load_charge_inputs(ledger, book, all_states, now_ns, cuts=cuts, as_of_ns=as_of_ns)
    lines: list[CostLine] = []
    if sweep_id is None:
        lines += _commitment_lines(inputs.commitment_usage, now_ns, bills)
    usages: dict[tuple[str, UsageKey], Usage] = {}
    problems: dict[str, str] = {}
    for history in histories:
        usages.update({(u.usage.sweep_id, u.usage.key): u.usage for u in history.usages})
        lease = history.state.lease
        charge = charge_lease(history.state, rules, now_ns, inputs)
        rows = charge.rows
        if charge.problem:
            problems[lease.lease_id] = charge.problem
        own_bills = bills.get(lease.lease_id, ())
        alternatives = AlternativePrices(
            lease, rows, inputs.book, committed=lease.lease_id in inputs.commitment_usage.covered
        )
        bill_edges = {edge for bill in own_bills for edge in (bill.from_ns, bill.to_ns)}
        edges = sorted({*cuts, *bill_edges, *alternatives.change_times})
        segments = cut_segments(charge.segments, edges, pico_per_ns_of(lease, rows))
        charged = _ChargedSegments(
            segments,
            bills=own_bills,
            by_price_kind=alternatives.amounts(segments, [bool(_commitment_name(s)) for s in segments]),
            flags=("unknown_commitment",) if lease.lease_id in inputs.commitment_usage.unknown else (),
        )
        lines += _lease_lines(history, charged, rows, allocate(history, segments))
    return Attribution((*lines, *corrections), usages, tuple(h.state for h in histories), problems)


def _commitment_name(segment: Segment) -> str:
    """The commitment that covers a segment; empty: none."""
    source = segment.price_hash
    return source.removeprefix(commitments.PREFIX) if source.startswith(commitments.PREFIX) else ""


def _commitment_lines(usage: commitments.CommitmentUsage, now_ns: int, bills: AppliedBills) -> list[CostLine]:
    """One line per purchase of a commitment, and one per interval in which a part of a commitment was unused."""
    lines = []
    for commitment in usage.begun:
        lines.append(
            CostLine(
                *(commitment.lease, "", "", 0, "purchase", 0, 0, commitment.from_ns, commitment.from_ns, None, False),
                status="invoiced" if bills.get(commitment.lease.lease_id) else "provisional",
                invoice=invoice_number(bills.get(commitment.lease.lease_id, ())),
                commitment=commitment.name,
                paid_pico=commitment.price.pico,
                bought_micro_card_ns=commitment.cards * schema.MICRO_PER_CARD * (commitment.to_ns - commitment.from_ns),
            )
        )
    for unused in usage.unused:
        commitment = unused.commitment
        status = "estimated" if now_ns < commitment.to_ns else "provisional"
        lines.append(
            CostLine(
                *(commitment.lease, "", "", 0, "unused_commitment", unused.pico, unused.micro_card_ns),
                *(unused.from_ns, unused.to_ns, None, False, (), status, commitment.name),
            )
        )
    return lines


def _lease_histories(
    connection: Connection, sweep_id: str | None, as_of_ns: int | None, by_phase: bool
) -> list[LeaseHistory]:
    lease_ids: list[str] | None = None
    if sweep_id is not None:
        query = select(schema.attachment.c.lease_id).where(schema.attachment.c.sweep_id == sweep_id).distinct()
        lease_ids = list(connection.execute(query).scalars())
        if not lease_ids:
            return []
    where = {} if lease_ids is None else {"lease_id": lease_ids}
    states = queries.lease_states(connection, as_of_ns=as_of_ns, **where)
    attachments: dict[str, list] = {}
    for attachment in queries.attachments(connection, lease_ids, as_of_ns=as_of_ns):
        attachments.setdefault(attachment.lease_id, []).append(attachment)
    phases = unsaved = {}
    if by_phase:
        phases = queries.phase_totals(connection, lease_ids=lease_ids, as_of_ns=as_of_ns)
        unsaved = queries.phase_totals_after_checkpoint(
            connection, sorted(LOST_WORK_OUTCOMES), lease_ids=lease_ids, as_of_ns=as_of_ns
        )
    usages: dict[str, list[ReportedUsage]] = {}
    for usage_id, usage in queries.usages(connection, lease_ids=lease_ids, as_of_ns=as_of_ns).items():
        reported = ReportedUsage(usage_id, usage, phases.get(usage_id, {}), unsaved.get(usage_id, {}))
        usages.setdefault(usage.key.lease_id, []).append(reported)
    return [
        LeaseHistory(s, tuple(attachments.get(s.lease.lease_id, ())), tuple(usages.get(s.lease.lease_id, ())))
        for s in states
    ]


@dataclass(frozen=True)
class _ChargedSegments:
    """A lease's charge: its segments with their amounts at each kind of price, and the bills that were applied."""

    segments: Sequence[Segment]
    bills: Sequence[AppliedBill]
    by_price_kind: Sequence[PriceKindAmounts | None]
    flags: tuple[str, ...]
    """Flags of every line of the lease."""


def _lease_lines(
    history: LeaseHistory, charged: _ChargedSegments, rows: dict[str, PriceRow], allocation: Allocation
) -> list[CostLine]:
    lease, segments = history.state.lease, charged.segments
    over_reported = {(u.usage.sweep_id, u.usage.key) for u in history.usages if u.usage_id in allocation.over_reported}
    lease_flags = (*charged.flags, "oversubscribed") if allocation.oversubscribed_ns else charged.flags
    lines: list[CostLine] = []
    sweep_totals: list[dict[str, int]] = [{} for _ in segments]
    by_price_kind = _split_by_price_kind(charged.by_price_kind, allocation.costs)
    for cost, amounts in zip(allocation.costs, by_price_kind, strict=True):
        segment = segments[cost.segment]
        key = UsageKey(cost.lease_id, cost.trial_id, cost.attempt)
        flags = (*lease_flags, "over_reported") if (cost.sweep_id, key) in over_reported else lease_flags
        price = rows.get(segment.price_hash)
        bills = bills_of_charge(charged.bills, segment.from_ns, cost.category)
        commitment = _commitment_name(segment)
        lines.append(
            CostLine(
                *(lease, cost.sweep_id, cost.trial_id, cost.attempt, cost.category, cost.pico, cost.micro_card_ns),
                *(segment.from_ns, segment.to_ns, price, not segment.price_hash, flags),
                status=status_of(history.state, bills),
                commitment=commitment,
                by_price_kind=amounts,
                # The purchase of a commitment is on an invoice; the time that it has paid for is not.
                invoice="" if commitment else invoice_number(bills),
            )
        )
        totals = sweep_totals[cost.segment]
        totals[cost.sweep_id] = totals.get(cost.sweep_id, 0) + cost.pico
    return [*lines, *_tax_lines(history.state, charged, rows, sweep_totals)]


def _split_by_price_kind(
    segment_amounts: Sequence[PriceKindAmounts | None], costs: Sequence[AllocatedCost]
) -> list[PriceKindAmounts | None]:
    """Each allocated cost's part of its segment's amounts, in proportion to card time, else to cost."""
    split: list[PriceKindAmounts | None] = [None] * len(costs)
    positions_of: dict[int, list[int]] = {}
    for position, cost in enumerate(costs):
        if segment_amounts[cost.segment] is not None:
            positions_of.setdefault(cost.segment, []).append(position)
    for index, positions in positions_of.items():
        whole = segment_amounts[index]
        assert whole is not None
        weights = [costs[position].micro_card_ns for position in positions]
        weights = weights if any(weights) else [costs[position].pico for position in positions]
        for position, part in zip(positions, whole.split(weights), strict=True):
            split[position] = part
    return split


def _tax_lines(
    state: LeaseState, charged: _ChargedSegments, rows: dict[str, PriceRow], sweep_totals: Sequence[dict[str, int]]
) -> list[CostLine]:
    """Tax on top of the prices, split over sweeps in proportion to their net amounts, at each kind of price."""
    lines: list[CostLine] = []
    running = [Fraction(0)] * 4
    for segment, amounts, totals in zip(charged.segments, charged.by_price_kind, sweep_totals, strict=True):
        row = rows.get(segment.price_hash)
        if not tax_rate(row) or not any(totals.values()):
            continue
        # The running totals are floored, so that the tax does not depend on where the charge is cut.
        net = [segment.pico] * 4
        if amounts is not None:
            net = [segment.pico, amounts.list_pico, amounts.contracted_pico, amounts.effective_pico]
        before = [floor(total) for total in running]
        running = [total + tax_rate(row) * pico for total, pico in zip(running, net, strict=True)]
        tax, listed, contracted, effective = (floor(t) - floored for t, floored in zip(running, before, strict=True))
        if not tax:
            continue
        weights = list(totals.values())
        tax_amounts: Sequence[PriceKindAmounts | None] = [None] * len(weights)
        if amounts is not None:
            tax_amounts = PriceKindAmounts(listed, contracted, effective).split(weights)
        parts = largest_remainder(tax, weights)
        bills = bills_of_charge(charged.bills, segment.from_ns, "tax")
        for sweep_id, pico, sweep_amounts in zip(totals, parts, tax_amounts, strict=True):
            lines.append(
                CostLine(
                    *(state.lease, sweep_id, "", 0, "tax", pico, 0, segment.from_ns, segment.to_ns, row, False),
                    status=status_of(state, bills),
                    by_price_kind=sweep_amounts,
                    invoice=invoice_number(bills),
                )
            )
    return lines


def _correction_lines(
    connection: Connection, histories: Sequence[LeaseHistory], as_of_ns: int | None, applied: AppliedBills
) -> list[CostLine]:
    states = {history.state.lease.lease_id: history.state for history in histories}
    table = schema.correction
    query = select(table).order_by(table.c.written_ns, table.c.correction_id)
    if as_of_ns is not None:
        query = query.where(table.c.written_ns <= as_of_ns)
    lines = []
    for row in connection.execute(query):
        if (state := states.get(row.lease_id)) is None:
            continue
        flags = _BILL_FLAGS if row.correction_id.startswith(BILL_PREFIX) else _HAND_FLAGS
        bills = bills_of_correction(applied.get(row.lease_id, ()), row.correction_id, row.at_ns, row.category)
        lines.append(
            CostLine(
                *(state.lease, row.sweep_id, row.trial_id, row.attempt, row.category, row.pico, 0),
                *(row.at_ns, row.at_ns, None, False, flags),
                status=status_of(state, bills),
                invoice=invoice_number(bills),
                correction_id=row.correction_id,
            )
        )
    return lines

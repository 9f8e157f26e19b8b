"""Compare a provider's bill with the ledger: per lease and day of the bill, and per commitment.

Own hardware and simulated leases are on no bill and are left out. Nothing is written here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cost.bills import commitment_purchases
from cost.bills.bill import Bill, BillLine, last_instant
from cost.bills.causes import ComparedLines, explain
from cost.bills.differences import Comparison, Reconciliation, days_of, one_invoice
from cost.bills.matching import match_lines
from cost.charges.attribution import CostLine, attribute
from cost.charges.charge_status import MACHINE, charge_kind
from cost.charges.commitments import load_commitments
from cost.prices.billing import BillingRule, load_rules
from cost.prices.book import PriceBook
from cost.prices.fx import Conversion, Rate, convert, rate_notes
from cost.records import Lease

if TYPE_CHECKING:
    from cost.ledger.ledger import Ledger

_KIND = {"requests": "storage", "refund": "credit", "covered": MACHINE}
"""Kinds of bill line that are compared as another kind."""


@dataclass(frozen=True)
class _Ledger:
    """The ledger's side: cost lines by lease, cut at the bill's days, and prices, rates and rules."""

    lines: dict[str, list[CostLine]]
    book: PriceBook
    rates: Sequence[Rate]
    rules: Sequence[BillingRule]


def reconcile(
    ledger: Ledger,
    book: PriceBook,
    bill: Bill,
    now_ns: int,
    *,
    rates: Sequence[Rate] = (),
    rules: Sequence[BillingRule] | None = None,
) -> Reconciliation:
    """Compare a bill with the ledger, over the days that the bill covers.

    Raises:
        PriceError: an exchange rate is missing.
    """
    first, last = bill.period
    rules = load_rules(book.folder) if rules is None else rules
    found = attribute(ledger, book, now_ns, cuts=bill.midnights, rules=rules)
    by_lease: dict[str, list[CostLine]] = defaultdict(list)
    for line in found.lines:
        if first <= line.from_ns < last and is_billable(line):
            by_lease[line.lease.lease_id].append(line)
    states = {s.lease.lease_id: s for s in found.leases}
    known = load_commitments(ledger)
    notes: list[Conversion] = []
    of_commitments = commitment_purchases.commitment_lines(bill, known)
    comparisons = commitment_purchases.compare_purchases(bill, of_commitments, rates, notes)
    matched = match_lines(bill, of_commitments.others, found.leases, book)
    covered = match_lines(bill, of_commitments.covered, found.leases, book)
    for lease_id, lines in covered.by_lease.items():
        matched.by_lease.setdefault(lease_id, []).extend(lines)
    ours = _Ledger(by_lease, book, rates, rules)
    for lease_id, lines in matched.by_lease.items():
        comparisons += _compare_lease(ours, bill, states[lease_id].lease, lines, notes)
    providers = {states[lease_id].lease.provider for lease_id in matched.by_lease} | {bill.map.provider} - {""}
    providers |= {one.provider for one, _ in of_commitments.purchases}
    unbilled = commitment_purchases.purchases_not_billed(bill, known, of_commitments, providers)
    for lease_id, lines in by_lease.items():
        pico = sum(line.pico for line in lines)
        lease = states[lease_id].lease
        if lease_id not in matched.by_lease and pico and (lease.provider in providers or not providers):
            unbilled.append((lease, pico))
    return Reconciliation(
        bill,
        tuple(comparisons),
        tuple(matched.missing),
        tuple(matched.unrelated),
        tuple(unbilled),
        rate_notes(notes),
    )


def is_billable(line: CostLine) -> bool:
    """Whether a line is billed for itself: it is not own hardware, not simulated, and no commitment has paid for it."""
    return not line.imputed and not line.lease.simulated and not line.commitment


def manual_conflicts(done: Reconciliation) -> list[Comparison]:
    """The comparisons in which applying the bill would undo a correction that was entered by hand."""
    return [one for one in done.comparisons if one.by_hand_pico and one.difference]


def _compare_lease(
    ours: _Ledger, bill: Bill, lease: Lease, lines: Sequence[BillLine], notes: list[Conversion]
) -> list[Comparison]:
    """One comparison per kind of charge and day of the bill; over the whole bill if a line spans days."""
    daily = all(bill.day_of(line.from_ns) == bill.day_of(last_instant(line)) for line in lines)

    def span(at_ns: int) -> tuple[int, int]:
        return (bill.midnight(bill.day_of(at_ns)), bill.day_after(at_ns)) if daily else bill.period

    billed: dict[tuple[tuple[int, int], str], list[BillLine]] = defaultdict(list)
    booked: dict[tuple[tuple[int, int], str], list[CostLine]] = defaultdict(list)
    for line in lines:
        billed[span(line.from_ns), _KIND.get(line.kind, line.kind)].append(line)
    for line in ours.lines.get(lease.lease_id, []):
        booked[span(line.from_ns), charge_kind(line.category)].append(line)
    return [_compare(ours, bill, lease, key, billed[key], booked[key], notes) for key in sorted({*billed, *booked})]


def _compare(
    ours: _Ledger,
    bill: Bill,
    lease: Lease,
    key: tuple[tuple[int, int], str],
    billed: list[BillLine],
    booked: list[CostLine],
    notes: list[Conversion],
) -> Comparison:
    (start, stop), kind = key
    bill_pico = 0
    for line in billed:
        conversion = convert(line.pico, line.currency, lease.currency, bill.day_of(line.from_ns), ours.rates)
        bill_pico += conversion.pico
        notes.append(conversion)
    idle = sum(line.pico for line in booked if not line.trial_id and line.category != "billing_increment")
    made = Comparison(
        lease,
        kind,
        start,
        stop,
        *days_of(bill, start, stop),
        bill_pico,
        ledger_pico=sum(line.pico for line in booked),
        idle_pico=idle if kind == MACHINE else 0,
        by_hand=tuple((line.correction_id, line.pico) for line in booked if "by_hand" in line.flags),
        invoice=one_invoice(billed),
    )
    foreign = any(line.currency != lease.currency for line in billed)
    return replace(made, causes=explain(made, ComparedLines(billed, booked, foreign), ours.book, ours.rules))

"""A bill's payments for commitments and the usage that they cover, compared with the commitments that were entered.

A purchase is one payment, or several over the commitment's time. The usage that a commitment covers is on no other
charge: a bill shows it at 0, or at its price with a negation of the same amount beside it. Nothing is written here.

Tested in tests/cost/bills/test_reconcile.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from cost.bills.bill import Bill, BillLine, last_instant
from cost.bills.differences import Cause, Comparison, days_of, one_invoice
from cost.charges.commitments import Commitment
from cost.money import Money, pico_text
from cost.prices.fx import Conversion, Rate, convert
from cost.records import Lease

PURCHASE = "purchase"
"""The kind of a bill line that pays for a commitment, and of its comparison."""


@dataclass(frozen=True)
class CommitmentLines:
    """The lines of a bill by what commitments have to do with them."""

    purchases: Sequence[tuple[Commitment, Sequence[BillLine]]]
    """Payments for a commitment, and what its covered usage does not cancel with."""
    covered: Sequence[BillLine]
    """Usage that a commitment has paid for. It costs nothing beside the purchase: every amount is 0."""
    others: Sequence[BillLine]
    """All other lines; the purchase of an unknown commitment is a fee."""


def commitment_lines(bill: Bill, known: Iterable[Commitment]) -> CommitmentLines:
    """Sort the lines of a bill. `known`: the commitments that were entered."""
    by_name = {one.name: one for one in known if bill.map.provider in ("", one.provider)}
    purchases: dict[str, list[BillLine]] = defaultdict(list)
    others: list[BillLine] = []
    covered = [line for line in bill.lines if line.kind in ("covered", "negation")]
    for line in (*(line for line in bill.lines if line.kind not in ("covered", "negation")), *_uncancelled(covered)):
        mine = sorted(_names(line.commitment, line.resource) & by_name.keys())
        if line.kind == PURCHASE and mine:
            purchases[mine[0]].append(line)
        elif line.kind == PURCHASE:
            others.append(replace(line, kind="fee"))
        elif line.pico or not _names(line.resource) & by_name.keys():
            others.append(line)
        # Otherwise the line shows unused time of a commitment, which costs nothing beside the purchase.
    usage = [replace(line, pico=0) for line in covered if line.kind == "covered"]
    usage = [line for line in usage if not _names(line.resource) & by_name.keys()]
    return CommitmentLines([(by_name[name], lines) for name, lines in purchases.items()], usage, others)


def _uncancelled(covered: Sequence[BillLine]) -> list[BillLine]:
    """What covered usage and its negations do not cancel to, one line for each commitment and currency.

    Each provider's amount may be rounded in its last place, so half of a unit of each is no difference.
    """
    found = []
    for lines in _grouped(covered, lambda line: (line.currency,)):
        if not _cancel(lines):
            for own in _grouped(lines, lambda line: (line.currency, line.commitment)):
                if not _cancel(own):
                    total = sum(line.pico for line in own)
                    text = "usage covered by a commitment, without a negation of the same amount"
                    found.append(replace(own[0], resource="", pico=total, kind=PURCHASE, description=text))
    return found


def _grouped(lines, key) -> list[list[BillLine]]:
    groups: dict[tuple[str, ...], list[BillLine]] = defaultdict(list)
    for line in lines:
        groups[key(line)].append(line)
    return list(groups.values())


def _cancel(lines: Sequence[BillLine]) -> bool:
    return abs(sum(line.pico for line in lines)) <= sum(line.quantum for line in lines if line.pico) // 2


def _names(*ids: str) -> set[str]:
    """The names that an id on a bill may stand for: the id itself, or its last part. Our own files have a prefix."""
    tails = {tail for text in ids for tail in (text, text.rsplit("/", 1)[-1])}
    return {tail.removeprefix("commitment:") for tail in tails} - {""}


def compare_purchases(
    bill: Bill, found: CommitmentLines, rates: Sequence[Rate], notes: list[Conversion]
) -> list[Comparison]:
    """One comparison for each commitment that the bill has a payment of. Raises MissingRateError."""
    comparisons = []
    for one, lines in found.purchases:
        pico = 0
        for line in lines:
            conversion = convert(line.pico, line.currency, one.price.currency, bill.day_of(line.from_ns), rates)
            notes.append(conversion)
            pico += conversion.pico
        start, stop = min(line.from_ns for line in lines), max(last_instant(line) + 1 for line in lines)
        # A plan that is paid over its time is on each bill with the part of that time.
        expected = {one.price.pico, one.amortised(stop) - one.amortised(start)}
        ledger_pico = min(expected, key=lambda amount: (abs(amount - pico), amount))
        made = Comparison(one.lease, PURCHASE, start, stop, *days_of(bill, start, stop), pico, ledger_pico)
        made = replace(made, invoice=one_invoice(lines))
        if made.difference:
            made = replace(made, ledger_pico=one.price.pico)
            text = (
                f"commitment {one.name} was entered at {one.price}, and this bill has {pico_text(pico)} of it: a part, "
                "where it is paid in several; else enter what was paid"
            )
            made = replace(made, causes=(Cause(PURCHASE, made.difference, text),))
        comparisons.append(made)
    return comparisons


def purchases_not_billed(
    bill: Bill, known: Iterable[Commitment], found: CommitmentLines, providers: Iterable[str]
) -> list[tuple[Lease, int]]:
    """Commitments that begin in the days of a bill and are not on it."""
    first, last = bill.period
    there, of = {one.name for one, _ in found.purchases}, set(providers)
    return [
        (one.lease, one.price.pico)
        for one in known
        if one.name not in there and first <= one.from_ns < last and (one.provider in of or not of)
    ]


def uncovered_text(lines: Sequence[BillLine], charged: Money) -> str:
    """The explanation for usage that the bill has under a commitment and the ledger at the price book's price."""
    name = next((line.commitment.rsplit("/", 1)[-1] for line in lines if line.commitment), "NAME")
    return (
        f"on the bill a commitment ({name}) covers this time, and the ledger charges {charged} for it: enter the "
        f"commitment with `cost commitments add {name}`, and open leases with --commitment {name}"
    )

"""What a bill has of commitments that were bought, against what was entered of them. Nothing is written here.

A purchase is one payment, or several over the commitment's time: a bill that has only a part says so, and that it is a
part is no error of the books by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from cost.bills.differences import NS, Cause, Comparison
from cost.bills.reader import Bill, BillLine, period_of
from cost.charges.commitments import Commitment
from cost.money import pico_text
from cost.prices.fx import Conversion, Rate, convert
from cost.records import Lease

PURCHASE = "purchase"
"""The kind of a bill line that pays for a commitment, and of its comparison."""

BilledPurchases = Sequence[tuple[Commitment, Sequence[BillLine]]]


def match_purchases(bill: Bill, known: Iterable[Commitment]) -> tuple[BilledPurchases, list[BillLine]]:
    """The lines of purchases by the commitment that they name, and all others; an unknown purchase is a fee."""
    by_name = {one.name: one for one in known if bill.map.provider in ("", one.provider)}
    found: dict[str, list[BillLine]] = defaultdict(list)
    rest = []
    for line in bill.lines:
        mine = sorted(_names(line.commitment, line.resource) & by_name.keys())
        if line.kind == PURCHASE:
            found[mine[0]].append(line) if mine else rest.append(replace(line, kind="fee"))
        elif line.pico or not _names(line.resource) & by_name.keys():
            rest.append(line)
        # Else it says what of a commitment went unused, which costs nothing beside its purchase.
    return [(by_name[name], lines) for name, lines in found.items()], rest


def _names(*ids: str) -> set[str]:
    """What a commitment can be called on a bill: its name, or an id that ends in it. Our own files say what it is."""
    tails = {tail for text in ids for tail in (text, text.rsplit("/", 1)[-1])}
    return {tail.removeprefix("commitment:") for tail in tails} - {""}


def compare_purchases(
    bill: Bill, bought: BilledPurchases, rates: Sequence[Rate], notes: list[Conversion]
) -> list[Comparison]:
    """One comparison for each commitment that the bill has a payment of. Raises MissingRateError."""
    found = []
    for one, lines in bought:
        pico = 0
        for line in lines:
            day = datetime.fromtimestamp(line.from_ns // NS, UTC).date()
            conversion = convert(line.pico, line.currency, one.price.currency, day, rates)
            notes.append(conversion)
            pico += conversion.pico
        start, stop = min(line.from_ns for line in lines), max(max(line.to_ns, line.from_ns + 1) for line in lines)
        made = Comparison(one.lease, PURCHASE, start, stop, pico, one.price.pico, 0, ())
        if made.difference:
            text = (
                f"commitment {one.name} was entered at {one.price}, and this bill has {pico_text(pico)} of it: a part, "
                "where it is paid in several; else enter what was paid"
            )
            made = replace(made, causes=(Cause(PURCHASE, made.difference, text),))
        found.append(made)
    return found


def purchases_not_billed(
    bill: Bill, known: Iterable[Commitment], bought: BilledPurchases, providers: Iterable[str]
) -> list[tuple[Lease, int]]:
    """Commitments that begin in the bill's days and are not on it."""
    first, last = period_of(bill)
    there, of = {one.name for one, _ in bought}, set(providers)
    return [
        (one.lease, one.price.pico)
        for one in known
        if one.name not in there and first <= one.from_ns < last and (one.provider in of or not of)
    ]

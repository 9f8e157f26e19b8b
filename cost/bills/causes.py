"""Explain the difference between a bill and the ledger for one kind of charge of one lease. Causes sum to it exactly.

Pure functions: a cause of another price, other machine time, rounding, an exchange rate, or a missing entry.

Tested in tests/cost/bills/test_reconcile.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from cost.bills.bill import BillLine
from cost.bills.commitment_purchases import uncovered_text
from cost.bills.differences import Cause, Comparison
from cost.charges.attribution import CostLine
from cost.charges.charge_status import MACHINE
from cost.money import PICO_PER_UNIT, Money
from cost.prices.billing import BillingRule, rule_for
from cost.prices.book import PriceBook, PriceRow, pico_per_hour
from cost.records import Lease


@dataclass(frozen=True)
class ComparedLines:
    """The lines of both sides that one comparison is made of."""

    billed: Sequence[BillLine]
    booked: Sequence[CostLine]
    foreign: bool
    """Whether the bill is in another currency than the lease."""


def explain(made: Comparison, lines: ComparedLines, book: PriceBook, rules: Sequence[BillingRule]) -> tuple[Cause, ...]:
    """The causes of a comparison's difference; none if there is no difference."""
    if any(line.unpriced for line in lines.booked):
        text = f"the ledger has no price for lease {made.lease.lease_id}: add it, then compare the bill again"
        return (Cause("unpriced", made.difference, text),)
    if not made.difference:
        return ()
    if made.kind != MACHINE:
        return (Cause(made.kind, made.difference, _one_sided(made)),)
    return tuple(_machine_time(made, lines, book, rules))


def _one_sided(made: Comparison) -> str:
    """A sentence about a charge other than machine time: which side has it, and whether a person entered it."""
    entered = " (entered by hand with `cost correct`)" if made.by_hand else ""
    if not made.bill_pico:
        return f"the ledger has {made.kind}{entered}, the bill has none"
    if not made.ledger_pico:
        return f"the bill has {made.kind}, the ledger has none"
    return f"the bill and the ledger{entered} have {made.kind} of different amounts"


def _machine_time(made: Comparison, lines: ComparedLines, book: PriceBook, rules: Sequence[BillingRule]) -> list[Cause]:
    lease, difference = made.lease, made.difference
    covered = [line for line in lines.billed if line.kind == "covered"]
    billed = [line for line in lines.billed if line.kind != "covered"]
    tolerance = _tolerance(rules, lease, billed)
    if abs(difference) <= tolerance and not lines.foreign:
        return [Cause("rounding", difference, f"within the rounding of the bill's {len(billed)} amounts")]
    if covered and difference < 0:
        return [Cause("commitment", difference, uncovered_text(covered, Money(made.ledger_pico, lease.currency)))]
    if not lines.booked:
        return [Cause("idle", difference, "the machine was billed for time that is not in the ledger")]
    if not billed:
        return [Cause("unbilled_time", difference, "the ledger has machine time that is not on the bill")]
    bill_hours = _bill_hours(billed, lease.cards)
    ledger_hours = _ledger_hours(lines.booked, lease)
    if not bill_hours or not ledger_hours or not made.ledger_pico:
        return [_without_hours(made, lines, book)]
    ledger_price = Fraction(made.ledger_pico) / ledger_hours
    at_ledger_price = round(bill_hours * ledger_price)
    causes = []
    if time := at_ledger_price - made.ledger_pico:
        causes.append(_time_cause(time, bill_hours - ledger_hours, len(billed)))
    if rest := difference - time:
        bill_price = Fraction(made.bill_pico) / bill_hours
        text = (
            f"billed at {_text(bill_price)} {lease.currency} an hour of the machine, in the ledger at "
            f"{_text(ledger_price)}"
        )
        name = "rounding" if abs(rest) <= tolerance else "fx" if lines.foreign else "price"
        causes.append(Cause(name, rest, text))
    return causes


def _tolerance(rules: Sequence[BillingRule], lease: Lease, billed: Sequence[BillLine]) -> int:
    """How far rounding can have moved the bill's amount, in 1e-12.

    Half of the last decimal place of each amount, or what the provider's rule says about its own rounding: per line, or
    once per day or total.
    """
    written = sum(line.quantum for line in billed) // 2 + 1
    rule = rule_for(rules, lease.provider, lease.purchase)
    if rule.bill_rounding == "none":
        return written
    times = max(1, len(billed)) if rule.bill_rounding == "line" else 1
    return max(written, int(rule.bill_quantum * PICO_PER_UNIT) * times // 2)


def _time_cause(pico: int, hours: Fraction, lines: int) -> Cause:
    seconds = hours * 3600
    if abs(seconds) <= max(60, lines):
        return Cause("rounding", pico, f"{float(seconds):+.3f} s of machine time")
    if seconds > 0:
        return Cause("idle", pico, f"{float(hours):.4f} h billed that are not in the ledger")
    return Cause("unbilled_time", pico, f"{float(-hours):.4f} h in the ledger that are not on the bill")


def _without_hours(made: Comparison, lines: ComparedLines, book: PriceBook) -> Cause:
    """The cause if the bill gives no machine time: another price of the book, or the exchange rate."""
    lease = made.lease
    rows = {line.price for line in lines.booked if line.price is not None}
    if len(rows) == 1 and made.ledger_pico:
        (row,) = rows
        for other in book.rows:
            if other.sku != row.sku or other.price == row.price or not row.price or other.currency != row.currency:
                continue
            expected = Fraction(made.ledger_pico) * Fraction(other.price) / Fraction(row.price)
            if abs(expected - made.bill_pico) <= max(expected / 1000, 1):
                text = f"billed at {_price_text(other)}, in the ledger at {_price_text(row)}"
                return Cause("price", made.difference, text)
    if lines.foreign and made.ledger_pico and abs(Fraction(made.difference, made.ledger_pico)) < Fraction(1, 20):
        return Cause("fx", made.difference, f"the provider's exchange rate to {lease.currency} differs from ours")
    return Cause("unexplained", made.difference, "the bill gives no machine time to compare")


def _bill_hours(billed: Iterable[BillLine], cards: int) -> Fraction | None:
    total = Fraction(0)
    for line in billed:
        if line.seconds is not None:
            total += line.seconds
        elif line.card_seconds is not None:
            total += line.card_seconds / cards
        else:
            return None
    return total / 3600


def _ledger_hours(booked: Iterable[CostLine], lease: Lease) -> Fraction:
    """Hours of the machine that were charged: the cost of each line over the price of an hour."""
    hourly: dict[PriceRow, Fraction] = {}
    total = Fraction(0)
    for line in booked:
        if line.price is None:
            continue
        if line.price not in hourly:
            hourly[line.price] = pico_per_hour(line.price, lease.cards, lease.watts or 0)
        if hourly[line.price]:
            total += line.pico / hourly[line.price]
    return total


def _text(pico_an_hour: Fraction) -> str:
    return f"{float(pico_an_hour / PICO_PER_UNIT):.6g}"


def _price_text(row: PriceRow) -> str:
    return f"{row.price} {row.currency} per {row.per} ({row.kind}, from {row.valid_from})"

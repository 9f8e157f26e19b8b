"""The result of comparing a bill with the ledger: comparisons, the causes of their differences, and what is left.

Tested in tests/cost/bills/test_reconcile.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from cost.bills.bill import Bill, BillLine
from cost.money import Money
from cost.records import Lease

NS = 10**9
CAUSES = (
    *("price", "rounding", "idle", "unbilled_time", "tax", "credit", "fx", "storage", "egress", "fee"),
    *("purchase", "commitment", "unpriced", "unexplained"),
)
NOT_CORRECTED = ("purchase", "commitment", "unpriced")
"""Causes that a person settles: what was bought is entered, and a missing price is added."""


@dataclass(frozen=True)
class Cause:
    """A part of a difference: one of CAUSES, its amount, and an explanation."""

    name: str
    pico: int
    text: str


@dataclass(frozen=True)
class Comparison:
    """One kind of charge of one lease on one day, or in the whole bill where its lines span days."""

    lease: Lease
    kind: str
    from_ns: int
    to_ns: int
    first_day: date
    last_day: date
    """Days of the bill's time zone; the last is included."""
    bill_pico: int
    ledger_pico: int
    idle_pico: int = 0
    """The part of the ledger's amount that belongs to no trial."""
    by_hand: tuple[tuple[str, int], ...] = ()
    """Id and amount of each correction in the ledger's amount that was entered with `cost correct`."""
    causes: tuple[Cause, ...] = ()
    invoice: str = ""
    """Number of the invoice that the bill's lines are on; empty: they name none, or several."""

    @property
    def difference(self) -> int:
        return self.bill_pico - self.ledger_pico

    @property
    def by_hand_pico(self) -> int:
        """The part of the ledger's amount that was entered with `cost correct`."""
        return sum(pico for _, pico in self.by_hand)

    @property
    def settled(self) -> bool:
        """Whether applying the bill makes the ledger equal to it."""
        return all(cause.name not in NOT_CORRECTED for cause in self.causes)

    @property
    def when(self) -> str:
        first, last = self.first_day.isoformat(), self.last_day.isoformat()
        return first if first == last else f"{first} to {last}"


@dataclass(frozen=True)
class Reconciliation:
    """A bill compared with the ledger."""

    bill: Bill
    comparisons: tuple[Comparison, ...]
    missing: tuple[BillLine, ...]
    """Lines that may be about a machine of ours and that no lease explains."""
    unrelated: tuple[BillLine, ...]
    """Lines of resources that the ledger does not know: the other charges of an account."""
    unbilled: tuple[tuple[Lease, int], ...]
    """Leases of the bill's time that are not on the bill, and what they cost."""
    notes: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        return not self.missing and not self.unbilled and not any(c.difference for c in self.comparisons)


def days_of(bill: Bill, from_ns: int, to_ns: int) -> tuple[date, date]:
    """First and last day, both included, of a span of a bill."""
    return bill.day_of(from_ns), bill.day_of(max(to_ns - 1, from_ns))


def sums_by_resource(lines: Sequence[BillLine]) -> list[tuple[BillLine, int, Money]]:
    """The first line, the number of lines and the sum of each resource and currency, the largest sum first."""
    groups: dict[tuple[str, str], list[BillLine]] = {}
    for line in lines:
        groups.setdefault((line.resource or line.description or line.kind, line.currency), []).append(line)
    sums = [
        (group[0], len(group), Money(sum(line.pico for line in group), currency))
        for (_, currency), group in groups.items()
    ]
    return sorted(sums, key=lambda one: -abs(one[2].pico))


def one_invoice(lines: Sequence[BillLine]) -> str:
    """The number of the one invoice that lines are on; empty: they name none, or several."""
    named = {line.invoice for line in lines}
    return named.pop() if len(named) == 1 else ""

"""What comes out of holding a bill against the books: comparisons, causes of their differences, and what is left."""

from __future__ import annotations

from dataclasses import dataclass

from cost.bills.reader import Bill, BillLine
from cost.periods import day_text
from cost.records import Lease

NS = 10**9
DAY_NS = 86_400 * NS
# Categories of the ledger that a bill shows as charges of their own; everything else is machine time.
SEPARATE_KINDS = {"storage": "storage", "egress": "egress", "requests": "storage", "fee": "fee", "tax": "tax"}
SEPARATE_KINDS |= {"credit": "credit", "refund": "credit"}
KIND = {"requests": "storage", "refund": "credit"}
"""Kinds of bill line that are compared as another."""
CAUSES = (
    "price",
    "rounding",
    "idle",
    "unbilled_time",
    "tax",
    "credit",
    "fx",
    "storage",
    "egress",
    "fee",
    "purchase",
    "unexplained",
)


@dataclass(frozen=True)
class Cause:
    """A part of a difference: one of CAUSES, how much, and a sentence about it."""

    name: str
    pico: int
    text: str


@dataclass(frozen=True)
class Comparison:
    """One kind of charge of one lease in one day, or in the whole bill where its lines span days."""

    lease: Lease
    kind: str
    from_ns: int
    to_ns: int
    bill_pico: int
    ledger_pico: int
    idle_pico: int
    """The part of the ledger's amount that no trial held: what a look at trials alone would miss."""
    causes: tuple[Cause, ...]
    by_hand_pico: int = 0
    """The part of the ledger's amount that was entered with `cost correct`."""

    @property
    def difference(self) -> int:
        return self.bill_pico - self.ledger_pico

    @property
    def when(self) -> str:
        last = day_text(self.to_ns - NS)
        first = day_text(self.from_ns)
        return first if first == last else f"{first} to {last}"


@dataclass(frozen=True)
class Reconciliation:
    """A bill compared. `missing` are its lines that no lease explains, `unbilled` leases of its time not on it."""

    bill: Bill
    comparisons: tuple[Comparison, ...]
    missing: tuple[BillLine, ...]
    unbilled: tuple[tuple[Lease, int], ...]
    notes: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        return not self.missing and not self.unbilled and not any(c.difference for c in self.comparisons)

"""An earlier state of the ledger compared with today's: the prices known then, and why a lease's cost has changed.

Tested in tests/cost/close/test_close_month.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from cost.charges.attribution import attribute
from cost.ledger.ledger import Ledger
from cost.money import Money, pico_text
from cost.prices.billing import BillingRule
from cost.prices.book import PriceBook


@dataclass(frozen=True)
class CostChange:
    """The cost of a lease then and now. The three causes sum to the difference."""

    lease_id: str
    currency: str
    then_pico: int
    now_pico: int
    by_prices: int
    by_corrections: int
    by_late_entries: int

    @property
    def text(self) -> str:
        causes = {"prices": self.by_prices, "corrections": self.by_corrections, "late entries": self.by_late_entries}
        why = ", ".join(f"{name} {pico_text(pico)}" for name, pico in causes.items() if pico)
        then, now = (Money(pico, self.currency) for pico in (self.then_pico, self.now_pico))
        return f"lease {self.lease_id}: {then} then, {now} now: {why}"


def book_as_of(ledger: Ledger, book: PriceBook, as_of_ns: int) -> PriceBook:
    """The price book as it was known at a moment.

    Rows that the ledger had stored by then replace rows that were edited since. Rows added later are left out, unless
    their series has no earlier row.
    """
    stored = {(row.series, row.valid_from): row for row in ledger.price_archive.rows(as_of_ns)}
    known = {row.series for row in book.rows if row.known_at(as_of_ns)} | {series for series, _ in stored}
    rows = [row for row in book.rows if (row.series, row.valid_from) not in stored]
    rows = [row for row in rows if row.known_at(as_of_ns) or row.series not in known]
    return PriceBook((*rows, *stored.values()), book.folder)


def cost_changes_since(
    ledger: Ledger,
    book: PriceBook,
    as_of_ns: int,
    *,
    sweep_id: str | None = None,
    rules: Sequence[BillingRule] | None = None,
) -> list[CostChange]:
    """The leases whose cost up to a moment differs between the ledger at that moment and the ledger now.

    Billing increments after that moment are left out on both sides.
    """
    old_book = book_as_of(ledger, book, as_of_ns)
    currencies: dict[str, str] = {}

    def totals(prices: PriceBook, as_of: int | None) -> dict[str, list[int]]:
        """By lease id: the charge, and the corrections."""
        amounts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        attribution = attribute(
            ledger, prices, as_of_ns, sweep_id=sweep_id, cuts=(as_of_ns,), rules=rules, as_of_ns=as_of
        )
        for line in attribution.lines:
            corrected = "corrected" in line.flags
            if line.from_ns >= as_of_ns and not corrected:
                continue
            amounts[line.lease.lease_id][corrected] += line.pico
            currencies[line.lease.lease_id] = line.lease.currency
        return amounts

    then, same_prices, now = totals(old_book, as_of_ns), totals(old_book, None), totals(book, None)
    changes = []
    for lease_id in then:
        change = CostChange(
            lease_id,
            currencies[lease_id],
            then_pico=sum(then[lease_id]),
            now_pico=sum(now[lease_id]),
            by_prices=now[lease_id][0] - same_prices[lease_id][0],
            by_corrections=now[lease_id][1] - then[lease_id][1],
            by_late_entries=same_prices[lease_id][0] - then[lease_id][0],
        )
        if change.then_pico != change.now_pico:
            changes.append(change)
    return changes

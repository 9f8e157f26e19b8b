"""Months of the books: when one lasts, what each lease cost in it, and what those that are closed were closed with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import select

from cost.charges.attribution import attribute
from cost.ledger import schema
from cost.ledger.ledger import Ledger
from cost.money import Money
from cost.periods import month_bounds
from cost.prices.billing import BillingRule
from cost.prices.book import PriceBook

STREAM = "closed_months"

Totals = Mapping[str, tuple[int, str]]
"""By lease: an amount in 1e-12, and its currency."""


def month_totals(
    ledger: Ledger, book: PriceBook, period: str, now_ns: int, *, rules: Sequence[BillingRule] | None = None
) -> Totals:
    """What each lease cost within a month of UTC, corrections left out."""
    start, end = month_bounds(period)
    totals: dict[str, tuple[int, str]] = {}
    for line in attribute(ledger, book, now_ns, cuts=(start, end), rules=rules).lines:
        if start <= line.from_ns < end and "corrected" not in line.flags and not line.lease.simulated:
            before = totals.get(line.lease.lease_id, (0, ""))[0]
            totals[line.lease.lease_id] = (before + line.pico, line.lease.currency)
    return totals


def closed_totals(ledger: Ledger) -> dict[str, Totals]:
    """The totals that closed months were closed with."""
    found: dict[str, Totals] = {}
    for event in ledger.events.read(STREAM):
        amounts = {lease_id: Money.parse(text) for lease_id, text in event.body["leases"].items()}
        found[event.body["period"]] = {lease_id: (m.pico, m.currency) for lease_id, m in amounts.items()}
    return found


def month_corrections(ledger: Ledger, period: str) -> Totals:
    """What corrections have added to each lease's cost within a month of UTC."""
    start, end = month_bounds(period)
    lease, table = schema.lease, schema.correction
    query = select(table.c.lease_id, table.c.pico, lease.c.currency).join(lease, lease.c.lease_id == table.c.lease_id)
    found: dict[str, tuple[int, str]] = {}
    with ledger.read() as connection:
        for lease_id, pico, currency in connection.execute(query.where(table.c.at_ns >= start, table.c.at_ns < end)):
            found[lease_id] = (found.get(lease_id, (0, ""))[0] + pico, currency)
    return found

"""The cost of leases by month, the stored totals of closed months, and corrections by month.

Tested in tests/cost/close/test_close_month.py.
"""

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
"""By lease id: an amount in 1e-12 of a currency, and the currency."""


def month_totals(
    ledger: Ledger, book: PriceBook, period: str, now_ns: int, *, rules: Sequence[BillingRule] | None = None
) -> Totals:
    """The cost of each lease in a month (UTC), without corrections."""
    start, end = month_bounds(period)
    totals: dict[str, tuple[int, str]] = {}
    for line in attribute(ledger, book, now_ns, cuts=(start, end), rules=rules).lines:
        if start <= line.from_ns < end and "corrected" not in line.flags and not line.lease.simulated:
            before = totals.get(line.lease.lease_id, (0, ""))[0]
            totals[line.lease.lease_id] = (before + line.pico, line.lease.currency)
    return totals


def closed_totals(ledger: Ledger) -> dict[str, Totals]:
    """The stored totals of all closed months, by month."""
    found: dict[str, Totals] = {}
    for event in ledger.events.read(STREAM):
        amounts = {lease_id: Money.parse(text) for lease_id, text in event.body["leases"].items()}
        found[event.body["period"]] = {lease_id: (m.pico, m.currency) for lease_id, m in amounts.items()}
    return found


def month_corrections(ledger: Ledger, period: str) -> Totals:
    """The sum of the corrections of each lease in a month (UTC)."""
    start, end = month_bounds(period)
    lease, table = schema.lease, schema.correction
    query = select(table.c.lease_id, table.c.pico, lease.c.currency).join(lease, lease.c.lease_id == table.c.lease_id)
    found: dict[str, tuple[int, str]] = {}
    with ledger.read() as connection:
        for lease_id, pico, currency in connection.execute(query.where(table.c.at_ns >= start, table.c.at_ns < end)):
            found[lease_id] = (found.get(lease_id, (0, ""))[0] + pico, currency)
    return found

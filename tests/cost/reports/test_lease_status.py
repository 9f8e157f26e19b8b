"""Which machines cost for nothing, and what they cost."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from cost.ledger.ledger import SILENT_NS
from cost.money import Money
from cost.prices.billing import BillingRule
from cost.prices.book import PriceBook, PriceRow
from cost.records import Correction, UsageKey
from cost.reports.grouped import ReportScope, grouped_report
from cost.reports.lease_status import IDLE_NS, lease_statuses

RULES = (BillingRule("cloud", 1, 0, "up", False, ("running",), "moment", 0, "none", "page", "2025-12-01"),)
ROW = PriceRow(
    *("cloud", "box", "", "machine_hour", 8, "on_demand", "USD", Decimal(24), False, Decimal(0)),
    *("2025-01-01", "", "https://example.org", "2025-12-01"),
)
BOOK = PriceBook((ROW,))
KEY = UsageKey("L1", "t1", 1)
HOUR = 3600


@pytest.fixture
def books(ledger, make_lease):
    ledger.leases.open(make_lease(sku="box", provider="cloud", price_hash=ROW.hash))
    ledger.leases.attach("L1", "s1")
    ledger.usages.start(KEY, "s1", Decimal(8), {})
    return ledger


def look(books, clock):
    (held,) = lease_statuses(books, BOOK, clock.utc, rules=RULES)
    return held


def test_a_busy_machine_that_is_looked_after_is_no_alert(books, clock):
    clock.advance_seconds(10 * HOUR)
    books.heartbeat("L1", [KEY])
    held = look(books, clock)
    assert (held.cost, held.alert) == (Money.parse("240 USD"), None)


def test_a_machine_that_is_looked_after_but_idle_for_an_hour_is_an_alert_with_its_cost(books, clock):
    books.usages.end(KEY, "COMPLETED")
    clock.advance(IDLE_NS - 1)
    books.heartbeat("L1")
    assert look(books, clock).alert is None
    clock.advance_seconds(2 * HOUR)
    books.heartbeat("L1")
    clock.advance(1)
    alert = look(books, clock).alert or ""
    assert "nothing has run on it since 2026-01-01T00:00:00Z: it has cost 72.00 USD since then" in alert
    assert "576.00 USD a day" in alert


def test_a_machine_whose_driver_is_silent_is_an_alert_even_if_it_seems_busy(books, clock):
    clock.advance(SILENT_NS)
    assert "no driver has been heard since 2026-01-01T00:00:00Z" in (look(books, clock).alert or "")


def test_what_a_machine_has_cost_is_what_the_report_says_tax_and_corrections_included(books, clock):
    taxed = PriceBook((replace(ROW, tax_rate=Decimal("0.19")),))
    clock.advance(3 * HOUR * 10**9 + 7)
    books.corrections.add(Correction("c1", "L1", "credit", -5, "USD", clock.utc, "note"))
    (held,) = lease_statuses(books, taxed, clock.utc, rules=RULES)
    assert held.cost is not None
    assert held.cost.pico == grouped_report(books, taxed, ReportScope(by="machine"), clock.utc, rules=RULES).total_pico
    assert held.per_day == Money.parse("685.44 USD"), "24 x 24 and 19 % on top"


def test_a_machine_given_back_is_no_alert(books, clock):
    books.usages.end(KEY, "COMPLETED")
    books.leases.detach("L1", "s1", "done")
    clock.advance_seconds(1000 * HOUR)
    held = look(books, clock)
    assert (held.alert, held.unheard_since_ns, held.idle_since_ns) == (None, None, None)


def test_an_unpriced_machine_is_an_alert_without_a_number(ledger, make_lease, clock):
    ledger.leases.open(make_lease(sku="unheard-of", price_hash=None))
    clock.advance_seconds(HOUR)
    assert "UNPRICED a day" in (look(ledger, clock).alert or "")

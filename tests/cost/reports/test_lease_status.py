"""Open leases that cost money without use, and their cost."""

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
SECONDS_PER_HOUR = 3600


@pytest.fixture
def leased(ledger, make_lease):
    """A ledger with one lease and one running attempt."""
    ledger.leases.open(make_lease(sku="box", provider="cloud", price_hash=ROW.hash))
    ledger.leases.attach("L1", "s1")
    ledger.usages.start(KEY, "s1", Decimal(8), {})
    return ledger


def only_status(ledger, clock):
    (status,) = lease_statuses(ledger, BOOK, clock.utc, rules=RULES)
    return status


def test_a_running_attempt_with_heartbeats_gives_no_alert(leased, clock):
    clock.advance_seconds(10 * SECONDS_PER_HOUR)
    leased.heartbeat("L1", [KEY])
    status = only_status(leased, clock)
    assert (status.cost, status.alert) == (Money.parse("240 USD"), None)


def test_an_hour_without_an_attempt_gives_an_alert_with_the_cost_since_then(leased, clock):
    leased.usages.end(KEY, "COMPLETED")
    clock.advance(IDLE_NS - 1)
    leased.heartbeat("L1")
    assert only_status(leased, clock).alert is None
    clock.advance_seconds(2 * SECONDS_PER_HOUR)
    leased.heartbeat("L1")
    clock.advance(1)
    alert = only_status(leased, clock).alert or ""
    assert "no trial has run on it since 2026-01-01T00:00:00Z: it has cost 72.00 USD since then" in alert
    assert "576.00 USD a day" in alert


def test_a_driver_without_heartbeats_gives_an_alert_although_an_attempt_is_open(leased, clock):
    clock.advance(SILENT_NS)
    assert "no driver has sent a heartbeat since 2026-01-01T00:00:00Z" in (only_status(leased, clock).alert or "")


def test_the_cost_of_a_lease_equals_the_report_with_tax_and_corrections(leased, clock):
    taxed = PriceBook((replace(ROW, tax_rate=Decimal("0.19")),))
    clock.advance(3 * SECONDS_PER_HOUR * 10**9 + 7)
    leased.corrections.add(Correction("c1", "L1", "credit", -5, "USD", clock.utc, "note"))
    (status,) = lease_statuses(leased, taxed, clock.utc, rules=RULES)
    assert status.cost is not None
    assert (
        status.cost.pico == grouped_report(leased, taxed, ReportScope(by="machine"), clock.utc, rules=RULES).total_pico
    )
    assert status.per_day == Money.parse("685.44 USD"), "24 USD for 24 hours plus 19 %"


def test_a_closed_lease_gives_no_alert(leased, clock):
    leased.usages.end(KEY, "COMPLETED")
    leased.leases.detach("L1", "s1", "done")
    clock.advance_seconds(1000 * SECONDS_PER_HOUR)
    status = only_status(leased, clock)
    assert (status.alert, status.silent_since_ns, status.idle_since_ns) == (None, None, None)


def test_the_alert_of_a_lease_without_price_shows_no_amount(ledger, make_lease, clock):
    ledger.leases.open(make_lease(sku="without-price", price_hash=None))
    clock.advance_seconds(SECONDS_PER_HOUR)
    assert "UNPRICED a day" in (only_status(ledger, clock).alert or "")

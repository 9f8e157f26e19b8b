"""Leases that cannot be priced: each is UNPRICED with a reason, and every other lease has its cost."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from cost.budgets.budget import budgets
from cost.charges.attribution import attribute
from cost.charges.commitments import Commitment, add_commitment
from cost.charges.metered import MeteredResource, add_resource
from cost.close.check import run_checks
from cost.money import Money, pico_of
from cost.prices.billing import BillingRule
from cost.prices.book import PriceBook, PriceRow, read_row
from cost.records import Lease, UsageKey
from cost.reports.by_trial import sweep_report
from cost.reports.csv_json import csv_text
from cost.reports.grouped import ReportScope, grouped_report
from cost.reports.lease_status import lease_statuses

HOUR = 3600


def price(sku: str, amount: str, **changes: object) -> PriceRow:
    raw: dict[str, Any] = {"provider": "cloud", "sku": sku, "per": "machine_hour", "cards": 8, "currency": "USD"}
    raw |= {"price": amount, "valid_from": "2025-01-01", "source": "https://example.org", "day_read": "2025-01-01"}
    return read_row(raw | changes, "test")


GOOD, OTHER = price("box", "8"), price("verda-box", "16", provider="verda")
DISK = price("disk", "1", per="gib_month", cards=0)
BOOK = PriceBook((GOOD, OTHER, DISK))
RULES = (BillingRule("cloud", 1, 0, "up", False, ("running",), "moment", 0, "daily", "page", "2025-01-01"),)
REASON = "no billing rule for provider 'verda' (on_demand)"


@pytest.fixture
def hold(ledger, clock, make_lease):
    """Opens a lease, runs one trial of an hour on it, and closes it."""

    def run(lease_id: str, row: PriceRow, *, keep: bool = True, **changes: object) -> None:
        fields: dict[str, Any] = {"sku": row.sku, "provider": row.provider, "price_hash": row.hash}
        lease: Lease = make_lease(lease_id, **fields | changes)
        ledger.leases.open(lease)
        if keep:
            ledger.price_archive.add([row])
        ledger.leases.attach(lease_id, f"sweep-{lease_id}")
        key = UsageKey(lease_id, "t1", 1)
        ledger.usages.start(key, f"sweep-{lease_id}", Decimal(8), {})
        clock.advance_seconds(HOUR)
        ledger.usages.end(key, "COMPLETED")
        ledger.leases.close(lease_id, "done")

    return run


@pytest.mark.parametrize("by", ["trial", "day", "category", "user", "sweep", "machine"])
def test_a_lease_without_a_billing_rule_hides_no_other_in_any_report(ledger, clock, hold, by):
    hold("L1", GOOD)
    hold("L2", OTHER)
    report = grouped_report(ledger, BOOK, ReportScope(by=by), clock.utc, rules=RULES)
    assert report.unpriced
    assert report.total_pico == pico_of(8)
    (note,) = [note for note in report.notes if "L2" in note]
    assert note.startswith(f"Lease L2 is UNPRICED: {REASON}")


def test_a_lease_without_a_billing_rule_hides_no_other_in_the_list_the_budget_and_the_checks(ledger, clock, hold):
    hold("L1", GOOD)
    hold("L2", OTHER)
    statuses = lease_statuses(ledger, BOOK, clock.utc, rules=RULES)
    assert [(s.cost, bool(s.problem)) for s in statuses] == [(Money(pico_of(8), "USD"), False), (None, True)]
    found, notes = budgets(ledger, BOOK, clock.utc, rules=RULES)
    assert [b.spent for b in found if b.scope == "month"] == [Money(pico_of(8), "USD")]
    assert [note for note in notes if note.startswith("UNPRICED: the cost of lease L2 is unknown") and REASON in note]
    assert [(f.check, f.where) for f in run_checks(ledger, BOOK, clock.utc, rules=RULES)] == [("priced", "lease L2")]


def test_the_report_of_a_sweep_whose_lease_cannot_be_priced_is_a_whole_csv_with_unpriced(ledger, clock, hold):
    hold("L2", OTHER)
    report = sweep_report(ledger, BOOK, "sweep-L2", clock.utc, rules=RULES)
    rows = list(csv.DictReader(io.StringIO(csv_text(report))))
    assert [(row["trial_id"], row["cost"], row["billed_cost"]) for row in rows] == [("t1", "UNPRICED", "UNPRICED")]
    assert REASON in report.notes[0]


def test_a_price_that_has_left_the_book_goes_on_as_the_ledger_has_kept_it(ledger, clock, hold):
    hold("L1", GOOD)
    hold("L3", price("old-box", "24"))
    report = grouped_report(ledger, BOOK, ReportScope(by="sweep"), clock.utc, rules=RULES)
    assert {row.name: row.pico for row in report.rows} == {"sweep-L1": pico_of(8), "sweep-L3": pico_of(24)}
    assert not report.unpriced
    assert [s.cost for s in lease_statuses(ledger, BOOK, clock.utc, rules=RULES)] == [
        Money(pico_of(8), "USD"),
        Money(pico_of(24), "USD"),
    ]


def test_a_kept_price_counts_only_until_the_book_has_a_price_again(ledger, clock, hold):
    old, start = price("old-box", "24"), clock.utc
    hold("L3", old)
    later = price("old-box", "99", valid_from="2026-01-01T00:30:00Z")
    assert start == later.from_ns - 1800 * 10**9
    report = sweep_report(ledger, PriceBook((later,)), "sweep-L3", clock.utc, rules=RULES)
    assert report.total_pico == (pico_of(24) + pico_of(99)) // 2


def test_a_price_that_was_corrected_in_place_counts_and_the_kept_one_does_not(ledger, clock, hold):
    hold("L3", price("old-box", "24"))
    report = sweep_report(ledger, PriceBook((price("old-box", "20"),)), "sweep-L3", clock.utc, rules=RULES)
    assert report.total_pico == pico_of(20)


def test_a_price_that_has_left_the_book_and_was_never_kept_makes_its_lease_unpriced(ledger, clock, hold):
    hold("L1", GOOD)
    hold("L3", price("old-box", "24"), keep=False)
    report = grouped_report(ledger, BOOK, ReportScope(by="sweep"), clock.utc, rules=RULES)
    assert {row.name: row.cost for row in report.rows} == {"sweep-L1": Money(pico_of(8), "USD"), "sweep-L3": None}
    assert any("L3" in note and "python -m cost prices add old-box" in note for note in report.notes)


def test_a_price_list_that_ends_during_a_lease_makes_only_that_lease_unpriced(ledger, clock, hold):
    ending = price("ending-box", "24", valid_to="2026-01-01T01:30:00Z")
    hold("L1", GOOD)
    hold("L3", ending)
    report = grouped_report(ledger, PriceBook((GOOD, ending)), ReportScope(by="sweep"), clock.utc, rules=RULES)
    assert {row.name: row.cost for row in report.rows} == {"sweep-L1": Money(pico_of(8), "USD"), "sweep-L3": None}


def test_a_lease_in_another_currency_than_its_commitment_is_the_only_one_without_a_price(ledger, clock, hold):
    terms = Commitment("cb-1", "reserved", "cloud", "box", 8, Money.parse("10 EUR"), clock.utc, clock.utc + 10**15)
    add_commitment(ledger, terms, ())
    hold("L1", GOOD)
    hold("L2", GOOD, tags={"commitment": "cb-1"})
    found = attribute(ledger, BOOK, clock.utc, rules=RULES)
    assert list(found.problems) == ["L2"]
    assert "is in USD, but its commitment cb-1 was paid in EUR" in found.problems["L2"]
    assert sum(line.pico for line in found.lines if line.lease.lease_id == "L1") == pico_of(8)


def test_a_disk_without_a_price_makes_only_its_own_lease_unpriced(ledger, clock, hold):
    hold("L1", GOOD)
    hold("L2", GOOD)
    kind = (DISK.purchase, DISK.region, DISK.kind)
    disk = MeteredResource("d1", "L2", "disk", *kind, Decimal(10), clock.utc - HOUR * 10**9, clock.utc)
    add_resource(ledger, disk, DISK, ())
    found = attribute(ledger, replace(BOOK, rows=(GOOD,)), clock.utc, rules=RULES)
    assert list(found.problems) == ["L2"]

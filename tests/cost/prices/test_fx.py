"""Reports in another currency: every part of the bill at the rate of its day, and one total however it is grouped."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from cost.budgets.budget import budgets
from cost.budgets.reader import BudgetReader
from cost.money import Money, pico_of
from cost.prices.billing import BillingRule
from cost.prices.book import PriceBook, PriceError, PriceRow
from cost.prices.fx import load_rates
from cost.records import UsageKey
from cost.reports.csv_json import csv_text
from cost.reports.grouped import GROUPINGS, ReportScope, grouped_report

HOUR = 3600
ROW = PriceRow(
    *("cloud", "box", "", "machine_hour", 8, "on_demand", "USD", Decimal("7.31"), False, Decimal(0), "2025-01-01", ""),
    *("page", "2025-12-01"),
)
RULES = (BillingRule("cloud", 60, 60, "up", False, ("running",), "moment", 0, "none", "page", "2025-12-01"),)
FIXINGS = {"2026-01-01": "1.25", "2026-01-02": "1.60", "2026-01-04": "2"}


def rates(folder: Path, fixings: dict[str, str], day_read: str = "2025-12-01") -> str:
    lines = [
        f'  - {{base: EUR, quote: USD, rate: "{rate}", day: {day}, source: bank, day_read: {day_read}}}\n'
        for day, rate in fixings.items()
    ]
    with (folder / "fx.yaml").open("a") as file:
        file.write(("" if file.tell() else "rates:\n") + "".join(lines))
    return str(folder)


@pytest.fixture
def small_ledger(ledger, clock, make_lease):
    """A machine held by a sweep from the first of January, midnight, for 90 hours and a bit, with two trials."""
    ledger.leases.open(make_lease(sku="box", provider="cloud", price_hash=ROW.hash))
    ledger.leases.attach("L1", "s1")
    for trial, cards in (("t1", "3"), ("t2", "0.7")):
        clock.advance_seconds(7 * HOUR + 11)
        ledger.usages.start(UsageKey("L1", trial, 1), "s1", Decimal(cards), {"stage": "single"})
        ledger.usages.add_phases(UsageKey("L1", trial, 1), 1, {"rollout": 10**13})
        clock.advance_seconds(38 * HOUR)
        ledger.usages.end(UsageKey("L1", trial, 1), "COMPLETED")
    ledger.leases.detach("L1", "s1", "done")
    return ledger


def test_what_a_machine_costs_over_several_days_is_converted_at_the_rate_of_each(small_ledger, clock, tmp_path):
    book = PriceBook((ROW,), rates(tmp_path, FIXINGS))
    hours = {"1.25": 24, "1.60": 48, "2": 18 + Decimal(60) / 3600}
    due = sum(Decimal("7.31") * hours[rate] / Decimal(rate) for rate in hours)
    totals = set()
    for by in (*GROUPINGS, "tag:team"):
        for idle in ("apart", "spread", "owner"):
            scope = ReportScope(by=by, currency="EUR", idle=idle)
            totals.add(grouped_report(small_ledger, book, scope, clock.utc, rules=RULES).total_pico)
    assert len(totals) == 1, "to the last digit"
    assert abs(totals.pop() - due * 10**12) <= 3, "each rate's part is rounded once"


def test_every_row_of_a_csv_in_another_currency_names_its_rates_with_day_and_source(small_ledger, clock, tmp_path):
    book = PriceBook((ROW,), rates(tmp_path, FIXINGS))
    text = csv_text(grouped_report(small_ledger, book, ReportScope(by="month", currency="EUR"), clock.utc, rules=RULES))
    for day, rate in FIXINGS.items():
        assert f"1 EUR = {rate} USD on {day} (bank)" in text


def test_a_rate_that_was_read_later_does_not_change_an_old_report(small_ledger, clock, tmp_path):
    folder = rates(tmp_path, {"2026-01-01": "1.25"})
    scope = ReportScope(currency="EUR", as_of_ns=clock.utc)
    then = grouped_report(small_ledger, PriceBook((ROW,), folder), scope, clock.utc, rules=RULES).total_pico
    rates(tmp_path, {"2026-01-02": "1.60"}, day_read="2026-01-20")
    book = PriceBook((ROW,), folder)
    assert grouped_report(small_ledger, book, scope, clock.utc, rules=RULES).total_pico == then
    assert grouped_report(small_ledger, book, ReportScope(currency="EUR"), clock.utc, rules=RULES).total_pico != then


def test_a_budget_in_another_currency_equals_the_report(small_ledger, clock, tmp_path):
    book = PriceBook((ROW,), rates(tmp_path, FIXINGS))
    snapshot = BudgetReader(small_ledger, book, ["month"], always=["month"], rules=RULES).read(clock.utc, exact=True)
    report = grouped_report(small_ledger, book, ReportScope(by="month", currency="EUR"), clock.utc, rules=RULES)
    assert abs(snapshot.spent("month", "EUR").pico - report.total_pico) <= 3
    assert snapshot.spent("month", "USD").pico == pico_of(Decimal("7.31")) * (90 * 60 + 1) // 60


@pytest.mark.parametrize("text", ["rates: [", "rates:\n  - {base: EUR}\n", "rates: 1\n", b"rates: \xff\xfe\n"])
def test_a_table_of_rates_that_cannot_be_read_is_named(tmp_path, text):
    (tmp_path / "fx.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(PriceError, match=r"fx\.yaml"):
        load_rates(tmp_path)


def test_without_a_limit_each_currency_has_one_row_and_is_not_converted(small_ledger, clock, tmp_path, make_lease):
    yuan = replace(ROW, sku="card", currency="CNY", price=Decimal(2))
    fixings = "rates:\n  - {base: USD, quote: CNY, rate: '7', day: 2026-01-01, source: b, day_read: 2025-12-01}\n"
    (tmp_path / "fx.yaml").write_text(fixings)
    book = PriceBook((ROW, yuan), str(tmp_path))
    small_ledger.leases.open(make_lease("L2", sku="card", provider="cloud", currency="CNY", price_hash=yuan.hash))
    clock.advance_seconds(3 * HOUR)
    small_ledger.leases.close("L2", "done")
    found, notes = budgets(small_ledger, book, clock.utc, rules=RULES)
    due = Money(pico_of(Decimal("7.31")) * (90 * 60 + 1) // 60, "USD")
    assert [(one.name, one.spent) for one in found] == [
        ("month 2026-01", Money.parse("6 CNY")),
        ("month 2026-01", due),
    ]
    assert notes == ()


def test_a_budget_notes_that_it_excludes_a_machine_without_a_price(small_ledger, clock, tmp_path, make_lease):
    small_ledger.leases.open(make_lease("L2", sku="unheard-of", price_hash=None))
    clock.advance_seconds(HOUR)
    _, notes = budgets(small_ledger, PriceBook((ROW,), str(tmp_path)), clock.utc, rules=RULES)
    assert [note.partition(";")[0] for note in notes] == [
        "UNPRICED: the cost of lease L2 is unknown and in none of these amounts"
    ]

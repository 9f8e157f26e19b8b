"""The price book's linter, one kind of fault at a time."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from cost.periods import instant_ns
from cost.prices.billing import load_rules
from cost.prices.book import PriceBook, PriceRow, parse_price, read_row
from cost.prices.lint import PriceFinding, lint, old_price_text

CONF = Path(__file__).parents[3] / "conf"
TODAY = date(2026, 11, 29)


def priced(sku: str = "a", price: str = "1", **changes: object) -> PriceRow:
    raw = {"provider": "p", "sku": sku, "per": "card_hour", "cards": 0, "currency": "USD", "price": price}
    raw |= {"valid_from": "2026-01-01", "source": "page", "day_read": "2026-11-01"}
    return read_row(raw | changes, "test")


def findings(*rows: PriceRow, **options) -> list[PriceFinding]:
    return lint(PriceBook(rows), today=TODAY, **options)


def checks(*rows: PriceRow, **options) -> list[str]:
    return [f.check for f in findings(*rows, **options)]


def test_the_shipped_book_has_no_finding_on_the_day_it_was_read():
    book = PriceBook.load(CONF / "pricing")
    assert lint(book, today=TODAY, rules=load_rules(CONF / "pricing"), machine_folder=CONF / "machine") == []


def test_rows_that_overlap_in_time_are_found():
    assert checks(priced(valid_to="2026-03-01"), priced(price="2", valid_from="2026-02-01")) == ["overlap"]
    assert checks(priced(), priced(price="2")) == ["overlap"]
    assert checks(priced(valid_to="2026-02-01"), priced(price="2", valid_from="2026-02-01")) == []


def test_a_stretch_without_a_price_is_found():
    assert checks(priced(valid_to="2026-02-01"), priced(price="2", valid_from="2026-03-01")) == ["gap"]


def test_regions_purchase_options_and_kinds_do_not_overlap_one_another():
    assert checks(priced(), priced(purchase="spot"), priced(region="eu"), priced(kind="contracted")) == []


def test_one_sku_in_two_units_currencies_or_sizes_is_found():
    later: dict[str, object] = {"valid_from": "2026-02-01"}
    others: tuple[dict[str, object], ...]
    others = ({"per": "machine_hour", "cards": 0}, {"currency": "EUR"}, {"cards": 4})
    for other in others:
        assert checks(priced(), priced("a", "1", **(later | other))) == ["unit"]


def test_a_price_read_too_long_ago_is_found_and_only_while_it_is_in_force():
    old = priced(day_read="2026-01-01")
    assert checks(old, max_age_days=100) == ["age"]
    assert checks(old, max_age_days=400) == []
    assert checks(old, priced(price="2", valid_from="2026-06-01"), max_age_days=100) == []
    assert checks(priced(day_read="2027-01-01")) == ["age"]


def test_the_same_machine_price_at_two_card_counts_is_a_mix_up_of_per_card_and_per_machine():
    """dstack#1890, skypilot-catalog PR#44: per card and per machine mixed up, off by 8."""
    a = priced("h100", "3.99", per="machine_hour", cards=1)
    b = priced("h100x8", "3.99", per="machine_hour", cards=8)
    (finding,) = findings(a, b)
    assert finding.check == "per"
    assert "1 cards at 3.99 and 8 at 3.99" in finding.message
    assert checks(a, replace(b, per="card_hour")) == []


def test_a_machine_price_entered_as_a_card_price_is_off_by_eight_and_found():
    a = priced("h100", "3.99", cards=1)
    b = priced("h100x8", "31.92", cards=8)
    assert checks(a, b) == ["per"]


def test_more_cards_for_less_money_are_found():
    a = priced("h100x4", "20", per="machine_hour", cards=4)
    b = priced("h100x8", "16", per="machine_hour", cards=8)
    assert checks(a, b) == ["monotone"]


def test_imported_machines_of_one_card_are_compared_by_card_not_by_name():
    a = replace(priced("p-1a100.22v", "1.29", per="machine_hour", cards=1), card="A100")
    b = replace(priced("p-4a100.88v", "1.29", per="machine_hour", cards=4), card="A100")
    assert checks(a, b) == ["per"]
    assert checks(a, replace(b, price=parse_price("5.16"))) == []


def test_a_provider_without_a_billing_rule_is_found():
    assert checks(priced(), rules=()) == ["billing"]
    assert checks(priced(provider="aws"), rules=load_rules(CONF / "pricing")) == []
    assert checks(priced(per="gib"), rules=()) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sku: b\n", ["machine"]),
        ("sku: a\n", []),
        ("sku: ${machine.name}\n", []),
        ("cards: 1\n", []),
        ("sku: [\n", ["machine"]),
    ],
)
def test_a_machine_that_names_an_unknown_sku_is_found(tmp_path, text, expected):
    (tmp_path / "m.yaml").write_text(text)
    assert checks(priced(), machine_folder=tmp_path) == expected


def test_a_machine_whose_only_price_has_ended_is_found(tmp_path):
    (tmp_path / "m.yaml").write_text("sku: a\n")
    (finding,) = findings(priced(valid_to="2026-02-01"), machine_folder=tmp_path)
    assert "SKU 'a' has no current price" in finding.message


def test_a_finding_names_the_remedy(tmp_path):
    (tmp_path / "m.yaml").write_text("sku: b\n")
    (finding,) = findings(priced(), machine_folder=tmp_path)
    assert str(finding).startswith("machine: m.yaml: SKU 'b' has no price; add it with: python -m cost prices add b ")


def test_a_spot_price_above_the_on_demand_price_of_its_region_is_found():
    usual = priced(region="us-1")
    dearer = priced(price="1.2", purchase="spot", region="us-1/us-1f")
    (finding,) = findings(usual, dearer)
    assert str(finding) == "spot: a spot us-1/us-1f: 1.2 USD spot, but 1 on demand; check both"
    assert checks(usual, priced(price="0.8", purchase="spot", region="us-1/us-1f")) == []
    assert checks(usual, priced(price="1.2", purchase="spot", region="us-2")) == []


def test_a_price_that_was_read_long_before_its_use_is_a_warning():
    row = priced()
    read_ns = instant_ns(row.day_read)
    assert old_price_text(row, read_ns + 180 * 86_400 * 10**9) == ""
    text = old_price_text(row, read_ns + 397 * 86_400 * 10**9)
    assert text.startswith("The price of a on_demand was read 397 days before its use")

"""The price book: rows that are read, refused, found, and hashed; the shipped data itself; exchange rates."""

from __future__ import annotations

import re
from datetime import date
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cost.money import PICO_PER_UNIT, Money
from cost.periods import instant_ns
from cost.prices.book import (
    AmbiguousPriceError,
    MissingPriceError,
    PriceBook,
    PriceError,
    PriceRow,
    as_mapping,
    hourly,
    parse_price,
    pico_per_hour,
    read_row,
)
from cost.prices.fx import MissingRateError, Rate, convert, load_rates

FOLDER = Path(__file__).parents[3] / "conf" / "pricing"
NOW = instant_ns("2026-11-29T12:00:00Z")


def row(**changes: object) -> PriceRow:
    raw = {"provider": "p", "sku": "card", "per": "card_hour", "cards": 0, "currency": "USD", "price": "2.50"}
    raw |= {"valid_from": "2026-01-01", "source": "page", "day_read": "2026-11-29"}
    return read_row(raw | changes, "prices.yaml row 1")


# What a price may look like ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        "NaN",
        "nan",
        "Infinity",
        "-1",
        "",
        " ",
        "1,250.00",
        "1 250",
        "$2.50",
        "2.50 USD",
        "€3",
        "2.5.0",
        "1e-3",
        "+1",
        ".5",
    ],
)
def test_a_price_that_is_no_plain_number_is_refused_with_its_place(bad):
    with pytest.raises(PriceError, match=r"^prices\.yaml row 1: price .* is not a price"):
        parse_price(bad, "prices.yaml row 1")


@pytest.mark.parametrize("bad", [2.5, 3, None, True])
def test_a_price_that_is_not_quoted_text_is_refused(bad):
    with pytest.raises(PriceError, match="quoted string"):
        parse_price(bad)


def test_a_price_finer_than_the_ledger_counts_is_refused():
    assert parse_price("0.000000000001") == Decimal("1e-12")
    with pytest.raises(PriceError, match="at most 12 decimals"):
        parse_price("0.0000000000001")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"per": "hour"}, r"per 'hour' is not one of card_hour, machine_hour"),
        ({"purchase": "rent"}, r"purchase 'rent' is not one of"),
        ({"currency": "dollars"}, r"currency 'dollars' is not a three-letter code"),
        ({"cards": -1}, r"cards -1 must be a whole number"),
        ({"cards": 1.0}, r"cards 1.0 must be a whole number"),
        ({"valid_from": "soon"}, r"'soon' is not a date"),
        ({"valid_to": "2025-12-31"}, r"valid_to 2025-12-31 must be after valid_from"),
        ({"source": " "}, r"source is empty"),
        ({"colour": "red"}, r"unknown field 'colour'"),
        ({"tax_included": "yes"}, r"tax_included 'yes' must be true or false"),
        ({"day_read": None}, r"day_read is missing"),
    ],
)
def test_a_bad_row_is_refused_and_names_the_field(changes, message):
    with pytest.raises(PriceError, match=message):
        row(**changes)


def test_a_bad_file_names_file_row_and_sku(tmp_path):
    (tmp_path / "x.yaml").write_text("prices:\n  - {provider: p, sku: card-a, price: 1.5}\n")
    with pytest.raises(PriceError, match=r"x\.yaml row 1 \(card-a\)"):
        PriceBook.load(tmp_path)
    (tmp_path / "x.yaml").write_text("- 1\n")
    with pytest.raises(PriceError, match=r"x\.yaml: expected a list of price rows under the key `prices`"):
        PriceBook.load(tmp_path)


# What is in force -------------------------------------------------------------------------------------------------


def test_the_price_in_force_is_the_last_that_began():
    book = PriceBook((row(price="3", valid_from="2026-03-01"), row(price="1"), row(price="2", valid_from="2026-02-01")))
    found = [
        book.in_force("card", instant_ns(at)).price
        for at in ("2026-01-01", "2026-01-31T23:59:59Z", "2026-02-01", "2026-03-01T00:00:01Z", "2030-01-01")
    ]
    assert found == [1, 1, 2, 3, 3]


def test_a_row_does_not_hold_at_its_valid_to():
    book = PriceBook((row(valid_to="2026-02-01"),))
    assert book.in_force("card", instant_ns("2026-02-01") - 1)
    with pytest.raises(MissingPriceError):
        book.in_force("card", instant_ns("2026-02-01"))


def test_a_missing_price_names_the_sku_and_the_command_that_adds_it():
    book = PriceBook((row(),))
    with pytest.raises(MissingPriceError, match=r"no price for SKU 'h100'.*python -m cost prices add h100 "):
        book.in_force("h100", NOW)
    with pytest.raises(MissingPriceError, match=r"SKU 'card' in force at 2025-12-31T00:00:00Z.*prices add card "):
        book.in_force("card", instant_ns("2025-12-31"))
    with pytest.raises(MissingPriceError, match=r"no spot price for SKU 'card'.*--purchase spot"):
        book.in_force("card", NOW, purchase="spot")


def test_a_price_in_several_regions_must_be_chosen_and_one_without_region_holds_everywhere():
    book = PriceBook((row(region="eu", price="3"), row(region="us", price="2"), row(sku="any")))
    with pytest.raises(AmbiguousPriceError, match="eu, us"):
        book.in_force("card", NOW)
    assert book.in_force("card", NOW, region="us").price == 2
    assert book.in_force("any", NOW, region="us").price == Decimal("2.50")
    with pytest.raises(MissingPriceError, match="region 'asia'"):
        book.in_force("card", NOW, region="asia")


def test_the_usual_purchase_option_is_taken_unless_another_is_named():
    book = PriceBook((row(purchase="spot", price="1"), row(price="2"), row(sku="only-spot", purchase="spot")))
    assert book.in_force("card", NOW).price == 2
    assert book.in_force("card", NOW, purchase="spot").price == 1
    assert book.in_force("only-spot", NOW).purchase == "spot"


def test_a_contracted_price_is_charged_and_the_list_price_kept_beside_it():
    book = PriceBook((row(price="3.00"), row(price="2.40", kind="contracted"), row(price="2.00", kind="effective")))
    assert book.in_force("card", NOW).price == Decimal("2.40")
    assert book.in_force("card", NOW, kind="list").price == Decimal("3.00")
    assert book.in_force("card", NOW, kind="effective").price == Decimal("2.00")


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=12, unique=True), st.integers(-5, 3005))
def test_the_price_in_force_agrees_with_a_plain_search(days, at):
    start = date(2020, 1, 1).toordinal()
    rows = tuple(row(price=str(d + 1), valid_from=date.fromordinal(start + d).isoformat()) for d in days)
    moment = instant_ns(date.fromordinal(start + at)) if at >= 0 else instant_ns("2019-12-30")
    begun = [d for d in days if d <= at]
    if begun:
        assert PriceBook(rows).in_force("card", moment).price == max(begun) + 1
    else:
        with pytest.raises(MissingPriceError):
            PriceBook(rows).in_force("card", moment)


# What an hour costs -----------------------------------------------------------------------------------------------


def test_an_hour_of_a_machine_is_the_card_price_times_its_cards_or_the_machine_price():
    assert hourly(row(price="3.99", cards=8), 8) == Money.parse("31.92 USD")
    assert hourly(row(price="55.04", per="machine_hour", cards=8), 8) == Money.parse("55.04 USD")


def test_a_machine_of_another_size_than_the_row_prices_is_refused():
    for per in ("card_hour", "machine_hour"):
        with pytest.raises(PriceError, match="prices a machine of 8 cards, not of 1"):
            pico_per_hour(row(per=per, cards=8), 1)


def test_energy_is_watts_times_price_without_rounding():
    assert pico_per_hour(row(price="0.1805", per="kwh"), 1, Decimal("333.3")) == Fraction(
        1805 * 3333 * PICO_PER_UNIT, 10**8
    )
    with pytest.raises(PriceError, match="watts must be above 0"):
        pico_per_hour(row(per="kwh"), 1)


def test_depreciation_is_added_to_energy_by_the_hour_of_the_machine():
    own = row(price="0.20", per="kwh", depreciation="0.05")
    assert hourly(own, 1, 500) == Money.parse("0.15 USD")
    assert own.hash != row(price="0.20", per="kwh").hash
    assert read_row(as_mapping(own), "again") == own
    with pytest.raises(PriceError, match="own hardware priced per kwh, not per card_hour"):
        row(depreciation="0.05")
    with pytest.raises(PriceError, match="depreciation: price '-1'"):
        row(per="kwh", depreciation="-1")


def test_a_price_of_a_quantity_is_no_price_of_time():
    with pytest.raises(PriceError, match="priced per gib"):
        pico_per_hour(row(per="gib"), 1)


# Hashes -----------------------------------------------------------------------------------------------------------


def test_the_hash_changes_with_what_is_charged_and_finds_the_row_again():
    book = PriceBook((row(), row(price="2.51", valid_from="2026-02-01")))
    assert len({r.hash for r in book.rows}) == 2
    assert book.by_hash(book.rows[1].hash) is book.rows[1]
    assert book.by_hash("0") is None
    assert row().hash == row().hash != row(currency="EUR").hash


# The data that is shipped -----------------------------------------------------------------------------------------


def test_every_price_in_conf_has_unit_source_and_day_read():
    book = PriceBook.load(FOLDER)
    assert len(book.rows) > 20
    for r in book.rows:
        assert re.search(r"https?://|\.com|\.co|nrg_pc_204", r.source), r.sku
        assert date.fromisoformat(r.day_read)
        assert r.price > 0


@pytest.mark.parametrize(
    ("sku", "purchase", "currency"),
    [
        ("electricity", "own", "USD"),
        ("runpod-rtx4090", "on_demand", "USD"),
        ("runpod-rtx5090", "on_demand", "USD"),
        ("runpod-h100", "on_demand", "USD"),
        ("runpod-a100", "on_demand", "USD"),
        ("lambda-h100", "on_demand", "USD"),
        ("lambda-h100x8", "on_demand", "USD"),
        ("lambda-a100x8", "on_demand", "USD"),
        ("aws-p5.48xlarge", "on_demand", "USD"),
        ("aws-p5.48xlarge", "spot", "USD"),
        ("aws-p4d.24xlarge", "spot", "USD"),
        ("suanjia-rtx4090", "on_demand", "CNY"),
    ],
)
def test_the_shipped_book_prices_what_the_machines_name(sku, purchase, currency):
    assert PriceBook.load(FOLDER).in_force(sku, NOW, purchase=purchase).currency == currency


def test_every_key_of_the_price_files_is_explained_above_its_first_use():
    for file in FOLDER.glob("*.yaml"):
        lines = file.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines):
            if re.match(r"(  - |    )?[a-z_]+:( |$)", line):
                assert lines[number - 1].strip().startswith("#"), f"{file.name}:{number + 1}"


def test_the_price_files_name_their_skus_in_their_header():
    for file in FOLDER.glob("*.yaml"):
        data = yaml.safe_load(file.read_text(encoding="utf-8"))
        header = file.read_text(encoding="utf-8").split("prices:")[0]
        for item in data.get("prices", []):
            assert item["sku"] in header, f"{file.name}: {item['sku']}"


# Exchange rates ---------------------------------------------------------------------------------------------------


def test_a_conversion_names_rate_day_and_source():
    result = convert(2 * PICO_PER_UNIT, "EUR", "USD", date(2026, 11, 29), load_rates(FOLDER))
    assert result.pico == 2_352_200_000_000
    assert "1 EUR = 1.1761 USD on 2026-05-08 (https://www.ecb.europa.eu" in result.text


def test_a_conversion_goes_backwards_and_over_a_third_currency():
    result = convert(PICO_PER_UNIT, "USD", "CNY", date(2026, 11, 29), load_rates(FOLDER))
    assert result.pico == round(Fraction("7.9989") / Fraction("1.1761") * PICO_PER_UNIT)
    assert result.text.count("2026-05-08 (") == 2


def test_a_rate_later_than_the_day_is_not_used():
    rates = (
        Rate("EUR", "USD", Decimal("1.1"), "2026-01-05", "a", "x"),
        Rate("EUR", "USD", Decimal("1.2"), "2026-02-05", "b", "x"),
    )
    assert convert(10, "EUR", "USD", date(2026, 2, 4), rates).pico == 11
    assert convert(10, "EUR", "USD", date(2026, 2, 5), rates).pico == 12
    with pytest.raises(MissingRateError, match=r"EUR to USD on or before 2026-01-04"):
        convert(10, "EUR", "USD", date(2026, 1, 4), rates)

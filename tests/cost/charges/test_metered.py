"""Disks, what was sent, requests and fees: counted on a lease, charged at the prices in force, and nobody's twice."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cost.charges.attribution import attribute
from cost.charges.metered import MeteredResource, add_resource, load_resources
from cost.cli.main import app
from cost.close.check import run_checks
from cost.ledger.ledger import Ledger
from cost.money import pico_of, plain
from cost.periods import instant_ns
from cost.prices.billing import BillingRule
from cost.prices.book import PriceBook, PriceRow
from cost.records import IntegrityError, LedgerError, UsageKey
from cost.reports import focus
from cost.reports.grouped import ReportScope, grouped_report

DAY = 86_400
START = "2026-01-01"


def price(sku: str, per: str, amount: str, start="2025-01-01", tax="0") -> PriceRow:
    cards = 8 if per == "machine_hour" else 0
    return PriceRow(
        *("cloud", sku, "", per, cards, "on_demand", "USD", Decimal(amount), False, Decimal(tax), start, ""),
        *("page", "2025-12-01"),
    )


DISK, SENT = price("disk", "gib_month", "0.31"), price("sent", "gib", "0.09")
ASKED, FEE = price("asked", "request", "0.0004"), price("fee", "one_off", "12.5", tax="0.2")
BOX = price("box", "machine_hour", "1")
BOOK = PriceBook((BOX, DISK, SENT, ASKED, FEE))


def rules(storage: str) -> tuple[BillingRule, ...]:
    return (BillingRule("cloud", 1, 0, "up", False, ("running",), "moment", 0, storage, "page", "2025-12-01"),)


@pytest.fixture
def place(request, tmp_path) -> str:
    """SQLite, and PostgreSQL where a test asks for it by name."""
    if "any_database" in request.fixturenames:
        return request.getfixturevalue("any_database")
    return str(tmp_path / "ledger.db")


@pytest.fixture
def books(ledger, clock, make_lease) -> Ledger:
    """A machine held for ten days of January by one sweep, with one trial on it, and twenty days after that."""
    ledger.leases.open(make_lease(sku="box", provider="cloud", price_hash=BOX.hash))
    ledger.leases.attach("L1", "s1")
    ledger.usages.start(UsageKey("L1", "t1", 1), "s1", Decimal(8), {})
    clock.advance_seconds(10 * DAY)
    ledger.usages.end(UsageKey("L1", "t1", 1), "COMPLETED")
    ledger.leases.detach("L1", "s1", "done")
    clock.advance_seconds(21 * DAY)
    return ledger


def counted(row: PriceRow, quantity: str, start="2026-01-01", stop="2026-01-11", name="") -> MeteredResource:
    span = (instant_ns(start), instant_ns(stop))
    return MeteredResource(name or row.sku, "L1", row.sku, "on_demand", "", "list", Decimal(quantity), *span)


def costs(books, clock, book=BOOK, storage="while_stopped", **scope) -> dict[str, int]:
    report = grouped_report(books, book, ReportScope(**{"by": "category", **scope}), clock.utc, rules=rules(storage))
    return {row.name: row.pico for row in report.rows}


def test_each_resource_is_a_category_of_its_own_of_the_sweep_that_held_the_machine(any_database, books, clock):
    for row, quantity in ((SENT, "100"), (ASKED, "5000"), (FEE, "1")):
        assert add_resource(books, counted(row, quantity), row, ())
    found = costs(books, clock, sweep_id="s1")
    del found["other"]
    assert found == {
        "egress": pico_of(9),
        "requests": pico_of(2),
        "fee": pico_of(Decimal("12.5")),
        "tax": pico_of(Decimal("2.5")),
    }
    assert run_checks(books, BOOK, clock.utc, rules=rules("none")) == []


@pytest.mark.parametrize(("storage", "days"), [("while_stopped", 31), ("while_running", 10), ("none", 0)])
def test_a_disk_goes_on_costing_while_its_machine_is_stopped_or_not_by_its_providers_rule(books, clock, storage, days):
    add_resource(books, counted(DISK, "100", stop="2026-02-01"), DISK, ())
    assert costs(books, clock, storage=storage).get("storage", 0) == days * pico_of(1)
    assert run_checks(books, BOOK, clock.utc, rules=rules(storage)) == []


def test_a_disk_is_charged_at_the_prices_in_force(books, clock):
    book = PriceBook((*BOOK.rows, price("disk", "gib_month", "0.62", start="2026-01-11")))
    add_resource(books, counted(DISK, "100", stop="2026-01-21"), DISK, ())
    assert costs(books, clock, book)["storage"] == pico_of(10) + pico_of(20)
    by_day = costs(books, clock, book, by="day")
    assert sum(by_day.values()) == sum(costs(books, clock, book).values())
    assert by_day["2026-01-15"] == pico_of(2)


def test_the_same_again_changes_nothing_and_another_content_is_refused(any_database, books):
    one = counted(SENT, "100")
    assert add_resource(books, one, SENT, ())
    assert not add_resource(books, one, SENT, ())
    with pytest.raises(IntegrityError, match=r"was entered before as 100 of .* to 2026-01-11T"):
        add_resource(books, replace(one, quantity=Decimal(99)), SENT, ())
    assert load_resources(books) == {"L1": [one]}


def test_what_makes_no_sense_or_changes_a_closed_month_is_not_entered(books):
    refused = [
        (counted(SENT, "0"), SENT, "above zero"),
        (counted(DISK, "1", stop="2026-01-01"), DISK, "a later --to"),
        (counted(DISK, "1", stop="2026-03-01"), DISK, "in the future"),
        (counted(BOX, "1"), BOX, "is priced per machine_hour"),
    ]
    for one, row, why in refused:
        with pytest.raises(LedgerError, match=why):
            add_resource(books, one, row, ())
    with pytest.raises(IntegrityError, match="would change 2026-01, which is closed"):
        add_resource(books, counted(SENT, "1"), SENT, ["2026-01"])
    assert load_resources(books) == {}


def test_finance_sees_a_quantity_and_a_unit(books, clock):
    add_resource(books, counted(SENT, "100"), SENT, ())
    cuts = focus.month_cuts(instant_ns(START), clock.utc)
    found = list(focus.rows(attribute(books, BOOK, clock.utc, cuts=cuts, rules=rules("none"))))
    (row,) = [row for row in found if row["x_Category"] == "egress"]
    keys = ("ServiceCategory", "PricingQuantity", "PricingUnit", "ConsumedQuantity", "ConsumedUnit", "BilledCost")
    assert [row[key] for key in keys] == ["Networking", "100", "GiB", "100", "GiB", "9"]


# The energy of own hardware ---------------------------------------------------------------------------------------

OWN = replace(price("power", "kwh", "0.25"), provider="own", purchase="own")
OWN_RULES = (BillingRule("own", 1, 0, "up", False, ("running",), "moment", 0, "none", "page", "2025-12-01"),)


@pytest.fixture
def desk(ledger, clock, make_lease) -> Ledger:
    """Own hardware of 400 W by its data sheet, for four hours, with a trial in the second and third."""
    more = {"sku": "power", "purchase": "own", "cards": 1, "watts": Decimal(400), "price_hash": OWN.hash}
    ledger.leases.open(make_lease(**more))
    ledger.leases.attach("L1", "s1")
    clock.advance_seconds(3600)
    ledger.usages.start(UsageKey("L1", "t1", 1), "s1", Decimal(1), {})
    clock.advance_seconds(2 * 3600)
    ledger.usages.end(UsageKey("L1", "t1", 1), "COMPLETED")
    clock.advance_seconds(3600)
    ledger.leases.detach("L1", "s1", "done")
    return ledger


def kwh(quantity: str, first: int = 0, last: int = 4, name="meter") -> MeteredResource:
    hours = [instant_ns(START) + hour * 3600 * 10**9 for hour in (first, last)]
    return MeteredResource(name, "L1", "power", "own", "", "list", Decimal(quantity), *hours)


def test_what_a_meter_counted_takes_the_place_of_the_watts_and_is_the_trials_too(any_database, desk, clock):
    def found(row=OWN, **scope) -> dict[str, int]:
        report = grouped_report(
            desk, PriceBook((row,)), ReportScope(**{"by": "category", **scope}), clock.utc, rules=OWN_RULES
        )
        assert sum(row.billed_pico for row in report.rows) == 0
        return {row.name: row.pico for row in report.rows}

    by_watts = {
        "startup": pico_of(Decimal("0.1")),
        "other": pico_of(Decimal("0.2")),
        "teardown": pico_of(Decimal("0.1")),
    }
    assert found() == by_watts
    # The meter was read after the third hour: 3 kWh instead of 1.2.
    assert add_resource(desk, kwh("3", last=3), OWN, ())
    counted = {
        "startup": pico_of(Decimal("0.25")),
        "other": pico_of(Decimal("0.5")),
        "teardown": pico_of(Decimal("0.1")),
    }
    assert found() == counted
    assert sum(found(by="day").values()) == sum(counted.values())
    depreciated = replace(OWN, depreciation=Decimal("0.05"))
    assert sum(found(depreciated).values()) == sum(counted.values()) + pico_of(Decimal("0.2"))
    assert run_checks(desk, PriceBook((OWN,)), clock.utc, rules=OWN_RULES) == []


def test_an_odd_quantity_is_split_to_the_last_digit(desk, clock):
    add_resource(desk, kwh("1.000000000007"), OWN, ())
    report = grouped_report(desk, PriceBook((OWN,)), ReportScope(by="category"), clock.utc, rules=OWN_RULES)
    assert report.total_pico == 250_000_000_001, "1.75 of a digit, floored once"
    assert run_checks(desk, PriceBook((OWN,)), clock.utc, rules=OWN_RULES) == []


def test_the_energy_of_an_hour_is_counted_once(desk):
    assert add_resource(desk, kwh("1", last=2), OWN, ())
    assert not add_resource(desk, kwh("1", last=2), OWN, ())
    with pytest.raises(IntegrityError, match="meter has the energy of a part of that time already: 1 kWh"):
        add_resource(desk, kwh("1", first=1, name="again"), OWN, ())
    assert add_resource(desk, kwh("1", first=2, name="on"), OWN, ())


def test_kwh_are_refused_for_a_machine_that_is_not_priced_by_them(tmp_path):
    runner, root = CliRunner(), ["--root", str(tmp_path / "runs")]
    opening = ["leases", "open", "--machine", "m", "--cards", "8", "--instance", "i", "--from", "2026-11-29", *root]
    rented = runner.invoke(app, [*opening, "--sku", "lambda-h100x8"]).output.strip()
    said = runner.invoke(app, ["leases", "meter", rented, "--sku", "electricity", "--quantity", "1", *root])
    assert said.exit_code == 2
    assert "is priced as 'lambda-h100x8', from 2026-11-29T00:00:00Z" in said.output
    own = [*opening[:6], "--instance", "j", *opening[8:], "--sku", "electricity", "--watts", "400"]
    desk = runner.invoke(app, own, catch_exceptions=False).output.strip()
    metered = ["leases", "meter", desk, "--sku", "electricity", "--quantity", "2", "--to", "2026-11-29T08:00", *root]
    assert runner.invoke(app, metered, catch_exceptions=False).exit_code == 0
    closed = runner.invoke(app, ["leases", "close", desk, "--at", "2026-11-29T08:00", *root], catch_exceptions=False)
    assert closed.exit_code == 0, closed.output
    leases = json.loads(runner.invoke(app, ["leases", "list", "--json", *root]).output)["leases"]
    row = PriceBook.load().in_force("electricity", instant_ns("2026-11-29"))
    assert {one["lease_id"]: one["cost"] for one in leases}[desk] == plain(2 * row.price)


def test_on_the_command_line(tmp_path: Path, books):
    pricing = tmp_path / "pricing"
    pricing.mkdir()
    fields = (
        "provider: cloud, currency: USD, valid_from: 2025-01-01, source: 'https://example.org', day_read: 2025-12-01"
    )
    rows = [
        f"{{{fields}, sku: box, per: machine_hour, cards: 8, price: '1'}}",
        f"{{{fields}, sku: disk, per: gib_month, price: '0.31'}}",
        f"{{{fields}, sku: setup, per: one_off, price: '25'}}",
    ]
    (pricing / "cloud.yaml").write_text("prices:\n" + "".join(f"  - {row}\n" for row in rows), encoding="utf-8")
    rule = (
        "provider: cloud, granularity_s: 1, minimum_s: 0, rounding: up, charged_ahead: false, "
        "billed_states: [running], spot_price_rule: moment, interruption_waiver_s: 0, storage_rule: while_stopped, "
        "source: a page, day_read: 2026-11-29"
    )
    (pricing / "billing.yaml").write_text(f"rules:\n  - {{{rule}}}\n", encoding="utf-8")
    runner, places = CliRunner(), ["--root", str(tmp_path), "--pricing", str(pricing)]
    meter = ["leases", "meter", "L1", "--sku", "disk", "--quantity", "100", "--id", "d1", *places]
    for _ in range(2):
        made = runner.invoke(app, meter, catch_exceptions=False)
        assert (made.exit_code, made.output) == (0, "d1\n")
    said = runner.invoke(app, ["report", "--by", "category", "--json", *places], catch_exceptions=False)
    assert {row["name"]: row["cost"] for row in json.loads(said.output)["groups"]}["storage"] == "10"
    fee = ["leases", "meter", "L1", "--sku", "setup", "--quantity", "1", "--id", "f1", "--from", "2026-01-03", *places]
    for _ in range(2):
        assert runner.invoke(app, fee, catch_exceptions=False).output == "f1\n"
    assert load_resources(books)["L1"][-1].to_ns == instant_ns("2026-01-03"), (
        "a fee is of one moment, not of the days since"
    )
    assert runner.invoke(app, ["check", *places]).output == ""
    assert runner.invoke(app, [*meter[:4], "unknown", *meter[5:]]).exit_code == 2

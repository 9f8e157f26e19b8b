"""Metered resources (storage, data transfer, requests, fees, energy) are charged once, at the prices in force."""

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


DISK, EGRESS = price("disk", "gib_month", "0.31"), price("egress", "gib", "0.09")
REQUESTS, FEE = price("requests", "request", "0.0004"), price("fee", "one_off", "12.5", tax="0.2")
BOX = price("box", "machine_hour", "1")
BOOK = PriceBook((BOX, DISK, EGRESS, REQUESTS, FEE))


def rules(storage: str) -> tuple[BillingRule, ...]:
    return (BillingRule("cloud", 1, 0, "up", False, ("running",), "moment", 0, storage, "page", "2025-12-01"),)


@pytest.fixture
def filled_ledger(ledger, clock, make_lease) -> Ledger:
    """A lease that one sweep uses for ten days of January, with one trial; twenty-one more days have passed since."""
    ledger.leases.open(make_lease(sku="box", provider="cloud", price_hash=BOX.hash))
    ledger.leases.attach("L1", "s1")
    ledger.usages.start(UsageKey("L1", "t1", 1), "s1", Decimal(8), {})
    clock.advance_seconds(10 * DAY)
    ledger.usages.end(UsageKey("L1", "t1", 1), "COMPLETED")
    ledger.leases.detach("L1", "s1", "done")
    clock.advance_seconds(21 * DAY)
    return ledger


def resource(row: PriceRow, quantity: str, start="2026-01-01", stop="2026-01-11", name="") -> MeteredResource:
    span = (instant_ns(start), instant_ns(stop))
    return MeteredResource(name or row.sku, "L1", row.sku, "on_demand", "", "list", Decimal(quantity), *span)


def costs(filled_ledger, clock, book=BOOK, storage="while_stopped", **scope) -> dict[str, int]:
    report = grouped_report(
        filled_ledger, book, ReportScope(**{"by": "category", **scope}), clock.utc, rules=rules(storage)
    )
    return {row.name: row.pico for row in report.rows}


def test_each_resource_has_a_category_and_is_charged_to_the_sweep_that_used_the_machine(
    any_database, filled_ledger, clock
):
    for row, quantity in ((EGRESS, "100"), (REQUESTS, "5000"), (FEE, "1")):
        assert add_resource(filled_ledger, resource(row, quantity), row, ())
    by_category = costs(filled_ledger, clock, sweep_id="s1")
    del by_category["other"]
    assert by_category == {
        "egress": pico_of(9),
        "requests": pico_of(2),
        "fee": pico_of(Decimal("12.5")),
        "tax": pico_of(Decimal("2.5")),
    }
    assert run_checks(filled_ledger, BOOK, clock.utc, rules=rules("none")) == []


@pytest.mark.parametrize(("storage", "days"), [("while_stopped", 31), ("while_running", 10), ("none", 0)])
def test_the_providers_storage_rule_decides_whether_a_disk_is_billed_while_the_machine_is_stopped(
    filled_ledger, clock, storage, days
):
    add_resource(filled_ledger, resource(DISK, "100", stop="2026-02-01"), DISK, ())
    assert costs(filled_ledger, clock, storage=storage).get("storage", 0) == days * pico_of(1)
    assert run_checks(filled_ledger, BOOK, clock.utc, rules=rules(storage)) == []


def test_a_disk_is_charged_at_the_prices_in_force(filled_ledger, clock):
    book = PriceBook((*BOOK.rows, price("disk", "gib_month", "0.62", start="2026-01-11")))
    add_resource(filled_ledger, resource(DISK, "100", stop="2026-01-21"), DISK, ())
    assert costs(filled_ledger, clock, book)["storage"] == pico_of(10) + pico_of(20)
    by_day = costs(filled_ledger, clock, book, by="day")
    assert sum(by_day.values()) == sum(costs(filled_ledger, clock, book).values())
    assert by_day["2026-01-15"] == pico_of(2)


def test_entering_a_resource_again_changes_nothing_and_other_content_is_refused(any_database, filled_ledger):
    traffic = resource(EGRESS, "100")
    assert add_resource(filled_ledger, traffic, EGRESS, ())
    assert not add_resource(filled_ledger, traffic, EGRESS, ())
    with pytest.raises(IntegrityError, match=r"was entered before as 100 of .* to 2026-01-11T"):
        add_resource(filled_ledger, replace(traffic, quantity=Decimal(99)), EGRESS, ())
    assert load_resources(filled_ledger) == {"L1": [traffic]}


def test_an_invalid_resource_or_one_in_a_closed_month_is_refused(filled_ledger):
    refused = [
        (resource(EGRESS, "0"), EGRESS, "above zero"),
        (resource(DISK, "1", stop="2026-01-01"), DISK, "a later --to"),
        (resource(DISK, "1", stop="2026-03-01"), DISK, "in the future"),
        (resource(BOX, "1"), BOX, "is priced per machine_hour"),
    ]
    for invalid, row, message in refused:
        with pytest.raises(LedgerError, match=message):
            add_resource(filled_ledger, invalid, row, ())
    with pytest.raises(IntegrityError, match="would change 2026-01, which is closed"):
        add_resource(filled_ledger, resource(EGRESS, "1"), EGRESS, ["2026-01"])
    assert load_resources(filled_ledger) == {}


def test_focus_has_the_quantity_and_unit_of_a_resource(filled_ledger, clock):
    add_resource(filled_ledger, resource(EGRESS, "100"), EGRESS, ())
    cuts = focus.month_cuts(instant_ns(START), clock.utc)
    rows = list(focus.rows(attribute(filled_ledger, BOOK, clock.utc, cuts=cuts, rules=rules("none"))))
    (row,) = [row for row in rows if row["x_Category"] == "egress"]
    keys = ("ServiceCategory", "PricingQuantity", "PricingUnit", "ConsumedQuantity", "ConsumedUnit", "BilledCost")
    assert [row[key] for key in keys] == ["Networking", "100", "GiB", "100", "GiB", "9"]


# The energy of own hardware ---------------------------------------------------------------------------------------

OWN = replace(price("power", "kwh", "0.25"), provider="own", purchase="own")
OWN_RULES = (BillingRule("own", 1, 0, "up", False, ("running",), "moment", 0, "none", "page", "2025-12-01"),)


@pytest.fixture
def desk(ledger, clock, make_lease) -> Ledger:
    """Own hardware of 400 W by its data sheet, leased for four hours, with a trial in the second and third hour."""
    fields = {"sku": "power", "purchase": "own", "cards": 1, "watts": Decimal(400), "price_hash": OWN.hash}
    ledger.leases.open(make_lease(**fields))
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


def test_metered_energy_replaces_the_watts_also_in_the_cost_of_a_trial(any_database, desk, clock):
    def by_category(row=OWN, **scope) -> dict[str, int]:
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
    assert by_category() == by_watts
    # The meter is read after the third hour: 3 kWh instead of the 1.2 kWh of the watts.
    assert add_resource(desk, kwh("3", last=3), OWN, ())
    by_meter = {
        "startup": pico_of(Decimal("0.25")),
        "other": pico_of(Decimal("0.5")),
        "teardown": pico_of(Decimal("0.1")),
    }
    assert by_category() == by_meter
    assert sum(by_category(by="day").values()) == sum(by_meter.values())
    depreciated = replace(OWN, depreciation=Decimal("0.05"))
    assert sum(by_category(depreciated).values()) == sum(by_meter.values()) + pico_of(Decimal("0.2"))
    assert run_checks(desk, PriceBook((OWN,)), clock.utc, rules=OWN_RULES) == []


def test_an_uneven_quantity_is_split_exactly(desk, clock):
    add_resource(desk, kwh("1.000000000007"), OWN, ())
    report = grouped_report(desk, PriceBook((OWN,)), ReportScope(by="category"), clock.utc, rules=OWN_RULES)
    assert report.total_pico == 250_000_000_001, "0.25000000000175 USD, floored once"
    assert run_checks(desk, PriceBook((OWN,)), clock.utc, rules=OWN_RULES) == []


def test_the_energy_of_an_hour_can_be_entered_once(desk):
    assert add_resource(desk, kwh("1", last=2), OWN, ())
    assert not add_resource(desk, kwh("1", last=2), OWN, ())
    with pytest.raises(IntegrityError, match="meter has the energy of a part of that time already: 1 kWh"):
        add_resource(desk, kwh("1", first=1, name="again"), OWN, ())
    assert add_resource(desk, kwh("1", first=2, name="on"), OWN, ())


def test_energy_is_refused_on_a_machine_that_is_not_priced_per_kwh(tmp_path):
    runner, root = CliRunner(), ["--root", str(tmp_path / "runs")]
    opening = ["leases", "open", "--machine", "m", "--cards", "8", "--instance", "i", "--from", "2026-11-29", *root]
    rented = runner.invoke(app, [*opening, "--sku", "lambda-h100x8"]).output.strip()
    refused = runner.invoke(app, ["leases", "meter", rented, "--sku", "electricity", "--quantity", "1", *root])
    assert refused.exit_code == 2
    assert "has SKU 'lambda-h100x8', from 2026-11-29T00:00:00Z" in refused.output
    own = [*opening[:6], "--instance", "j", *opening[8:], "--sku", "electricity", "--watts", "400"]
    desk = runner.invoke(app, own, catch_exceptions=False).output.strip()
    metered = ["leases", "meter", desk, "--sku", "electricity", "--quantity", "2", "--to", "2026-11-29T08:00", *root]
    assert runner.invoke(app, metered, catch_exceptions=False).exit_code == 0
    closed = runner.invoke(app, ["leases", "close", desk, "--at", "2026-11-29T08:00", *root], catch_exceptions=False)
    assert closed.exit_code == 0, closed.output
    leases = json.loads(runner.invoke(app, ["leases", "list", "--json", *root]).output)["leases"]
    row = PriceBook.load().in_force("electricity", instant_ns("2026-11-29"))
    assert {lease["lease_id"]: lease["cost"] for lease in leases}[desk] == plain(2 * row.price)


def test_a_disk_and_a_fee_can_be_metered_on_the_command_line(tmp_path: Path, filled_ledger):
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
    runner, options = CliRunner(), ["--root", str(tmp_path), "--pricing", str(pricing)]
    meter = ["leases", "meter", "L1", "--sku", "disk", "--quantity", "100", "--id", "d1", *options]
    for _ in range(2):
        entered = runner.invoke(app, meter, catch_exceptions=False)
        assert (entered.exit_code, entered.output) == (0, "d1\n")
    report = runner.invoke(app, ["report", "--by", "category", "--json", *options], catch_exceptions=False)
    assert {row["name"]: row["cost"] for row in json.loads(report.output)["groups"]}["storage"] == "10"
    fee = ["leases", "meter", "L1", "--sku", "setup", "--quantity", "1", "--id", "f1", "--from", "2026-01-03", *options]
    for _ in range(2):
        assert runner.invoke(app, fee, catch_exceptions=False).output == "f1\n"
    assert load_resources(filled_ledger)["L1"][-1].to_ns == instant_ns("2026-01-03"), "a fee is due at one moment"
    assert runner.invoke(app, ["check", *options]).output == ""
    assert runner.invoke(app, [*meter[:4], "unknown", *meter[5:]]).exit_code == 2


# Disks charged by whole days, and disks that are still stored ----------------------------------------------------

BEIJING = (replace(rules("daily")[0], timezone="Asia/Shanghai"),)


def daily_costs(ledger, clock, book=BOOK) -> dict[str, int]:
    report = grouped_report(ledger, book, ReportScope(by="category"), clock.utc, rules=BEIJING)
    return {row.name: row.pico for row in report.rows}


def test_one_day_of_the_providers_zone_is_charged_once(filled_ledger, clock):
    """From midnight to midnight in Beijing, which touches two days of UTC."""
    add_resource(filled_ledger, resource(DISK, "100", "2026-01-01T16:00", "2026-01-02T16:00"), DISK, ())
    assert daily_costs(filled_ledger, clock)["storage"] == pico_of(1)


def test_a_price_change_within_a_day_charges_the_day_once_at_the_price_it_began_with(filled_ledger, clock):
    book = PriceBook((*BOOK.rows, price("disk", "gib_month", "0.62", start="2026-01-02T04:00:00Z")))
    add_resource(filled_ledger, resource(DISK, "100", "2026-01-01T16:00", "2026-01-03T16:00"), DISK, ())
    assert daily_costs(filled_ledger, clock, book)["storage"] == pico_of(1) + pico_of(2)


def test_an_entry_that_continues_another_within_a_day_does_not_charge_that_day_again(filled_ledger, clock):
    for name, start, stop in (("d1", "2026-01-01T16:00", "2026-01-02T06:00"), ("d2", "2026-01-02T06:00", "2026-01-03")):
        add_resource(filled_ledger, resource(DISK, "100", start, stop, name), DISK, ())
    assert daily_costs(filled_ledger, clock)["storage"] == pico_of(2), "January 2 and 3 in Beijing"


def test_a_disk_on_an_open_lease_accrues_until_it_is_ended_or_the_lease_ends(ledger, clock, make_lease):
    ledger.leases.open(make_lease(sku="box", provider="cloud", price_hash=BOX.hash, opened_by="hand"))
    clock.advance_seconds(DAY)
    kept, deleted = (replace(resource(DISK, "100", name=name), to_ns=None) for name in ("kept", "deleted"))
    for disk in (kept, deleted):
        assert add_resource(ledger, disk, DISK, ())
        assert not add_resource(ledger, disk, DISK, ())
    assert costs(ledger, clock)["storage"] == 2 * pico_of(1)
    clock.advance_seconds(4 * DAY)
    assert costs(ledger, clock)["storage"] == 2 * pico_of(5)
    ended = replace(deleted, to_ns=instant_ns("2026-01-03"))
    for expected in (True, False):
        assert add_resource(ledger, ended, DISK, ()) is expected
    assert costs(ledger, clock)["storage"] == pico_of(5) + pico_of(2)
    with pytest.raises(IntegrityError, match="was entered before"):
        add_resource(ledger, replace(ended, to_ns=instant_ns("2026-01-04")), DISK, ())
    clock.advance_seconds(DAY)
    ledger.leases.close("L1", "done")
    clock.advance_seconds(30 * DAY)
    assert costs(ledger, clock)["storage"] == pico_of(6) + pico_of(2)
    assert run_checks(ledger, BOOK, clock.utc, rules=rules("while_stopped")) == []


def test_a_month_of_an_accruing_disk_stays_what_it_was_when_it_was_over(ledger, clock, make_lease):
    ledger.leases.open(make_lease(sku="box", provider="cloud", price_hash=BOX.hash, opened_by="hand"))
    clock.advance_seconds(DAY)
    add_resource(ledger, replace(resource(DISK, "7"), to_ns=None), DISK, ())
    clock.advance_seconds(30 * DAY)
    january = storage_in_january(ledger, clock)
    for _ in range(3):
        clock.advance_seconds(9 * DAY + 1234)
        assert storage_in_january(ledger, clock) == january == pico_of(Decimal("2.17"))


def storage_in_january(ledger, clock) -> int:
    scope = ReportScope(by="category", from_ns=instant_ns("2026-01-01"), to_ns=instant_ns("2026-02-01"))
    report = grouped_report(ledger, BOOK, scope, clock.utc, rules=rules("while_stopped"))
    return {row.name: row.pico for row in report.rows}["storage"]


def test_only_a_disk_is_stored_until_its_lease_ends(filled_ledger):
    with pytest.raises(LedgerError, match="only a disk is stored until its lease ends"):
        add_resource(filled_ledger, replace(resource(EGRESS, "1"), to_ns=None), EGRESS, ())


def test_a_disk_on_an_open_lease_is_entered_without_an_end_and_ended_by_its_id(tmp_path):
    runner, options = CliRunner(), ["--root", str(tmp_path / "runs"), "--pricing", str(tmp_path / "pricing")]
    (tmp_path / "pricing").mkdir()
    fields = "provider: cloud, currency: USD, valid_from: 2025-01-01, source: 'https://x.org', day_read: 2025-12-01"
    boxes = f"{{{fields}, sku: box, per: machine_hour, cards: 8, price: '1'}}"
    disks = f"{{{fields}, sku: disk, per: gib_month, price: '0.3'}}"
    (tmp_path / "pricing" / "cloud.yaml").write_text(f"prices:\n  - {boxes}\n  - {disks}\n", encoding="utf-8")
    rule = {k: list(v) if isinstance(v, tuple) else v for k, v in vars(rules("while_stopped")[0]).items()}
    rule = {k: str(v) if isinstance(v, Decimal) else v for k, v in rule.items()}
    (tmp_path / "pricing" / "billing.yaml").write_text(json.dumps({"rules": [rule]}), encoding="utf-8")
    opening = ["leases", "open", "--machine", "m", "--sku", "box", "--cards", "8", "--from", "2026-01-01", *options]
    lease_id = runner.invoke(app, opening, catch_exceptions=False).output.strip()
    meter = ["leases", "meter", lease_id, "--sku", "disk", "--quantity", "10", "--id", "d1", *options]
    entered = runner.invoke(app, meter, catch_exceptions=False)
    assert entered.stdout == "d1\n"
    assert "charged until the lease ends" in entered.stderr
    with Ledger.open(tmp_path / "runs" / "ledger.db") as ledger:
        assert load_resources(ledger)[lease_id][0].to_ns is None
    assert runner.invoke(app, [*meter, "--to", "2026-01-31"], catch_exceptions=False).exit_code == 0
    with Ledger.open(tmp_path / "runs" / "ledger.db") as ledger:
        assert load_resources(ledger)[lease_id][0].to_ns == instant_ns("2026-01-31")

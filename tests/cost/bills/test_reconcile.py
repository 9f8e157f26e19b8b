"""A bill compared with the ledger: every cause of a difference, and corrections down to each trial."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from cost.bills.column_map import load_maps
from cost.bills.reader import read_bill
from cost.bills.reconcile import manual_conflicts, reconcile
from cost.bills.true_up import apply
from cost.charges.attribution import attribute
from cost.charges.commitments import Commitment, add_commitment
from cost.cli.reconcile import reconcile as reconcile_command
from cost.clock import FakeClock
from cost.ledger.ledger import Ledger
from cost.money import PICO_PER_UNIT, Money
from cost.periods import instant_ns
from cost.prices.billing import BillingRule
from cost.prices.book import PriceBook, PriceRow, read_row
from cost.prices.fx import Rate
from cost.records import Correction, Lease, UsageKey
from cost.reports import focus
from cost.reports.csv_json import as_json, csv_text
from cost.reports.grouped import ReportScope, grouped_report
from tests.cost.reports.focus_rules import findings

CONF = Path(__file__).parents[3] / "conf" / "pricing"
MAPS = load_maps(CONF)
START = instant_ns("2026-11-01T10:00:00Z")
HOUR = 3600
HEADER = "instance_id,start,end,amount,currency,type\n"
LEASED = "2026-11-01T10:00:00Z,2026-11-01T14:00:00Z"
RATES = (Rate("EUR", "USD", Decimal("1.25"), "2026-10-30", "https://example.org/fx", "2026-11-01"),)


def price(sku: str, amount: str, **changes: object) -> PriceRow:
    raw: dict[str, Any] = {"provider": "lambda", "sku": sku, "per": "card_hour", "cards": 0, "currency": "USD"}
    raw |= {"price": amount, "valid_from": "2026-01-01", "source": "https://example.org", "day_read": "2026-01-01"}
    return read_row(raw | changes, "test")


BOOK = PriceBook((price("box", "4.00", cards=8), price("box", "3.50", cards=8, kind="effective")))
RULES = (BillingRule("lambda", 60, 60, "up", False, ("running",), "moment", 0, "none", "page", "2026-01-01"),)


class Recorded:
    """Two trials of one sweep on eight cards at 32 an hour: 1 h and 2 h, then 1 h idle; 128 USD in all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = FakeClock(utc=START)
        self.ledger = Ledger.open(str(folder / "ledger.db"), self.clock)
        self.open_lease("L1", "i-1")
        self.ledger.leases.attach("L1", "s1")
        for trial, hours in (("t1", 1), ("t2", 2)):
            key = UsageKey("L1", trial, 1)
            self.ledger.usages.start(key, "s1", Decimal(8), {})
            self.clock.advance_seconds(hours * HOUR)
            self.ledger.usages.end(key, "COMPLETED")
        self.clock.advance_seconds(HOUR)
        self.ledger.leases.close("L1", "done")

    def open_lease(self, lease_id: str, instance: str, **changes) -> None:
        fields: dict[str, Any] = {"machine": "h100x8", "sku": "box", "provider": "lambda", "cards": 8}
        fields |= {"currency": "USD", "price_hash": BOOK.rows[0].hash, **changes}
        self.ledger.leases.open(Lease(lease_id=lease_id, instance_id=instance, **fields))

    def bill(self, *rows: str, header: str = HEADER):
        file = self.folder / "bill.csv"
        file.write_text(header + "".join(f"{row}\n" for row in rows), encoding="utf-8")
        return read_bill(file, MAPS)

    def compare(self, *rows: str, header: str = HEADER):
        bill = self.bill(*rows, header=header)
        return reconcile(self.ledger, BOOK, bill, self.clock.utc, rates=RATES, rules=RULES)

    def costs(self) -> dict[tuple[str, str], Decimal]:
        found: dict[tuple[str, str], int] = {}
        for line in attribute(self.ledger, BOOK, self.clock.utc, rules=RULES).lines:
            key = (line.trial_id or "", line.category)
            found[key] = found.get(key, 0) + line.pico
        return {key: Decimal(pico) / PICO_PER_UNIT for key, pico in found.items()}


@pytest.fixture
def recorded(tmp_path):
    made = Recorded(tmp_path)
    yield made
    made.ledger.close()


def causes(done) -> list[tuple[str, Decimal]]:
    return [(x.name, Decimal(x.pico) / PICO_PER_UNIT) for c in done.comparisons for x in c.causes]


def test_a_bill_that_agrees_has_no_difference_and_shows_idle_time(recorded):
    """determined docs: card-hours of trials are below the cloud bill, since idle is left out there."""
    done = recorded.compare(f"i-1,{LEASED},128.00,USD,")
    (one,) = done.comparisons
    assert done.agrees
    assert (one.difference, one.causes, one.when) == (0, (), "2026-11-01")
    assert Decimal(one.idle_pico) / PICO_PER_UNIT == 32


def test_causes_always_sum_to_the_difference(recorded):
    for amount in ("127.99", "112", "150", "64.5", "0", "300.123456"):
        (one,) = recorded.compare(f"i-1,{LEASED},{amount},USD,").comparisons
        assert sum(x.pico for x in one.causes) == one.difference


def test_another_price_is_found_by_the_time_on_the_bill(recorded):
    done = recorded.compare(f"i-1,{LEASED},112.00,USD,")
    assert causes(done) == [("price", Decimal(-16))]
    (cause,) = done.comparisons[0].causes
    assert cause.text == "billed at 28 USD an hour of the machine, in the ledger at 32"


def test_another_price_of_the_price_book_is_found_without_times_on_the_bill(recorded):
    text = "amount,podId,time\n112.0,i-1,2026-11-01 00:00:00\n"
    file = recorded.folder / "bill.csv"
    file.write_text(text)
    maps = [m for m in MAPS if m.name == "runpod"]
    bill = read_bill(file, [m.__class__(**{**vars(m), "provider": ""}) for m in maps])
    done = reconcile(recorded.ledger, BOOK, bill, recorded.clock.utc, rules=RULES)
    assert causes(done) == [("price", Decimal(-16))]
    assert "billed at 3.50 USD per card_hour (effective" in done.comparisons[0].causes[0].text


def test_a_difference_within_the_last_place_of_the_bill_is_rounding(recorded):
    assert causes(recorded.compare(f"i-1,{LEASED},128.005,USD,")) == [("price", Decimal("0.005"))]
    assert causes(recorded.compare(f"i-1,{LEASED},128.0,USD,")) == []
    recorded.open_lease("L2", "i-2")
    recorded.clock.advance_seconds(7 * 60)
    recorded.ledger.leases.close("L2", "done")
    start = "2026-11-01T14:00:00Z,2026-11-01T14:07:00Z"
    done = recorded.compare(f"i-1,{LEASED},128.0,USD,", f"i-2,{start},3.73,USD,")
    assert [x.name for c in done.comparisons for x in c.causes] == ["rounding"]


@pytest.mark.parametrize(("rounding", "found"), [("none", "price"), ("line", "rounding"), ("total", "rounding")])
def test_the_providers_rounding_follows_its_billing_rule(recorded, rounding, found):
    rule = replace(RULES[0], bill_rounding=rounding, bill_quantum=Decimal(1))
    bill = recorded.bill(f"i-1,{LEASED},128.4999,USD,")
    done = reconcile(recorded.ledger, BOOK, bill, recorded.clock.utc, rules=(rule,))
    assert causes(done) == [(found, Decimal("0.4999"))]


def test_billed_time_that_is_not_in_the_ledger_is_idle(recorded):
    done = recorded.compare("i-1,2026-11-01T09:00:00Z,2026-11-01T14:30:00Z,176.00,USD,")
    assert causes(done) == [("idle", Decimal(48))]
    assert "1.5000 h billed" in done.comparisons[0].causes[0].text


def test_time_that_was_not_billed_is_reported(recorded):
    assert causes(recorded.compare("i-1,2026-11-01T10:00:00Z,2026-11-01T13:00:00Z,96.00,USD,")) == [
        ("unbilled_time", Decimal(-32))
    ]


def test_more_time_at_another_price_is_two_causes(recorded):
    done = recorded.compare("i-1,2026-11-01T09:00:00Z,2026-11-01T14:00:00Z,140.00,USD,")
    assert causes(done) == [("idle", Decimal(32)), ("price", Decimal(-20))]


def test_tax_and_credits_are_compared_separately(recorded):
    done = recorded.compare(f"i-1,{LEASED},128.00,USD,", f"i-1,{LEASED},24.32,USD,tax", f"i-1,{LEASED},-10,USD,credit")
    assert sorted(causes(done)) == [("credit", Decimal(-10)), ("tax", Decimal("24.32"))]


def test_a_bill_in_another_currency_is_converted_at_a_named_rate(recorded):
    done = recorded.compare(f"i-1,{LEASED},102.40,EUR,")
    assert done.agrees
    assert done.notes == ("1 EUR = 1.25 USD on 2026-10-30 (https://example.org/fx)",)
    assert causes(recorded.compare(f"i-1,{LEASED},103.00,EUR,")) == [("fx", Decimal("0.75"))]


def test_a_machine_on_the_bill_without_a_lease_is_reported_as_missing(recorded):
    done = recorded.compare(f"i-1,{LEASED},128.00,USD,", f"i-9,{LEASED},64.00,USD,")
    assert [m.resource for m in done.missing] == ["i-9"]
    assert not done.agrees


def test_a_lease_that_is_not_on_the_bill_is_reported(recorded):
    recorded.open_lease("L2", "i-2")
    recorded.clock.advance_seconds(HOUR)
    recorded.ledger.leases.close("L2", "done")
    done = recorded.compare(f"i-1,{LEASED},128.00,USD,")
    assert [(lease.lease_id, pico // PICO_PER_UNIT) for lease, pico in done.unbilled] == [("L2", 32)]


def test_own_hardware_is_not_expected_on_a_bill(recorded):
    row = price("power", "0.2", per="kwh", provider="own", purchase="own")
    book = PriceBook((*BOOK.rows, row))
    rule = BillingRule("own", 1, 0, "up", False, ("running",), "moment", 0, "none", "page", "2026-01-01")
    recorded.open_lease(
        "L2", "desk", sku="power", provider="own", purchase="own", price_hash=row.hash, watts=Decimal(350)
    )
    recorded.clock.advance_seconds(HOUR)
    recorded.ledger.leases.close("L2", "done")
    bill = recorded.bill(f"i-1,{LEASED},128.00,USD,")
    assert reconcile(recorded.ledger, book, bill, recorded.clock.utc, rules=(*RULES, rule)).agrees


def test_two_leases_of_one_machine_are_matched_by_time(recorded):
    recorded.clock.advance_seconds(6 * HOUR)
    recorded.open_lease("L2", "i-1")
    recorded.clock.advance_seconds(HOUR)
    recorded.ledger.leases.close("L2", "done")
    later = "2026-11-01T20:00:00Z,2026-11-01T21:00:00Z"
    done = recorded.compare(f"i-1,{LEASED},128.00,USD,", f"i-1,{later},32.00,USD,")
    assert [c.lease.lease_id for c in done.comparisons] == ["L1", "L2"]
    assert done.agrees


def test_an_arn_is_matched_by_its_last_part(recorded):
    assert recorded.compare(f"arn:aws:ec2:us-east-1:1:instance/i-1,{LEASED},128.00,USD,").agrees


def test_days_are_compared_one_by_one_where_the_bill_gives_days(recorded):
    recorded.clock.advance_seconds(6 * HOUR)
    recorded.open_lease("L2", "i-2")
    recorded.clock.advance_seconds(8 * HOUR)
    recorded.ledger.leases.close("L2", "done")
    text = ["i-2,2026-11-01T20:00:00Z,2026-11-02T00:00:00Z,128.00,USD,"]
    text += ["i-2,2026-11-02T00:00:00Z,2026-11-02T04:00:00Z,100.00,USD,", f"i-1,{LEASED},128.00,USD,"]
    done = recorded.compare(*text)
    found = [(c.lease.lease_id, c.when, c.difference // PICO_PER_UNIT) for c in done.comparisons if c.difference]
    assert found == [("L2", "2026-11-02", -28)]


# Truing up --------------------------------------------------------------------------------------------------------


def test_a_price_difference_is_trued_up_for_every_trial_in_proportion(recorded):
    before = recorded.costs()
    done = recorded.compare(f"i-1,{LEASED},112.00,USD,")
    written = apply(recorded.ledger, BOOK, done, recorded.clock.utc, rules=RULES)
    after = recorded.costs()
    assert sum(w.pico for w in written) == -16 * PICO_PER_UNIT
    assert {key: after[key] / before[key] for key in before} == dict.fromkeys(before, Decimal("0.875"))
    assert recorded.compare(f"i-1,{LEASED},112.00,USD,").agrees


def test_corrections_by_a_bill_of_two_months_stay_in_their_months(recorded):
    recorded.clock.advance(instant_ns("2026-11-30T20:00:00Z") - recorded.clock.utc)
    recorded.open_lease("L2", "i-2")
    recorded.clock.advance_seconds(8 * HOUR)
    recorded.ledger.leases.close("L2", "done")
    done = recorded.compare("i-2,2026-11-30T20:00:00Z,2026-12-01T04:00:00Z,264.00,USD,")
    apply(recorded.ledger, BOOK, done, recorded.clock.utc, rules=RULES)
    report = grouped_report(recorded.ledger, BOOK, ReportScope(by="month"), recorded.clock.utc, rules=RULES)
    costs = {row.name: Decimal(row.pico) / PICO_PER_UNIT for row in report.rows}
    assert costs == {"2026-11": 128 + 132, "2026-12": 132}


def test_truing_up_twice_changes_nothing(recorded):
    done = recorded.compare(f"i-1,{LEASED},127.13,USD,", f"i-1,{LEASED},24.32,USD,tax")
    assert apply(recorded.ledger, BOOK, done, recorded.clock.utc, rules=RULES)
    costs = recorded.costs()
    assert apply(recorded.ledger, BOOK, done, recorded.clock.utc, rules=RULES) == []
    again = recorded.compare(f"i-1,{LEASED},127.13,USD,", f"i-1,{LEASED},24.32,USD,tax")
    assert again.agrees
    assert apply(recorded.ledger, BOOK, again, recorded.clock.utc, rules=RULES) == []
    assert recorded.costs() == costs
    assert sum(costs.values()) == Decimal("151.45")


def test_idle_time_found_on_the_bill_goes_to_idle_and_to_no_trial(recorded):
    before = recorded.costs()
    done = recorded.compare("i-1,2026-11-01T09:00:00Z,2026-11-01T14:00:00Z,160.00,USD,")
    apply(recorded.ledger, BOOK, done, recorded.clock.utc, rules=RULES)
    after = recorded.costs()
    changed = {key: after[key] - before.get(key, Decimal(0)) for key in after if after[key] != before.get(key)}
    assert changed == {("", "idle"): Decimal(32)}


@pytest.mark.parametrize("amount", ["100.000000000001", "131.41", "0.01", "999"])
def test_after_truing_up_the_ledger_equals_the_bill_to_the_last_digit(recorded, amount):
    apply(recorded.ledger, BOOK, recorded.compare(f"i-1,{LEASED},{amount},USD,"), recorded.clock.utc, rules=RULES)
    assert sum(recorded.costs().values()) == Decimal(amount)


def test_a_focus_export_reconciles_with_its_ledger(recorded):
    found = attribute(
        recorded.ledger, BOOK, recorded.clock.utc, cuts=focus.month_cuts(START, recorded.clock.utc), rules=RULES
    )
    file = focus.write(found, recorded.folder / "focus.csv")
    assert reconcile(recorded.ledger, BOOK, read_bill(file, MAPS), recorded.clock.utc, rules=RULES).agrees


def correct_by_hand(recorded, amount: int, category: str = "credit") -> None:
    at_ns = START + HOUR * 10**9
    recorded.ledger.corrections.add(
        Correction("cn-17", "L1", category, amount * PICO_PER_UNIT, "USD", at_ns, "credit note 17")
    )


def test_a_credit_that_only_the_ledger_has_is_reported_with_its_sign(recorded):
    correct_by_hand(recorded, -10)
    done = recorded.compare(f"i-1,{LEASED},128.00,USD,")
    (credit,) = [c for c in done.comparisons if c.kind == "credit"]
    assert credit.causes[0].text == "the ledger has credit (entered by hand with `cost correct`), the bill has none"
    assert manual_conflicts(done) == [credit]


def test_a_credit_that_only_the_bill_has_is_reported_with_its_sign(recorded):
    done = recorded.compare(f"i-1,{LEASED},128.00,USD,", f"i-1,{LEASED},-10,USD,credit")
    (credit,) = [c for c in done.comparisons if c.kind == "credit"]
    assert credit.causes[0].text == "the bill has credit, the ledger has none"
    assert manual_conflicts(done) == []


def statuses(recorded) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for line in attribute(recorded.ledger, BOOK, recorded.clock.utc, rules=RULES).lines:
        key = (line.lease.lease_id, line.status)
        found[key] = found.get(key, 0) + line.pico
    return found


def test_a_charge_is_estimated_during_its_lease_then_provisional_and_invoiced_by_an_applied_bill(recorded):
    recorded.open_lease("L2", "i-2")
    recorded.clock.advance_seconds(HOUR)
    assert statuses(recorded) == {("L1", "provisional"): 128 * PICO_PER_UNIT, ("L2", "estimated"): 32 * PICO_PER_UNIT}
    bill = recorded.compare(f"i-1,{LEASED},128.00,USD,")
    assert statuses(recorded)["L1", "provisional"] == 128 * PICO_PER_UNIT, (
        "a look at the bill is not yet its acceptance"
    )
    then = recorded.clock.utc
    recorded.clock.advance_seconds(1)
    apply(recorded.ledger, BOOK, bill, recorded.clock.utc, rules=RULES)
    apply(recorded.ledger, BOOK, bill, recorded.clock.utc, rules=RULES)
    assert statuses(recorded)["L1", "invoiced"] == 128 * PICO_PER_UNIT
    old = attribute(recorded.ledger, BOOK, then, rules=RULES, as_of_ns=then).lines
    assert {line.status for line in old if line.lease.lease_id == "L1"} == {"provisional"}


def test_only_the_days_that_a_bill_covers_are_invoiced(recorded):
    recorded.open_lease("L3", "i-3", from_ns=recorded.clock.utc)
    recorded.clock.advance_seconds(36 * HOUR)
    recorded.ledger.leases.close("L3", "done")
    before = sum(recorded.costs().values())
    day = "2026-11-02T00:00:00Z,2026-11-03T00:00:00Z"
    apply(recorded.ledger, BOOK, recorded.compare(f"i-3,{day},768.00,USD,"), recorded.clock.utc, rules=RULES)
    assert statuses(recorded)["L3", "invoiced"] == 768 * PICO_PER_UNIT
    assert statuses(recorded)["L3", "provisional"] == (36 * 32 - 768) * PICO_PER_UNIT
    assert sum(recorded.costs().values()) == before


def test_a_finance_file_has_the_number_of_the_invoice_that_was_applied_to_a_charge(recorded):
    recorded.open_lease("L2", "i-2")
    recorded.clock.advance_seconds(HOUR)
    header = HEADER.replace("\n", ",Invoice ID\n")
    bill = recorded.compare(f"i-1,{LEASED},130.00,USD,,R-17", header=header)
    apply(recorded.ledger, BOOK, bill, recorded.clock.utc, rules=RULES)
    cuts = focus.month_cuts(START, recorded.clock.utc)
    rows = list(focus.rows(attribute(recorded.ledger, BOOK, recorded.clock.utc, cuts=cuts, rules=RULES)))
    assert {(row["x_LeaseId"], row["InvoiceId"]) for row in rows} == {("L1", "R-17"), ("L2", "")}
    assert [text for row in rows for text in findings(row)] == []


def test_reports_and_finance_files_have_the_least_final_status_of_their_charges(recorded):
    recorded.open_lease("L2", "i-2")
    recorded.clock.advance_seconds(HOUR)
    apply(recorded.ledger, BOOK, recorded.compare(f"i-1,{LEASED},128.00,USD,"), recorded.clock.utc, rules=RULES)
    report = grouped_report(recorded.ledger, BOOK, ReportScope(by="machine"), recorded.clock.utc, rules=RULES)
    assert [row.status for row in report.rows] == ["estimated"]
    assert json.loads(as_json(report))["groups"][0]["status"] == "estimated"
    assert csv_text(report).splitlines()[1].endswith(",estimated")
    found = attribute(
        recorded.ledger, BOOK, recorded.clock.utc, cuts=focus.month_cuts(START, recorded.clock.utc), rules=RULES
    )
    statuses_of_rows = {(row["x_LeaseId"], row["x_ChargeStatus"]) for row in focus.rows(found)}
    assert statuses_of_rows == {("L1", "invoiced"), ("L2", "estimated")}


FOCUS = "ResourceId,CommitmentDiscountId,ChargePeriodStart,ChargePeriodEnd,BilledCost,BillingCurrency,ChargeCategory\n"
NOVEMBER = "2026-11-01T00:00:00Z,2026-12-01T00:00:00Z"


@pytest.fixture
def bought(recorded) -> Commitment:
    one = Commitment(
        *("cb-7", "reserved", "lambda", "box", 8, Money.parse("900 USD")), START - 10 * HOUR * 10**9, START + 10**18
    )
    add_commitment(recorded.ledger, one, ())
    return one


def test_a_purchase_on_the_bill_is_compared_with_the_entered_commitment(recorded, bought):
    for resource, commitment in (("", "arn:aws:ec2:reserved/cb-7"), ("commitment:cb-7", ""), ("x", "cb-7")):
        done = recorded.compare(
            f"{resource},{commitment},{NOVEMBER},900,USD,Purchase", f"i-1,,{LEASED},128,USD,Usage", header=FOCUS
        )
        assert done.agrees
        assert [c.kind for c in done.comparisons if c.lease.lease_id == "commitment:cb-7"] == ["purchase"]
    done = recorded.compare(f",cb-7,{NOVEMBER},300,USD,Purchase", f"i-1,,{LEASED},128,USD,Usage", header=FOCUS)
    assert causes(done) == [("purchase", -600)]
    assert "entered at 900 USD, and this bill has 300 of it" in done.comparisons[0].causes[0].text
    done = recorded.compare(f",cb-7,{NOVEMBER},720,EUR,Purchase", f"i-1,,{LEASED},128,USD,Usage", header=FOCUS)
    assert done.agrees, "720 EUR at 1.25"


def test_a_purchase_on_one_side_only_is_reported(recorded, bought):
    done = recorded.compare(f"i-1,,{LEASED},128,USD,Usage", header=FOCUS)
    assert [(lease.lease_id, pico) for lease, pico in done.unbilled] == [("commitment:cb-7", 900 * PICO_PER_UNIT)]
    done = recorded.compare(f",cb-8,{NOVEMBER},5,USD,Purchase", f",cb-7,{NOVEMBER},900,USD,Purchase", header=FOCUS)
    assert [(line.kind, line.pico) for line in done.missing] == [("fee", 5 * PICO_PER_UNIT)]


def test_a_purchase_is_never_corrected_and_is_invoiced_once_a_bill_agrees(recorded, bought):
    def total_and_status() -> tuple[int, str]:
        report = grouped_report(recorded.ledger, BOOK, ReportScope(by="category"), recorded.clock.utc, rules=RULES)
        (row,) = [row for row in report.rows if row.name == "purchase"]
        return row.billed_pico, row.status

    rest = f"i-1,,{LEASED},128,USD,Usage"
    for amount, status in ((300, "provisional"), (900, "invoiced")):
        done = recorded.compare(f",cb-7,{NOVEMBER},{amount},USD,Purchase", rest, header=FOCUS)
        assert apply(recorded.ledger, BOOK, done, recorded.clock.utc, rules=RULES) == []
        assert total_and_status() == (900 * PICO_PER_UNIT, status)


def test_leases_that_are_simulated_or_covered_by_a_commitment_are_not_expected_on_the_bill(recorded, bought):
    recorded.open_lease("L2", "i-2", tags={"commitment": "cb-7"})
    recorded.open_lease("L3", "i-3", tags={"simulated": "true"})
    recorded.clock.advance_seconds(HOUR)
    done = recorded.compare(
        f",cb-7,{NOVEMBER},900,USD,Purchase",
        f"i-1,,{LEASED},128,USD,Usage",
        "i-2,cb-7,2026-11-01T14:00:00Z,2026-11-01T15:00:00Z,0,USD,Usage",
        "commitment:cb-7,cb-7,2026-11-01T00:00:00Z,2026-11-01T14:00:00Z,0,USD,Usage",
        header=FOCUS,
    )
    assert done.agrees, "nor is what it leaves unused a machine that is missing"


def test_a_finance_file_with_a_commitment_agrees_with_its_ledger(recorded, bought):
    recorded.open_lease("L2", "i-2", tags={"commitment": "cb-7"})
    recorded.clock.advance_seconds(HOUR)
    recorded.ledger.leases.close("L2", "done")
    now = recorded.clock.utc
    found = attribute(recorded.ledger, BOOK, now, cuts=focus.month_cuts(bought.from_ns, now), rules=RULES)
    bill = read_bill(focus.write(found, recorded.folder / "focus.csv"), MAPS)
    assert reconcile(recorded.ledger, BOOK, bill, now, rates=RATES, rules=RULES).agrees


# On the command line ----------------------------------------------------------------------------------------------


@pytest.fixture
def command(recorded):
    app = typer.Typer()
    app.command()(reconcile_command)
    pricing = recorded.folder / "pricing"
    (pricing / "bills").mkdir(parents=True)
    for name in ("instances.yaml", "focus.yaml"):
        (pricing / "bills" / name).write_text((CONF / "bills" / name).read_text(encoding="utf-8"), encoding="utf-8")
    rows = [
        {k: str(v) if isinstance(v, Decimal) else v for k, v in vars(r).items() if k in ROW_KEYS} for r in BOOK.rows
    ]
    (pricing / "box.yaml").write_text(json.dumps({"prices": rows}))
    rule = {
        k: list(v) if isinstance(v, tuple) else str(v) if isinstance(v, Decimal) else v
        for k, v in vars(RULES[0]).items()
    }
    (pricing / "billing.yaml").write_text(json.dumps({"rules": [rule]}))

    def run(*rows: str, arguments: tuple[str, ...] = (), code: int = 0) -> str:
        file = recorded.folder / "bill.csv"
        file.write_text(HEADER + "".join(f"{row}\n" for row in rows), encoding="utf-8")
        places = ["--db", str(recorded.folder / "ledger.db"), "--pricing", str(pricing)]
        result = CliRunner().invoke(app, [str(file), *places, *arguments])
        assert result.exit_code == code, result.output
        return result.output

    return run


ROW_KEYS = PriceRow.__dataclass_fields__.keys()


def test_the_command_exits_0_when_bill_and_ledger_agree_and_1_when_they_differ(command):
    assert "bill and ledger agree" in command(f"i-1,{LEASED},128.00,USD,")
    text = command(f"i-1,{LEASED},112.00,USD,", f"i-9,{LEASED},5,USD,", code=1)
    assert "price -16" in text
    assert "missing lease: i-9 for 5.0000 USD (bill.csv line 3)" in text
    found = json.loads(command(f"i-1,{LEASED},112.00,USD,", arguments=("--json",), code=1))
    assert found["comparisons"][0]["difference"] == "-16"
    assert found["comparisons"][0]["causes"][0]["cause"] == "price"


def test_the_command_corrects_the_ledger_once(command, recorded):
    written = {(row[0], row[1]) for row in recorded.costs()}
    assert f"{len(written)} corrections written" in command(f"i-1,{LEASED},112.00,USD,", arguments=("--apply",))
    found = json.loads(command(f"i-1,{LEASED},112.00,USD,", arguments=("--apply", "--json")))
    assert (found["agrees"], found["corrections_written"]) == (True, 0)
    assert sum(recorded.costs().values()) == 112


def test_a_correction_made_by_hand_is_reversed_only_on_request(command, recorded):
    correct_by_hand(recorded, -10)
    output = command(f"i-1,{LEASED},128.00,USD,", arguments=("--apply",), code=2)
    assert "nothing was written: entries made with `cost correct` are not on this bill" in output
    assert sum(recorded.costs().values()) == 118
    command(f"i-1,{LEASED},128.00,USD,", arguments=("--apply", "--over-hand"))
    assert sum(recorded.costs().values()) == 128


def test_a_bill_that_cannot_be_read_exits_2_and_writes_nothing(command, recorded):
    assert "amount 'x' is not a plain number" in command(f"i-1,{LEASED},x,USD,", arguments=("--apply",), code=2)
    assert sum(recorded.costs().values()) == 128

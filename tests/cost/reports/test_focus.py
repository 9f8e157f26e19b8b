"""The FOCUS export: its columns, formats and rules as the specification has them, and that it sums to the ledger.

What the specification demands of version 1.2 stands in `focus_rules`, and of the Allocated columns of 1.3 here.
"""

from __future__ import annotations

import csv
import json
import re
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cost.charges import metered
from cost.charges.attribution import Attribution, attribute
from cost.charges.charge_status import record_invoice
from cost.charges.commitments import Commitment, add_commitment
from cost.charges.metered import MeteredResource
from cost.clock import NS_PER_SECOND, FakeClock
from cost.ledger.ledger import Ledger
from cost.ledger.machine_states import StateChange, set_state
from cost.money import PICO_PER_UNIT, Money
from cost.periods import instant_ns
from cost.prices.billing import BillingRule
from cost.prices.book import MissingPriceError, PriceBook, PriceRow, read_row
from cost.records import Correction, Lease, UsageKey
from cost.reports import focus
from cost.reports.focus_columns import MANDATORY, columns
from tests.cost.reports.focus_rules import RULES as RULES_1_2
from tests.cost.reports.focus_rules import findings

START = instant_ns("2026-01-31T20:00:00Z")
HOUR = 3600


def price(sku: str, amount: str, **changes: object) -> PriceRow:
    raw = {"provider": "cloud", "sku": sku, "per": "card_hour", "cards": 0, "currency": "USD", "price": amount}
    raw |= {"valid_from": "2026-01-01", "source": "https://example.org/prices", "day_read": "2026-01-01"}
    return read_row(raw | changes, "test")


BOOK = PriceBook(
    (
        price("box", "3.99", cards=8, tax_rate="0.19"),
        price("spotted", "16.9508", per="machine_hour", cards=8, purchase="spot", region="us-east-1/us-east-1f"),
        price("power", "0.1805", per="kwh", provider="own", purchase="own"),
        price("deal", "4.00"),
        price("deal", "3.00", kind="contracted"),
        price("saved", "2.00", purchase="savings_plan"),
        price("saved", "1.50", purchase="savings_plan", kind="effective"),
        *(price(sku, "0.5", per=per) for sku, per in (("disk", "gib_month"), ("sent", "gib"), ("asked", "request"))),
        price("setup", "9", per="one_off"),
    )
)
RULES = tuple(
    BillingRule(provider, granularity, 0, "up", False, ("running",), "moment", 0, "none", "page", "2026-01-01")
    for provider, granularity in (("cloud", 60), ("own", 1))
)


class Books:
    """A ledger in which four machines were held over the end of a month."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock(utc=START)
        self.ledger = Ledger.open(str(folder / "ledger.db"), self.clock)

    def lease(self, lease_id: str, sku: str, *, cards: int = 8, purchase: str = "on_demand", **changes) -> None:
        row = BOOK.in_force(sku, START, purchase=purchase)
        fields: dict[str, Any] = {
            "instance_id": f"i-{lease_id}",
            "machine": "h100x8",
            "provider": row.provider,
            "currency": "USD",
        }
        fields |= {"price_hash": row.hash, "purchase": purchase, "project": "ladder", "owner": "ann", **changes}
        self.ledger.leases.open(Lease(lease_id=lease_id, sku=sku, cards=cards, **fields))
        self.ledger.leases.attach(lease_id, "s1")

    def trial(self, lease_id: str, trial_id: str, hours: float, cards: int = 8) -> None:
        key = UsageKey(lease_id, trial_id, 1)
        self.ledger.usages.start(key, "s1", Decimal(cards), {"stage": "smoke", "lr": "1e-05"})
        self.clock.advance_seconds(hours * HOUR)
        ns = round(hours * HOUR * NS_PER_SECOND) * cards
        self.ledger.usages.add_phases(key, 1, {"rollout": ns // 3, "train": ns // 3})
        self.ledger.usages.end(key, "COMPLETED")

    def lines(self, **changes) -> Attribution:
        now = self.clock.utc
        cuts = focus.month_cuts(START - 1, now + 1)
        return attribute(self.ledger, BOOK, now, cuts=cuts, rules=RULES, **changes)


@pytest.fixture
def scenario(tmp_path):
    made = Books(tmp_path)
    yield made
    made.ledger.close()


@pytest.fixture
def full(scenario) -> Attribution:
    scenario.lease("L1", "box", account="acc-1", region="eu-1", tags={"team": "rl"})
    scenario.trial("L1", "t1", 3)
    scenario.clock.advance_seconds(7)
    scenario.trial("L1", "t2", 2.5, cards=3)
    scenario.clock.advance_seconds(33)
    scenario.ledger.leases.close("L1", "done")
    scenario.ledger.corrections.add(
        Correction("c1", "L1", "credit", -PICO_PER_UNIT, "USD", START + NS_PER_SECOND, "credit note")
    )
    scenario.ledger.corrections.add(Correction("c2", "L1", "rollout", 7, "USD", START, "rounding", "s1", "t1", 1))
    scenario.lease("L2", "spotted", purchase="spot", resource_id="i-0abc")
    scenario.trial("L2", "t1", 1)
    scenario.ledger.leases.close("L2", "done")
    scenario.lease("L3", "power", cards=1, purchase="own", watts=Decimal(350))
    scenario.trial("L3", "t3", 0.5, cards=1)
    scenario.ledger.leases.close("L3", "done")
    scenario.lease("L4", "deal", cards=2)
    scenario.trial("L4", "t4", 0.25, cards=2)
    scenario.ledger.leases.close("L4", "done")
    return scenario.lines()


@pytest.fixture
def everything(scenario, full) -> Attribution:
    """Those, and all else there is a kind of row for: a commitment, disks, traffic, a refund, a stop, a fee."""
    start = scenario.clock.utc
    paid = Money.parse("60 USD")
    add_commitment(
        scenario.ledger, Commitment("cb", "reserved", "cloud", "box", 8, paid, start, start + 10 * HOUR * 10**9), ()
    )
    scenario.lease("L5", "box", tags={"commitment": "cb"}, region="eu-1")
    scenario.trial("L5", "t5", 4)
    scenario.ledger.leases.close("L5", "done")
    scenario.clock.advance_seconds(6 * HOUR)
    scenario.lease("L6", "saved", cards=1, purchase="savings_plan", tags={"commitment": "sp-1"})
    scenario.trial("L6", "t6", 1, cards=1)
    set_state(scenario.ledger, StateChange("L6", "stopped", scenario.clock.utc), RULES)
    scenario.clock.advance_seconds(HOUR)
    scenario.ledger.leases.close("L6", "done")
    for number, sku in enumerate(("disk", "sent", "asked", "setup")):
        one = MeteredResource(sku, "L1", sku, "on_demand", "", "list", Decimal(3), START, START + HOUR * 10**9)
        metered.add_resource(scenario.ledger, one, BOOK.in_force(sku, START), ())
        category = ("fee", "refund", "storage", "fx")[number]
        scenario.ledger.corrections.add(Correction(f"k{number}", "L1", category, number + 1, "USD", START, "by hand"))
    record_invoice(scenario.ledger, "sha256", {"L2": [(START, scenario.clock.utc)]}, "R-17")
    return scenario.lines()


def total(rows: list[dict[str, str]], column: str) -> Decimal:
    return sum((Decimal(r[column]) for r in rows), Decimal(0))


def test_the_file_has_all_21_mandatory_columns_in_order_with_our_own_last():
    names = columns("1.2")
    mandatory = {name for name, rule in RULES_1_2.items() if rule.level == "mandatory"}
    assert len(mandatory) == 21
    assert mandatory == set(MANDATORY)
    ours = [n for n in names if n.startswith("x_")]
    assert list(names[-len(ours) :]) == ours
    of_focus = list(names[: -len(ours)])
    assert of_focus == sorted(RULES_1_2), "every column of the table, in order, and no other"
    assert all(re.fullmatch(r"[A-Z][A-Za-z]+", n) and len(n) <= 50 for n in of_focus)


def test_every_row_follows_the_specification_in_every_column(everything):
    rows = list(focus.rows(everything))
    assert {name: found for name, row in enumerate(rows) if (found := findings(row))} == {}
    kinds = {(row["ChargeCategory"], row.get("PricingCategory") or "") for row in rows}
    assert kinds == {
        *(("Usage", kind) for kind in ("Standard", "Dynamic", "Committed")),
        *(("Purchase", "Standard"), ("Tax", ""), ("Credit", ""), ("Adjustment", ""), ("Usage", "")),
    }, "the table is held against a file that has each of them"
    filled = {name for row in rows for name, value in row.items() if value}
    assert set(RULES_1_2) - filled == {"BillingAccountName"}, "and a value in each column that has one at all"


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("BilledCost", "", "BilledCost must have a value"),
        ("BilledCost", "1,000", "is no decimal"),
        ("ListCost", "+1", "is no decimal"),
        ("BillingCurrency", "usd", "is no currency"),
        ("ChargePeriodStart", "2026-02-01T00:00:00+00:00", "is no moment"),
        ("ChargeCategory", "usage", "is not one of Usage"),
        ("ChargeClass", "Refund", "is not one of Correction"),
        ("PricingQuantity", "", "PricingQuantity must have a value"),
        ("SkuPriceId", "", "SkuPriceId must have a value"),
        ("RegionName", "", "RegionName must have a value"),
        ("ServiceName", "N/A", "is no text"),
        ("Tags", '{"a": [1]}', "is no pairs"),
        ("ListUnitPrice", "1", "ListUnitPrice x PricingQuantity is ListCost"),
        ("BillingPeriodEnd", "2026-01-01T00:00:00Z", "the charge lies within its billing period"),
        ("ServiceSubcategory", "Block Storage", "a subcategory is one of its category"),
        ("PricingCategory", "Committed", "what a commitment pays for is committed"),
    ],
)
def test_the_table_finds_what_is_otherwise(full, column, value, said):
    row = next(r for r in focus.rows(full) if r["x_LeaseId"] == "L1" and r["x_Category"] == "rollout")
    assert findings(row) == []
    assert any(said in text for text in findings(row | {column: value}))


def test_of_a_commitment_the_effective_cost_of_its_use_is_what_was_billed_for_it(everything):
    rows = [r for r in focus.rows(everything) if r.get("CommitmentDiscountId") == "cb"]
    used = sum(Decimal(r["EffectiveCost"]) for r in rows if r["ChargeCategory"] == "Usage")
    assert used == sum(Decimal(r["BilledCost"]) for r in rows if r["ChargeCategory"] == "Purchase") == 60
    quantity = defaultdict(Decimal)
    for row in rows:
        quantity[row["ChargeCategory"]] += Decimal(row["CommitmentDiscountQuantity"])
        assert row["CommitmentDiscountUnit"] == "GPU-Hours"
    assert {name: round(hours, 9) for name, hours in quantity.items()} == {"Purchase": 80, "Usage": 80}


def test_the_effective_cost_sums_to_the_ledger_exactly_and_own_hardware_is_billed_nothing(full):
    rows = list(focus.rows(full))
    assert total(rows, "EffectiveCost") * PICO_PER_UNIT == sum(line.pico for line in full.lines)
    billed = sum(line.pico for line in full.lines if not line.imputed)
    assert total(rows, "BilledCost") * PICO_PER_UNIT == billed
    own = [r for r in rows if r["x_LeaseId"] == "L3"]
    assert {r["BilledCost"] for r in own} == {"0"}
    assert total(own, "EffectiveCost") == Decimal("0.350") * Decimal("0.5") * Decimal("0.1805")
    assert {r["x_Imputed"] for r in own} == {"true"}


def test_a_billing_period_is_a_calendar_month_and_no_charge_crosses_it(full):
    periods = defaultdict(set)
    for row in focus.rows(full):
        periods[row["BillingPeriodStart"]].add(row["BillingPeriodEnd"])
    assert dict(periods) == {
        "2026-01-01T00:00:00Z": {"2026-02-01T00:00:00Z"},
        "2026-02-01T00:00:00Z": {"2026-03-01T00:00:00Z"},
    }


def test_charge_categories_are_those_of_the_specification(full):
    by_category = defaultdict(set)
    for row in focus.rows(full):
        assert row["ChargeCategory"] in {"Usage", "Purchase", "Tax", "Credit", "Adjustment"}
        by_category[row["ChargeCategory"]].add(row["x_Category"])
    assert by_category["Tax"] == {"tax"}
    assert by_category["Credit"] == {"credit"}
    assert by_category["Adjustment"] == {"rollout"}
    assert {"rollout", "train", "idle", "billing_increment"} <= by_category["Usage"]


def test_quantity_times_unit_price_is_the_cost(full):
    for row in focus.rows(full):
        if row["ChargeCategory"] != "Usage":
            assert not row.get("PricingQuantity")
            assert not row.get("SkuPriceId")
            continue
        quantity = Decimal(row["PricingQuantity"])
        for unit, cost in (("ContractedUnitPrice", "ContractedCost"), ("ListUnitPrice", "ListCost")):
            assert abs(quantity * Decimal(row[unit]) - Decimal(row[cost])) <= Decimal("1e-12")
        assert row["SkuId"]
        assert row["ConsumedQuantity"]


def test_spot_is_dynamic_and_its_zone_is_apart_from_its_region(full):
    spot = [r for r in focus.rows(full) if r["x_LeaseId"] == "L2"]
    assert {r["PricingCategory"] for r in spot} == {"Dynamic"}
    assert {(r["RegionId"], r["AvailabilityZone"]) for r in spot} == {("us-east-1", "us-east-1f")}
    assert {(r["PricingUnit"], r["ResourceId"]) for r in spot} == {("Instance-Hours", "i-0abc")}
    others = {r["PricingCategory"] for r in focus.rows(full) if r["x_LeaseId"] in ("L3", "L4")}
    assert others == {"Standard"}


def test_list_and_contracted_prices_are_both_shown(full):
    (row,) = [r for r in focus.rows(full) if r["x_LeaseId"] == "L4" and r["x_Category"] == "rollout"]
    assert (row["ListUnitPrice"], row["ContractedUnitPrice"]) == ("4.00", "3.00")
    assert abs(Decimal(row["ListCost"]) * 3 - Decimal(row["ContractedCost"]) * 4) < Decimal("1e-11")
    assert row["EffectiveCost"] == row["ContractedCost"]


def test_commitments_name_their_commitment_and_the_effective_price(scenario):
    scenario.lease("L5", "saved", cards=1, purchase="savings_plan", tags={"commitment": "sp-1"})
    scenario.trial("L5", "t1", 1, cards=1)
    row = next(iter(focus.rows(scenario.lines())))
    assert (row["PricingCategory"], row["CommitmentDiscountId"]) == ("Committed", "sp-1")
    assert (row["CommitmentDiscountStatus"], row["CommitmentDiscountCategory"]) == ("Used", "Spend")
    assert abs(Decimal(row["EffectiveCost"]) * 4 - Decimal(row["ContractedCost"]) * 3) < Decimal("1e-11")


def test_an_unpriced_lease_is_an_error_and_never_a_cost_of_zero(scenario):
    scenario.ledger.leases.open(Lease("L9", "i-9", "m", "nothing", "cloud", 1, "USD", None))
    scenario.clock.advance_seconds(60)
    with pytest.raises(MissingPriceError, match=r"lease L9.*python -m cost prices add nothing"):
        list(focus.rows(scenario.lines()))


def test_version_1_3_carries_the_split_by_trial_and_its_ratios_sum_to_one(full):
    rows = list(focus.rows(full, version="1.3"))
    names = set(columns("1.3"))
    assert {"AllocatedMethodId", "AllocatedMethodDetails", "AllocatedResourceId", "AllocatedTags"} <= names
    assert {"HostProviderName", "ServiceProviderName"} <= names
    ratios = defaultdict(Decimal)
    for row in rows:
        assert row["HostProviderName"]
        assert row["ServiceProviderName"]
        if row["ChargeCategory"] != "Usage":
            assert not row.get("AllocatedMethodId")
            continue
        (element,) = json.loads(row["AllocatedMethodDetails"], parse_float=Decimal, parse_int=Decimal)["Elements"]
        ratios[row["x_LeaseId"], row["x_PriceHash"], row["BillingPeriodStart"]] += element["AllocatedRatio"]
        assert element["UsageUnit"] == "GPU-Hours"
        # The part that no trial answers for is the unallocated portion: null by the specification.
        assert bool(row.get("AllocatedResourceId")) == bool(row["x_TrialId"])
    assert len(ratios) == 5
    assert set(ratios.values()) == {Decimal(1)}
    tagged = next(r for r in rows if r["x_TrialId"] == "t1" and r["x_Category"] == "rollout" and r.get("AllocatedTags"))
    assert json.loads(tagged["AllocatedTags"]) == {"sweep": "s1", "stage": "smoke", "lr": "1e-05"}


def test_an_unknown_version_is_refused():
    with pytest.raises(ValueError, match=r"choose one of 1\.2, 1\.3"):
        columns("1.1")


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_the_written_file_reads_back_as_the_rows(full, tmp_path, version):
    target = focus.write(full, tmp_path / "focus.csv", version=version)
    with target.open(encoding="utf-8", newline="") as stream:
        read = list(csv.DictReader(stream))
    expected = list(focus.rows(full, version=version))
    assert [{k: v for k, v in r.items() if v} for r in read] == [{k: v for k, v in r.items() if v} for r in expected]
    assert [f.name for f in tmp_path.glob("*focus*")] == ["focus.csv"]


def test_month_cuts_are_the_starts_of_months_within_a_span():
    cuts = focus.month_cuts(instant_ns("2025-11-01"), instant_ns("2026-02-01T00:00:01Z"))
    assert cuts == [instant_ns(d) for d in ("2025-12-01", "2026-01-01", "2026-02-01")]

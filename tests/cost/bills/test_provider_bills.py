"""Bills shaped as providers export them, against ledgers whose right result is known."""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cost.bills.bill import Bill, BillError
from cost.bills.column_map import load_maps
from cost.bills.differences import Reconciliation
from cost.bills.line_kinds import kind_of
from cost.bills.reader import read_bill
from cost.bills.reconcile import reconcile
from cost.bills.true_up import apply
from cost.charges.attribution import CostLine, attribute
from cost.charges.commitments import Commitment, add_commitment
from cost.clock import FakeClock
from cost.ledger.ledger import Ledger
from cost.money import PICO_PER_UNIT, Money
from cost.periods import instant_ns
from cost.prices.billing import BillingRule
from cost.prices.book import PriceBook, PriceRow, read_row
from cost.records import Correction, Lease, UsageKey
from cost.reports import focus

MAPS = load_maps(Path(__file__).parents[3] / "conf" / "pricing")
HOUR_NS = 3600 * 10**9


def price(sku: str, amount: str, **changes: object) -> PriceRow:
    raw: dict[str, Any] = {"provider": "aws", "sku": sku, "per": "machine_hour", "cards": 8, "currency": "USD"}
    raw |= {"price": amount, "valid_from": "2026-01-01", "source": "https://example.org", "day_read": "2026-01-01"}
    return read_row(raw | changes, "test")


BOOK = PriceBook(
    (
        price("a800", "1.24", provider="autodl", cards=1, currency="CNY"),
        price("aws-p5.48xlarge", "10"),
        price("aws-p5.48xlarge", "8", purchase="savings_plan"),
    )
)
RULES = tuple(
    BillingRule(name, 1, 0, "up", False, ("running",), "moment", 0, "none", "page", "2026-01-01")
    for name in ("autodl", "aws")
)


class Leases:
    """A ledger whose leases have one trial each, over their whole time."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, FakeClock(utc=instant_ns("2026-10-31T16:00:00Z"))
        self.ledger = Ledger.open(str(folder / "ledger.db"), self.clock)

    def add_lease(self, resource: str, start: str, stop: str, sku: str = "aws-p5.48xlarge", **changes: Any) -> None:
        self.clock.advance(instant_ns(start) - self.clock.utc)
        row = BOOK.series(sku)[0]
        fields: dict[str, Any] = {"machine": sku, "sku": sku, "provider": row.provider, "cards": row.cards}
        lease = Lease(
            lease_id=f"L-{resource}-{start[:10]}",
            instance_id=resource,
            resource_id=resource,
            currency=row.currency,
            price_hash=row.hash,
            **fields | changes,
        )
        self.ledger.leases.open(lease)
        self.ledger.leases.attach(lease.lease_id, "s1")
        key = UsageKey(lease.lease_id, "t1", 1)
        self.ledger.usages.start(key, "s1", Decimal(row.cards), {})
        self.clock.advance(instant_ns(stop) - self.clock.utc)
        self.ledger.usages.end(key, "COMPLETED")
        self.ledger.leases.close(lease.lease_id, "done")

    def bill(self, text: str, *, name: str = "", zone: str = "") -> Bill:
        file = self.folder / "bill.csv"
        file.write_text(text, encoding="utf-8")
        maps = [replace(one, timezone=zone or one.timezone) for one in MAPS]
        return read_bill(file, maps, name=name)

    def compare(self, text: str, **options: str) -> Reconciliation:
        return reconcile(self.ledger, BOOK, self.bill(text, **options), self.clock.utc, rules=RULES)

    def apply(self, done: Reconciliation) -> list[Correction]:
        return apply(self.ledger, BOOK, done, self.clock.utc, rules=RULES)

    def lines(self, cuts: Sequence[int] = ()) -> tuple[CostLine, ...]:
        return attribute(self.ledger, BOOK, self.clock.utc, rules=RULES, cuts=cuts).lines

    def total(self) -> Decimal:
        """What is billed for everything in the ledger."""
        return Decimal(sum(line.billed_pico for line in self.lines())) / PICO_PER_UNIT

    def by_category(self) -> dict[tuple[str, str], Decimal]:
        found: dict[tuple[str, str], int] = {}
        for line in self.lines():
            found[line.sweep_id, line.category] = found.get((line.sweep_id, line.category), 0) + line.pico
        return {key: Decimal(pico) / PICO_PER_UNIT for key, pico in found.items()}


@pytest.fixture
def leases(tmp_path):
    made = Leases(tmp_path)
    yield made
    made.ledger.close()


def causes(done: Reconciliation) -> list[tuple[str, Decimal]]:
    return [(x.name, Decimal(x.pico) / PICO_PER_UNIT) for c in done.comparisons for x in c.causes]


# Days of the bill's zone


def shanghai_days(leases: Leases) -> None:
    """Three whole days of Shanghai, 24 h at 1.24 each."""
    leases.add_lease("gpu-1", "2026-10-31T16:00:00Z", "2026-11-03T16:00:00Z", "a800")


AUTODL = "实例ID,开始时间,结束时间,金额,类型\n"


@pytest.mark.parametrize("end", ["same day", "next day", "none"])
def test_a_bill_of_dates_covers_the_days_of_its_own_time_zone(leases, end):
    shanghai_days(leases)
    text = AUTODL
    for day in (1, 2, 3):
        last = {"same day": f"2026-11-0{day}", "next day": f"2026-11-0{day + 1}", "none": ""}[end]
        text += f"gpu-1,2026-11-0{day},{last},29.76,按量计费\n"
    done = leases.compare(text)
    assert causes(done) == []
    assert done.agrees
    assert [c.when for c in done.comparisons] == ["2026-11-01", "2026-11-02", "2026-11-03"]
    assert leases.apply(done) == []
    assert leases.total() == Decimal("89.28")


def test_a_difference_on_one_day_of_the_bills_zone_is_found_and_corrected_on_that_day(leases):
    shanghai_days(leases)
    rows = [f"gpu-1,2026/11/0{day},,{amount},按量计费\n" for day, amount in ((1, "29.76"), (2, "31"), (3, "29.76"))]
    done = leases.compare(AUTODL + "".join(rows))
    assert [(c.when, c.difference) for c in done.comparisons if c.difference] == [("2026-11-02", 124 * 10**10)]
    leases.apply(done)
    assert leases.total() == Decimal("90.52")
    assert leases.compare(AUTODL + "".join(rows)).agrees


def test_a_day_of_25_hours_is_one_day_of_the_bill(leases):
    """Clocks go back in New York on 2026-11-01: the day has 25 hours."""
    leases.add_lease("i-1", "2026-11-01T04:00:00Z", "2026-11-03T05:00:00Z")
    text = "instance_id,start,amount\ni-1,2026-11-01,250\ni-1,2026-11-02,240\n"
    assert leases.compare(text, zone="America/New_York").agrees
    assert not leases.compare(text, zone="UTC").agrees


# Commitments

CUR = (
    "line_item_line_item_type,line_item_usage_type,line_item_resource_id,line_item_usage_start_date,"
    "line_item_usage_end_date,line_item_unblended_cost,line_item_currency_code,line_item_usage_amount,pricing_unit,"
    "savings_plan_savings_plan_a_r_n\n"
)
TEN_HOURS = "2026-11-01T00:00:00Z,2026-11-01T10:00:00Z"
PLAN = "arn:aws:savingsplans::1:savingsplan/sp-1"
SAVINGS_PLAN = (
    f"SavingsPlanCoveredUsage,BoxUsage:p5.48xlarge,i-1,{TEN_HOURS},110.08,USD,10,Hrs,{PLAN}\n"
    f"SavingsPlanNegation,BoxUsage:p5.48xlarge,,{TEN_HOURS},-110.08,USD,10,Hrs,{PLAN}\n"
    f"SavingsPlanRecurringFee,ComputeSP:1yrNoUpfront,,{TEN_HOURS},80,USD,10,Hrs,{PLAN}\n"
)


def buy(leases: Leases, amount: str = "80 USD", stop: str = "2026-11-01T10:00:00Z") -> None:
    start_ns, stop_ns = instant_ns("2026-11-01T00:00:00Z"), instant_ns(stop)
    plan = Commitment("sp-1", "savings_plan", "aws", "aws-p5.48xlarge", 8, Money.parse(amount), start_ns, stop_ns)
    add_commitment(leases.ledger, plan, ())


def test_covered_usage_and_its_negation_cancel_and_the_fee_is_the_purchase(leases):
    buy(leases)
    leases.add_lease("i-1", "2026-11-01T00:00:00Z", "2026-11-01T10:00:00Z", tags={"commitment": "sp-1"})
    assert leases.total() == 80
    done = leases.compare(CUR + SAVINGS_PLAN)
    assert done.agrees
    assert sum(line.pico for line in done.bill.lines) == 80 * PICO_PER_UNIT
    assert leases.apply(done) == []
    assert leases.total() == 80
    assert {line.status for line in leases.lines()} == {"invoiced"}


def test_a_recurring_fee_is_compared_with_the_part_of_the_plan_that_the_bill_covers(leases):
    buy(leases, "8000 USD", stop="2026-12-12T16:00:00Z")  # 1000 hours
    leases.add_lease("i-1", "2026-11-01T00:00:00Z", "2026-11-01T10:00:00Z", tags={"commitment": "sp-1"})
    assert leases.compare(CUR + SAVINGS_PLAN).agrees


def test_usage_on_demand_beyond_a_savings_plan_is_compared_by_itself(leases):
    buy(leases)
    leases.add_lease("i-1", "2026-11-01T00:00:00Z", "2026-11-01T10:00:00Z", tags={"commitment": "sp-1"})
    extra = f"Usage,BoxUsage:p5.48xlarge,i-1,{TEN_HOURS},20,USD,2,Hrs,\n"
    done = leases.compare(CUR + SAVINGS_PLAN + extra)
    assert causes(done) == [("idle", Decimal(20))]
    leases.apply(done)
    assert leases.total() == 100


def test_covered_usage_of_a_lease_that_names_no_commitment_is_explained_and_not_corrected(leases):
    leases.add_lease("i-1", "2026-11-01T00:00:00Z", "2026-11-01T10:00:00Z")
    done = leases.compare(CUR + SAVINGS_PLAN)
    assert causes(done) == [("commitment", Decimal(-100))]
    assert "cost commitments add sp-1" in done.comparisons[0].causes[0].text
    assert [(line.kind, line.pico) for line in done.missing] == [("fee", 80 * PICO_PER_UNIT)]
    assert leases.apply(done) == []
    assert leases.total() == 100


def test_covered_usage_without_its_negation_is_reported_and_never_added_to_a_lease(leases):
    buy(leases)
    leases.add_lease("i-1", "2026-11-01T00:00:00Z", "2026-11-01T10:00:00Z", tags={"commitment": "sp-1"})
    lines = SAVINGS_PLAN.splitlines(keepends=True)
    done = leases.compare(CUR + lines[0] + lines[2])
    assert causes(done) == [("purchase", Decimal("110.08"))]
    assert leases.apply(done) == []
    assert leases.total() == 80


def test_negations_that_cancel_to_the_rounding_of_their_amounts_are_no_difference(leases):
    buy(leases)
    leases.add_lease("i-1", "2026-11-01T00:00:00Z", "2026-11-01T10:00:00Z", tags={"commitment": "sp-1"})
    assert leases.compare(CUR + SAVINGS_PLAN.replace("-110.08,", "-110.0800000001,")).agrees


# Kinds of charge

AWS_FOCUS = (
    "BilledCost,BillingCurrency,ChargeCategory,ChargePeriodStart,ChargePeriodEnd,PricingQuantity,PricingUnit,"
    "ResourceId,ServiceCategory,x_UsageType\n"
)


@pytest.mark.parametrize("usage_type", ["USE1-DataTransfer-Out-Bytes", "USE1-USW2-AWS-Out-Bytes", ""])
def test_traffic_of_a_machine_that_a_bill_lists_under_compute_is_egress(leases, usage_type):
    leases.add_lease("i-1", "2026-11-01T00:00:00Z", "2026-11-01T10:00:00Z")
    text = AWS_FOCUS + f"100,USD,Usage,{TEN_HOURS},10,Hours,i-1,Compute,BoxUsage:p5.48xlarge\n"
    text += f"9,USD,Usage,{TEN_HOURS},100,GB,i-1,Compute,{usage_type}\n"
    done = leases.compare(text)
    assert causes(done) == [("egress", Decimal(9))]
    leases.apply(done)
    assert leases.by_category() == {("s1", "other"): 100, ("s1", "egress"): 9}


@pytest.mark.parametrize(
    ("unit", "kind"),
    [
        ("Hrs", "machine"),
        ("Hours", "machine"),
        ("GPU-Hours", "machine"),
        ("vCPU-Hours", "machine"),
        ("", "machine"),
        ("GB", "egress"),
        ("GiB", "egress"),
        ("Gigabytes", "egress"),
        ("Bytes", "egress"),
        ("TB", "egress"),
        ("GB-Mo", "storage"),
        ("GiB-Months", "storage"),
        ("GB-Hours", "storage"),
        ("GB month", "storage"),
        ("IOPS-Mo", "storage"),
        ("GiBps-mo", "storage"),
        ("Requests", "requests"),
        ("10K Requests", "requests"),
        ("API Calls", "requests"),
    ],
)
def test_the_unit_decides_the_kind_of_a_machines_charge(unit, kind):
    assert kind_of("machine", [], unit, {}) == kind
    assert kind_of("tax", [], unit, {}) == "tax"


# Credits


@pytest.mark.parametrize("when", ["2026-11-01T05:00:00Z", "2026-11-06T12:00:00Z", "2026-12-02T00:00:00Z"])
def test_a_refund_without_a_duration_belongs_to_its_machine_at_any_time(leases, when):
    leases.add_lease("i-1", "2026-11-01T00:00:00Z", "2026-11-01T10:00:00Z")
    leases.clock.advance(instant_ns("2026-12-03") - leases.clock.utc)
    text = (
        "instance_id,start,end,amount,currency,type\n" + f"i-1,{TEN_HOURS},100,USD,\ni-1,{when},{when},-7,USD,refund\n"
    )
    done = leases.compare(text)
    assert done.missing == ()
    assert causes(done) == [("credit", Decimal(-7))]
    leases.apply(done)
    assert leases.by_category() == {("s1", "other"): 100, ("s1", "credit"): -7}
    assert leases.compare(text).agrees
    (refund,) = [line for line in leases.lines() if line.category == "credit"]
    assert refund.from_ns >= instant_ns(when[:10])


def test_a_bill_that_contains_only_a_late_refund_is_applied(leases):
    leases.add_lease("i-1", "2026-11-01T00:00:00Z", "2026-11-01T10:00:00Z")
    leases.clock.advance(instant_ns("2026-11-20") - leases.clock.utc)
    done = leases.compare("instance_id,start,end,amount,type\ni-1,2026-11-15,2026-11-15,-7,refund\n")
    leases.apply(done)
    assert leases.by_category() == {("s1", "other"): 100, ("s1", "credit"): -7}


def test_a_late_refund_goes_to_the_last_lease_of_its_machine_before_it(leases):
    leases.add_lease("i-1", "2026-11-01T00:00:00Z", "2026-11-01T10:00:00Z")
    leases.add_lease("i-1", "2026-11-03T00:00:00Z", "2026-11-03T10:00:00Z")
    leases.add_lease("i-1", "2026-11-09T00:00:00Z", "2026-11-09T10:00:00Z")
    done = leases.compare("instance_id,start,end,amount,type\ni-1,2026-11-06,2026-11-06,-7,refund\n")
    assert [c.lease.lease_id for c in done.comparisons if c.bill_pico] == ["L-i-1-2026-11-03"]


# Invoices


def invoices(leases: Leases) -> dict[str, Decimal]:
    """Billed cost by invoice number, as a FOCUS file has it."""
    cuts = focus.month_cuts(instant_ns("2026-10-01"), leases.clock.utc)
    found: dict[str, Decimal] = {}
    for row in focus.rows(attribute(leases.ledger, BOOK, leases.clock.utc, cuts=cuts, rules=RULES)):
        found[row["InvoiceId"]] = found.get(row["InvoiceId"], Decimal(0)) + Decimal(row["BilledCost"])
    return found


INVOICED = "instance_id,start,end,amount,type,Invoice ID\n"


def credit_note(leases: Leases, name: str, amount: int) -> None:
    entry = Correction(
        name, "L-i-1-2026-11-01", "credit", amount * PICO_PER_UNIT, "USD", instant_ns("2026-11-01T05:00:00Z"), "note"
    )
    leases.ledger.corrections.add(entry)


def test_a_correction_after_an_invoice_was_applied_is_not_on_that_invoice(leases):
    leases.add_lease("i-1", "2026-11-01T00:00:00Z", "2026-11-01T10:00:00Z")
    leases.apply(leases.compare(INVOICED + f"i-1,{TEN_HOURS},103,,R-17\n"))
    assert invoices(leases) == {"R-17": 103}
    credit_note(leases, "cn-1", -5)
    assert invoices(leases) == {"R-17": 103, "": -5}
    assert {line.status for line in leases.lines() if line.category == "credit"} == {"provisional"}


def test_a_credit_note_that_an_invoice_contains_is_on_it(leases):
    leases.add_lease("i-1", "2026-11-01T00:00:00Z", "2026-11-01T10:00:00Z")
    credit_note(leases, "cn-1", -5)
    leases.apply(leases.compare(INVOICED + f"i-1,{TEN_HOURS},103,,R-17\ni-1,{TEN_HOURS},-5,credit,R-17\n"))
    assert invoices(leases) == {"R-17": 98}


def test_a_later_credit_note_keeps_its_own_invoice_number(leases):
    leases.add_lease("i-1", "2026-11-01T00:00:00Z", "2026-11-01T10:00:00Z")
    leases.apply(leases.compare(INVOICED + f"i-1,{TEN_HOURS},103,,R-17\n"))
    leases.clock.advance(8 * 24 * HOUR_NS)
    leases.apply(leases.compare(INVOICED + "i-1,2026-11-05,2026-11-05,-5,refund,R-18\n"))
    assert invoices(leases) == {"R-17": 103, "R-18": -5}


def test_a_bill_with_two_invoices_gives_each_charge_its_own(leases):
    leases.add_lease("i-1", "2026-11-01T00:00:00Z", "2026-11-01T10:00:00Z")
    leases.apply(leases.compare(INVOICED + f"i-1,{TEN_HOURS},100,,R-17\ni-1,{TEN_HOURS},4,storage,R-18\n"))
    assert invoices(leases) == {"R-17": 100, "R-18": 4}


# The bill of a whole account


def account_bill() -> str:
    """1,000 lines, of which 4 are ours; the rest are buckets, functions and the machines of other teams."""
    text = AWS_FOCUS
    for hours in (
        "00:00:00Z,2026-11-01T04",
        "04:00:00Z,2026-11-01T06",
        "06:00:00Z,2026-11-01T08",
        "08:00:00Z,2026-11-01T10",
    ):
        amount = 40 if hours.startswith("00") else 20
        text += f"{amount},USD,Usage,2026-11-01T{hours}:00:00Z,{amount // 10},Hours,i-1,Compute,BoxUsage:p5.48xlarge\n"
    day = "2026-11-01T00:00:00Z,2026-11-02T00:00:00Z"
    for number in range(332):
        text += f"0.5,USD,Usage,{day},24,Hours,i-web{number % 40},Compute,BoxUsage:t3.large\n"
        text += f"0.25,USD,Usage,{day},9,GB-Mo,bucket-{number},Storage,TimedStorage-ByteHrs\n"
        text += f"0.25,USD,Usage,{day},9,Requests,,Compute,Lambda-Requests\n"
    return text


def test_other_resources_of_an_account_are_not_missing_leases(leases):
    leases.add_lease("i-1", "2026-11-01T00:00:00Z", "2026-11-01T10:00:00Z")
    done = leases.compare(account_bill())
    assert len(done.bill.lines) == 1000
    assert (len(done.unrelated), sum(line.pico for line in done.unrelated)) == (996, 332 * PICO_PER_UNIT)
    assert done.missing == ()
    assert done.agrees
    assert leases.apply(done) == []


def test_a_machine_of_a_priced_type_on_the_bill_of_an_account_may_be_a_missing_lease(leases):
    leases.add_lease("i-1", "2026-11-01T00:00:00Z", "2026-11-01T10:00:00Z")
    text = account_bill().replace("x_UsageType", "ChargeDescription")
    text += f"100,USD,Usage,{TEN_HOURS},10,Hours,i-2,Compute,$10 per On Demand Linux p5.48xlarge Instance Hour\n"
    done = leases.compare(text)
    assert [line.resource for line in done.missing] == ["i-2"]
    assert not done.agrees


def test_a_machine_of_the_ledger_that_is_billed_outside_its_lease_is_not_unrelated(leases):
    leases.add_lease("i-1", "2026-11-01T00:00:00Z", "2026-11-01T10:00:00Z")
    late = "2026-11-08T00:00:00Z,2026-11-08T10:00:00Z"
    done = leases.compare(account_bill() + f"100,USD,Usage,{late},10,Hours,i-1,Compute,BoxUsage:p5.48xlarge\n")
    assert [line.resource for line in done.missing] == ["i-1"]


# Files


def test_a_bill_compressed_with_gzip_reads_like_the_plain_file(leases):
    text = "instance_id,start,end,amount\ni-1,2026-11-01,2026-11-02,1.5\n"
    plain = leases.bill(text)
    file = leases.folder / "bill.csv.gz"
    file.write_bytes(gzip.compress(text.encode()))
    compressed = read_bill(file, MAPS)
    assert (compressed.sha256, len(compressed.lines)) == (plain.sha256, 1)
    file.write_bytes(gzip.compress(text.encode())[:-6])
    with pytest.raises(BillError, match="the gzip file is damaged"):
        read_bill(file, MAPS)


def test_an_error_names_the_format_of_a_file_that_is_not_csv(leases):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as writer:
        writer.writestr("bill.csv", "x")
    for content, what in ((archive.getvalue(), "ZIP archive"), (b"PAR1\0\0", "Parquet"), (b"%PDF-1.7\n", "PDF")):
        file = leases.folder / "bill"
        file.write_bytes(content)
        with pytest.raises(BillError, match=what):
            read_bill(file, MAPS)


@pytest.mark.parametrize("amount", ["1E+3", "1E3", "1e3", "1.0e+03", "1000", "1000.00"])
def test_an_exponent_is_read_with_and_without_its_sign(leases, amount):
    (line,) = leases.bill(f"instance_id,start,end,amount\ni-1,2026-11-01,2026-11-02,{amount}\n").lines
    assert line.pico == 1000 * PICO_PER_UNIT

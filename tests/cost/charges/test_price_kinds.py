"""List, contracted, effective and billed cost have exact sums in every report."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost.charges.attribution import attribute
from cost.charges.commitments import Commitment, add_commitment
from cost.charges.lease_charge import cut_segments
from cost.charges.price_kinds import AlternativePrices
from cost.clock import NS_PER_HOUR, NS_PER_SECOND
from cost.money import PICO_PER_UNIT, Money, pico_of
from cost.prices.billing import BillingRule, charge
from cost.prices.book import PriceBook, PriceRow, pico_per_hour, read_row
from cost.records import Correction, Lease, UsageKey
from cost.reports import focus
from cost.reports.csv_json import as_json, csv_text
from cost.reports.grouped import ReportScope, grouped_report
from cost.reports.terminal import report_table

HOUR = 3600
RULES = (BillingRule("cloud", 60, 0, "up", False, ("running",), "moment", 0, "none", "page", "2025-12-01"),)


def price(amount: str, kind: str = "list", **changes: object) -> PriceRow:
    raw = {"provider": "cloud", "sku": "box", "per": "machine_hour", "cards": 8, "currency": "USD", "price": amount}
    raw |= {"valid_from": "2025-01-01", "source": "https://example.org/prices", "day_read": "2025-12-01"}
    return read_row(raw | {"kind": kind} | changes, "test")


# The list price rises at 02:00 on the day on which every test's clock starts.
BOOK = PriceBook(
    (
        price("10", valid_to="2026-01-01T02:00:00Z"),
        price("12", valid_from="2026-01-01T02:00:00Z"),
        price("8", "contracted"),
    )
)


@pytest.fixture
def filled_ledger(ledger, clock, make_lease):
    """A lease from 00:00: an hour of startup, two hours of a trial on half of the cards, half a minute of teardown."""
    ledger.leases.open(make_lease("L1", sku="box", provider="cloud", price_hash=BOOK.rows[2].hash))
    ledger.leases.attach("L1", "s1")
    clock.advance_seconds(HOUR)
    key = UsageKey("L1", "t1", 1)
    ledger.usages.start(key, "s1", Decimal(4), {"stage": "smoke"})
    ledger.usages.add_phases(key, 1, {"train": 4 * HOUR * NS_PER_SECOND, "rollout": HOUR * NS_PER_SECOND})
    clock.advance_seconds(2 * HOUR)
    ledger.usages.end(key, "COMPLETED")
    clock.advance_seconds(30)
    ledger.leases.detach("L1", "s1", "done")
    return ledger


def report_of(filled_ledger, clock, **scope):
    return grouped_report(filled_ledger, BOOK, ReportScope(**scope), clock.utc, rules=RULES)


def costs_by_row(report) -> dict[str, tuple[Decimal, Decimal, Decimal, Decimal]]:
    """List, contracted, effective and billed cost by row, in USD."""
    return {row.name: tuple(Decimal(v).scaleb(-12) for v in row.costs.values()) for row in report.rows}  # type: ignore


def test_each_kind_of_price_has_exact_sums_while_the_list_price_changes(any_database, filled_ledger, clock):
    costs = costs_by_row(report_of(filled_ledger, clock, by="trial"))
    # 60 s are billed after the third hour: 30 s of teardown, 30 s of billing increment.
    assert costs["t1"] == (Decimal(11), 8, 8, 8)
    assert costs["startup"] == (10, 8, 8, 8)
    assert costs["idle"] == (Decimal(11), 8, 8, 8)
    totals = [sum(column) for column in zip(*costs.values(), strict=True)]
    assert totals[0] == Decimal("32.2")
    assert set(totals[1:]) == {Decimal("24.133333333333")}


@pytest.mark.parametrize("by", ["trial", "category", "day", "sweep", "machine"])
@pytest.mark.parametrize("idle", ["apart", "spread", "owner"])
def test_every_grouping_and_idle_policy_has_the_same_four_totals(filled_ledger, clock, by, idle):
    report = report_of(filled_ledger, clock, by=by, idle=idle)
    assert report.costs_in("USD") == report_of(filled_ledger, clock, by="trial").costs_in("USD")


def test_json_csv_and_focus_have_the_same_exact_amounts(filled_ledger, clock):
    report = report_of(filled_ledger, clock, by="trial")
    totals = {name: Decimal(pico).scaleb(-12) for name, pico in report.costs_in("USD").items()}
    body = json.loads(as_json(report))
    for name, total in totals.items():
        assert sum(Decimal(row[name]) for row in body["trials"] + body["overheads"]) == total
        assert Decimal(body["totals"]["USD"][name]) == total
    for places in (0, 2, 6):
        cells = list(csv.DictReader(io.StringIO(csv_text(report, places=places))))
        for name, total in totals.items():
            assert sum(Decimal(cell[name]) for cell in cells) == round(total, places)
    names = {"list_cost": "ListCost", "contracted_cost": "ContractedCost", "effective_cost": "EffectiveCost"}
    rows = list(focus.rows(attribute(filled_ledger, BOOK, clock.utc, rules=RULES)))
    for name, column in (names | {"billed_cost": "BilledCost"}).items():
        assert sum(Decimal(row[column]) for row in rows) == totals[name]
    listed = {(row["ListUnitPrice"], row["ContractedUnitPrice"]) for row in rows}
    assert listed == {("10", "8"), ("12", "8")}, "a FOCUS row has one list price"


def test_the_table_shows_kinds_of_price_below_the_total_only_where_they_differ(filled_ledger, clock):
    text = report_table(report_of(filled_ledger, clock, by="trial"))
    assert [line.split() for line in text.splitlines()[-5:]] == [
        ["total", "24.0667", "24.1333", "USD"],
        ["list_cost", "32.2000", "USD"],
        *([name, "24.1333", "USD"] for name in ("contracted_cost", "effective_cost", "billed_cost")),
    ]
    assert max(map(len, text.splitlines())) <= 100
    same = grouped_report(filled_ledger, PriceBook((BOOK.rows[2],)), ReportScope(by="trial"), clock.utc, rules=RULES)
    assert "list_cost" not in report_table(same)


def test_an_unpriced_machine_is_unpriced_at_each_kind_of_price(ledger, clock, make_lease):
    ledger.leases.open(make_lease("L1", sku="nothing", provider="cloud"))
    clock.advance_seconds(HOUR)
    report = report_of(ledger, clock, by="machine")
    (cells,) = csv.DictReader(io.StringIO(csv_text(report)))
    assert {cells[name] for name in ("list_cost", "contracted_cost", "effective_cost", "billed_cost")} == {"UNPRICED"}


def test_a_correction_is_the_same_at_each_kind_of_price_and_tax_is_not(filled_ledger, clock):
    filled_ledger.corrections.add(
        Correction("c1", "L1", "credit", -pico_of(2), "USD", clock.utc, "note", sweep_id="s1")
    )
    taxed = PriceBook(tuple(replace(row, tax_rate=Decimal("0.25")) for row in BOOK.rows))
    report = grouped_report(filled_ledger, taxed, ReportScope(by="category"), clock.utc, rules=RULES)
    costs = costs_by_row(report)
    assert costs["credit"] == (-2, -2, -2, -2)
    assert costs["tax"] == (Decimal("8.05"), *[Decimal("6.033333333333")] * 3), "a quarter of 32.2 and of 24.1333"


def test_committed_time_has_list_and_contracted_prices_and_only_the_purchase_is_billed(
    any_database, ledger, clock, make_lease
):
    commitment = Commitment(
        *("cb", "reserved", "cloud", "box", 8, Money.parse("60 USD")), clock.utc, clock.utc + 10 * NS_PER_HOUR
    )
    add_commitment(ledger, commitment, ())
    ledger.leases.open(make_lease("L1", sku="box", provider="cloud", tags={"commitment": "cb"}))
    clock.advance_seconds(4 * HOUR)
    ledger.leases.close("L1", "done")
    clock.advance_seconds(6 * HOUR)
    assert costs_by_row(report_of(ledger, clock, by="category")) == {
        "unassigned": (2 * 10 + 2 * 12, 32, 24, 0),
        "unused_commitment": (36, 36, 36, 0),
        "purchase": (0, 0, 0, 60),
    }


def test_conversion_applies_to_each_kind_of_price_and_to_the_purchase(ledger, clock, make_lease, tmp_path):
    folder = tmp_path / "pricing"
    folder.mkdir()
    rate = "{base: USD, quote: EUR, rate: '0.5', day: 2025-12-31, source: bank, day_read: 2026-01-01}"
    (folder / "fx.yaml").write_text(f"rates:\n  - {rate}\n", encoding="utf-8")
    book = PriceBook(BOOK.rows, str(folder))
    commitment = Commitment(
        "cb", "reserved", "cloud", "x", 8, Money.parse("60 USD"), clock.utc, clock.utc + NS_PER_HOUR
    )
    add_commitment(ledger, commitment, ())
    ledger.leases.open(make_lease("L1", sku="box", provider="cloud", price_hash=BOOK.rows[2].hash))
    clock.advance_seconds(HOUR)
    report = grouped_report(ledger, book, ReportScope(by="category", currency="EUR"), clock.utc, rules=RULES)
    assert costs_by_row(report) == {
        "unassigned": (5, 4, 4, 4),
        "unused_commitment": (30, 30, 30, 0),
        "purchase": (0, 0, 0, 30),
    }


def test_a_list_price_of_another_unit_size_or_currency_is_ignored(filled_ledger, clock):
    for unusable in (price("3", per="card_hour", cards=0), price("99", cards=4), price("9", currency="EUR")):
        book = PriceBook((unusable, BOOK.rows[2]))
        report = grouped_report(filled_ledger, book, ReportScope(by="machine"), clock.utc, rules=RULES)
        assert len(set(report.costs_in("USD").values())) == 1


@settings(max_examples=200)
@given(
    st.integers(1, 10**12),
    st.integers(0, 10**12),
    st.integers(1, 20 * NS_PER_HOUR),
    st.lists(st.integers(1, 30 * NS_PER_HOUR), max_size=4, unique=True),
)
def test_the_list_cost_is_the_billed_time_at_the_list_price_wherever_it_is_cut(listed, contracted, duration_ns, cuts):
    rows = [price(format(Decimal(p).scaleb(-9), "f"), k) for p, k in ((listed, "list"), (contracted, "contracted"))]
    book, lease = PriceBook(tuple(rows)), Lease("L", "i", "m", "box", "cloud", 8, "USD", rows[1].hash)
    start = rows[0].from_ns
    segments = charge(start, start + duration_ns, rule=RULES[0], prices=rows[1:], cards=8, ended="user")
    rate = pico_per_hour(rows[1], 8) / NS_PER_HOUR
    pieces = cut_segments(segments, sorted(start + c for c in cuts), lambda _: rate)
    assert [p.paid_ns for p in pieces] == [p.to_ns - p.from_ns for p in pieces]
    amounts = AlternativePrices(lease, {rows[1].hash: rows[1]}, book).amounts(pieces, [False] * len(pieces))
    seconds = -(-duration_ns // (60 * NS_PER_SECOND)) * 60
    exact = Fraction(rows[0].price) * PICO_PER_UNIT * seconds / 3600
    assert sum(k.list_pico for k in amounts if k) == exact.numerator // exact.denominator
    assert sum(k.contracted_pico for k in amounts if k) == sum(s.pico for s in segments)


@given(st.tuples(*[st.integers(-(10**20), 10**20)] * 3), st.lists(st.integers(0, 10**9), min_size=1, max_size=9))
def test_parts_of_each_kind_sum_to_the_whole(amounts, weights):
    from cost.charges.price_kinds import PriceKindAmounts

    parts = PriceKindAmounts(*amounts).split(weights)
    assert (
        tuple(map(sum, zip(*((p.list_pico, p.contracted_pico, p.effective_pico) for p in parts), strict=True)))
        == amounts
    )

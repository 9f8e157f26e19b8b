"""Commitments: the used and unused parts sum to the amortised price for any leases."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from cost.charges.attribution import attribute
from cost.charges.commitments import Commitment, add_commitment, commitment_usage, load_commitments
from cost.cli.main import app
from cost.clock import FakeClock
from cost.close.check import run_checks
from cost.ledger.ledger import Ledger
from cost.money import Money, pico_of
from cost.prices.billing import BillingRule
from cost.prices.book import PriceBook, PriceRow
from cost.records import IntegrityError, Lease, LeaseState, LedgerError, UsageKey
from cost.reports import focus
from cost.reports.grouped import ReportScope, grouped_report
from tests.cost.reports.focus_rules import findings

HOUR = 3600 * 10**9
ROW = PriceRow(
    *("cloud", "box", "", "machine_hour", 8, "on_demand", "USD", Decimal(8), False, Decimal(0), "2025-01-01", ""),
    *("page", "2025-12-01"),
)
BOOK = PriceBook((ROW,))
RULES = (BillingRule("cloud", 1, 0, "up", False, ("running",), "moment", 0, "none", "page", "2025-12-01"),)
START = FakeClock().utc


def make_commitment(name="cb-1", cards=8, hours=10, price="100 USD", from_ns=START, **changes) -> Commitment:
    fields = {"kind": "capacity_block", "provider": "cloud", "sku": "box", **changes}
    return Commitment(
        name, cards=cards, price=Money.parse(price), from_ns=from_ns, to_ns=from_ns + hours * HOUR, **fields
    )


# Pure functions ---------------------------------------------------------------------------------------------------


@st.composite
def lease_states(draw) -> LeaseState:
    start, stop = sorted((draw(st.integers(-50, 150)), draw(st.integers(-50, 150))))
    name = draw(st.uuids())
    tags = {"commitment": draw(st.sampled_from(["cb-1", "other"]))}
    lease = Lease(f"L{name}", f"i{name}", "m", "box", "cloud", draw(st.integers(1, 8)), "USD", None, tags=tags)
    return LeaseState(lease, start, draw(st.sampled_from([stop, None])), None, False, start, ())


commitments = st.builds(
    lambda cards, pico, length: Commitment("cb-1", "reserved", "cloud", "box", cards, Money(pico, "USD"), 0, length),
    *(st.integers(1, 16), st.integers(1, 10**15), st.integers(1, 130)),
)


@settings(max_examples=300)
@given(
    commitments, st.lists(lease_states(), max_size=6), st.integers(0, 200), st.lists(st.integers(-10, 210), max_size=5)
)
def test_used_and_unused_parts_sum_to_the_amortised_price(commitment, states, now, cuts):
    usage = commitment_usage([commitment], states, now, sorted(cuts))
    pieces = [(s.from_ns, s.to_ns, s.pico) for c in usage.covered.values() for s in c.segments]
    pieces += [(u.from_ns, u.to_ns, u.pico) for u in usage.unused]
    assert sum(pico for *_, pico in pieces) == commitment.amortised(now)
    assert all(not a < cut < b for a, b, _ in pieces for cut in cuts)
    assert all(s.pico >= 0 for c in usage.covered.values() for s in c.segments)
    assert all(u.pico >= -len(states) for u in usage.unused), "only rounding makes an unused part negative"


@settings(max_examples=200)
@given(
    commitments, st.lists(lease_states(), max_size=6), st.integers(0, 200), st.lists(st.integers(-10, 210), max_size=5)
)
def test_cuts_change_the_cost_of_no_lease(commitment, states, now, cuts):
    whole, pieces = (commitment_usage([commitment], states, now, where).covered for where in ((), sorted(cuts)))
    assert {k: sum(s.pico for s in c.segments) for k, c in whole.items()} == {
        k: sum(s.pico for s in c.segments) for k, c in pieces.items()
    }


@settings(max_examples=200)
@given(commitments, st.lists(lease_states(), max_size=6), st.integers(0, 200))
def test_coverage_of_a_lease_has_no_gap_and_lies_within_the_commitment(commitment, states, now):
    for lease_id, covered in commitment_usage([commitment], states, now).covered.items():
        (state,) = [s for s in states if s.lease.lease_id == lease_id]
        edges = [s.from_ns for s in covered.segments] + [covered.segments[-1].to_ns]
        assert edges == sorted(set(edges))
        assert edges[0] == max(state.from_ns, 0)
        assert edges[-1] == min(now, commitment.to_ns, *([state.to_ns] if state.to_ns is not None else []))


# With a ledger ----------------------------------------------------------------------------------------------------


@pytest.fixture
def filled_ledger(ledger, clock, make_lease) -> Ledger:
    """Eight cards bought for ten hours at 100 USD, and a lease of four of them; a trial runs from hour 1 to hour 3."""
    add_commitment(ledger, make_commitment(), ())
    fields = {
        "cards": 4,
        "sku": "box",
        "provider": "cloud",
        "purchase": "capacity_block",
        "tags": {"commitment": "cb-1"},
    }
    clock.advance(HOUR)
    ledger.leases.open(make_lease("L1", **fields))
    ledger.leases.attach("L1", "s1")
    ledger.usages.start(UsageKey("L1", "t1", 1), "s1", Decimal(4), {})
    clock.advance(2 * HOUR)
    ledger.usages.end(UsageKey("L1", "t1", 1), "COMPLETED")
    ledger.leases.detach("L1", "s1", "done")
    return ledger


def costs(filled_ledger, clock, **scope) -> dict[str, tuple[int, int]]:
    report = grouped_report(filled_ledger, BOOK, ReportScope(**scope), clock.utc, rules=RULES)
    return {row.name: (row.pico, row.billed_pico) for row in report.rows}


def test_a_lease_costs_its_share_of_the_commitment_and_only_the_purchase_is_billed(any_database, filled_ledger, clock):
    assert costs(filled_ledger, clock, by="category") == {
        "other": (pico_of(10), 0),
        "purchase": (0, pico_of(100)),
        "unused_commitment": (pico_of(20), 0),
    }
    clock.advance(20 * HOUR)
    assert costs(filled_ledger, clock, by="category")["unused_commitment"] == (pico_of(90), 0)
    assert run_checks(filled_ledger, BOOK, clock.utc, rules=RULES) == []


def test_a_savings_plan_is_drawn_down_at_its_own_prices_not_by_cards(ledger, clock, make_lease):
    """The plan has 10 USD an hour; a box uses 6 of them, a small machine with as many cards 3."""
    plan = {"purchase": "savings_plan", "valid_from": "2025-01-01"}
    rows = (ROW, replace(ROW, price=Decimal(6), **plan), replace(ROW, sku="small", price=Decimal(3), **plan))
    later = replace(rows[1], price=Decimal(9), valid_from="2026-01-01T01:00:00Z")
    book = PriceBook((*rows, later))
    add_commitment(ledger, make_commitment(cards=32, kind="savings_plan"), ())
    for lease_id, sku, hours in (("L1", "box", 2), ("L2", "small", 4), ("L3", "other", 1)):
        ledger.leases.open(make_lease(lease_id, sku=sku, provider="cloud", tags={"commitment": "cb-1"}))
        clock.advance(hours * HOUR)
        ledger.leases.close(lease_id, "done")
    clock.advance(20 * HOUR)
    report = grouped_report(ledger, book, ReportScope(by="machine"), clock.utc, rules=RULES)
    assert {row.name: Decimal(row.pico).scaleb(-12) for row in report.rows} == {
        "h100x8": 2 * 6 + 4 * 3 + Decimal(10) * 8 / 32,  # a machine without a price of the plan uses its cards' share
        "cb-1": Decimal("73.5"),
    }
    assert run_checks(ledger, book, clock.utc, rules=RULES) == []


def test_leases_that_use_more_than_a_savings_plan_share_it_and_check_reports_the_overuse(ledger, clock, make_lease):
    book = PriceBook((ROW, replace(ROW, price=Decimal(6), purchase="savings_plan")))
    add_commitment(ledger, make_commitment(cards=32, kind="savings_plan"), ())
    for lease_id in ("L1", "L2"):
        ledger.leases.open(make_lease(lease_id, sku="box", provider="cloud", tags={"commitment": "cb-1"}))
    clock.advance(HOUR)
    report = grouped_report(ledger, book, ReportScope(by="category"), clock.utc, rules=RULES)
    assert {row.name: row.pico for row in report.rows}["unassigned"] == pico_of(10)
    reported = [(finding.check, finding.what) for finding in run_checks(ledger, book, clock.utc, rules=RULES)]
    assert ("commitments", "12 USD per hour are used, but only 10 were bought, at 2026-01-01T00:00:00Z") in reported


def test_a_sweep_report_has_its_use_and_neither_the_purchase_nor_the_unused_part(filled_ledger, clock):
    assert costs(filled_ledger, clock, by="category", sweep_id="s1") == {"other": (pico_of(10), 0)}


def test_before_and_after_the_commitment_a_lease_is_charged_by_the_price_book(filled_ledger, clock, make_lease):
    tags = {"commitment": "cb-1"}
    fields = {"sku": "box", "provider": "cloud", "cards": 8, "price_hash": ROW.hash, "tags": tags}
    filled_ledger.leases.open(make_lease("L2", **fields))
    clock.advance(9 * HOUR)
    filled_ledger.leases.close("L2", "done")
    assert costs(filled_ledger, clock, by="machine") == {
        "cb-1": (pico_of(20), pico_of(100)),
        "h100x8": (pico_of(96), pico_of(16)),
    }
    assert run_checks(filled_ledger, BOOK, clock.utc, rules=RULES) == []


def test_leases_with_more_cards_than_were_bought_share_the_commitment_and_check_reports_them(
    filled_ledger, clock, make_lease
):
    fields = {"sku": "box", "provider": "cloud", "tags": {"commitment": "cb-1"}}
    for name in ("L2", "L3"):
        filled_ledger.leases.open(make_lease(name, cards=8, **fields))
    clock.advance(HOUR)
    assert costs(filled_ledger, clock, by="category")["unassigned"] == (pico_of(10), 0)
    (finding,) = [f for f in run_checks(filled_ledger, BOOK, clock.utc, rules=RULES) if f.check == "commitments"]
    assert finding.what.startswith("16 cards are used, but only 8 were bought")


def test_focus_has_the_purchase_the_amortised_use_and_the_unused_part(filled_ledger, clock):
    cuts = focus.month_cuts(START, clock.utc)
    rows = list(focus.rows(attribute(filled_ledger, BOOK, clock.utc, cuts=cuts, rules=RULES)))
    keys = (
        "ChargeCategory",
        "CommitmentDiscountStatus",
        "BilledCost",
        "EffectiveCost",
        "PricingQuantity",
        "PricingUnit",
    )
    assert sorted(tuple(row.get(key, "") for key in keys) for row in rows) == [
        ("Purchase", "", "100", "0", "1", "Units"),
        ("Usage", "Unused", "0", "20", "16", "GPU-Hours"),
        ("Usage", "Used", "0", "10", "8", "GPU-Hours"),
    ]
    assert {row["CommitmentDiscountId"] for row in rows} == {"cb-1"}
    allocated = list(focus.rows(attribute(filled_ledger, BOOK, clock.utc, cuts=cuts, rules=RULES), version="1.3"))
    (used,) = [row for row in allocated if row.get("CommitmentDiscountStatus") == "Used"]
    assert used["AllocatedResourceId"] == "s1/t1"


def test_focus_unit_price_times_quantity_is_the_cost_of_an_uneven_share(ledger, clock):
    """750 USD over 2,880 card-hours is 0.260416..., which twelve decimal places cannot represent."""
    add_commitment(ledger, make_commitment(price="750 USD", cards=16, hours=180), ())
    clock.advance_seconds(400 * 3600)
    cuts = focus.month_cuts(clock.utc - 400 * 3600 * 10**9, clock.utc)
    for row in focus.rows(attribute(ledger, BOOK, clock.utc, cuts=cuts, rules=RULES)):
        assert findings(row) == []


def test_a_commitment_cannot_be_entered_with_other_terms_or_in_a_closed_month(any_database, filled_ledger):
    assert not add_commitment(filled_ledger, make_commitment(), ())
    with pytest.raises(IntegrityError, match=r"entered before with other terms: price 100 USD$"):
        add_commitment(filled_ledger, make_commitment(price="99 USD"), ())
    with pytest.raises(IntegrityError, match="would change 2026-01, which is closed"):
        add_commitment(filled_ledger, make_commitment("cb-2"), ["2026-01"])
    assert load_commitments(filled_ledger) == [make_commitment()]


@pytest.mark.parametrize("change", [{"cards": 0}, {"hours": 0}, {"kind": "gift"}, {"price": "0 USD"}, {"name": " "}])
def test_an_invalid_commitment_is_refused(ledger, change):
    with pytest.raises(LedgerError):
        add_commitment(ledger, make_commitment(**change), ())
    assert load_commitments(ledger) == []


def test_a_lease_in_another_currency_than_its_commitment_is_named_and_unpriced(filled_ledger, clock, make_lease):
    filled_ledger.leases.open(make_lease("L2", currency="EUR", tags={"commitment": "cb-1"}))
    clock.advance_seconds(3600)
    report = grouped_report(filled_ledger, BOOK, ReportScope(by="machine"), clock.utc, rules=RULES)
    assert "lease L2 is in EUR, but its commitment cb-1 was paid in USD" in " ".join(report.notes)
    assert report.unpriced


def test_a_lease_with_an_unknown_commitment_is_flagged_until_the_commitment_is_entered(
    any_database, filled_ledger, clock, make_lease
):
    fields = {
        "sku": "box",
        "provider": "cloud",
        "price_hash": ROW.hash,
        "tags": {"commitment": "cb-9"},
        "opened_by": "hand",
    }
    filled_ledger.leases.open(make_lease("L2", **fields))
    clock.advance(HOUR)
    report = grouped_report(filled_ledger, BOOK, ReportScope(by="machine"), clock.utc, rules=RULES)
    assert ["unknown_commitment" in row.flags for row in report.rows if row.name == "h100x8"] == [True]
    assert costs(filled_ledger, clock, by="machine")["h100x8"] == (pico_of(18), pico_of(8)), "the price book applies"
    (finding,) = run_checks(filled_ledger, BOOK, clock.utc, rules=RULES)
    assert (finding.check, finding.where) == ("commitments", "lease L2")
    assert "python -m cost commitments add cb-9" in finding.what
    add_commitment(filled_ledger, make_commitment("cb-9"), ())
    assert run_checks(filled_ledger, BOOK, clock.utc, rules=RULES) == []


def test_commitments_can_be_added_used_and_listed_on_the_command_line(tmp_path: Path):
    runner, root = CliRunner(), ["--root", str(tmp_path / "runs")]
    terms = ["--price", "240 USD", "--cards", "8", "--from", "2026-01-01", "--to", "2026-01-02", "--sku", "p5"]
    for _ in range(2):
        added = runner.invoke(app, ["commitments", "add", "cb-7", *terms, "--provider", "aws", *root])
        assert added.exit_code == 0, added.output
    opening = [
        "leases",
        "open",
        "--machine",
        "p5",
        "--sku",
        "p5-make_commitment",
        "--cards",
        "4",
        "--instance",
        "i-1",
        *root,
    ]
    refused = runner.invoke(app, [*opening, "--commitment", "cb-8"])
    assert refused.exit_code == 2
    assert "there is no commitment 'cb-8'" in refused.output
    assert runner.invoke(app, [*opening, "--tag", "commitment=cb-8"]).exit_code == 2, "a tag is checked as well"
    opened = runner.invoke(app, [*opening, "--commitment", "cb-7", "--from", "2026-01-01T12:00"])
    assert opened.exit_code == 0, opened.output
    closed = runner.invoke(app, ["leases", "close", opened.output.strip(), "--at", "2026-01-01T18:00", *root])
    assert closed.exit_code == 0, closed.output
    (listed,) = json.loads(runner.invoke(app, ["commitments", "list", "--json", *root]).output)["commitments"]
    assert (listed["paid"], listed["used"], listed["unused"], listed["to_come"]) == ("240", "30", "210", "0")
    assert "cb-7" in runner.invoke(app, ["commitments", "list", *root]).output
    (lease,) = json.loads(runner.invoke(app, ["leases", "list", "--json", *root]).output)["leases"]
    assert (lease["cost"], lease["purchase"], lease["currency"]) == ("30", "reserved", "USD")

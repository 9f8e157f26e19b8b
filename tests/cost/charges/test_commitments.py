"""Capacity that was bought: uses and rest sum to the amortised price, whatever ran on it."""

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


def block(name="cb-1", cards=8, hours=10, price="100 USD", from_ns=START, **more) -> Commitment:
    fields = {"kind": "capacity_block", "provider": "cloud", "sku": "box", **more}
    return Commitment(
        name, cards=cards, price=Money.parse(price), from_ns=from_ns, to_ns=from_ns + hours * HOUR, **fields
    )


# Pure -------------------------------------------------------------------------------------------------------------


@st.composite
def held(draw) -> LeaseState:
    start, stop = sorted((draw(st.integers(-50, 150)), draw(st.integers(-50, 150))))
    name = draw(st.uuids())
    tags = {"commitment": draw(st.sampled_from(["cb-1", "other"]))}
    lease = Lease(f"L{name}", f"i{name}", "m", "box", "cloud", draw(st.integers(1, 8)), "USD", None, tags=tags)
    return LeaseState(lease, start, draw(st.sampled_from([stop, None])), None, False, start, ())


bought = st.builds(
    lambda cards, pico, length: Commitment("cb-1", "reserved", "cloud", "box", cards, Money(pico, "USD"), 0, length),
    *(st.integers(1, 16), st.integers(1, 10**15), st.integers(1, 130)),
)


@settings(max_examples=300, deadline=None)
@given(bought, st.lists(held(), max_size=6), st.integers(0, 200), st.lists(st.integers(-10, 210), max_size=5))
def test_what_is_used_and_what_is_not_sum_to_what_was_paid_for_by_then(one, states, now, cuts):
    found = commitment_usage([one], states, now, sorted(cuts))
    pieces = [(s.from_ns, s.to_ns, s.pico) for c in found.covered.values() for s in c.segments]
    pieces += [(u.from_ns, u.to_ns, u.pico) for u in found.unused]
    assert sum(pico for *_, pico in pieces) == one.amortised(now)
    assert all(not a < cut < b for a, b, _ in pieces for cut in cuts)
    assert all(s.pico >= 0 for c in found.covered.values() for s in c.segments)
    assert all(u.pico >= -len(states) for u in found.unused), "no more than rounding"


@settings(max_examples=200, deadline=None)
@given(bought, st.lists(held(), max_size=6), st.integers(0, 200), st.lists(st.integers(-10, 210), max_size=5))
def test_cutting_it_anywhere_changes_what_no_lease_costs(one, states, now, cuts):
    whole, pieces = (commitment_usage([one], states, now, where).covered for where in ((), sorted(cuts)))
    assert {k: sum(s.pico for s in c.segments) for k, c in whole.items()} == {
        k: sum(s.pico for s in c.segments) for k, c in pieces.items()
    }


@settings(max_examples=200, deadline=None)
@given(bought, st.lists(held(), max_size=6), st.integers(0, 200))
def test_a_lease_is_covered_without_a_gap_and_never_outside_what_was_bought(one, states, now):
    for lease_id, covered in commitment_usage([one], states, now).covered.items():
        (state,) = [s for s in states if s.lease.lease_id == lease_id]
        edges = [s.from_ns for s in covered.segments] + [covered.segments[-1].to_ns]
        assert edges == sorted(set(edges))
        assert edges[0] == max(state.from_ns, 0)
        assert edges[-1] == min(now, one.to_ns, *([state.to_ns] if state.to_ns is not None else []))


# In the books -----------------------------------------------------------------------------------------------------


@pytest.fixture
def place(request, tmp_path) -> str:
    """SQLite, and PostgreSQL where a test asks for it by name."""
    if "any_database" in request.fixturenames:
        return request.getfixturevalue("any_database")
    return str(tmp_path / "ledger.db")


@pytest.fixture
def books(ledger, clock, make_lease) -> Ledger:
    """Ten hours of eight cards for 100 USD; a lease of four of them from hour 1 to 3, and on to hour 12 another."""
    add_commitment(ledger, block(), ())
    more = {"cards": 4, "sku": "box", "provider": "cloud", "purchase": "capacity_block", "tags": {"commitment": "cb-1"}}
    clock.advance(HOUR)
    ledger.leases.open(make_lease("L1", **more))
    ledger.leases.attach("L1", "s1")
    ledger.usages.start(UsageKey("L1", "t1", 1), "s1", Decimal(4), {})
    clock.advance(2 * HOUR)
    ledger.usages.end(UsageKey("L1", "t1", 1), "COMPLETED")
    ledger.leases.detach("L1", "s1", "done")
    return ledger


def costs(books, clock, **scope) -> dict[str, tuple[int, int]]:
    report = grouped_report(books, BOOK, ReportScope(**scope), clock.utc, rules=RULES)
    return {row.name: (row.pico, row.billed_pico) for row in report.rows}


def test_a_lease_costs_its_share_of_what_was_bought_and_only_the_purchase_is_billed(any_database, books, clock):
    assert costs(books, clock, by="category") == {
        "other": (pico_of(10), 0),
        "purchase": (0, pico_of(100)),
        "unused_commitment": (pico_of(20), 0),
    }
    clock.advance(20 * HOUR)
    assert costs(books, clock, by="category")["unused_commitment"] == (pico_of(90), 0)
    assert run_checks(books, BOOK, clock.utc, rules=RULES) == []


def test_a_savings_plan_is_used_by_what_is_spent_at_its_own_prices_not_by_cards(ledger, clock, make_lease):
    """10 USD an hour were committed to; a box comes to 6 of them, a small machine of as many cards to 3."""
    plan = {"purchase": "savings_plan", "valid_from": "2025-01-01"}
    rows = (ROW, replace(ROW, price=Decimal(6), **plan), replace(ROW, sku="small", price=Decimal(3), **plan))
    later = replace(rows[1], price=Decimal(9), valid_from="2026-01-01T01:00:00Z")
    book = PriceBook((*rows, later))
    add_commitment(ledger, block(cards=32, kind="savings_plan"), ())
    for lease_id, sku, hours in (("L1", "box", 2), ("L2", "small", 4), ("L3", "other", 1)):
        ledger.leases.open(make_lease(lease_id, sku=sku, provider="cloud", tags={"commitment": "cb-1"}))
        clock.advance(hours * HOUR)
        ledger.leases.close(lease_id, "done")
    clock.advance(20 * HOUR)
    report = grouped_report(ledger, book, ReportScope(by="machine"), clock.utc, rules=RULES)
    assert {row.name: Decimal(row.pico).scaleb(-12) for row in report.rows} == {
        "h100x8": 2 * 6 + 4 * 3 + Decimal(10) * 8 / 32,  # one without a price of the plan uses its cards' share
        "cb-1": Decimal("73.5"),
    }
    assert run_checks(ledger, book, clock.utc, rules=RULES) == []


def test_more_spent_than_a_savings_plan_has_is_shared_and_said(ledger, clock, make_lease):
    book = PriceBook((ROW, replace(ROW, price=Decimal(6), purchase="savings_plan")))
    add_commitment(ledger, block(cards=32, kind="savings_plan"), ())
    for lease_id in ("L1", "L2"):
        ledger.leases.open(make_lease(lease_id, sku="box", provider="cloud", tags={"commitment": "cb-1"}))
    clock.advance(HOUR)
    found = grouped_report(ledger, book, ReportScope(by="category"), clock.utc, rules=RULES)
    assert {row.name: row.pico for row in found.rows}["unassigned"] == pico_of(10)
    said = [(finding.check, finding.what) for finding in run_checks(ledger, book, clock.utc, rules=RULES)]
    assert ("commitments", "12 USD an hour are used of the 10 bought, at 2026-01-01T00:00:00Z") in said


def test_a_sweeps_report_has_its_use_and_neither_the_purchase_nor_the_rest(books, clock):
    assert costs(books, clock, by="category", sweep_id="s1") == {"other": (pico_of(10), 0)}


def test_before_and_after_the_commitment_a_lease_costs_what_the_price_book_says(books, clock, make_lease):
    tags = {"commitment": "cb-1"}
    more = {"sku": "box", "provider": "cloud", "cards": 8, "price_hash": ROW.hash, "tags": tags}
    books.leases.open(make_lease("L2", **more))
    clock.advance(9 * HOUR)
    books.leases.close("L2", "done")
    assert costs(books, clock, by="machine") == {
        "cb-1": (pico_of(20), pico_of(100)),
        "h100x8": (pico_of(96), pico_of(16)),
    }
    assert run_checks(books, BOOK, clock.utc, rules=RULES) == []


def test_more_cards_than_were_bought_share_what_there_is_and_are_found(books, clock, make_lease):
    more = {"sku": "box", "provider": "cloud", "tags": {"commitment": "cb-1"}}
    for name in ("L2", "L3"):
        books.leases.open(make_lease(name, cards=8, **more))
    clock.advance(HOUR)
    assert costs(books, clock, by="category")["unassigned"] == (pico_of(10), 0)
    (finding,) = [f for f in run_checks(books, BOOK, clock.utc, rules=RULES) if f.check == "commitments"]
    assert finding.what.startswith("16 cards run on the 8 bought")


def test_finance_sees_a_purchase_amortised_use_and_what_was_unused(books, clock):
    cuts = focus.month_cuts(START, clock.utc)
    rows = list(focus.rows(attribute(books, BOOK, clock.utc, cuts=cuts, rules=RULES)))
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
    allocated = list(focus.rows(attribute(books, BOOK, clock.utc, cuts=cuts, rules=RULES), version="1.3"))
    (used,) = [row for row in allocated if row.get("CommitmentDiscountStatus") == "Used"]
    assert used["AllocatedResourceId"] == "s1/t1"


def test_the_unit_price_of_an_odd_share_times_its_quantity_is_its_cost(ledger, clock):
    """750 USD over 2,880 card-hours is 0.260416..., which twelve places do not hold."""
    add_commitment(ledger, block(price="750 USD", cards=16, hours=180), ())
    clock.advance_seconds(400 * 3600)
    cuts = focus.month_cuts(clock.utc - 400 * 3600 * 10**9, clock.utc)
    for row in focus.rows(attribute(ledger, BOOK, clock.utc, cuts=cuts, rules=RULES)):
        assert findings(row) == []


def test_what_was_bought_cannot_be_bought_again_otherwise_or_change_a_closed_month(any_database, books):
    assert not add_commitment(books, block(), ())
    with pytest.raises(IntegrityError, match=r"entered before with other terms: price 100 USD$"):
        add_commitment(books, block(price="99 USD"), ())
    with pytest.raises(IntegrityError, match="would change 2026-01, which is closed"):
        add_commitment(books, block("cb-2"), ["2026-01"])
    assert load_commitments(books) == [block()]


@pytest.mark.parametrize("change", [{"cards": 0}, {"hours": 0}, {"kind": "gift"}, {"price": "0 USD"}, {"name": " "}])
def test_what_makes_no_sense_is_not_entered(ledger, change):
    with pytest.raises(LedgerError):
        add_commitment(ledger, block(**change), ())
    assert load_commitments(ledger) == []


def test_another_currency_than_that_of_the_lease_is_refused(books, clock, make_lease):
    books.leases.open(make_lease("L2", currency="EUR", tags={"commitment": "cb-1"}))
    with pytest.raises(LedgerError, match="lease L2 is in EUR, and commitment cb-1"):
        costs(books, clock, by="category")


def test_a_lease_that_names_what_nobody_bought_is_flagged_and_found_until_it_is_entered(
    any_database, books, clock, make_lease
):
    more = {
        "sku": "box",
        "provider": "cloud",
        "price_hash": ROW.hash,
        "tags": {"commitment": "cb-9"},
        "opened_by": "hand",
    }
    books.leases.open(make_lease("L2", **more))
    clock.advance(HOUR)
    report = grouped_report(books, BOOK, ReportScope(by="machine"), clock.utc, rules=RULES)
    assert ["unknown_commitment" in row.flags for row in report.rows if row.name == "h100x8"] == [True]
    assert costs(books, clock, by="machine")["h100x8"] == (pico_of(18), pico_of(8)), "the price book counts"
    (finding,) = run_checks(books, BOOK, clock.utc, rules=RULES)
    assert (finding.check, finding.where) == ("commitments", "lease L2")
    assert "python -m cost commitments add cb-9" in finding.what
    add_commitment(books, block("cb-9"), ())
    assert run_checks(books, BOOK, clock.utc, rules=RULES) == []


def test_on_the_command_line(tmp_path: Path):
    runner, root = CliRunner(), ["--root", str(tmp_path / "runs")]
    bought = ["--price", "240 USD", "--cards", "8", "--from", "2026-01-01", "--to", "2026-01-02", "--sku", "p5"]
    for _ in range(2):
        added = runner.invoke(app, ["commitments", "add", "cb-7", *bought, "--provider", "aws", *root])
        assert added.exit_code == 0, added.output
    opening = ["leases", "open", "--machine", "p5", "--sku", "p5-block", "--cards", "4", "--instance", "i-1", *root]
    refused = runner.invoke(app, [*opening, "--commitment", "cb-8"])
    assert refused.exit_code == 2
    assert "there is no commitment 'cb-8'" in refused.output
    assert runner.invoke(app, [*opening, "--tag", "commitment=cb-8"]).exit_code == 2, "as a tag, too"
    opened = runner.invoke(app, [*opening, "--commitment", "cb-7", "--from", "2026-01-01T12:00"])
    assert opened.exit_code == 0, opened.output
    closed = runner.invoke(app, ["leases", "close", opened.output.strip(), "--at", "2026-01-01T18:00", *root])
    assert closed.exit_code == 0, closed.output
    (found,) = json.loads(runner.invoke(app, ["commitments", "list", "--json", *root]).output)["commitments"]
    assert (found["paid"], found["used"], found["unused"], found["to_come"]) == ("240", "30", "210", "0")
    assert "cb-7" in runner.invoke(app, ["commitments", "list", *root]).output
    (lease,) = json.loads(runner.invoke(app, ["leases", "list", "--json", *root]).output)["leases"]
    assert (lease["cost"], lease["purchase"], lease["currency"]) == ("30", "reserved", "USD")

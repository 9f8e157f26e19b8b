"""Closed months, and reports of an earlier state of the ledger."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import update

from cost.charges.lease_charge import charge_lease_time, cut_segments
from cost.clock import NS_PER_SECOND
from cost.close.check import run_checks
from cost.close.close_month import close_month
from cost.close.months import closed_totals, month_corrections
from cost.ledger import schema
from cost.money import pico_of
from cost.periods import instant_text, midnight_ns, month_bounds
from cost.prices.billing import BillingRule
from cost.prices.book import PriceBook, PriceRow, pico_per_hour
from cost.records import Correction, IntegrityError, Lease, LeaseState, LedgerError, UsageKey
from cost.reports.as_of import book_as_of, cost_changes_since

HOUR, DAY = 3600, 86_400
RULE = BillingRule("cloud", 3600, 0, "up", False, ("running",), "moment", 0, "none", "page", "2025-12-01")
ROW = PriceRow(
    *("cloud", "box", "", "machine_hour", 8, "on_demand", "USD", Decimal("8.10"), False, Decimal(0)),
    *("2025-01-01", "", "https://example.org", "2025-12-01"),
)
BOOK = PriceBook((ROW,))


@pytest.fixture
def leased_box(ledger, make_lease, clock):
    """A machine leased from 20 January to 10 February 2026; its sweep ran in January."""
    clock.advance_seconds(19 * DAY)
    ledger.leases.open(make_lease(sku="box", provider="cloud", price_hash=ROW.hash, opened_by="hand"))
    ledger.leases.attach("L1", "s1")
    key = UsageKey("L1", "t1", 1)
    ledger.usages.start(key, "s1", Decimal(8), {})
    clock.advance_seconds(5 * DAY + 1)
    ledger.heartbeat("L1", [key])
    ledger.usages.end(key, "COMPLETED")
    ledger.leases.detach("L1", "s1", "done")
    clock.advance_seconds(16 * DAY)
    return ledger


def test_closing_a_month_stores_its_totals_and_closing_again_changes_nothing(leased_box, clock):
    totals = close_month(leased_box, BOOK, "2026-01", clock.utc, rules=(RULE,))
    assert totals == {"L1": (pico_of(Decimal("8.10") * 12 * 24), "USD")}
    clock.advance_seconds(DAY)
    leased_box.leases.close("L1", "by hand")
    assert (
        close_month(leased_box, BOOK, "2026-01", clock.utc, rules=(RULE,))
        == totals
        == closed_totals(leased_box)["2026-01"]
    )
    assert run_checks(leased_box, BOOK, clock.utc, rules=(RULE,)) == []


def test_only_a_correction_can_change_a_closed_month(leased_box, make_lease, clock):
    january = month_bounds("2026-01")[0]
    close_month(leased_box, BOOK, "2026-01", clock.utc, rules=(RULE,))
    with pytest.raises(IntegrityError, match="2026-01: that month is closed; write a correction"):
        leased_box.leases.open(make_lease("L2", from_ns=january, opened_by="hand"))
    with pytest.raises(IntegrityError, match="closed"):
        leased_box.leases.close("L1", "late", at_ns=month_bounds("2026-01")[1] - 1)
    leased_box.corrections.add(Correction("c1", "L1", "credit", -5, "USD", january + 20 * DAY * NS_PER_SECOND, "note"))
    assert run_checks(leased_box, BOOK, clock.utc, rules=(RULE,)) == []
    assert month_corrections(leased_box, "2026-01") == {"L1": (-5, "USD")}
    assert month_corrections(leased_box, "2026-02") == {}
    leased_box.leases.close("L1", "in time")


def test_a_price_edited_after_the_month_was_closed_is_found(leased_box, clock):
    close_month(leased_box, BOOK, "2026-01", clock.utc, rules=(RULE,))
    edited = PriceBook((replace(ROW, price=Decimal("8.20")),))
    found = run_checks(leased_box, edited, clock.utc, rules=(RULE,))
    assert [(f.check, f.what) for f in found] == [
        ("frozen", "cost 2332.8 when 2026-01 was closed, 2361.6 now"),
    ]


def test_a_month_that_is_not_over_or_fails_a_check_is_not_closed(leased_box, clock):
    with pytest.raises(LedgerError, match="not over"):
        close_month(leased_box, BOOK, "2026-02", clock.utc, rules=(RULE,))
    with pytest.raises(LedgerError, match="is not a month"):
        close_month(leased_box, BOOK, "January", clock.utc, rules=(RULE,))
    with leased_box.database.write() as connection:
        connection.execute(update(schema.usage).values(cards_micro=9 * 10**6))
    with pytest.raises(LedgerError, match="cannot be closed: cards"):
        close_month(leased_box, BOOK, "2026-01", clock.utc, rules=(RULE,))
    assert leased_box.closed_months.names() == []


def test_a_month_with_an_open_attempt_is_not_closed(ledger, make_lease, clock):
    ledger.leases.open(make_lease(sku="box", provider="cloud", price_hash=ROW.hash))
    ledger.leases.attach("L1", "s1")
    ledger.usages.start(UsageKey("L1", "t1", 1), "s1", Decimal(8), {})
    clock.advance_seconds(40 * DAY)
    with pytest.raises(LedgerError, match="trial t1 attempt 1 of sweep s1 has not ended"):
        close_month(ledger, BOOK, "2026-01", clock.utc, rules=(RULE,))


def test_all_changes_of_an_earlier_report_are_explained_by_cause(leased_box, clock):
    leased_box.price_archive.add([ROW])
    then = clock.utc
    clock.advance_seconds(DAY)
    leased_box.corrections.add(Correction("c1", "L1", "credit", -pico_of(1), "USD", then - DAY * NS_PER_SECOND, "note"))
    leased_box.leases.close("L1", "forgotten", at_ns=then - 2 * HOUR * NS_PER_SECOND)
    edited = PriceBook((replace(ROW, price=Decimal("8.20"), day_read="2026-03-01"),))
    assert book_as_of(leased_box, edited, then).rows == (ROW,)
    (change,) = cost_changes_since(leased_box, edited, then, rules=(RULE,))
    assert change.then_pico == pico_of(Decimal("8.10") * 21 * 24 + Decimal("8.10") / 3600), "504 hours and a second"
    assert change.now_pico == pico_of(Decimal("8.20") * 503 - 1), "502 hours and a second, rounded up"
    assert (change.by_corrections, change.by_prices) == (-pico_of(1), pico_of(Decimal("0.10") * 503))
    assert change.by_prices + change.by_corrections + change.by_late_entries == change.now_pico - change.then_pico
    assert "prices 50.3, corrections -1, late entries -8.10225" in change.text


def test_price_rows_read_later_are_used_only_if_there_is_no_other(leased_box, clock):
    later = replace(ROW, valid_from="2026-01-15", day_read="2026-03-01", price=Decimal(9))
    assert book_as_of(leased_box, PriceBook((ROW, later)), clock.utc).rows == (ROW,)
    assert book_as_of(leased_box, PriceBook((later,)), clock.utc).rows == (later,)
    same_day = instant_text(clock.utc + 60 * NS_PER_SECOND)
    later = replace(later, day_read=same_day[:10], added=same_day)
    assert book_as_of(leased_box, PriceBook((ROW, later)), clock.utc).rows == (ROW,)
    assert book_as_of(leased_box, PriceBook((ROW, later)), clock.utc + 60 * NS_PER_SECOND).rows == (ROW, later)


@given(
    st.integers(1, 10**15),
    st.lists(st.integers(1, 30 * DAY * NS_PER_SECOND), min_size=2, max_size=2, unique=True),
    st.lists(st.integers(1, 30 * DAY * NS_PER_SECOND), min_size=1, max_size=5, unique=True),
)
def test_the_cost_before_a_cut_does_not_change_later(price, nows, cuts):
    start = midnight_ns(date(2026, 1, 1), UTC)
    row = replace(ROW, price=Decimal(price).scaleb(-12))
    lease = Lease("L1", "i", "m", "box", "cloud", 8, "USD", row.hash)
    state = LeaseState(lease, start, None, None, False, start, ())
    edges = sorted(start + c for c in cuts)
    pieces = []
    for now in sorted(start + n for n in nows):
        segments = charge_lease_time(state, (row,), (RULE,), now)
        done = cut_segments(segments, edges, lambda _: pico_per_hour(row, 8) / (3600 * NS_PER_SECOND))
        assert sum(s.pico for s in done) == sum(s.pico for s in segments)
        pieces.append([s for s in done if s.category == "machine"])
    early, late = pieces
    whole = [s for s in early if s.to_ns in edges]
    assert late[: len(whole)] == whole

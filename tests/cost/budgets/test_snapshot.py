"""Arithmetic of budget snapshots, without a ledger."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from fractions import Fraction

import pytest

from cost.budgets.snapshot import BudgetSnapshot, CardsInUse, LeaseCost, Limit, may_pay
from cost.ledger.reservations import Reservation
from cost.money import Money
from cost.prices.fx import MissingRateError, Rate
from cost.records import UsageKey

USD = 10**12
SECOND = 10**9
TODAY = date(2026, 1, 1)
NOW_NS = 1_767_225_600 * SECOND + 3600 * SECOND
"""One hour into 2026."""
EUR_IN_USD = Rate("EUR", "USD", Decimal(2), "2026-01-01", "bank", "2026-01-01")


def lease_cost(**changes) -> LeaseCost:
    """A lease of four cards since one hour ago, at 4 USD an hour."""
    fields = {
        "lease_id": "L1",
        "currency": "USD",
        "cards": 4,
        "is_open": True,
        "all_sweeps": frozenset({"s1"}),
        "sweeps": frozenset({"s1"}),
        "total": 4 * USD,
        "prepaid": 0,
        "tax": Fraction(0),
        "pico_per_ns": Fraction(4 * USD, 3600 * SECOND),
        "edges_ns": (NOW_NS - 3600 * SECOND, NOW_NS),
        "cost_at_edges": (Fraction(0), Fraction(4 * USD)),
    }
    return LeaseCost(**{**fields, **changes})


def snapshot(*limits: Limit, spent: int = 4 * USD, **changes) -> BudgetSnapshot:
    """At `NOW_NS`, with `spent` under every scope."""
    scopes = ("month", "stage:smoke", "sweep:s1")
    fields = {
        "at_ns": NOW_NS,
        "exact": True,
        "exact_at_ns": NOW_NS,
        "limits": limits,
        "spent_by_scope": {scope: {("USD", TODAY): spent} for scope in scopes},
        "spent_by_trial": {},
        "leases": {"L1": lease_cost()},
        "reservations": (),
        "stages": {"s1": "smoke"},
        "rates": (EUR_IN_USD,),
        "month_end_ns": NOW_NS + 30 * 86_400 * SECOND,
        "unpriced": {},
    }
    return BudgetSnapshot(**{**fields, **changes})


def reservation(amount: str = "3 USD", *, trial: str = "t1", sweep: str = "s1", ago_s: int = 0) -> Reservation:
    key = UsageKey("L1", trial, 1)
    return Reservation(key, sweep, "smoke", Money.parse(amount), Decimal(1), "test", NOW_NS - ago_s * SECOND)


def test_spent_amounts_are_converted_at_the_rate_of_their_day():
    assert snapshot().spent("month", "EUR") == Money.parse("2 EUR")
    assert snapshot().spent("month", "USD") == Money.parse("4 USD")
    with pytest.raises(MissingRateError, match="no exchange rate from USD to JPY"):
        snapshot().spent("month", "JPY")


def test_amounts_in_other_currencies_can_be_left_out():
    assert snapshot().spent("month", "EUR", unconverted=True) == Money.zero("EUR")
    assert snapshot(reservations=(reservation(),)).reserved("month", "EUR", unconverted=True) == Money.zero("EUR")


def test_what_an_attempt_has_cost_is_no_longer_reserved():
    used = snapshot(reservations=(reservation("3 USD", ago_s=1800),))
    assert used.reserved("sweep:s1", "USD") == Money.parse("2.5 USD")  # one card of four, half an hour
    more_than_reserved = snapshot(reservations=(reservation("0.25 USD", ago_s=1800),))
    assert more_than_reserved.reserved("sweep:s1", "USD") == Money.zero("USD")


def test_tax_is_added_to_what_is_reserved_and_prepaid_time_is_taken_off():
    leases = {"L1": lease_cost(tax=Fraction(1, 5), prepaid=USD)}
    assert snapshot(leases=leases).reserved("sweep:s1", "USD", {"L1": 5 * USD}) == Money.parse("5 USD")


def test_prepaid_time_counts_for_a_scope_only_where_no_other_sweep_uses_the_machine():
    shared = lease_cost(prepaid=USD, sweeps=frozenset({"s1", "s2"}), all_sweeps=frozenset({"s1", "s2"}))
    found = snapshot(leases={"L1": shared}, stages={"s1": "smoke", "s2": "multi"})
    amounts = {scope: found.reserved(scope, "USD", {"L1": 2 * USD}) for scope in ("month", "stage:smoke", "sweep:s1")}
    two = Money.parse("2 USD")
    assert amounts == {"month": Money.parse("1 USD"), "stage:smoke": two, "sweep:s1": two}


def test_a_reservation_counts_under_its_own_sweep_and_stage_and_the_month():
    found = snapshot(reservations=(reservation(sweep="s2"),))
    amounts = [
        found.reserved(scope, "USD") for scope in ("month", "stage:smoke", "stage:multi", "sweep:s2", "sweep:s1")
    ]
    assert amounts == [Money.parse("3 USD")] * 2 + [Money.zero("USD"), Money.parse("3 USD"), Money.zero("USD")]


def test_a_later_reservation_of_an_attempt_replaces_the_earlier_one():
    found = snapshot(reservations=(reservation("3 USD"), reservation("1 USD", trial="t2")))
    replaced = found.with_reservation(reservation("5 USD"))
    assert replaced.reserved("month", "USD") == Money.parse("6 USD")
    assert found.reserved("month", "USD") == Money.parse("4 USD")


def test_a_trial_has_cost_its_earlier_attempts_and_the_cards_of_the_running_one():
    spent = {("s1", "t1"): {("USD", TODAY): USD}}
    exact_at_ns = NOW_NS - 900 * SECOND
    found = snapshot(spent_by_trial=spent, exact=False, exact_at_ns=exact_at_ns)
    assert found.trial_spent("s1", "t1", "USD") == Money.parse("1 USD")
    since_long = CardsInUse("L1", NOW_NS - 1800 * SECOND, 2)
    assert found.trial_spent("s1", "t1", "USD", since_long) == Money.parse("1.5 USD")  # since the exact reading
    since_then = CardsInUse("L1", NOW_NS - 450 * SECOND, 2)
    assert found.trial_spent("s1", "t1", "EUR", since_then) == Money.parse("0.625 EUR")


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [("5 USD", 900), ("2.5 EUR", 900), ("4 USD", 0), ("3 USD", 0)],
)
def test_a_limit_is_spent_when_the_machine_has_cost_the_rest_of_it(limit, seconds):
    one = Limit("sweep:s1", Money.parse(limit))
    assert snapshot(one).spent_at_ns(one) == NOW_NS + seconds * SECOND


def test_prepaid_time_moves_the_moment_at_which_a_limit_is_spent():
    one = Limit("sweep:s1", Money.parse("5 USD"))
    found = snapshot(one, leases={"L1": lease_cost(prepaid=USD)})
    assert found.spent_at_ns(one) == NOW_NS + 1800 * SECOND


def test_a_months_limit_that_lasts_until_the_month_ends_is_not_spent():
    month, sweep = (Limit(scope, Money.parse("5 USD")) for scope in ("month", "sweep:s1"))
    found = snapshot(month, sweep, month_end_ns=NOW_NS + 600 * SECOND)
    assert found.spent_at_ns(month) is None
    assert found.spent_at_ns(sweep) == NOW_NS + 900 * SECOND


def test_without_an_open_lease_no_limit_comes_closer():
    one = Limit("sweep:s1", Money.parse("5 USD"))
    assert snapshot(one, leases={"L1": lease_cost(is_open=False, pico_per_ns=Fraction(0))}).spent_at_ns(one) is None


def test_the_machines_of_other_sweeps_count_towards_a_shared_limit_only():
    other = lease_cost(lease_id="L2", all_sweeps=frozenset({"s2"}), sweeps=frozenset({"s2"}))
    sweep, month = (Limit(scope, Money.parse("5 USD")) for scope in ("sweep:s1", "month"))
    found = snapshot(sweep, month, leases={"L1": lease_cost(), "L2": other})
    assert found.spent_at_ns(sweep) == NOW_NS + 900 * SECOND
    assert found.spent_at_ns(month) == NOW_NS + 450 * SECOND


def test_a_sweep_of_unknown_stage_may_belong_to_any_stage():
    assert may_pay("stage:smoke", frozenset({"s9"}), {})
    assert not may_pay("stage:smoke", frozenset({"s9"}), {"s9": "multi"})


@pytest.mark.parametrize(("ago_s", "cost"), [(7200, 4), (3600, 4), (1800, 2), (0, 0), (-60, 0)])
def test_the_cost_since_a_moment_is_that_part_of_the_machines_time(ago_s, cost):
    assert lease_cost().cost_since(NOW_NS - ago_s * SECOND) == cost * USD


def test_exchange_rates_in_use_are_named_once():
    assert snapshot(reservations=(reservation(),)).rate_notes("month", "EUR") == ("1 EUR = 2 USD on 2026-01-01 (bank)",)
    assert snapshot().rate_notes("month", "USD") == ()

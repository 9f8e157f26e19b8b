"""Limits as `cost budget` stores and shows them. Budgets in several currencies: tests/cost/prices/test_fx.py."""

from __future__ import annotations

import pytest

from cost.budgets.budget import Budget, budgets, parse_setting, scope_name, set_limit
from cost.budgets.reader import stored_limits
from cost.money import Money
from cost.periods import instant_ns
from cost.prices.book import PriceBook
from cost.records import LedgerError
from tests.cost.budgets.conftest import start
from tests.cost.reports.test_report import RULES, row

BOOK = PriceBook((row(),))


def test_the_limit_of_a_scope_that_was_set_last_applies_and_none_removes_it(ledger, clock):
    set_limit(ledger, "month", Money.parse("5 USD"))
    set_limit(ledger, "stage:smoke", Money.parse("1 EUR"))
    clock.advance_seconds(1)
    set_limit(ledger, "month", Money.parse("7 USD"))
    assert stored_limits(ledger) == {"month": Money.parse("7 USD"), "stage:smoke": Money.parse("1 EUR")}
    clock.advance_seconds(1)
    set_limit(ledger, "month", None)
    assert stored_limits(ledger) == {"stage:smoke": Money.parse("1 EUR")}


@pytest.mark.parametrize("scope", ["year", "stage:", "sweep", "trial:t1", ""])
def test_an_unknown_scope_is_refused_with_the_scopes_there_are(ledger, scope):
    with pytest.raises(LedgerError, match="is not a budget scope; use one of month, stage:NAME, sweep:NAME"):
        set_limit(ledger, scope, Money.parse("5 USD"))


@pytest.mark.parametrize("amount", ["0 USD", "-1 USD"])
def test_a_limit_must_be_above_zero(ledger, amount):
    with pytest.raises(LedgerError, match="must be above zero"):
        set_limit(ledger, "month", Money.parse(amount))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("month=500 USD", ("month", Money.parse("500 USD"))),
        ("stage:multi=0.5 EUR", ("stage:multi", Money.parse("0.5 EUR"))),
        ("sweep:smoke-1 = none", ("sweep:smoke-1 ", None)),
        ("month=none", ("month", None)),
    ],
)
def test_a_setting_is_a_scope_and_an_amount_or_none(text, expected):
    assert parse_setting(text) == expected


@pytest.mark.parametrize("text", ["month", "month=", "month=5", "month=-5 USD", "month=five USD"])
def test_a_setting_without_an_amount_is_refused(text):
    with pytest.raises(LedgerError, match="--set"):
        parse_setting(text)


def test_scopes_have_names_for_people():
    now_ns = instant_ns("2026-11-29T08:00:00Z")
    names = [scope_name(scope, now_ns) for scope in ("month", "stage:smoke", "sweep:smoke-1")]
    assert names == ["month 2026-11", "stage smoke", "sweep smoke-1"]


def test_the_month_comes_first_and_then_every_scope_with_a_limit(machine, clock):
    set_limit(machine, "sweep:s1", Money.parse("3 USD"))
    set_limit(machine, "stage:smoke", Money.parse("1 USD"))
    start(machine, "t1", "1 USD")
    clock.advance_seconds(900)
    found, notes = budgets(machine, BOOK, machine.now_ns(), rules=RULES)
    spent, reserved = Money.parse("2 USD"), Money.parse("0.75 USD")
    assert found == [
        Budget("month", "month 2026-01", None, reserved, spent),
        Budget("stage:smoke", "stage smoke", Money.parse("1 USD"), reserved, spent),
        Budget("sweep:s1", "sweep s1", Money.parse("3 USD"), reserved, spent),
    ]
    assert [one.free for one in found] == [None, Money.parse("-1.75 USD"), Money.parse("0.25 USD")]
    assert notes == ()


def test_simulated_sweeps_have_rows_of_their_own_under_limits_only(machine, clock, make_lease):
    tags = {"simulated": "true"}
    machine.leases.open(make_lease("L9", sku="box", provider="cloud", price_hash=row().hash, tags=tags))
    machine.leases.attach("L9", "s9")
    clock.advance_seconds(900)
    assert not any(one.simulated for one in budgets(machine, BOOK, machine.now_ns(), rules=RULES)[0])
    set_limit(machine, "month", Money.parse("5 USD"))
    found, _ = budgets(machine, BOOK, machine.now_ns(), rules=RULES)
    assert [(one.name, one.spent) for one in found] == [
        ("month 2026-01", Money.parse("2 USD")),
        ("month 2026-01 (simulated)", Money.parse("2 USD")),
    ]

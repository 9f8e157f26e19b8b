"""Money of a forecast lease: exact, through the provider's rule, by category."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost.forecast.lease_cost import (
    CategoryMoney,
    MoneyForecast,
    lease_money,
    prepaid_balance_pico,
    token_money,
    with_extras,
)
from cost.forecast.predict import Forecast, TrialWork, predict
from cost.forecast.sampling import ForecastError, Interval
from cost.forecast.step_profile import fit_profile
from cost.money import PICO_PER_UNIT as UNIT
from cost.prices.billing import BillingRule
from cost.prices.book import PriceRow, instant_ns
from tests.cost.forecast.runs import EXACT, ns, run, sweep

START = instant_ns("2026-11-29")
MINUTES = BillingRule("lambda", 60, 60, "up", False, ("running",), "moment", 0, "none", "page", "2026-11-29")
HOURS_AHEAD = replace(MINUTES, provider="cn-hourly", granularity_s=3600, minimum_s=3600, charged_ahead=True)
PRICE = PriceRow(
    "lambda", "lambda-h100x8", "", "card_hour", 8, "on_demand", "USD", Decimal("3.99"), False, Decimal(0),
    "2026-09-20", "", "page", "2026-11-29",
)  # fmt: skip


def forecast(seconds_p50: float, seconds_p90: float | None = None, cards: int = 8) -> Forecast:
    """A lease of a given length, of which three quarters of the card-time train and a quarter is idle."""
    made = predict(fit_profile([run(20)]), sweep(TrialWork(100, 8, 8, 1)), priors=EXACT)
    lease = Interval(ns(seconds_p50), ns(seconds_p50), ns(seconds_p90 or seconds_p50))
    card = Interval(lease.p10 * cards, lease.p50 * cards, lease.p90 * cards)
    train, idle = made.categories[0], made.categories[1]
    parts = (
        replace(train, name="train", p50_ns=card.p50 * 3 // 4, p90_ns=card.p90 * 3 // 4),
        replace(idle, name="idle", p50_ns=card.p50 - card.p50 * 3 // 4, p90_ns=card.p90 - card.p90 * 3 // 4),
    )
    return replace(made, machine_cards=cards, lease_ns=lease, card_ns=card, categories=parts)


def amounts(money: MoneyForecast) -> dict[str, tuple[int, int]]:
    return {c.name: (c.p50_pico, c.p90_pico) for c in money.categories}


def test_a_lease_of_one_hour_costs_eight_card_hours() -> None:
    money = lease_money(forecast(3_600, 7_200), rule=MINUTES, prices=[PRICE], from_ns=START)
    assert money.currency == "USD"
    assert money.total == Interval(3192 * UNIT // 100, 3192 * UNIT // 100, 6384 * UNIT // 100)
    assert amounts(money) == {
        "train": (2394 * UNIT // 100, 4788 * UNIT // 100),
        "idle": (798 * UNIT // 100, 1596 * UNIT // 100),
        "billing_increment": (0, 0),
    }


def test_what_rounding_up_adds_is_a_category_of_its_own() -> None:
    money = lease_money(forecast(3_570, 3_601), rule=MINUTES, prices=[PRICE], from_ns=START)
    per_second = Decimal("31.92") * UNIT / 3600
    assert amounts(money)["billing_increment"] == (int(30 * per_second), int(59 * per_second) + 1)


def test_hours_that_are_charged_ahead_are_owed_whole() -> None:
    money = lease_money(forecast(60, 3_700), rule=HOURS_AHEAD, prices=[PRICE], from_ns=START)
    assert money.total == Interval(3192 * UNIT // 100, 3192 * UNIT // 100, 6384 * UNIT // 100)


@settings(max_examples=100)
@given(st.floats(1.0, 1e5), st.floats(1.0, 3.0), st.sampled_from([MINUTES, HOURS_AHEAD]))
def test_categories_sum_to_the_charge_exactly(seconds: float, factor: float, rule: BillingRule) -> None:
    money = lease_money(forecast(seconds, seconds * factor), rule=rule, prices=[PRICE], from_ns=START)
    assert sum(c.p50_pico for c in money.categories) == money.total.p50
    assert sum(c.p90_pico for c in money.categories) == money.total.p90
    assert all(c.p50_pico <= c.p90_pico for c in money.categories if c.name != "billing_increment")


def test_storage_and_egress_are_added_as_they_are() -> None:
    money = lease_money(forecast(3_600), rule=MINUTES, prices=[PRICE], from_ns=START)
    more = with_extras(money, {"storage": 5 * UNIT, "egress": UNIT // 2})
    assert more.total.p90 - money.total.p90 == 5 * UNIT + UNIT // 2
    assert amounts(more)["egress"] == (UNIT // 2, UNIT // 2)
    with pytest.raises(ForecastError, match="must not be negative"):
        with_extras(money, {"storage": -1})


def test_categories_that_do_not_sum_are_refused() -> None:
    with pytest.raises(ForecastError, match="categories sum to 1 at p50"):
        MoneyForecast("USD", Interval(2, 2, 2), (CategoryMoney("train", 1, 2),))


def test_a_prepaid_balance_is_p90_rounded_up_to_what_can_be_paid() -> None:
    money = MoneyForecast("CNY", Interval(0, 1, 2_341 * UNIT // 1000), (CategoryMoney("x", 1, 2_341 * UNIT // 1000),))
    assert prepaid_balance_pico(money) == 235 * UNIT // 100
    assert prepaid_balance_pico(money, runs=2) == 469 * UNIT // 100
    assert prepaid_balance_pico(money, smallest_payment=Decimal(10)) == 10 * UNIT


def test_hosted_training_is_priced_per_million_tokens() -> None:
    money = token_money(Interval(10**6, 2 * 10**6, 3 * 10**6), Decimal("0.29"), "USD")
    assert (money.total.p50, money.total.p90) == (58 * UNIT // 100, 87 * UNIT // 100)

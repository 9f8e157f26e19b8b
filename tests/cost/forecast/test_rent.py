"""Rent or not: the sentence, its reasons, and what changes it."""

from __future__ import annotations

from fractions import Fraction

import pytest

from cost.forecast.lease_cost import CategoryMoney, MoneyForecast
from cost.forecast.rent import Outcome, RentOption, RentTerms, decide, equal_completions_steps
from cost.forecast.sampling import ForecastError, Interval
from cost.money import PICO_PER_UNIT as UNIT

HOUR = 3_600 * 10**9


def outcome(hours: float, price: str, p90: float = 1.5, currency: str = "USD") -> Outcome:
    pico = int(Fraction(price) * UNIT)
    high = int(pico * Fraction(p90))
    wall = Interval(int(hours * HOUR * 0.8), int(hours * HOUR), int(hours * HOUR * p90))
    return Outcome(
        wall, MoneyForecast(currency, Interval(pico // 2, pico, high), (CategoryMoney("train", pico, high),))
    )


OWN = RentOption("own rtx5090", 1, False, outcome(2.0, "0.20"), outcome(2.0, "0.20"))
ONE = RentOption("rtx4090", 1, True, outcome(2.2, "2.00"), outcome(2.2, "2.00"))
EIGHT = RentOption("h100x8", 8, True, outcome(0.5, "16.00"), outcome(0.25, "8.00"))
NO_OWN = RentOption("own rtx5090", 1, False, impossible="8B with LoRA needs 32 GiB, it has 29")


def test_an_own_card_that_does_the_work_is_not_replaced() -> None:
    decision = decide([OWN, ONE, EIGHT], RentTerms("USD"))
    assert decision.sentence == "Do not rent."
    assert decision.equal_steps.chosen == "own rtx5090"


def test_without_an_own_card_the_cheapest_is_rented() -> None:
    assert decide([NO_OWN, ONE, EIGHT], RentTerms("USD")).sentence == "Rent one card (rtx4090)."


def test_what_fits_no_single_card_is_done_on_eight() -> None:
    small = RentOption("rtx4090", 1, True, impossible="8B with LoRA needs 32 GiB, it has 22")
    decision = decide([NO_OWN, small, EIGHT], RentTerms("USD"))
    assert decision.sentence == "Rent eight cards (h100x8)."
    assert "rtx4090: impossible, 8B with LoRA needs 32 GiB, it has 22" in decision.reasons


def test_a_deadline_can_ask_for_eight_cards() -> None:
    assert decide([OWN, ONE, EIGHT], RentTerms("USD", deadline_ns=HOUR)).sentence == "Rent eight cards (h100x8)."


def test_the_worth_of_an_hour_can_ask_for_eight_cards() -> None:
    # 1.5 h are saved for 15.80 USD at equal steps, 1.75 h for 7.80 USD at equal completions.
    assert decide([OWN, EIGHT], RentTerms("USD", waited_hour_pico=12 * UNIT)).sentence.startswith("Rent eight cards")
    mixed = decide([OWN, EIGHT], RentTerms("USD", waited_hour_pico=5 * UNIT))
    assert mixed.sentence == "At equal steps: do not rent. At equal completions: rent eight cards (h100x8)."


def test_a_budget_is_compared_with_p90() -> None:
    fits = RentTerms("USD", budget_pico=24 * UNIT)
    assert decide([NO_OWN, EIGHT], fits).equal_steps.chosen == "h100x8"
    decision = decide([NO_OWN, EIGHT], RentTerms("USD", budget_pico=24 * UNIT - 1))
    assert decision.equal_steps.chosen is None
    assert decision.equal_completions.chosen == "h100x8"
    assert any("24.00 USD at P90 is over the budget" in reason for reason in decision.reasons)


def test_nothing_within_the_terms_is_not_rented() -> None:
    decision = decide([NO_OWN, EIGHT], RentTerms("USD", budget_pico=UNIT))
    assert decision.sentence == "Do not rent, nothing fits the terms."


def test_a_likely_collapse_has_to_be_paid_for_twice() -> None:
    terms = RentTerms("USD", budget_pico=30 * UNIT, collapse_probability=Fraction(3, 10))
    # 0.3 ** 2 = 0.09: two runs leave less than 10 %, so that 2 x 24 USD are needed.
    assert terms.runs_at_p90 == 2
    decision = decide([NO_OWN, EIGHT], terms)
    assert decision.equal_steps.chosen is None
    assert any("probability of 30%: money for 2 runs" in reason for reason in decision.reasons)


@pytest.mark.parametrize(("percent", "runs"), [(0, 1), (10, 1), (11, 2), (31, 2), (32, 3), (50, 4)])
def test_runs_that_leave_less_than_ten_percent(percent: int, runs: int) -> None:
    terms = RentTerms("USD", collapse_probability=Fraction(percent, 100))
    assert terms.runs_at_p90 == runs
    assert Fraction(percent, 100) ** runs <= Fraction(1, 10)


def test_a_prepaid_provider_needs_the_balance_of_p90() -> None:
    prepaid = RentOption("h100x8", 8, True, outcome(0.5, "16.001"), outcome(0.25, "8.00"), prepaid=True)
    decision = decide([OWN, prepaid], RentTerms("USD"))
    # 1.5 x 16.001 USD, rounded up to cents.
    assert decision.balances_pico == (("h100x8", 2_401 * UNIT // 100),)
    assert "h100x8: a balance of 24.01 USD is needed at P90" in decision.reasons


def test_reasons_give_time_and_money_of_every_machine() -> None:
    reasons = decide([OWN, EIGHT], RentTerms("USD")).reasons
    assert reasons[0].startswith("own rtx5090: equal steps 2.0 h (P90 3.0 h), 0.20 USD (P90 0.30 USD)")
    assert "equal completions 15 min (P90 22 min), 8.00 USD (P90 12.00 USD)" in reasons[1]


def test_equal_completions_round_up_to_whole_steps() -> None:
    assert equal_completions_steps(200, 64, 512) == 25
    assert equal_completions_steps(201, 64, 512) == 26


def test_two_currencies_are_refused() -> None:
    with pytest.raises(ForecastError, match="priced in CNY, the terms are in USD"):
        decide([RentOption("x", 1, True, outcome(1, "1", currency="CNY"), outcome(1, "1"))], RentTerms("USD"))


def test_two_own_cards_are_refused() -> None:
    with pytest.raises(ForecastError, match="at most one option"):
        decide([OWN, OWN], RentTerms("USD"))


def test_a_possible_option_needs_its_outcomes() -> None:
    with pytest.raises(ForecastError, match="needs an outcome"):
        RentOption("x", 1, True)


def test_a_certain_collapse_is_refused() -> None:
    with pytest.raises(ForecastError, match="below 1"):
        RentTerms("USD", collapse_probability=Fraction(1))

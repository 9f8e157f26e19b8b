from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.money import Money, MoneyError, exact_decimal, largest_remainder, pico_of, pico_text, rounded


def test_amount_and_currency_are_read_exactly():
    assert Money.parse("12.10 USD") == Money(12_100_000_000_000, "USD")
    assert Money.parse("0.000000000001 CNY").pico == 1
    assert str(Money.parse("0.10 USD")) == "0.1 USD"


@pytest.mark.parametrize(
    "text",
    [
        *("12.10", "USD", "1,000.00 USD", "$12 USD", "12 usd", "NaN USD", "Infinity USD", "1e3 USD", ""),
        *("12.10 USD x", "0.0000000000001 USD", "１２ USD", ".5 USD", "5. USD"),
    ],
)
def test_unclear_money_is_refused(text):
    with pytest.raises(MoneyError):
        Money.parse(text)


@pytest.mark.parametrize("value", [12.1, None, True, float("nan"), Decimal("NaN"), Decimal("Infinity")])
def test_floats_and_other_kinds_are_refused_as_numbers(value):
    with pytest.raises(MoneyError):
        exact_decimal(value)


def test_a_negative_amount_is_refused_on_request():
    assert exact_decimal("-1") == -1
    with pytest.raises(MoneyError, match="negative"):
        exact_decimal("-1", negative=False)
    with pytest.raises(MoneyError, match="negative"):
        Money.parse("-1 USD", negative=False)


def test_two_currencies_are_never_added_or_compared():
    with pytest.raises(MoneyError, match="two currencies"):
        Money.zero("USD").__add__(Money(1, "CNY"))
    with pytest.raises(MoneyError, match="two currencies"):
        assert Money(1, "USD") < Money(1, "CNY")


def test_money_is_not_built_from_a_float():
    with pytest.raises(MoneyError):
        Money(1.0, "USD")  # pyright: ignore[reportArgumentType]
    with pytest.raises(MoneyError):
        Money(3, "USD").__mul__(0.5)  # pyright: ignore[reportArgumentType]


@given(st.integers(), st.lists(st.integers(min_value=0, max_value=10**30), min_size=1, max_size=40))
def test_parts_sum_to_the_total_and_are_within_one_of_their_share(total, weights):
    weight_sum = sum(weights)
    if weight_sum == 0:
        weights[0] = weight_sum = 1
    parts = largest_remainder(total, weights)
    assert sum(parts) == total
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part * weight_sum - total * weight) < weight_sum


@given(st.integers(min_value=0, max_value=10**9), st.integers(min_value=1, max_value=30))
def test_equal_weights_differ_by_one_at_most_and_earlier_ones_get_it(total, count):
    parts = largest_remainder(total, [1] * count)
    assert max(parts) - min(parts) <= 1
    assert parts == sorted(parts, reverse=True)


def test_nothing_can_be_split_by_weights_of_zero_or_less():
    assert largest_remainder(0, [0, 0]) == [0, 0]
    with pytest.raises(ValueError, match="every weight is zero"):
        largest_remainder(1, [0, 0])
    with pytest.raises(ValueError, match="zero or more"):
        largest_remainder(1, [2, -1])


@given(st.integers(min_value=-(10**40), max_value=10**40))
def test_pico_goes_to_decimal_and_back_without_loss(pico):
    assert pico_of(Money(pico, "USD").amount) == pico
    assert Money.parse(f"{pico_text(pico)} USD").pico == pico


@given(st.integers(min_value=-(10**25), max_value=10**25), st.integers(min_value=0, max_value=12))
def test_rounding_moves_an_amount_by_half_a_last_place_at_most(pico, places):
    shown = rounded(pico, places)
    assert abs(pico_of(shown) - pico) * 2 <= 10 ** (12 - places)
    assert -shown.as_tuple().exponent == places  # type: ignore[operator]


def test_rounding_is_half_to_even():
    assert str(rounded(pico_of(Decimal("0.125")), 2)) == "0.12"
    assert str(rounded(pico_of(Decimal("0.135")), 2)) == "0.14"


@given(st.lists(st.integers(), max_size=20), st.lists(st.integers(), max_size=20))
def test_sums_do_not_depend_on_order(left, right):
    amounts = [Money(p, "USD") for p in left + right]
    assert Money.sum(amounts, "USD") == Money.sum(reversed(amounts), "USD") == Money(sum(left) + sum(right), "USD")

"""Which completions the scorers accept."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl.tasks.scorers import exact, last_number, math_verify, number, parse_number


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The answer is 42.", "42"),
        ("7 - 3 = 4", "4"),
        ("x=-4", "-4"),
        ("9-4", "4"),
        ("(3)-4", "4"),
        ("minus \u22125", "-5"),
        ("+7", "7"),
        ("about 1,234,567.50 dollars", "1234567.50"),
        ("1,2", "2"),
        ("12,34", "34"),
        ("1,2345", "2345"),
        (".5", "0.5"),
        ("-.5", "-0.5"),
        ("3 apples and 5 pears", "5"),
        ("$18", "18"),
        ("", None),
        ("none at all", None),
        ("-", None),
        ("\u0661\u0662", None),
    ],
)
def test_last_number_of_a_text(text: str, found: str | None) -> None:
    assert last_number(text) == (None if found is None else Decimal(found))


@pytest.mark.parametrize(
    ("completion", "answer", "right"),
    [
        ("It is 1,000.0", "1000", True),
        ("09", "9", True),
        ("9 is what I get, not 8", "9", False),
        ("-3", "3", False),
        ("no idea", "0", False),
        ("", "0", False),
        ("0.1 + 0.2 = 0.3", "0.3", True),
        ("10000000000000000000000000000001", "10000000000000000000000000000000", False),
    ],
)
def test_number_compares_the_last_number_exactly(completion: str, answer: str, right: bool) -> None:
    assert number(completion, answer) == float(right)


@given(value=st.decimals(allow_nan=False, allow_infinity=False, places=3), before=st.text(alphabet="abc =:.\n"))
def test_number_is_found_after_other_text(value: Decimal, before: str) -> None:
    assert last_number(f"{before} {value:f}") == value
    assert parse_number(f"{value:,f}") == value


@given(text=st.text(alphabet="0123456789,.-+ a\u2212", max_size=40))
def test_number_scorer_accepts_any_text(text: str) -> None:
    assert number(text, "5") in (0.0, 1.0)
    if (whole := parse_number(text)) is not None:
        assert last_number(text) == whole


@pytest.mark.parametrize("text", ["1" * 100_000, "1," * 50_000, "111," * 25_000 + "1111", "1." * 50_000, "-" * 100_000])
def test_long_text_is_searched_in_linear_time(text: str) -> None:
    # Quadratic time, 10**10 operations per search, would exceed the timeout of the test suite.
    for _ in range(5):
        last_number(text)


def test_exact_ignores_surrounding_white_space_only() -> None:
    assert exact(" B\n", "B") == 1.0
    assert exact("b", "B") == 0.0
    assert exact("B.", "B") == 0.0


@pytest.mark.parametrize(
    ("completion", "answer", "right"),
    [
        ("so it is $\\frac{1}{2}$", "\\frac{1}{2}", True),
        ("\\boxed{0.5}", "1/2", True),
        ("\\boxed{x^2 + 1}", "1+x^2", True),
        ("The answer is 42", "42", True),
        ("The answer is 41", "42", False),
        ("", "42", False),
        ("\\boxed{\\frac{}", "42", False),
    ],
)
def test_math_verify_accepts_equivalent_forms(completion: str, answer: str, right: bool) -> None:
    assert math_verify(completion, answer) == float(right)

"""Which number a completion gives as its answer, its exact value, and which answers are equal."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl.tasks.numbers import Number, final_number, parse_number
from rl.tasks.scorers import number

GSM8K_FORMS = [
    ("48/2 = 24, 48+24 = 72\n#### 72", "72"),
    ("#### 42\nThis is what 3 friends pay.", "42"),
    ("#### 42. I used 7 steps", "42"),
    ("#### 42 apples in 6 boxes", "42"),
    ("####42", "42"),
    ("####\n42", "42"),
    ("#### -5", "-5"),
    ("#### $1,080", "1080"),
    ("#### **1,080**", "1080"),
    ("#### \\boxed{18}", "18"),
    ("#### $\\boxed{18}$", "18"),
    ("#### \\(18\\)", "18"),
    ("#### 3.50 dollars", "3.5"),
    ("#### 8\nQuestion: two more?\n#### 9", "8"),
    ("#### Step one\n2 + 2 = 4\n#### 4", "4"),
    ("#### The sum\n5", "5"),
    ("\\boxed{7} is not it\n#### 8", "8"),
]
OTHER_ANCHORS = [
    ("\\boxed{42} after 3 tries", "42"),
    ("first \\boxed{1}, then \\boxed{2}; 9 lines", "2"),
    ("\\boxed{x = 5}, by rule 7", "5"),
    ("\\boxed{18 \\text{ apples in 2 boxes}}", "18"),
    ("\\boxed{\\frac{3}{4}} of 100", "3/4"),
    ("The answer is 42, since 6 x 7 = 42 and 7 > 6", "42"),
    ("The answer is 5, not 6.", "5"),
    ("**Answer:** 18 apples in 2 boxes", "18"),
    ("Answer: $18 (for 3 days)", "18"),
    ("Final answer:\n\n42\n\nHope this helps, 100 %!", "42"),
    ("The answer is 3 + 4 = 7.", "7"),
    ("The answer is x = 7. I checked 2 times", "7"),
    ("The answer is unknown, so 5", "5"),
]
PLAIN_FORMS = [
    ("The answer is 42.", "42"),
    ("7 - 3 = 4", "4"),
    ("x=-4", "-4"),
    ("x = - 4", "-4"),
    ("9-4", "4"),
    ("(3)-4", "4"),
    ("9 minus 4", "4"),
    ("+7", "7"),
    ("1,2", "2"),
    ("12,34", "34"),
    ("1,2345", "2345"),
    ("2 1000", "1000"),
    (".5", "0.5"),
    ("-.5", "-0.5"),
    ("3 apples and 5 pears", "5"),
    ("18 apples in 2 boxes", "18"),
    ("40 miles per 2 hours", "40"),
    ("3 days in 2 weeks, so 14", "14"),
    ("there are 4 in 2", "2"),
    ("12 cm^2", "12"),
    ("12 m\u00b2", "12"),
    ("x_1 = 5", "5"),
    ("5 liters of H2O", "5"),
    ("__42__", "42"),
    ("`42`", "42"),
    ("the total is\u20145", "5"),
    ("", None),
    ("none at all", None),
    ("-", None),
    ("\u0661\u0662", None),
    ("3/0", None),
    ("\\boxed{", None),
]
VALUES = [
    ("1e3", "1000"),
    ("1E+3", "1000"),
    ("5e-05", "0.00005"),
    ("1.5 x 10^3", "1500"),
    ("1.5\u00d710\u00b3", "1500"),
    ("1.5 \\times 10^{-2}", "0.015"),
    ("10^3", "1000"),
    ("2**10", "1024"),
    ("1,000", "1000"),
    ("1,234,567.50", "1234567.5"),
    ("1{,}000", "1000"),
    ("1\\,000", "1000"),
    ("1 000", "1000"),
    ("1 234 567", "1234567"),
    ("1\u2009000", "1000"),
    ("1\u202f000", "1000"),
    ("1\u00a0000", "1000"),
    ("1'000", "1000"),
    ("1\u2019000", "1000"),
    ("1_000", "1000"),
    ("1,00,000", "100000"),
    ("1.234,56", "1234.56"),
    ("1.234.567", "1234567"),
    ("-$5", "-5"),
    ("$-5", "-5"),
    ("\u2212$5", "-5"),
    ("$18", "18"),
    ("\\$18", "18"),
    ("US$18", "18"),
    ("\u20ac18", "18"),
    ("$5k", "5000"),
    ("\u22125", "-5"),
    ("\u20135", "-5"),
    ("\uff0d\uff15", "-5"),
    ("\uff11\uff12", "12"),
    ("negative 5", "-5"),
    ("3/4", "3/4"),
    ("-3/4", "-3/4"),
    ("1 3/4", "7/4"),
    ("\\frac{3}{4}", "3/4"),
    ("-\\dfrac{3}{4}", "-3/4"),
    ("\\frac34", "3/4"),
    ("1\\frac{3}{4}", "7/4"),
    ("\u00bd", "1/2"),
    ("1\u00bd", "3/2"),
    ("3\u20444", "3/4"),
    ("5 million", "5000000"),
    ("2.5 thousand", "2500"),
    ("$42$", "42"),
    ("007", "7"),
    ("42.000", "42"),
]


@pytest.mark.parametrize(("completion", "value"), GSM8K_FORMS)
def test_first_number_after_four_hashes_is_the_answer(completion: str, value: str) -> None:
    assert final_number(completion) == Number(Fraction(value))


@pytest.mark.parametrize(("completion", "value"), OTHER_ANCHORS)
def test_boxed_number_or_the_number_after_answer_counts_before_the_last_number(completion: str, value: str) -> None:
    assert final_number(completion) == Number(Fraction(value))


@pytest.mark.parametrize(("completion", "value"), PLAIN_FORMS)
def test_last_number_that_no_other_number_governs_is_the_answer(completion: str, value: str | None) -> None:
    assert final_number(completion) == (None if value is None else Number(Fraction(value)))


@pytest.mark.parametrize(("text", "value"), VALUES)
def test_value_of_a_number_is_read_exactly_alone_and_after_text(text: str, value: str) -> None:
    assert parse_number(text) == Number(Fraction(value))
    assert final_number(f"It is {text}.") == Number(Fraction(value))
    assert number(f"It took 9 steps.\n#### {text}\nin 7 of them", value) == 1.0


@pytest.mark.parametrize(
    ("completion", "answer", "right"),
    [
        ("-$5", "-5", True),
        ("-$5", "5", False),
        ("It is 1,000.0", "1000", True),
        ("09", "9", True),
        ("9 is what I get, not 8", "9", False),
        ("-3", "3", False),
        ("no idea", "0", False),
        ("", "0", False),
        ("0.1 + 0.2 = 0.3", "0.3", True),
        ("10000000000000000000000000000001", "10000000000000000000000000000000", False),
        ("25%", "25", True),
        ("25\\%", "0.25", True),
        ("25 percent", "25%", True),
        ("25", "25%", True),
        ("25%", "2.5", False),
        ("25%", "2500%", False),
        ("0.333", "1/3", False),
        ("\\frac{2}{6}", "1/3", True),
        ("#### 1e3", "1,000", True),
    ],
)
def test_number_compares_exactly_and_reads_percent_either_way(completion: str, answer: str, right: bool) -> None:
    assert number(completion, answer) == float(right)


@pytest.mark.parametrize("text", ["18 apples", "five", "", "3/0", "1 2", "5/12/2024", "1e", "12,34"])
def test_text_that_is_more_than_one_number_is_no_answer(text: str) -> None:
    assert parse_number(text) is None


@given(value=st.decimals(allow_nan=False, allow_infinity=False, places=3), before=st.text(alphabet="abc =:.\n"))
def test_number_is_found_after_other_text(value: Decimal, before: str) -> None:
    assert final_number(f"{before} {value:f}") == Number(value)
    assert parse_number(f"{value:,f}") == Number(value)


@given(text=st.text(alphabet="0123456789,.-+ a\u2212", max_size=40))
def test_number_scorer_accepts_any_text(text: str) -> None:
    assert number(text, "5") in (0.0, 1.0)
    if (whole := parse_number(text)) is not None:
        assert final_number(text) == whole


@given(text=st.text(alphabet="0123456789,.-+ a#\\boxed{}^_$%/'eExk\u00d7\u00bd\u00b2\nanswer:=", max_size=60))
def test_number_scorer_never_raises(text: str) -> None:
    assert number(text, "5") in (0.0, 1.0)
    assert number("5", text) in (0.0, 1.0)


@pytest.mark.parametrize(
    "text",
    [
        "1" * 100_000,
        "1," * 50_000,
        "111," * 25_000 + "1111",
        "111 " * 25_000 + "1111",
        "1." * 50_000,
        "1.111" * 20_000,
        "1/" * 50_000,
        "-" * 100_000,
        "1 a in " * 15_000,
        "#### " * 20_000,
        "\\boxed{" * 15_000,
        "answer " * 15_000,
        "= " * 50_000,
        "1 + " * 25_000 + "=",
        "\\frac" * 20_000,
        "negative " * 10_000,
    ],
)
def test_long_text_is_searched_in_linear_time(text: str) -> None:
    # Quadratic time, 10**10 operations per search, would exceed the timeout of the test suite.
    for _ in range(5):
        final_number(text)

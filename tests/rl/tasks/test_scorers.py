"""Which completions the scorers accept."""

from __future__ import annotations

import pytest

from rl.tasks.scorers import exact, math_verify


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

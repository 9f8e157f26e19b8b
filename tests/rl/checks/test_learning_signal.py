"""What the base model's samples say about learning, on made-up counts."""

from __future__ import annotations

import itertools
import math

import pytest

from rl.checks.learning_signal import (
    SampledGroup,
    check_base_accuracy,
    check_learning_signal,
    share_that_teaches,
    smallest_difference,
)
from rl.spec import QuestionResult


def results(right: int, questions: int) -> list[QuestionResult]:
    return [QuestionResult(str(i), int(i < right), 1) for i in range(questions)]


def test_the_share_that_teaches_is_that_of_all_outcomes_with_right_and_wrong_answers() -> None:
    p, size = 0.3, 4
    outcomes = itertools.product((0, 1), repeat=size)
    expected = sum(math.prod(p if x else 1 - p for x in o) for o in outcomes if 0 < sum(o) < size)
    assert share_that_teaches([p], size) == pytest.approx(expected)
    assert share_that_teaches([0.0, 1.0, 0.5], 2) == pytest.approx(0.5 / 3)


def test_four_times_the_questions_see_half_the_difference() -> None:
    assert smallest_difference(0.5, 400) == pytest.approx(smallest_difference(0.5, 100) / 2, rel=0.01)
    assert smallest_difference(0.5, 1000) == pytest.approx(1.96 * math.sqrt(2 * 0.25 / 1000))
    assert smallest_difference(0.0, 64) > 0


def test_base_accuracy_prints_headroom_and_the_difference_that_can_be_seen() -> None:
    result = check_base_accuracy(results(82, 200), truncated=0.1, all_questions=200)
    assert result.status == "passed"
    assert "Base 0.41" in result.seen
    assert "headroom 0.59" in result.seen
    assert "differences of 0.10 or more" in result.seen
    part = check_base_accuracy(results(82, 200), truncated=0.1, all_questions=1000)
    assert "measured on 200 of 1000 questions" in part.seen
    assert "differences of 0.04 or more" in part.seen


@pytest.mark.parametrize(
    ("right", "truncated", "remedy"),
    [(100, 0.7, "max_completion_tokens"), (198, 0.0, "harder questions"), (0, 0.0, "easier questions")],
)
def test_base_accuracy_warns(right: int, truncated: float, remedy: str) -> None:
    result = check_base_accuracy(results(right, 200), truncated, 200)
    assert result.status == "warned"
    assert remedy in result.remedy


def a_group(correct: tuple[float, ...], form: tuple[float, ...] = (0, 0)) -> SampledGroup:
    return SampledGroup(correct, tuple(c + 0.1 * f for c, f in zip(correct, form, strict=True)))


def test_groups_that_teach_and_phantom_credit_are_counted() -> None:
    groups = [a_group((1, 0)), a_group((1, 0)), a_group((0, 0), (1, 0)), a_group((0, 0)), a_group((1, 1), (1, 1))]
    result = check_learning_signal(groups, 2)
    assert result.status == "passed"
    assert "rewards differ in 3, correctness in 2 (40%" in result.seen
    assert "2 have no spread" in result.seen
    assert "Phantom credit in 1" in result.seen


def test_a_gradient_of_phantom_credit_and_none_at_all_are_warnings() -> None:
    phantom = check_learning_signal([a_group((0, 0), (1, 0))] * 3 + [a_group((1, 0))], 2)
    assert phantom.status == "warned"
    assert "algorithm.zero_variance_of=accuracy" in phantom.remedy
    nothing = check_learning_signal([a_group((0, 0))] * 4, 2)
    assert nothing.status == "warned"
    assert "search.group_size" in nothing.remedy

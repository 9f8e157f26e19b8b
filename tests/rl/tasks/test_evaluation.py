"""Accuracy with intervals clustered by question, unbiased pass@k, and paired differences."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl.spec import QuestionResult
from rl.tasks.evaluation import average_at_k, paired_difference, pass_at_k


def results(*counts: tuple[int, int]) -> list[QuestionResult]:
    return [QuestionResult(f"q{i}", correct, samples) for i, (correct, samples) in enumerate(counts)]


counted = st.integers(1, 8).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
evaluations = st.lists(counted, min_size=1, max_size=40).map(lambda c: results(*c))


# -- avg@k ------------------------------------------------------------------------------------------------------------


def test_every_question_has_the_same_weight_whatever_its_number_of_samples() -> None:
    assert average_at_k(results((1, 1), (0, 9))).value == 0.5


def test_interval_has_the_value_computed_by_hand() -> None:
    # p_i = 1, 1, 1/2, 0: p = 5/8, s = sd / sqrt(4) = 0.4787 / 2, n = p(1-p)/s^2 = 4.0909, t(3 df) = 3.18245.
    got = average_at_k(results((2, 2), (2, 2), (1, 2), (0, 2)))
    p, t = 0.625, 3.182446305
    n = p * (1 - p) / (sum((x - p) ** 2 for x in (1, 1, 0.5, 0)) / 3 / 4)
    centre, half = p + t * t / (2 * n), t * math.sqrt(p * (1 - p) / n + t * t / (4 * n * n))
    assert got.value == 0.625
    assert got.low == pytest.approx((centre - half) / (1 + t * t / n), rel=1e-8)
    assert got.high == pytest.approx((centre + half) / (1 + t * t / n), rel=1e-8)


def test_equal_samples_of_a_question_do_not_narrow_the_interval() -> None:
    once = average_at_k(results(*[(1, 1)] * 32, *[(0, 1)] * 32))
    alike = average_at_k(results(*[(8, 8)] * 32, *[(0, 8)] * 32))
    assert (alike.low, alike.high) == (once.low, once.high)
    spread = average_at_k(results(*[(5, 8)] * 32, *[(3, 8)] * 32))
    assert spread.high - spread.low < 0.5 * (once.high - once.low)


@pytest.mark.parametrize(
    ("counts", "low", "high"),
    [
        ([(4, 4)] * 64, 0.9413, 1.0),
        ([(0, 4)] * 64, 0.0, 0.0587),
        ([(1, 1)], 0.2065, 1.0),
        ([(0, 1)], 0.0, 0.7935),
    ],
)
def test_interval_has_a_width_if_all_are_right_all_wrong_or_there_is_one_question(
    counts: list[tuple[int, int]], low: float, high: float
) -> None:
    got = average_at_k(results(*counts))
    assert got.low == pytest.approx(low, abs=1e-4)
    assert got.high == pytest.approx(high, abs=1e-4)


def test_questions_with_equal_shares_get_the_interval_of_one_sample_per_question() -> None:
    got = average_at_k(results(*[(2, 4)] * 16))
    assert got.value == 0.5
    assert got.high - got.low == pytest.approx(2 * 2.1314 * math.sqrt(0.25 / 16 / (1 + 2.1314**2 / 16)), rel=1e-3)


@given(evaluation=evaluations)
def test_interval_contains_its_value_and_lies_in_zero_to_one(evaluation: list[QuestionResult]) -> None:
    got = average_at_k(evaluation)
    assert 0.0 <= got.low <= got.value <= got.high <= 1.0
    assert got.high - got.low > 0.0
    assert got.questions == len(evaluation)


@given(evaluation=evaluations, seed=st.integers(0, 1000))
def test_order_of_the_questions_does_not_matter(evaluation: list[QuestionResult], seed: int) -> None:
    shuffled = random.Random(seed).sample(evaluation, len(evaluation))
    one, other = average_at_k(evaluation), average_at_k(shuffled)
    assert (one.value, one.low, one.high) == pytest.approx((other.value, other.low, other.high), rel=1e-12)


@given(evaluation=evaluations)
def test_swapping_right_and_wrong_mirrors_the_interval(evaluation: list[QuestionResult]) -> None:
    mirrored = average_at_k([QuestionResult(r.question_id, r.samples - r.correct, r.samples) for r in evaluation])
    got = average_at_k(evaluation)
    assert (mirrored.low, mirrored.high) == pytest.approx((1 - got.high, 1 - got.low), abs=1e-9)


@pytest.mark.parametrize(("questions", "samples", "accuracy"), [(64, 1, 0.5), (64, 4, 0.1), (64, 4, 0.9), (24, 8, 0.5)])
def test_interval_covers_the_true_accuracy_about_as_often_as_its_confidence(
    questions: int, samples: int, accuracy: float
) -> None:
    rng = random.Random(0)
    covered = 0
    for _ in range(600):
        chances = [rng.betavariate(2 * accuracy, 2 * (1 - accuracy)) for _ in range(questions)]
        counts = [(sum(rng.random() < p for _ in range(samples)), samples) for p in chances]
        got = average_at_k(results(*counts))
        covered += got.low <= accuracy <= got.high
    assert 0.92 <= covered / 600 <= 0.99


# -- pass@k -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("correct", "samples", "k", "chance"),
    [
        (1, 4, 4, 1.0),
        (1, 4, 1, 0.25),
        (1, 4, 2, 0.5),
        (2, 4, 2, 5 / 6),
        (0, 4, 4, 0.0),
        (4, 4, 1, 1.0),
        (3, 10, 5, 11 / 12),
    ],
)
def test_pass_at_k_is_the_unbiased_estimate(correct: int, samples: int, k: int, chance: float) -> None:
    assert pass_at_k(results((correct, samples)), k).value == pytest.approx(chance, rel=1e-15)


@given(counted=counted, data=st.data())
def test_pass_at_k_equals_counting_all_subsets(counted: tuple[int, int], data: st.DataObject) -> None:
    correct, samples = counted
    k = data.draw(st.integers(1, samples))
    subsets = list(itertools.combinations([True] * correct + [False] * (samples - correct), k))
    expected = Fraction(sum(any(s) for s in subsets), len(subsets))
    assert pass_at_k(results(counted), k).value == pytest.approx(float(expected), abs=1e-12)


def test_pass_at_k_is_exact_for_many_samples() -> None:
    got = pass_at_k(results((1, 2000)), 1000).value
    assert got == pytest.approx(0.5, rel=1e-12)


def test_pass_at_one_is_the_accuracy() -> None:
    counts = results((1, 4), (3, 4), (0, 4))
    assert pass_at_k(counts, 1).value == pytest.approx(average_at_k(counts).value)


@pytest.mark.parametrize("k", [0, 5])
def test_k_outside_of_the_number_of_samples_is_refused(k: int) -> None:
    with pytest.raises(ValueError, match=rf"pass@{k} needs k from 1 to .* which is 4"):
        pass_at_k(results((1, 4), (1, 8)), k)


# -- paired -----------------------------------------------------------------------------------------------------------


def test_paired_difference_has_the_value_computed_by_hand() -> None:
    # d = 1, 0, 1/2, 1/2: mean 1/2, sd 0.40825, s 0.20412, t(3 df) 3.18245.
    got = paired_difference(results((0, 2), (1, 2), (0, 2), (1, 2)), results((2, 2), (1, 2), (1, 2), (2, 2)))
    assert got.value == 0.5
    assert got.low == pytest.approx(0.5 - 3.182446305 * math.sqrt(1 / 24), rel=1e-8)
    assert got.high == 1.0


def test_paired_difference_resolves_a_gain_where_the_two_intervals_overlap() -> None:
    before = results(*[(8, 8)] * 40, *[(0, 8)] * 30, *[(2, 8)] * 30)
    after = results(*[(8, 8)] * 40, *[(0, 8)] * 30, *[(4, 8)] * 30)
    one, other = average_at_k(before), average_at_k(after)
    assert one.high > other.low
    assert paired_difference(before, after).low > 0.0


def test_questions_are_paired_by_id_not_by_position() -> None:
    before = results((0, 1), (1, 1), (1, 1))
    assert paired_difference(before, before[::-1]).value == 0.0


def test_interval_has_a_width_if_no_question_differs() -> None:
    same = results(*[(1, 1)] * 40, *[(0, 1)] * 24)
    got = paired_difference(same, same)
    assert got.value == 0.0
    assert got.high == -got.low == pytest.approx(0.0587, abs=1e-4)


def test_interval_has_a_width_if_all_questions_gain_equally() -> None:
    got = paired_difference(results(*[(0, 1)] * 64), results(*[(1, 1)] * 64))
    assert (got.value, got.high) == (1.0, 1.0)
    assert got.low == pytest.approx(1 - 2 * 0.0587, abs=2e-4)


@given(pairs=st.lists(st.tuples(counted, counted), min_size=1, max_size=30))
def test_swapping_the_two_evaluations_negates_the_interval(
    pairs: list[tuple[tuple[int, int], tuple[int, int]]],
) -> None:
    before, after = results(*[a for a, _ in pairs]), results(*[b for _, b in pairs])
    forth, back = paired_difference(before, after), paired_difference(after, before)
    assert (forth.low, forth.high) == pytest.approx((-back.high, -back.low), abs=1e-12)
    assert -1.0 <= forth.low <= forth.value <= forth.high <= 1.0


def test_evaluations_with_different_questions_are_refused() -> None:
    with pytest.raises(ValueError, match="1 are only in the first evaluation, 0 only in the second, 1 in both"):
        paired_difference(results((0, 1), (1, 1)), results((0, 1)))


# -- invalid results --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([], "without questions has no accuracy"),
        (results((2, 1)), "2 right of 1 samples"),
        (results((-1, 1)), "-1 right of 1 samples"),
        (results((0, 0)), "0 right of 0 samples"),
        (results((1, 1)) * 2, "more than once"),
    ],
)
def test_impossible_counts_are_refused(bad: list[QuestionResult], message: str) -> None:
    for statistic in (average_at_k, lambda r: pass_at_k(r, 1), lambda r: paired_difference(r, r)):
        with pytest.raises(ValueError, match=message):
            statistic(bad)

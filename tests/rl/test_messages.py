"""The arithmetic of messages: means as sums and counts, curves over updates, and the accuracy of an evaluation.

That messages are unchanged by JSON is tested in test_codec.py.
"""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl.messages import (
    Curves,
    EvalReport,
    Finished,
    Mean,
    QuestionResult,
    Stop,
    StopKind,
    UpdateCurves,
    mean_accuracy,
)
from rl.tasks.evaluation import average_at_k

UPDATE = UpdateCurves(
    ratio=Mean(4.0, 4.0),
    ratio_min=1.0,
    ratio_max=1.0,
    clip_low=None,
    clip_high=None,
    approx_kl=Mean(0.0, 4.0),
    kl=None,
    entropy=Mean(2.0, 4.0),
    grad_norm=1.0,
    loss=0.0,
    lr=1e-5,
)
NOTHING = Mean.EMPTY


def curves(*updates: UpdateCurves) -> Curves:
    return Curves(
        *(NOTHING, NOTHING, {}, NOTHING, NOTHING, 0, 0, NOTHING, NOTHING, updates, NOTHING, NOTHING, 0.0, NOTHING)
    )


def test_means_add_up_as_sums_and_counts() -> None:
    total = Mean(1.0, 4.0) + Mean(3.0, 1.0)
    assert total == Mean(4.0, 5.0)
    assert total.value == 0.8


def test_mean_of_nothing_is_undefined_not_zero() -> None:
    assert Mean.EMPTY.value is None
    assert (Mean.EMPTY + Mean(0.0, 2.0)).value == 0.0


def test_clip_fraction_is_the_sum_of_low_and_high_over_the_same_tokens() -> None:
    update = dataclasses.replace(UPDATE, clip_low=Mean(1.0, 4.0), clip_high=Mean(2.0, 4.0))
    assert update.clip_frac == Mean(3.0, 4.0)
    assert UPDATE.clip_frac is None


def test_clip_fraction_of_a_step_is_that_of_its_last_update() -> None:
    last = dataclasses.replace(UPDATE, clip_low=Mean(0.0, 4.0), clip_high=Mean(1.0, 4.0))
    assert curves(UPDATE, last).clip_frac == Mean(1.0, 4.0)
    assert curves(last, UPDATE).clip_frac is None
    assert curves().clip_frac is None


def test_curve_over_updates_is_summed_where_it_is_defined() -> None:
    with_kl = dataclasses.replace(UPDATE, kl=Mean(1.0, 4.0), entropy=Mean(6.0, 4.0))
    assert curves(UPDATE, with_kl).over_updates("entropy") == Mean(8.0, 8.0)
    assert curves(UPDATE, with_kl).over_updates("kl") == Mean(1.0, 4.0)
    assert curves(UPDATE).over_updates("kl") is None
    assert curves().over_updates("entropy") is None


def test_accuracy_weighs_every_question_equally() -> None:
    results = (QuestionResult("a", 1, 1), QuestionResult("b", 0, 9))
    assert mean_accuracy(results) == 0.5
    assert EvalReport(0, 0, 1, {}, results, NOTHING, NOTHING).accuracy == 0.5


@pytest.mark.parametrize("results", [(), (QuestionResult("a", 0, 0),)])
def test_accuracy_without_samples_is_undefined(results: tuple[QuestionResult, ...]) -> None:
    assert mean_accuracy(results) is None


counted = st.integers(1, 8).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(counts=st.lists(counted, min_size=1, max_size=30))
def test_accuracy_equals_the_value_of_its_interval_estimate(counts: list[tuple[int, int]]) -> None:
    results = [QuestionResult(f"q{i}", *count) for i, count in enumerate(counts)]
    assert mean_accuracy(results) == average_at_k(results).value


def test_finished_is_completed_unless_a_command_stopped_the_attempt() -> None:
    assert Finished(4, 4).completed
    assert not Finished(2, 2, Stop(StopKind.PRUNED)).completed

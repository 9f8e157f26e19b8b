"""Intervals between checkpoints against values computed by hand from the papers' formulas."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost.forecast.checkpoint_interval import checkpoint_every_steps, daly_seconds, overhead_share, young_seconds
from cost.forecast.sampling import ForecastError


def test_youngs_interval_of_a_minute_and_a_day() -> None:
    # sqrt(2 x 60 x 86,400) = sqrt(10,368,000)
    assert young_seconds(60.0, 86_400.0) == pytest.approx(3_219.938)


def test_dalys_interval_of_a_minute_and_a_day() -> None:
    # 3,219.938 x (1 + sqrt(60 / 172,800) / 3 + 60 / 172,800 / 9) - 60
    assert daly_seconds(60.0, 86_400.0) == pytest.approx(
        3_219.938 * (1 + 0.0186339 / 3 + 0.000347222 / 9) - 60, abs=0.01
    )


def test_daly_falls_back_to_the_time_between_preemptions() -> None:
    assert daly_seconds(200.0, 100.0) == 100.0


def test_steps_are_the_interval_over_the_step() -> None:
    # One preemption a day, a minute a checkpoint, 30 s a step: 3,180.1 s are 106 steps.
    assert checkpoint_every_steps(30.0, 60.0, 1 / 24, steps=1_000) == 106
    assert checkpoint_every_steps(30.0, 60.0, 1 / 24, steps=50) == 50


def test_without_preemptions_only_the_last_step_is_kept() -> None:
    assert checkpoint_every_steps(30.0, 60.0, 0.0, steps=200) == 200


def test_a_free_checkpoint_is_written_at_every_step() -> None:
    assert checkpoint_every_steps(30.0, 0.0, 0.5, steps=200) == 1


@pytest.mark.parametrize(
    "values", [(-1.0, 60.0, 0.1, 10), (30.0, -1.0, 0.1, 10), (30.0, 60.0, -0.1, 10), (30.0, 60.0, 0.1, 0)]
)
def test_impossible_inputs_are_refused(values: tuple[float, float, float, int]) -> None:
    with pytest.raises(ForecastError):
        checkpoint_every_steps(*values)


@settings(max_examples=200)
@given(st.floats(1.0, 600.0), st.floats(3_600.0, 1e6))
def test_youngs_interval_has_the_least_overhead_without_the_checkpoints_own_loss(
    checkpoint: float, mean: float
) -> None:
    best = young_seconds(checkpoint, mean)
    least = overhead_share(best, checkpoint, mean)
    assert least <= overhead_share(best * 1.1, checkpoint, mean)
    assert least <= overhead_share(best / 1.1, checkpoint, mean)


@settings(max_examples=200)
@given(st.floats(0.01, 2.0), st.floats(0.01, 2.0))
def test_more_preemptions_never_mean_rarer_checkpoints(a: float, b: float) -> None:
    rare, frequent = sorted((a, b))
    assert checkpoint_every_steps(5.0, 20.0, frequent, 10**6) <= checkpoint_every_steps(5.0, 20.0, rare, 10**6)


def test_overhead_is_checkpoints_and_half_an_interval_of_lost_work() -> None:
    assert overhead_share(600.0, 60.0, 36_000.0) == pytest.approx(0.1 + 660 / 2 / 36_000)
    assert math.isclose(overhead_share(1e9, 1e-9, 1e15), 5e-7, rel_tol=1e-6)

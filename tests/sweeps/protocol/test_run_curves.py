"""Rows, steps and completions of a run: what is missing stays missing."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sweeps.protocol.run_curves import PART, Evaluation, RunCurves, is_curve
from sweeps.protocol.windows import RollingWindow, change, first_window, in_noise, last_window, noise_of, windows
from tests.sweeps.protocol.curves import a_run, curve, merged


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"steps": (1, 1), "curves": {}}, "steps must increase"),
        ({"steps": (2, 1), "curves": {}}, "steps must increase"),
        ({"steps": (1, 2), "curves": {"reward": (0.1,)}}, "1 values for 2 rows"),
        ({"steps": (1,), "curves": {"rewrad": (0.1,)}}, "unknown curve 'rewrad'"),
        ({"steps": (1,), "curves": {}, "completions": (1, 2)}, "completions has 2 values"),
        ({"steps": (1,), "curves": {}, "rows_are_means_of": 0}, "at least one step"),
        ({"steps": (), "curves": {}, "evaluations": (Evaluation(2, 0.1, 9), Evaluation(1, 0.1, 9))}, "order of their"),
    ],
)
def test_an_inconsistent_run_is_refused(broken: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RunCurves(**broken)


def test_a_missing_curve_has_no_values_and_nan_is_no_value() -> None:
    run = a_run(3, reward=[0.1, math.nan, None], kl=[None, None, None])
    assert run.values("reward") == (0.1, None, None)
    assert run.values("entropy") == (None, None, None)
    assert run.has("reward")
    assert not run.has("kl")
    assert not run.has("entropy")


def test_values_that_are_not_finite_are_counted_per_row() -> None:
    run = a_run(4, reward=[0.1, math.nan, None, 0.2], grad_norm=[1.0, math.inf, None, 1.0])
    assert run.values("nonfinite_values") == (0.0, 2.0, None, 0.0)


def test_rows_that_are_means_cover_their_steps_and_completions() -> None:
    run = merged(a_run(20, reward=0.5), 5)
    assert run.row_steps() == (5, 5, 5, 5)
    assert run.row_completions() == (320, 320, 320, 320)


def test_a_log_that_shows_every_tenth_step_covers_single_steps() -> None:
    run = RunCurves((10, 20, 30), {"reward": (0.1, 0.2, 0.3)}, (80, 160, 240))
    assert run.row_steps() == (1, 1, 1)
    assert run.row_completions() == (8, 8, 8)


def test_unknown_completions_stay_unknown() -> None:
    run = RunCurves((1, 2), {"reward": (0.1, 0.2)})
    assert run.row_completions() == (None, None)


def test_head_and_after_split_a_run_in_two() -> None:
    run = a_run(10, reward=[i / 10 for i in range(10)])
    assert run.head(4).steps + run.after(4).steps == run.steps
    assert run.after(4).row_completions() == (64,) * 6
    assert run.head(99) == run


def test_reward_functions_are_curves_with_a_prefix() -> None:
    assert is_curve(PART + "format")
    assert not is_curve(PART)
    curves: dict[str, Any] = {PART + "format": 0.5}
    with_part = a_run(2, **curves)
    assert with_part.parts() == (PART + "format",)


# ---------------------------------------------------------------------------------------------------------------------
# Windows
# ---------------------------------------------------------------------------------------------------------------------


def test_a_window_covers_the_steps_and_the_completions_that_it_was_asked_for() -> None:
    run = a_run(100, completions_per_step=4, reward=0.5)
    by_steps, by_completions = windows(run, "reward", 20)[0], windows(run, "reward", 20, 120)[0]
    assert (by_steps.first_step, by_steps.last_step, by_steps.completions) == (1, 20, 80)
    assert (by_completions.first_step, by_completions.last_step, by_completions.completions) == (1, 30, 120)


def test_the_same_window_whatever_the_rows_are_means_of() -> None:
    run = a_run(100, reward=lambda t: t)
    fine = {w.last_step: w.mean for w in windows(run, "reward", 20)}
    for coarse in windows(merged(run, 5), "reward", 20):
        assert coarse.mean == pytest.approx(fine[coarse.last_step])


def test_rows_without_a_value_do_not_fill_a_window() -> None:
    run = a_run(40, acc=[0.5 if i % 4 == 0 else None for i in range(40)])
    found = windows(run, "acc", 10)
    assert [w.rows for w in found] == [10]
    assert (found[0].first_step, found[0].last_step) == (1, 37)


def test_unknown_completions_never_reach_a_number() -> None:
    rolling = RollingWindow(2, completions=10)
    assert [rolling.add(step, 1, None, 0.5) for step in (1, 2, 3)] == [None, None, None]
    assert "an unknown number of 10 completions" in rolling.coverage


def test_first_and_last_window_are_those_of_the_series() -> None:
    run = a_run(100, completions_per_step=7, reward=curve(0.5, 100, noise=0.1))
    series = windows(run, "reward", 20, 200)
    assert first_window(run, "reward", 20, 200) == series[0]
    assert last_window(run, "reward", 20, 200) == series[-1]
    assert last_window(run.head(5), "reward", 20, 200) is None


@pytest.mark.parametrize("slope", [0.0, 0.002])
def test_noise_is_that_of_one_row_with_and_without_a_trend(slope: float) -> None:
    values = [v + slope * i for i, v in enumerate(curve(0.5, 2000, noise=0.1))]
    assert noise_of(values) == pytest.approx(0.1, rel=0.05)


def test_noise_needs_four_rows() -> None:
    assert noise_of([0.1, 0.2, 0.1]) is None
    assert noise_of([0.1, 0.2, 0.1, 0.2]) is not None


def test_a_difference_without_noise_is_infinitely_clear() -> None:
    run = a_run(40, reward=[0.5] * 40)
    window = windows(run, "reward", 20)[0]
    assert in_noise(0.1, 0.0, window, window) == math.inf
    assert in_noise(0.0, 0.0, window, window) == 0.0
    assert in_noise(0.1, None, window, window) is None


def test_change_is_small_for_noise_and_large_for_a_trend() -> None:
    still = [change(a_run(200, reward=curve(0.5, 200, noise=0.1, seed=s)), "reward", 20) for s in range(40)]
    assert sum(abs(c.noise_units) < 3.0 for c in still if c is not None) >= 38
    rising = change(a_run(200, reward=curve(lambda t: 0.3 + 0.3 * t, noise=0.1)), "reward", 20)
    assert rising is not None
    assert rising.noise_units > 5.0
    assert rising.difference == pytest.approx(0.24, abs=0.05)


def test_change_counts_noise_that_lasts_for_many_rows() -> None:
    """Blocks of 20 equal rows: 200 rows are as good as 10."""
    blocks = curve(0.5, 10, noise=0.1, seed=3)
    run = a_run(200, reward=[blocks[i // 20] for i in range(200)])
    found = change(run, "reward", 20)
    assert found is not None
    assert abs(found.noise_units) < 3.0


def test_change_needs_two_windows() -> None:
    assert change(a_run(39, reward=curve(0.5, 39, noise=0.1)), "reward", 20) is None
    assert change(a_run(40, reward=curve(0.5, 40, noise=0.1)), "reward", 20) is not None

"""What is fitted from measured steps: lines by phase, incidents, trends, time outside of steps, refusals."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from cost.forecast.measured_run import OffStep
from cost.forecast.sampling import ForecastError
from cost.forecast.step_profile import fit_line, fit_profile
from tests.cost.forecast.runs import ns, run, step


def sized(completions: int, *, cards: int = 1, first: int = 1, steps: int = 10):
    """Steps with 2.5 s + 0.015 s per completion and card of sampling, 0.2 s + 0.075 s of training."""
    work = completions / cards
    return run(
        [
            step(i, prompts=completions // 8, completions=completions, cards=cards,
                 rollout=2.5 + 0.015 * work, train=0.2 + 0.075 * work)
            for i in range(first, first + steps)
        ]
    )  # fmt: skip


def test_two_sizes_give_the_line_of_each_phase() -> None:
    profile = fit_profile([sized(32), sized(128)])
    rollout, train = profile.line("rollout"), profile.line("train")
    assert (rollout.constant_seconds, rollout.seconds_per_completion) == pytest.approx((2.5, 0.015))
    assert (train.constant_seconds, train.seconds_per_completion) == pytest.approx((0.2, 0.075))
    assert rollout.basis == train.basis == "measured"


def test_sizes_on_other_cards_share_the_line_by_completions_per_card() -> None:
    line = fit_profile([sized(64, cards=1), sized(512, cards=2)]).line("train")
    assert (line.constant_seconds, line.seconds_per_completion) == pytest.approx((0.2, 0.075))


def test_one_size_splits_the_phase_by_a_prior_and_marks_it() -> None:
    line = fit_profile([run(20)]).line("rollout")
    assert line.basis == "prior"
    # 3 s at 64 completions, of which 150 / (150 + 64) are the constant.
    assert line.constant_seconds == pytest.approx(3.0 * 150 / 214)
    assert line.constant_seconds + 64 * line.seconds_per_completion == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([2.0, 3.0], (1.0, 1.0)),
        # A falling line becomes a constant, a line below 0 at no completions goes through 0.
        ([3.0, 2.0], (2.5, 0.0)),
        ([1.0, 4.0], (0.0, 1.8)),
    ],
)
def test_a_line_has_no_negative_constant_or_slope(seconds: list[float], expected: tuple[float, float]) -> None:
    assert fit_line([1.0, 2.0], seconds, [1.0, 1.0]) == pytest.approx(expected)


def test_four_steps_are_refused_with_the_number_that_is_missing() -> None:
    with pytest.raises(ForecastError, match=r"usable: 4 steps\. A profile needs at least 5: measure 1 more"):
        fit_profile([run(4)])


def test_left_out_steps_are_named_in_the_refusal() -> None:
    seconds = [90.0, 10.0, 10.0, 10.1, 10.0]
    with pytest.raises(ForecastError, match="1 left out: warm-up"):
        fit_profile([run([step(i, rollout=s) for i, s in enumerate(seconds, start=1)])])


def test_no_run_is_refused() -> None:
    with pytest.raises(ForecastError, match="no run"):
        fit_profile([])


@pytest.mark.parametrize(
    "change",
    [{"trainer": "verl"}, {"model": "Qwen3-8B"}, {"task": "math"}, {"card_type": "A100"}, {"asynchronous": True}],
)
def test_runs_that_differ_in_what_sets_their_time_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ForecastError, match=f"different {next(iter(change))} cannot share"):
        fit_profile([run(20), run(20, **change)])


def test_a_single_outlier_is_an_incident_and_moves_no_mean() -> None:
    seconds = [8.0] * 19 + [400.0]
    profile = fit_profile([run([step(i, rollout=s) for i, s in enumerate(seconds, start=1)])])
    assert profile.levels[0].seconds == pytest.approx(8.0)
    assert [dict(i) for i in profile.incidents] == [{"rollout": pytest.approx(392.0)}]
    assert profile.steps == 20


def test_frequent_slow_steps_stay_in_the_spread() -> None:
    seconds = [8.0, 8.0, 8.0, 40.0] * 5
    profile = fit_profile([run([step(i, rollout=s) for i, s in enumerate(seconds, start=1)])])
    assert profile.incidents == ()
    assert max(profile.residuals) == pytest.approx(40.0 / 16.0)


def test_the_mean_error_is_students_for_few_steps() -> None:
    profile = fit_profile([run([step(i, rollout=s) for i, s in enumerate([9.0, 11.0] * 5, start=1)])])
    # Relative spread sqrt(10 * 0.01 / 9), over sqrt(10), times sqrt(9 / 7) for the heavier tails of 9 degrees.
    expected = math.sqrt(0.1 / 9) / math.sqrt(10) * math.sqrt(9 / 7)
    assert profile.levels[0].phase_error["rollout"] == pytest.approx(expected)


def test_growing_completions_are_a_trend_of_tokens() -> None:
    lengths = [100.0 * math.exp(0.05 * math.sqrt(i)) for i in range(1, 21)]
    steps = [replace(step(i), tokens=round(64 * length)) for i, length in enumerate(lengths, start=1)]
    trend = fit_profile([run(steps)]).trend
    assert trend.of == "tokens"
    assert trend.slope == pytest.approx(0.05, rel=1e-2)
    assert trend.centre == pytest.approx(sum(math.sqrt(i) for i in range(1, 21)) / 20)


def test_a_step_without_tokens_makes_the_trend_one_of_seconds() -> None:
    steps = [replace(step(i), tokens=6400 if i > 1 else None) for i in range(1, 21)]
    trend = fit_profile([run(steps)]).trend
    assert (trend.of, trend.mean_tokens) == ("seconds", None)


def test_off_step_time_is_kept_apart_by_kind() -> None:
    measured = replace(
        run(20),
        off_steps=(
            OffStep("start", ns(30)),
            OffStep("model_load", ns(12)),
            OffStep("evaluation", ns(20)),
            OffStep("evaluation", ns(24)),
            OffStep("checkpoint", ns(5)),
        ),
        elapsed_ns=ns(20 * 8 + 30 + 12 + 44 + 5 + 9),
    )
    profile = fit_profile([measured])
    found = {fit.kind: (fit.seconds, fit.observations) for fit in profile.off_steps}
    assert found == {
        "start": (30.0, 1),
        "model_load": (12.0, 1),
        "evaluation": (22.0, 2),
        "checkpoint": (5.0, 1),
        "other": (pytest.approx(9.0), 1),
    }


def test_unexplained_time_of_runs_of_two_lengths_shows_how_it_grows() -> None:
    short = run(10, off_steps={}, elapsed_ns=ns(80 + 12))
    long = run(50, off_steps={}, elapsed_ns=ns(400 + 20))
    other = fit_profile([short, long]).off_step("other")
    assert other is not None
    assert other.seconds_per_step == pytest.approx(8.0 / 40.0)


def test_what_warm_up_takes_above_a_usual_step_is_off_step_time() -> None:
    seconds = [60.0, *[10.0, 10.1, 9.9] * 6]
    profile = fit_profile([run([step(i, rollout=s) for i, s in enumerate(seconds, start=1)])])
    warm_up = profile.off_step("warm_up")
    assert warm_up is not None
    assert warm_up.seconds == pytest.approx(50.0)
    assert profile.notes == ("1 step left out: warm-up",)

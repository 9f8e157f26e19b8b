"""What a rule finds on a trial: with a constant, with the trial's own windows, in noise, and when it abstains."""

from __future__ import annotations

import math

import pytest

from sweeps.protocol.gate_rules import (
    Constant,
    NoiseFromOwn,
    Rule,
    RuleProgress,
    Severity,
    TimesOwn,
    aggregate,
    first_stop,
    judge,
    over_trials,
)
from sweeps.protocol.run_curves import Row
from sweeps.protocol.windows import Window
from tests.sweeps.protocol.curves import a_run, collapsing, curve, merged


def a_rule(**changes) -> Rule:
    fields = {
        "name": "test",
        "curve": "reward",
        "aggregate": "mean",
        "window_steps": 20,
        "window_completions": 0,
        "direction": "below",
        "limit": Constant(0.3),
        "severity": Severity.CLOSE,
        "reason": "r",
        "remedy": "r",
        "cannot_see": "c",
    }
    return Rule(**(fields | changes))


COLLAPSE = a_rule(limit=TimesOwn(0.2, "best", 5.0), severity=Severity.STOP)


def test_a_constant_limit_is_compared_with_the_last_window() -> None:
    falling = judge(a_rule(), a_run(100, reward=lambda t: 0.5 - 0.4 * t)).result
    assert falling.outcome == "failed"
    assert (falling.first_step, falling.last_step) == (81, 100)
    assert falling.value == pytest.approx(0.138, abs=0.001)
    assert falling.limit == 0.3
    assert "steps 81 to 100" in falling.text
    assert judge(a_rule(), a_run(100, reward=0.5)).result.outcome == "passed"


def test_a_failure_knows_since_when_it_lasts() -> None:
    run = a_run(100, reward=[0.5] * 50 + [0.0] * 50)
    progress = judge(a_rule(limit=Constant(0.25)), run)
    assert progress.stopped_at == 61
    assert progress.result.failed_since == 42
    back = judge(a_rule(limit=Constant(0.25)), a_run(130, reward=[0.5] * 50 + [0.0] * 50 + [0.5] * 30))
    assert back.result.outcome == "passed"
    assert back.result.failed_since is None
    assert back.stopped_at == 61


def test_a_collapse_is_found_in_time_and_its_first_step_is_known() -> None:
    run = collapsing()
    stop = first_stop([COLLAPSE], run)
    assert stop is not None
    assert stop.last_step is not None
    assert 115 <= stop.last_step <= 121
    assert "times the best window" in stop.text


@pytest.mark.parametrize("k", [2, 5, 10])
def test_a_rule_stops_at_the_same_step_whatever_the_rows_are_means_of(k: int) -> None:
    run = collapsing()
    fine, coarse = first_stop([COLLAPSE], run), first_stop([COLLAPSE], merged(run, k))
    assert fine is not None
    assert coarse is not None
    assert 0 <= (coarse.last_step or 0) - (fine.last_step or 0) <= 10


def test_a_short_dip_does_not_stop_a_trial() -> None:
    dip = curve(lambda t: 0.05 if 0.5 <= t < 0.56 else 0.8, noise=0.03)
    assert first_stop([COLLAPSE], a_run(200, reward=dip)) is None


def test_sparse_rewards_that_vary_by_chance_do_not_stop_a_trial() -> None:
    """Windows of 20 steps differ by more than a factor of five, but within the noise."""
    values = [0.125 if (i * 7) % 37 < 2 else 0.0 for i in range(400)]
    run = a_run(400, reward=values)
    with_noise = judge(COLLAPSE, run)
    without = judge(a_rule(limit=TimesOwn(0.2, "best"), severity=Severity.STOP), run)
    assert without.stopped_at is not None
    assert with_noise.stopped_at is None


def test_a_ratio_abstains_on_negative_values_with_a_reason() -> None:
    result = judge(COLLAPSE, a_run(100, reward=curve(lambda t: -0.5 - t, 100, noise=0.05))).result
    assert result.outcome == "not judged"
    assert "negative values" in result.text
    assert "noise" in result.text


def test_a_distance_in_noise_works_on_negative_values() -> None:
    rule = a_rule(limit=NoiseFromOwn(5.0, "first"))
    assert judge(rule, a_run(100, reward=curve(lambda t: -0.5 - t, 100, noise=0.05))).result.outcome == "failed"
    assert judge(rule, a_run(100, reward=curve(-0.5, 100, noise=0.05))).result.outcome == "passed"
    above = a_rule(limit=NoiseFromOwn(5.0, "first"), direction="above")
    assert judge(above, a_run(100, reward=curve(lambda t: -0.5 + t, 100, noise=0.05))).result.outcome == "failed"


def test_best_is_the_lowest_window_for_a_rule_that_fails_above() -> None:
    rule = a_rule(curve="entropy", direction="above", limit=TimesOwn(3.0, "best"))
    values = [1.0] * 40 + [0.2] * 40 + [0.7] * 40
    result = judge(rule, a_run(120, entropy=values)).result
    assert result.outcome == "failed"
    assert "best window (steps 41 to 60) 0.2" in result.text


def test_a_missing_curve_is_not_judged() -> None:
    result = judge(a_rule(curve="entropy"), a_run(50, reward=0.5)).result
    assert result.outcome == "not judged"
    assert result.text == "entropy is missing in all 50 rows"


def test_a_zero_is_a_value_and_fails() -> None:
    assert judge(a_rule(), a_run(50, reward=0.0)).result.outcome == "failed"


def test_too_few_steps_or_completions_are_not_judged() -> None:
    short = judge(a_rule(), a_run(10, reward=0.0)).result
    assert (short.outcome, short.text) == ("not judged", "reward covers 10 of 20 steps")
    few = judge(a_rule(window_completions=10_000), a_run(50, reward=0.0)).result
    assert few.text == "reward covers 50 of 20 steps, 3200 of 10000 completions"
    unknown = judge(a_rule(window_completions=64), a_run(50, completions_per_step=None, reward=0.0)).result
    assert unknown.outcome == "not judged"
    assert "an unknown number of 64 completions" in unknown.text
    assert judge(a_rule(after_step=60), a_run(50, reward=0.0)).result.text == "no row after step 60 so far"


def test_rows_before_after_step_are_left_out() -> None:
    run = a_run(100, staleness=[9.0] * 20 + [1.0] * 80)
    assert judge(a_rule(curve="staleness", window_steps=None, direction="above", limit=Constant(1.5)), run).failed
    late = a_rule(curve="staleness", window_steps=None, direction="above", limit=Constant(1.5), after_step=20)
    assert not judge(late, run).failed


def test_values_that_are_not_finite_have_a_curve_of_their_own() -> None:
    rule = a_rule(curve="nonfinite_values", aggregate="min", window_steps=3, direction="above", limit=Constant(0.0))
    once = a_run(10, reward=[0.5] * 8 + [math.nan, 0.5], kl=0.1)
    thrice = a_run(10, reward=[0.5] * 7 + [math.nan] * 3, kl=0.1)
    assert judge(rule, once).stopped_at is None
    assert judge(rule, thrice).stopped_at == 10


def test_aggregates() -> None:
    window = Window(1, 4, 4, 256, (1.0, 2.0, 3.0, 6.0))
    assert aggregate(window, "mean") == 3.0
    assert aggregate(window, "median") == 2.5
    assert aggregate(window, "min") == 1.0
    assert aggregate(window, "max") == 6.0
    assert aggregate(window, "share", ("above", 2.0)) == 0.5
    assert aggregate(window, "slope") == pytest.approx(160.0)
    assert aggregate(Window(1, 1, 1, 64, (1.0,)), "slope") == 0.0


def test_the_slope_is_per_100_steps_whatever_the_rows_are_means_of() -> None:
    rule = a_rule(aggregate="slope", limit=Constant(0.0))
    run = a_run(100, reward=[i * 0.01 for i in range(100)])
    assert judge(rule, run).result.value == pytest.approx(1.0)
    assert judge(rule, merged(run, 5)).result.value == pytest.approx(1.0)


def test_row_by_row_gives_the_result_of_the_whole_run() -> None:
    run = a_run(150, reward=curve(lambda t: 0.8 - 0.9 * t, 150, noise=0.05))
    progress = RuleProgress(COLLAPSE)
    for number, row in enumerate(run.rows(), start=1):
        progress.add(row)
        assert progress.result == judge(COLLAPSE, run.head(number)).result


def test_only_stop_rules_stop() -> None:
    run = a_run(50, reward=0.0)
    assert first_stop([a_rule(severity=Severity.CLOSE), a_rule(severity=Severity.WARN)], run) is None
    assert first_stop([a_rule(severity=Severity.STOP)], run) is not None


def test_a_row_without_the_curve_keeps_the_last_result() -> None:
    progress = RuleProgress(a_rule(window_steps=1))
    progress.add(Row(1, 1, 64, {"reward": 0.1}))
    progress.add(Row(2, 1, 64, {"reward": None}))
    assert progress.result.outcome == "failed"


# ---------------------------------------------------------------------------------------------------------------------
# Over trials
# ---------------------------------------------------------------------------------------------------------------------


def results(**runs) -> dict:
    return {name: judge(a_rule(), run).result for name, run in runs.items()}


def test_one_failing_trial_fails_a_rule_unless_every_trial_must() -> None:
    per_trial = results(good=a_run(50, reward=0.5), bad=a_run(50, reward=0.1))
    any_trial = over_trials(a_rule(), per_trial)
    assert (any_trial.outcome, any_trial.failed) == ("failed", ("bad",))
    assert "failed in 1 of 2 judged trials; bad: " in any_trial.text
    assert over_trials(a_rule(every_trial=True), per_trial).outcome == "passed"
    both = results(one=a_run(50, reward=0.1), two=a_run(50, reward=0.1))
    assert over_trials(a_rule(every_trial=True), both).outcome == "failed"


def test_trials_that_were_not_judged_do_not_pass_a_rule() -> None:
    none = over_trials(a_rule(), results(short=a_run(5, reward=0.5)))
    assert none.outcome == "not judged"
    assert "5 of 20 steps" in none.text
    some = over_trials(a_rule(every_trial=True), results(short=a_run(5, reward=0.5), bad=a_run(50, reward=0.1)))
    assert (some.outcome, some.not_judged) == ("failed", ("short",))
    assert over_trials(a_rule(), {}).outcome == "not judged"

"""Forecasts of trials and sweeps: values computed by hand, exact sums, and what must never fall."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost.forecast.hardware import ModelSize
from cost.forecast.measured_run import OffStep
from cost.forecast.predict import Preemptions, TrialWork, predict, slope_posterior
from cost.forecast.sampling import ForecastError
from cost.forecast.step_profile import fit_profile
from tests.cost.forecast.runs import A100, EXACT, H100, NS, ns, run, step, sweep
from tests.cost.forecast.test_step_profile import sized

NOISY = run([step(i, rollout=3.0 + 0.4 * math.sin(2.3 * i), train=5.0 + 0.2 * math.cos(1.7 * i)) for i in range(1, 21)])
WORK = TrialWork(steps=200, prompts=8, group_size=8, cards=1)


def seconds(value_ns: int) -> float:
    return value_ns / NS


def parts(trial, percentile: str = "p50_ns") -> dict[str, float]:
    return {c.name: seconds(getattr(c, percentile)) for c in trial.categories}


# ---------------------------------------------------------------------------------------------------------------------
# Values computed by hand
# ---------------------------------------------------------------------------------------------------------------------


def test_equal_steps_are_multiplied() -> None:
    trial = predict(fit_profile([run(20)]), sweep(WORK), priors=EXACT).trials[0]
    assert parts(trial) == pytest.approx({"rollout": 600.0, "train": 1000.0, "startup": 0.0})
    assert seconds(trial.wall_ns.p90) == pytest.approx(1600.0)
    assert seconds(trial.step_ns.p50) == pytest.approx(8.0)


def test_steps_that_are_done_are_not_forecast_again() -> None:
    trial = predict(fit_profile([run(20)]), sweep(replace(WORK, steps_done=20)), priors=EXACT).trials[0]
    assert seconds(trial.wall_ns.p50) == pytest.approx(180 * 8.0)


def test_another_size_follows_the_line_of_each_phase() -> None:
    profile = fit_profile([sized(32), sized(128)])
    trial = predict(profile, sweep(replace(WORK, prompts=32)), priors=EXACT).trials[0]
    # At 256 completions: 2.5 + 0.015 x 256 = 6.34 s of sampling and 0.2 + 0.075 x 256 = 19.4 s of training.
    assert parts(trial)["rollout"] == pytest.approx(200 * 6.34)
    assert parts(trial)["train"] == pytest.approx(200 * 19.4)


def test_from_one_size_sampling_grows_by_its_prior_share() -> None:
    trial = predict(fit_profile([run(20)]), sweep(replace(WORK, prompts=16)), priors=EXACT).trials[0]
    # Twice the completions add the share that is not constant: 64 / (150 + 64) of 3 s, 64 / (3 + 64) of 5 s.
    assert parts(trial)["rollout"] == pytest.approx(200 * 3.0 * (1 + 64 / 214))
    assert parts(trial)["train"] == pytest.approx(200 * 5.0 * (1 + 64 / 67))


def test_time_outside_of_steps_is_added_per_event() -> None:
    off = (
        OffStep("start", ns(30)),
        OffStep("evaluation", ns(20)),
        OffStep("evaluation", ns(20)),
        OffStep("checkpoint", ns(4)),
    )
    profile = fit_profile([replace(run(20), off_steps=off)])
    trial = predict(profile, sweep(replace(WORK, evaluations=5, checkpoints=10)), priors=EXACT).trials[0]
    expected = {"rollout": 600.0, "train": 1000.0, "startup": 30.0, "evaluation": 100.0, "checkpoint": 40.0}
    assert parts(trial) == pytest.approx(expected, rel=0.02)


def test_what_was_not_measured_is_a_marked_prior() -> None:
    trial = predict(fit_profile([run(20)]), sweep(replace(WORK, evaluations=2)), priors=EXACT)
    basis = {c.name: c.basis for c in trial.trials[0].categories}
    assert basis["evaluation"] == "prior"
    assert basis["rollout"] == "measured"
    assert trial.basis == "measured"
    assert any("evaluation was not measured" in note for note in trial.notes)


def test_unexplained_time_contains_what_was_not_measured_apart() -> None:
    profile = fit_profile([run(200, off_steps={}, elapsed_ns=ns(1700))])
    forecast = predict(profile, sweep(replace(WORK, evaluations=3)), priors=EXACT)
    assert parts(forecast.trials[0])["other"] == pytest.approx(100.0, rel=0.02)
    assert "evaluation" not in parts(forecast.trials[0])


def test_unexplained_time_of_a_running_trial_is_only_what_grows_with_its_steps() -> None:
    runs = [run(20, off_steps={}, elapsed_ns=ns(160 + 14)), run(60, off_steps={}, elapsed_ns=ns(480 + 22))]
    trial = predict(fit_profile(runs), sweep(replace(WORK, steps_done=100)), priors=EXACT).trials[0]
    # 10 s once and 0.2 s a step: the 100 steps ahead take 20 s more.
    assert parts(trial)["other"] == pytest.approx(20.0, rel=0.05)


def test_many_incidents_keep_their_rate() -> None:
    values = ([8.0] * 11 + [80.0]) * 100
    profile = fit_profile([run([step(i, rollout=s) for i, s in enumerate(values, start=1)])])
    trial = predict(profile, sweep(replace(WORK, steps=12_000)), priors=EXACT).trials[0]
    assert seconds(trial.wall_ns.p50) == pytest.approx(12_000 * 8.0 + 1_000 * 72.0, rel=0.01)


def test_cards_that_no_trial_uses_are_idle() -> None:
    profile = fit_profile([run(20)])
    work = replace(WORK, steps=100)
    forecast = predict(profile, sweep(work, work, work, cards=2), priors=EXACT)
    # Two trials of 800 s side by side, then one: 1,600 s on two cards, of which three times 800 s are used.
    assert seconds(forecast.lease_ns.p50) == pytest.approx(1600.0)
    assert {c.name: seconds(c.p50_ns) for c in forecast.categories} == pytest.approx(
        {"rollout": 900.0, "train": 1500.0, "startup": 0.0, "idle": 800.0}
    )


def test_max_concurrent_limits_the_trials_that_run_at_once() -> None:
    work = replace(WORK, steps=100)
    forecast = predict(fit_profile([run(20)]), sweep(work, work, cards=2, max_concurrent=1), priors=EXACT)
    assert seconds(forecast.lease_ns.p50) == pytest.approx(1600.0)


def test_a_lease_contains_bring_up_gaps_and_release() -> None:
    work = replace(WORK, steps=100)
    lease = sweep(work, work, bring_up_seconds=300.0, between_trials_seconds=7.0, release_seconds=60.0)
    forecast = predict(fit_profile([run(20)]), lease, priors=EXACT)
    assert seconds(forecast.lease_ns.p50) == pytest.approx(300 + 800 + 7 + 800 + 60)
    found = {c.name: seconds(c.p50_ns) for c in forecast.categories}
    assert found["startup"] == pytest.approx(300.0)
    assert found["idle"] == pytest.approx(67.0)


def test_preemptions_cost_half_an_interval_and_a_recovery_each() -> None:
    preemptions = Preemptions(per_hour=0.5, checkpoint_every_steps=10, recovery_seconds=300.0)
    work = replace(WORK, steps=45_000)
    trial = predict(fit_profile([run(20)]), sweep(work, preemptions=preemptions), priors=EXACT).trials[0]
    # 100 h at 0.5 an hour; an event costs 40 s of lost work and 300 s, in which the next may come: 50 / (1 - 340/7200).
    count = 50.0 / (1.0 - 340.0 / 7200.0)
    assert parts(trial)["recovery"] == pytest.approx(300.0 * count, rel=0.03)
    assert parts(trial)["lost_work"] == pytest.approx(40.0 * count, rel=0.03)


def test_sampled_tokens_are_forecast_where_they_were_reported() -> None:
    steps = [replace(step(i), tokens=6_400) for i in range(1, 21)]
    trial = predict(fit_profile([run(steps)]), sweep(WORK), priors=EXACT).trials[0]
    assert trial.tokens is not None
    assert trial.tokens.p50 == pytest.approx(200 * 6_400, rel=1e-6)
    assert predict(fit_profile([run(20)]), sweep(WORK)).trials[0].tokens is None


def test_the_weight_of_a_trend_is_bayes_rule() -> None:
    # Equal variances 0.01 of data and prior, slope 0.2, even odds: log odds = log(1/2)/2 + 0.04/2 x 0.01/(0.01 x 0.02).
    chance, mean, error = slope_posterior(0.2, 0.1, 0.1, 0.5)
    assert chance == pytest.approx(1.0 / (1.0 + math.exp(-(0.5 * math.log(0.5) + 1.0))))
    assert (mean, error) == pytest.approx((0.1, math.sqrt(0.005)))


# ---------------------------------------------------------------------------------------------------------------------
# Spread
# ---------------------------------------------------------------------------------------------------------------------


def test_one_outlier_widens_p90_and_leaves_the_median() -> None:
    values = [8.0 + 0.2 * math.sin(3 * i) for i in range(20)]
    usual = [step(i, rollout=s) for i, s in enumerate(values, start=1)]
    slow = [*usual[:10], step(11, rollout=200.0), *usual[11:]]
    before = predict(fit_profile([run(usual)]), sweep(WORK)).trials[0].wall_ns
    after = predict(fit_profile([run(slow)]), sweep(WORK)).trials[0].wall_ns
    assert after.p50 == pytest.approx(before.p50, rel=0.02)
    assert after.p90 > before.p90 * 1.5


def test_two_incidents_are_expected_to_come_again() -> None:
    values = [8.0] * 38 + [80.0, 80.0]
    profile = fit_profile([run([step(i, rollout=s) for i, s in enumerate(values, start=1)])])
    trial = predict(profile, sweep(WORK), priors=EXACT).trials[0]
    # 2 in 40 steps, 72 s each: about 9 more in 200 steps.
    assert 1600 + 6 * 72 < seconds(trial.wall_ns.p50) < 1600 + 12 * 72


def test_a_growing_length_lengthens_the_steps_ahead() -> None:
    def reported(growth: float):
        lengths = [100.0 * math.exp(growth * math.sqrt(i)) for i in range(1, 41)]
        return run(
            [
                replace(step(i, rollout=0.03 * n, train=0.01 * n), tokens=round(64 * n))
                for i, n in enumerate(lengths, start=1)
            ]
        )

    work = replace(WORK, steps_done=40)
    flat = predict(fit_profile([reported(0.0)]), sweep(work)).trials[0].wall_ns
    growing = predict(fit_profile([reported(0.06)]), sweep(work))
    rising = growing.trials[0].wall_ns
    # Mean growth over steps 41 to 200 is exp(0.06 x 10.8); the flat forecast is for the length at its start.
    exact = sum(4.0 * math.exp(0.06 * math.sqrt(i)) for i in range(41, 201))
    assert seconds(flat.p50) == pytest.approx(160 * 4.0, rel=0.01)
    assert seconds(rising.p50) == pytest.approx(exact, rel=0.08)
    assert "the length of completions changes as training goes on" in growing.notes


def test_the_length_limit_bounds_the_growth() -> None:
    lengths = [100.0 * math.exp(0.1 * math.sqrt(i)) for i in range(1, 41)]
    steps = [
        replace(step(i, rollout=0.03 * n, train=0.01 * n), tokens=round(64 * n)) for i, n in enumerate(lengths, start=1)
    ]
    profile = fit_profile([run(steps)])
    free = predict(profile, sweep(replace(WORK, steps_done=40))).trials[0].wall_ns
    limited = predict(profile, sweep(replace(WORK, steps_done=40, max_completion_tokens=190))).trials[0].wall_ns
    assert limited.p90 < free.p50


def test_scaled_and_unmeasured_forecasts_are_wider_than_measured_ones() -> None:
    profile = fit_profile([NOISY])

    def width(forecast) -> float:
        wall = forecast.trials[0].wall_ns
        return wall.p90 / wall.p50

    measured = predict(profile, sweep(WORK))
    other_size = predict(profile, sweep(replace(WORK, prompts=16)))
    other_card = predict(profile, sweep(WORK, hardware=A100), measured_on=H100)
    assert (measured.basis, other_card.basis) == ("measured", "scaled")
    assert width(measured) < width(other_size) < width(other_card)


def test_a_slower_card_takes_longer_by_the_ratios_of_its_data_sheet() -> None:
    priors = replace(EXACT, hardware_log_error=0.0)
    trial = predict(fit_profile([run(20)]), sweep(WORK, hardware=A100), measured_on=H100, priors=priors).trials[0]
    assert parts(trial)["train"] == pytest.approx(1000.0 * (989.4 / 312.0) ** priors.flops_exponent)
    assert parts(trial)["rollout"] == pytest.approx(600.0 * (3350.0 / 2039.0) ** priors.bandwidth_exponent)


# ---------------------------------------------------------------------------------------------------------------------
# More cards
# ---------------------------------------------------------------------------------------------------------------------


def test_more_cards_can_be_slower_outright() -> None:
    measured = fit_profile([run([step(i, completions=512, cards=8) for i in range(1, 21)])])
    step_ns = predict(measured, sweep(replace(WORK, prompts=64, cards=64), cards=64)).trials[0].step_ns
    assert seconds(step_ns.p50) == pytest.approx(8.0 * (0.62 + 0.38 / 8), rel=0.03)
    assert seconds(step_ns.p90) > 8.0


def test_more_cards_cost_more_money_per_step_at_the_median() -> None:
    measured = fit_profile([run([step(i, completions=512, cards=8) for i in range(1, 21)])])
    for cards in (16, 32, 64):
        step_ns = predict(measured, sweep(replace(WORK, prompts=64, cards=cards), cards=cards)).trials[0].step_ns
        assert seconds(step_ns.p50) * cards > 8.0 * 8


def test_eight_cards_with_eight_times_the_work_pay_for_communication_and_stragglers() -> None:
    model = ModelSize(parameters=1e9, trainable_parameters=1e9)
    priors = replace(EXACT, broadcast_log_error=0.0, card_log_error_per_doubling=0.0)
    work = replace(WORK, prompts=64, cards=8, updates_per_step=2)
    forecast = predict(fit_profile([run(20)]), sweep(work, cards=8, model_size=model), priors=priors)
    found = parts(forecast.trials[0])
    # 2 x 7/8 x 4 GB through 450 GB/s at 60 %, twice a step; the slowest of eight cards has 1 + 0.5/8 x sqrt(2 ln 8) of
    # the mean work; 2 GB of weights at 10 GB/s.
    reduce = 2 * (2 * 7 / 8 * 4e9 / (450e9 * 0.6))
    slowest = 1 + 0.5 / 8 * math.sqrt(2 * math.log(8))
    assert found["train"] == pytest.approx(200 * (5.0 + reduce) * slowest, rel=1e-3)
    assert found["rollout"] == pytest.approx(600.0)
    assert found["sync"] == pytest.approx(200 * 0.2)
    assert any("computed, not measured" in note for note in forecast.notes)


def test_several_cards_from_one_need_the_size_of_the_model() -> None:
    with pytest.raises(ForecastError, match="need the model's size"):
        predict(fit_profile([run(20)]), sweep(replace(WORK, cards=8), cards=8))


def test_cards_without_an_interconnect_are_refused() -> None:
    alone = replace(H100, interconnect_gb_per_s=0.0)
    model = ModelSize(1e9, 1e9)
    with pytest.raises(ForecastError, match="no interconnect"):
        predict(fit_profile([run(20)]), sweep(replace(WORK, cards=2), cards=2, hardware=alone, model_size=model))


# ---------------------------------------------------------------------------------------------------------------------
# Refusals
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [{"trainer": "verl"}, {"model": "Qwen3-8B"}, {"task": "math"}])
def test_a_profile_of_something_else_is_refused(change: dict[str, str]) -> None:
    with pytest.raises(ForecastError, match=f"the profile's {next(iter(change))} is"):
        predict(fit_profile([run(20)]), replace(sweep(WORK), **change))


def test_another_card_without_the_figures_of_the_measured_one_is_refused() -> None:
    with pytest.raises(ForecastError, match="the figures of H100 are needed"):
        predict(fit_profile([run(20)]), sweep(WORK, hardware=A100))


def test_a_preemption_rate_that_leaves_no_progress_is_refused() -> None:
    preemptions = Preemptions(per_hour=20.0, checkpoint_every_steps=50, recovery_seconds=300.0)
    with pytest.raises(ForecastError, match="no progress"):
        predict(fit_profile([run(20)]), sweep(WORK, preemptions=preemptions))


def test_a_trial_larger_than_the_machine_is_refused() -> None:
    with pytest.raises(ForecastError, match="does not fit machine, which has 1"):
        sweep(replace(WORK, cards=2))


@pytest.mark.parametrize("change", [{"steps": 0}, {"steps_done": 200}, {"prompts": 0}, {"evaluations": -1}])
def test_impossible_work_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(ForecastError):
        replace(WORK, **change)


# ---------------------------------------------------------------------------------------------------------------------
# What always holds
# ---------------------------------------------------------------------------------------------------------------------

works = st.builds(
    TrialWork,
    steps=st.integers(21, 2_000),
    prompts=st.sampled_from([1, 4, 8, 32]),
    group_size=st.sampled_from([2, 8, 16]),
    cards=st.just(1),
    evaluations=st.integers(0, 20),
    checkpoints=st.integers(0, 20),
    steps_done=st.sampled_from([0, 20]),
)
rates = st.none() | st.builds(
    Preemptions,
    per_hour=st.floats(0.0, 2.0),
    checkpoint_every_steps=st.integers(1, 20),
    recovery_seconds=st.floats(0.0, 400.0),
)
PROFILE = fit_profile(
    [replace(NOISY, off_steps=(OffStep("start", ns(40)), OffStep("evaluation", ns(9)), OffStep("checkpoint", ns(3))))]
)


@settings(max_examples=40)
@given(st.lists(works, min_size=1, max_size=3), st.integers(1, 3), rates)
def test_categories_sum_to_the_total_and_never_fall_from_p50_to_p90(trials, cards, preemptions) -> None:
    forecast = predict(PROFILE, sweep(*trials, cards=cards, preemptions=preemptions, bring_up_seconds=60.0))
    for trial in forecast.trials:
        assert sum(c.p50_ns for c in trial.categories) == trial.wall_ns.p50
        assert sum(c.p90_ns for c in trial.categories) == trial.wall_ns.p90
    assert sum(c.p50_ns for c in forecast.categories) == forecast.card_ns.p50 == forecast.lease_ns.p50 * cards
    assert sum(c.p90_ns for c in forecast.categories) == forecast.card_ns.p90 == forecast.lease_ns.p90 * cards
    assert all(0 <= c.p50_ns <= c.p90_ns for c in forecast.categories)


@settings(max_examples=40)
@given(works, st.integers(1, 500), rates)
def test_more_steps_never_take_less_time(work, more, preemptions) -> None:
    shorter = predict(PROFILE, sweep(work, preemptions=preemptions)).lease_ns
    longer = predict(PROFILE, sweep(replace(work, steps=work.steps + more), preemptions=preemptions)).lease_ns
    assert (shorter.p50 <= longer.p50, shorter.p90 <= longer.p90) == (True, True)


@settings(max_examples=40)
@given(works, st.integers(1, 40))
def test_more_prompts_never_take_less_time(work, more) -> None:
    fewer = predict(PROFILE, sweep(work), priors=EXACT).lease_ns
    greater = predict(PROFILE, sweep(replace(work, prompts=work.prompts + more)), priors=EXACT).lease_ns
    assert fewer.p50 <= greater.p50


@settings(max_examples=40)
@given(works, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_more_preemptions_never_take_less_time(work, a, b) -> None:
    low, high = (
        predict(PROFILE, sweep(work, preemptions=Preemptions(rate, 10, 200.0))).lease_ns for rate in sorted((a, b))
    )
    assert (low.p50 <= high.p50, low.p90 <= high.p90) == (True, True)


@settings(max_examples=40)
@given(works)
def test_the_same_inputs_give_the_same_forecast(work) -> None:
    assert predict(PROFILE, sweep(work)) == predict(PROFILE, sweep(work))

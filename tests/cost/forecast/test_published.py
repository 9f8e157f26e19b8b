"""The targets of benchmarks/forecast.py that are met, on real runs, published step times and simulated truth."""

from __future__ import annotations

import statistics

import pytest

from benchmarks import forecast as benchmark
from benchmarks import forecast_league as league
from benchmarks import forecast_traces
from cost.forecast.priors import DEFAULT_PRIORS

BANK = benchmark.DATA / "grpo_runs"
VERL = benchmark.DATA / "verl_logs" / "qwen2.5-0.5b-gsm8k-ppo.log"
needs_bank = pytest.mark.skipif(not BANK.exists(), reason="the bank of real runs is not at ../shared/data")


def errors(results: list[benchmark.Result]) -> list[float]:
    return [abs(r.error) for r in results]


@needs_bank
def test_the_rest_of_a_real_trial_from_its_first_20_steps() -> None:
    runs = {n: r for n, r in benchmark.real_runs(benchmark.DATA).items() if n.startswith("02_")}
    results = [benchmark.rest_of_run(name, real) for name, real in runs.items()]
    assert len(results) == 17
    assert statistics.median(errors(results)) <= 0.05
    assert max(errors(results)) <= 0.10
    assert statistics.fmean(r.within_p90 for r in results) >= 0.85


@needs_bank
def test_another_prompts_x_g_from_two_real_trials() -> None:
    steps, elapsed = benchmark.other_sizes(benchmark.DATA)
    assert statistics.median(errors(steps)) <= 0.05
    assert statistics.median(errors(elapsed)) <= 0.05
    # A proportional forecast of the same trials is wrong by more than 20 %.
    assert statistics.median(abs(r.baselines[1] / r.actual - 1) for r in steps) > 0.2


@needs_bank
def test_other_public_runs_are_mostly_within_p90() -> None:
    runs = {n: r for n, r in benchmark.real_runs(benchmark.DATA).items() if not n.startswith("02_")}
    results = [benchmark.rest_of_run(name, real) for name, real in runs.items()]
    assert statistics.median(errors(results)) <= 0.05
    assert statistics.fmean(r.within_p90 for r in results) >= 0.8


@needs_bank
def test_published_step_times_with_their_set_left_out() -> None:
    rows = league.published(benchmark.DATA)
    results = [found for _, _, found in benchmark.league_results(rows)]
    assert len(results) >= 25
    assert statistics.median(errors(results)) <= 0.15
    assert 0.7 <= statistics.fmean(r.within_80_percent for r in results) <= 0.9


@needs_bank
def test_the_default_priors_are_those_of_the_published_sets() -> None:
    fitted = league.refit(league.published(benchmark.DATA))
    assert fitted.serial_share == pytest.approx(DEFAULT_PRIORS.serial_share, abs=0.02)
    assert fitted.async_step_share == pytest.approx(DEFAULT_PRIORS.async_step_share, abs=0.02)
    assert fitted.async_rollout_share == pytest.approx(DEFAULT_PRIORS.async_rollout_share, abs=0.03)
    assert fitted.flops_exponent == pytest.approx(DEFAULT_PRIORS.flops_exponent, abs=0.02)


@pytest.mark.skipif(not VERL.exists(), reason="the verl log is not at ../shared/data")
@pytest.mark.parametrize("measured", [20, 50, 100])
def test_a_whole_verl_run_from_its_first_steps(measured: int) -> None:
    found = benchmark.verl_result(VERL, measured)
    assert abs(found.error) <= 0.05
    assert found.within_p90
    assert abs(found.error) < min(abs(b / found.actual - 1) for b in found.baselines)


@pytest.mark.parametrize(("kind", "target"), [("stable", 0.05), ("length drift", 0.10), ("heavy tails", 0.05)])
def test_simulated_runs_of_200_steps_from_their_first_20(kind: str, target: float) -> None:
    chosen = [s for s in forecast_traces.scenarios(per_engine_and_kind=6) if s.kind == kind]
    results = [benchmark.simulated_result(forecast_traces.simulate(s)) for s in chosen]
    assert statistics.median(errors(results)) <= target
    assert statistics.fmean(r.within_p90 for r in results) >= 0.8

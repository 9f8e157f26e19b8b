"""The time in a plan: measured in an earlier sweep, or a rough estimate, with its source."""

from __future__ import annotations

import csv
from decimal import Decimal

import pytest

from cost.money import Money
from cost.prices.book import PriceBook
from cost.records import FORECAST_LABELS
from cost.reports.by_trial import sweep_report
from sweeps.config.build import compose
from sweeps.driver.driver import run
from sweeps.forecast.step_time import from_data_sheet, measured, sweep_seconds
from sweeps.machines.pricing import find_price, forecast_labels
from sweeps.planning.plan import make_plan
from tests.sweeps.in_process import a_sweep


def test_the_plan_uses_the_time_measured_on_this_machine(tmp_path):
    sweep = a_sweep(tmp_path).run()
    time = measured([sweep.journal.record], sweep.cfg)
    assert time is not None
    assert "smoke-test-1" in time.source
    took = (
        max(u.to_ns or 0 for u in sweep.ledger.usages.find()) - min(u.from_ns for u in sweep.ledger.usages.find())
    ) / 1e9
    assert sweep_seconds(make_plan(sweep.cfg), sweep.cfg, time) == pytest.approx(took, rel=0.15)


@pytest.mark.parametrize(
    "other", ["machine=rtx4090", "model=tiny", "task=products", "rollout.max_completion_tokens=12"]
)
def test_times_of_another_machine_model_or_length_are_not_used(tmp_path, other: str):
    sweep = a_sweep(tmp_path, "search.prompts_per_step=[2]").run()
    assert measured([sweep.journal.record], compose(["+stage=smoke", "trainer=simulated", other])) is None


def test_trials_that_run_at_once_share_the_time():
    cfg = compose(["+stage=smoke", "trainer=simulated", "machine=h100x8", "search.trials=8"])
    alone = compose(
        ["+stage=smoke", "trainer=simulated", "machine=h100x8", "search.trials=8", "search.max_concurrent=1"]
    )
    time = from_data_sheet(compose(["+stage=smoke", "machine=h100x8"]))
    assert time is not None
    together = sweep_seconds(make_plan(cfg), cfg, time)
    assert together == max(time.of(t, cfg.stage.steps) for t in make_plan(cfg).trials)
    assert sweep_seconds(make_plan(alone), alone, time) > 5 * together


def test_without_a_measurement_the_figure_is_marked_as_rough():
    cpu, h100 = (from_data_sheet(compose(["+stage=smoke", f"machine={m}"])) for m in ("cpu", "h100"))
    assert cpu is not None
    assert h100 is not None
    assert "rough" in cpu.source
    assert cpu.allowance > 2
    assert cpu.seconds_per_completion > 3 * h100.seconds_per_completion


def rough_seconds(*overrides: str) -> float:
    """Of the largest trial, without its fixed seconds."""
    cfg = compose(["+stage=smoke", "task.eval_questions=1", *overrides])
    time = from_data_sheet(cfg)
    assert time is not None
    return max(time.of(t, cfg.stage.steps) for t in make_plan(cfg).trials) - time.fixed_seconds


@pytest.mark.parametrize(
    ("override", "least", "most"),
    [
        ("stage.steps=40", 1.99, 2.01),
        ("search.prompts_per_step=[8]", 1.7, 2.0),
        ("search.group_size=[16]", 1.7, 2.0),
        ("rollout.max_completion_tokens=240", 7, 10),
        ("model=tiny", 0.01, 0.2),
        ("algorithm.kl_coef=0", 0.75, 0.99),
    ],
)
def test_the_rough_figure_scales_with_the_configuration(override: str, least: float, most: float):
    usual = ["search.prompts_per_step=[4]"]
    assert least <= rough_seconds(*usual, override) / rough_seconds(*usual) <= most


def test_the_rough_figure_includes_evaluations_and_names_its_source():
    few, many = (
        from_data_sheet(compose(["+stage=smoke", *more]))
        for more in ((), ("task.eval_questions=512", "evaluation.every_steps=5"))
    )
    assert few is not None
    assert many is not None
    assert many.fixed_seconds > 2 * few.fixed_seconds
    assert few.source == ("rough estimate from the data sheet of cpu: 135 M parameters, 24 tokens; not measured yet")


@pytest.mark.parametrize(
    ("path", "known"), [("Qwen/Qwen3-0.6B", True), ("org/model-7b-instruct", True), ("org/some-model", False)]
)
def test_the_size_of_a_model_is_read_from_its_name_or_unknown(path: str, known: bool):
    cfg = compose(["+stage=smoke", "model=hf", f"model.path={path}", "machine=rtx4090"])
    assert (from_data_sheet(cfg) is not None) is known


def test_a_trial_is_forecast_from_measured_steps_and_the_report_has_the_forecast(tmp_path):
    first = a_sweep(tmp_path / "first").run()
    time = measured([first.journal.record], first.cfg)
    pricing = find_price(first.cfg)
    assert time is not None
    forecast = {t.trial_id: forecast_labels(first.cfg, pricing, t, time) for t in make_plan(first.cfg).trials}
    second = a_sweep(tmp_path / "second", forecast=lambda trial: forecast[trial.trial_id]).run()
    second.ledger.leases.detach("lease-1", "smoke-test-1", "done")
    report = sweep_report(second.ledger, PriceBook(()), "smoke-test-1", second.clock.utc)
    for trial in report.trials:
        p50, p90 = (Money.parse(trial.labels[name]) for name in FORECAST_LABELS)
        assert Money.parse("0 USD") < p50 < p90
        assert forecast[trial.trial_id].items() <= trial.labels.items()
    # The simulated machine's steps vary little: the forecast is near what the same trials took.
    took = {u.key.trial_id: Decimal((u.to_ns or 0) - u.from_ns) for u in second.ledger.usages.find()}
    hour = pricing.per_hour.amount / second.cfg.machine.cards if pricing.per_hour else Decimal(0)
    for trial in report.trials:
        cost = took[trial.trial_id] / (3600 * 10**9) * hour
        assert abs(Money.parse(trial.labels["forecast_p50"]).amount / cost - 1) < Decimal("0.15")


def test_without_a_measurement_there_is_no_forecast():
    cfg = compose(["+stage=smoke"])
    (trial, *_), pricing = make_plan(cfg).trials, find_price(cfg)
    assert forecast_labels(cfg, pricing, trial, None) == {}
    rough = from_data_sheet(cfg)
    assert rough is not None
    assert forecast_labels(cfg, pricing, trial, rough) == {}, "a data sheet is no forecast"


def test_the_second_sweep_has_forecasts_in_its_cost_csv(tmp_path):
    typed = [
        "+stage=smoke",
        "trainer=simulated",
        f"paths.root={tmp_path}",
        "search.prompts_per_step=[2]",
        "resume=never",
    ]
    forecasts = []
    for _ in range(2):
        run(compose([*typed, "stage.steps=3"]))
        (newest,) = sorted(tmp_path.glob("smoke-*/cost.csv"), key=lambda path: path.stat().st_mtime)[-1:]
        with newest.open(encoding="utf-8") as file:
            forecasts.append([row["forecast_p50"] for row in csv.DictReader(file) if row["row"] == "trial"])
    assert forecasts[0] == [""]
    assert Decimal(forecasts[1][0]) > 0

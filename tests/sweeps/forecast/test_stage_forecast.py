"""A stage on one machine: measured, scaled or from the data sheet; what fits; what it costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cost.clock import SystemClock
from cost.forecast.hardware import ModelSize
from cost.forecast.sampling import ForecastError
from cost.forecast.step_profile import fit_profile
from cost.prices.billing import load_rules
from cost.prices.book import PriceBook
from sweeps.config.build import canonical, compose
from sweeps.config.overrides import CONF_DIR
from sweeps.forecast.measurements import hardware_of, measured_runs, model_size
from sweeps.forecast.stage_forecast import LeaseTerms, StageForecast, forecast_stage, size_by_name, with_recipe_of
from sweeps.journal.journal import load
from sweeps.planning.plan import make_plan
from tests.sweeps.in_process import a_sweep

SIMULATED = ("trainer=simulated", "dry_run=true")


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    sweep = a_sweep(tmp_path_factory.mktemp("smoke"))
    sweep.run()
    return load(sweep.ledger, sweep.journal.record.sweep_id), measured_runs(sweep.ledger, sweep.journal.record)


def forecast(smoke, *overrides: str, terms: LeaseTerms | None = None, **changes) -> StageForecast:
    record, runs = smoke
    cfg = with_recipe_of(compose([*overrides, "stage.min_cards=1", *SIMULATED]), record.config, overrides)
    arguments = {
        "profile": fit_profile(runs),
        "measured_on": hardware_of(record.config["machine"]),
        "model": model_size(record),
        "book": PriceBook.load(CONF_DIR / "pricing"),
        "rules": load_rules(CONF_DIR / "pricing"),
        "from_ns": SystemClock().utc_ns(),
        "terms": terms or LeaseTerms(),
    }
    return forecast_stage(cfg, make_plan(cfg), **(arguments | changes))


def test_the_same_machine_is_measured_and_another_card_is_scaled(smoke) -> None:
    own, rented = forecast(smoke, "+stage=single"), forecast(smoke, "+stage=multi", "machine=h100x8")
    assert own.forecast is not None
    assert rented.forecast is not None
    assert (own.forecast.basis, rented.forecast.basis) == ("measured", "scaled")
    assert (own.rented, rented.rented) == (False, True)
    wide, narrow = rented.forecast.lease_ns, own.forecast.lease_ns
    assert wide.p90 / wide.p50 > narrow.p90 / narrow.p50


def test_categories_sum_to_the_money_of_the_lease(smoke) -> None:
    made = forecast(smoke, "+stage=multi", "machine=h100x8", terms=LeaseTerms(extras_pico={"storage": 10**12}))
    assert made.money is not None
    assert sum(c.p50_pico for c in made.money.categories) == made.money.total.p50
    assert {c.name: c.p50_pico for c in made.money.categories}["storage"] == 10**12


def test_bring_up_and_release_are_billed_on_rented_machines_only(smoke) -> None:
    long, short = LeaseTerms(7200.0, 3600.0), LeaseTerms(0.0, 0.0)
    for machine, more_ns in (("cpu", 0), ("h100", 10800 * 10**9)):
        slow = forecast(smoke, "+stage=single", f"machine={machine}", terms=long).forecast
        fast = forecast(smoke, "+stage=single", f"machine={machine}", terms=short).forecast
        assert slow is not None
        assert fast is not None
        assert slow.lease_ns.p50 - fast.lease_ns.p50 == more_ns


def test_preemptions_add_lost_work_and_recovery(smoke) -> None:
    made = forecast(smoke, "+stage=single", "machine=h100", terms=LeaseTerms(preemptions_per_hour=1.0))
    assert made.forecast is not None
    assert {"lost_work", "recovery"} <= {c.name for c in made.forecast.categories}


def test_a_model_that_does_not_fit_the_card_is_a_problem_and_has_no_figures(smoke) -> None:
    cfg = compose(["+stage=single", "machine=rtx4090", "model=hf", "model.path=org/Model-8B", "dry_run=true"])
    made = forecast_stage(
        cfg,
        make_plan(cfg),
        profile=None,
        measured_on=None,
        model=ModelSize(8e9, 8e9),
        book=PriceBook.load(CONF_DIR / "pricing"),
        rules=load_rules(CONF_DIR / "pricing"),
        from_ns=SystemClock().utc_ns(),
        terms=LeaseTerms(),
    )
    assert made.forecast is None
    assert "GiB per card" in made.problem


def test_without_measured_steps_the_data_sheet_gives_a_prior(smoke) -> None:
    made = forecast(smoke, "+stage=single", profile=None, model=ModelSize(6e8, 6e8))
    assert made.forecast is not None
    assert made.forecast.basis == "prior"
    assert any("no step was measured" in note for note in made.notes)


def test_without_steps_and_without_a_size_the_message_has_the_command_to_run(smoke) -> None:
    with pytest.raises(ForecastError, match=r"sweep\.py \+stage=smoke"):
        forecast(smoke, "+stage=single", profile=None, model=None)


def test_steps_of_another_task_are_refused(smoke) -> None:
    with pytest.raises(ForecastError, match="the profile's task is"):
        forecast(smoke, "+stage=single", "task=gsm8k")


def test_the_recipe_is_that_of_the_measured_sweep_unless_an_override_names_its_section(smoke) -> None:
    record, _ = smoke
    other = replace(compose(["+stage=single", *SIMULATED]))
    config = {**record.config, "rollout": {**record.config["rollout"], "max_completion_tokens": 77}}
    assert with_recipe_of(other, config, []).rollout.max_completion_tokens == 77
    kept = with_recipe_of(other, config, ["rollout.temperature=0.9"]).rollout.max_completion_tokens
    assert kept == other.rollout.max_completion_tokens
    target = with_recipe_of(other, config, []).algorithm
    assert target.lr_reference_completions == other.algorithm.lr_reference_completions
    assert canonical(other)["stage"]["name"] == "single"


def test_a_size_is_read_from_the_name_and_lora_trains_a_hundredth() -> None:
    full = size_by_name(compose(["+stage=single", "model=hf", "model.path=org/Qwen3-0.6B", "dry_run=true"]))
    lora = size_by_name(
        compose(["+stage=single", "model=hf", "model.path=org/Qwen3-0.6B", "model.lora_rank=16", "dry_run=true"])
    )
    assert full == ModelSize(6e8, 6e8)
    assert lora == ModelSize(6e8, 6e6)
    assert size_by_name(compose(["+stage=single", "model=hf", "model.path=org/nameless", "dry_run=true"])) is None

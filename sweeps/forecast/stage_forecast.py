"""Forecast a stage on one machine: from a plan and measured steps to seconds, card-hours and money.

The arithmetic is `cost.forecast`. This module turns a configuration into the work of its trials, chooses between
measured steps and the data sheet, and charges the forecast lease by the provider's billing rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from cost.forecast.data_sheet import profile_from_data_sheet
from cost.forecast.hardware import Hardware, ModelSize, does_not_fit
from cost.forecast.lease_cost import MoneyForecast, lease_money, with_extras
from cost.forecast.predict import Forecast, Machine, Preemptions, SweepWork, TrialWork, predict
from cost.forecast.sampling import ForecastError
from cost.forecast.step_profile import StepProfile
from cost.prices.billing import BillingRule, rule_for
from cost.prices.book import PriceBook
from rl.codec import from_json
from sweeps.config.build import canonical
from sweeps.config.types import SweepConfig
from sweeps.forecast.measurements import hardware_of, model_name
from sweeps.forecast.step_time import parameters_of
from sweeps.planning.plan import Plan, PlannedTrial

RECIPE_SECTIONS = ("model", "task", "algorithm", "rollout", "evaluation", "trainer")
"""Sections of a configuration that a forecast takes from the measured sweep, unless an override names them."""
PROMPT_TOKENS = 64
"""Assumed tokens of a prompt where nothing was measured."""
LENGTH_SHARE = 0.5
"""Assumed mean length of a completion as a share of its limit where nothing was measured."""
LORA_SHARE = 0.01
"""Assumed share of the parameters that LoRA adapters have where nothing was measured."""


@dataclass(frozen=True)
class LeaseTerms:
    """What a rented machine is billed for besides its trials. None of it is measured."""

    bring_up_seconds: float = 600.0
    """From the start of billing to the first trial: the machine, the environment, the download of the model."""
    release_seconds: float = 300.0
    """From the end of the last trial until the machine is released."""
    preemptions_per_hour: float = 0.0
    extras_pico: Mapping[str, int] = field(default_factory=dict)
    """Amounts in the currency of the price that do not depend on time: storage, egress."""


@dataclass(frozen=True)
class StageForecast:
    """A stage on one machine. `problem`: why the work cannot be done there, if so; `forecast` is None then."""

    machine: str
    cards: int
    rented: bool
    forecast: Forecast | None = None
    money: MoneyForecast | None = None
    """None: the machine has no price."""
    problem: str = ""
    notes: tuple[str, ...] = ()


def with_recipe_of(cfg: SweepConfig, config: Mapping[str, Any], overrides: Sequence[str]) -> SweepConfig:
    """The configuration with the recipe of a measured sweep; a section that an override names stays as composed."""
    named = {override.lstrip("+~").split("=")[0].split(".")[0] for override in overrides}
    stage_keys = {"lr_reference_completions"}
    sections = {}
    for section in RECIPE_SECTIONS:
        if section in named:
            continue
        own = canonical(cfg)[section]
        kept = {k: own[k] for k in stage_keys if k in own}
        sections[section] = {**config[section], **kept}
    return from_json(SweepConfig, {**canonical(cfg), **sections})


def forecast_stage(
    cfg: SweepConfig,
    plan: Plan,
    *,
    profile: StepProfile | None,
    measured_on: Hardware | None,
    model: ModelSize | None,
    book: PriceBook,
    rules: Sequence[BillingRule],
    from_ns: int,
    terms: LeaseTerms,
) -> StageForecast:
    """The plan on the machine of the configuration, with the lease beginning at `from_ns` (UTC).

    Args:
        profile: measured steps of this trainer, model and task; None: the data sheet of the machine.
        measured_on: the cards on which they were measured.
        model: the size of the model; None: unknown, so only its own machine's measured steps can be forecast.

    Raises:
        ForecastError: the profile is of another trainer, model or task, or too little is known.
        PriceError: the provider has no billing rule, or the machine has no price.
    """
    machine, rented = cfg.machine, cfg.machine.purchase != "own"
    hardware = hardware_of(canonical(cfg)["machine"])
    result = StageForecast(machine.name, machine.cards, rented)
    if model is not None and machine.device == "cuda" and not cfg.simulated:
        problem = does_not_fit(model, hardware, cfg.search.cards_per_trial)
        if problem:
            return StageForecast(machine.name, machine.cards, rented, problem=problem)
    trials = tuple(_work(cfg, trial) for trial in (*plan.trials, *plan.typical))
    notes: tuple[str, ...] = ()
    if profile is None:
        profile = _prior(cfg, hardware, model, trials[0])
    else:
        notes = tuple(profile.notes)
    if profile.trend.mean_tokens is None:
        trials = tuple(replace(work, max_completion_tokens=None) for work in trials)
    forecast = predict(
        profile,
        SweepWork(
            cfg.trainer.name,
            model_name(canonical(cfg)["model"]),
            cfg.task.name,
            Machine(machine.name, machine.cards, hardware),
            trials,
            max_concurrent=cfg.search.max_concurrent or None,
            bring_up_seconds=terms.bring_up_seconds if rented else 0.0,
            release_seconds=terms.release_seconds if rented else 0.0,
            preemptions=_preemptions(cfg, terms) if rented else None,
            model_size=model,
        ),
        measured_on=measured_on,
    )
    row = book.in_force(machine.sku, from_ns, purchase=machine.purchase, region=machine.region or None)
    money = lease_money(
        forecast,
        rule=rule_for(rules, machine.provider, machine.purchase),
        prices=book.series(machine.sku, purchase=machine.purchase, region=machine.region or None, kind=row.kind),
        from_ns=from_ns,
        watts=Decimal(str(machine.watts)),
    )
    if rented and terms.extras_pico:
        money = with_extras(money, terms.extras_pico)
    return StageForecast(result.machine, result.cards, rented, forecast, money, notes=(*notes, *forecast.notes))


def _work(cfg: SweepConfig, trial: PlannedTrial) -> TrialWork:
    steps, every = cfg.stage.steps, cfg.evaluation.every_steps
    evaluations = 1 + (_times(steps, every) if every else 1)
    return TrialWork(
        steps,
        trial.prompts_per_step,
        trial.group_size,
        cfg.search.cards_per_trial,
        evaluations=evaluations if cfg.task.eval_questions else 0,
        checkpoints=_times(steps, cfg.trainer.checkpoint_every_steps) if cfg.trainer.checkpoint_every_steps else 1,
        max_completion_tokens=cfg.rollout.max_completion_tokens,
        updates_per_step=cfg.algorithm.updates_per_rollout,
    )


def _times(steps: int, every: int) -> int:
    """How often something happens that is done every so many steps, and after the last one."""
    return -(-steps // every)


def _preemptions(cfg: SweepConfig, terms: LeaseTerms) -> Preemptions | None:
    if not terms.preemptions_per_hour:
        return None
    every = cfg.trainer.checkpoint_every_steps or cfg.stage.steps
    return Preemptions(terms.preemptions_per_hour, min(every, cfg.stage.steps), terms.bring_up_seconds)


def _prior(cfg: SweepConfig, hardware: Hardware, model: ModelSize | None, work: TrialWork) -> StepProfile:
    if model is None:
        raise ForecastError(
            "no step of this model was measured, and its size is unknown: run `python sweep.py +stage=smoke` with it, "
            "or name a model whose path contains its size, as Qwen/Qwen3-0.6B does"
        )
    limit = cfg.rollout.max_completion_tokens
    return profile_from_data_sheet(
        model,
        hardware,
        work.size,
        trainer=cfg.trainer.name,
        model_name=model_name(canonical(cfg)["model"]),
        task=cfg.task.name,
        prompt_tokens=PROMPT_TOKENS,
        completion_tokens=LENGTH_SHARE * limit,
        max_completion_tokens=limit,
        engine="vllm" if cfg.rollout.engine == "vllm" else "transformers",
        reference_model=bool(cfg.algorithm.kl_coef),
        updates_per_step=cfg.algorithm.updates_per_rollout,
    )


def size_by_name(cfg: SweepConfig) -> ModelSize | None:
    """The size of a model from its kind or from its path, as in `Qwen3-0.6B`; None: unknown."""
    parameters = parameters_of(cfg)
    if parameters is None:
        return None
    trained = parameters * LORA_SHARE if cfg.model.lora_rank else parameters
    return ModelSize(parameters, trained)

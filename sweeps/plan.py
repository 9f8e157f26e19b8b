"""What a stage will run: every point of the search space resolved into a trial, before anything starts.

Pure: from a `SweepConfig` to a `Plan`, nothing is read and nothing is written. A trial's id is the hash of all that can
change its result, so points that resolve to the same configuration are one trial, and the same question asked twice
is recognised.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rl.codec import to_json
from rl.spec import TrialSpec
from sweeps.config_types import SweepConfig

_WITHOUT_EFFECT_ON_RESULT = ("trial_id", "attempt", "cards", "checkpoint_dir", "cache_dir")
_TRAINER_WITHOUT_EFFECT_ON_RESULT = (
    "micro_batch_tokens",
    "packing",
    "gradient_checkpointing",
    "logprob_chunk_tokens",
    "threads",
    "checkpoint_every_steps",
    "keep_checkpoints",
)


@dataclass(frozen=True)
class PlannedTrial:
    """One point of the search space. `names` are the lr_scaling rules that resolved to this same configuration."""

    trial_id: str
    prompts_per_step: int
    group_size: int
    seed: int
    lr: float
    lr_scaling: str
    names: tuple[str, ...]
    adaptive_lr: bool
    """The `clip_frac` rule moves the learning rate while the trial runs."""

    @property
    def label(self) -> str:
        return f"{self.prompts_per_step}x{self.group_size} {'='.join(self.names)}"


@dataclass(frozen=True)
class Plan:
    """The trials of one sweep, in the order in which they start. `digest` recognises the same plan at a resume."""

    trials: tuple[PlannedTrial, ...]
    points: int
    """Points of the search space before those that resolve to the same configuration were merged."""
    digest: str
    warnings: tuple[str, ...]


def scaled_lr(rule: str, lr: float, completions_per_update: float, reference_completions: int) -> float:
    """The learning rate that a scaling rule gives; all rules give `lr` at the reference.

    `linear` is Goyal et al. 2017 (arXiv:1706.02677), `sqrt` Krizhevsky 2014 (arXiv:1404.5997); `hold` and `clip_frac`
    start from the rate as it is.

    Raises:
        ValueError: unknown rule.
    """
    k = completions_per_update / reference_completions
    factors = {"hold": 1.0, "clip_frac": 1.0, "sqrt": math.sqrt(k), "linear": k}
    if rule not in factors:
        raise ValueError(f"search.lr_scaling has {rule!r}; known: {', '.join(factors)}")
    # Twelve digits: rules that agree mathematically must agree in the configuration's hash too.
    return float(f"{lr * factors[rule]:.12g}")


def make_plan(cfg: SweepConfig) -> Plan:
    """Resolve the grid. Points that are the same trial are merged, keeping the order of their first appearance."""
    found: dict[str, PlannedTrial] = {}
    points = 0
    for seed in _seeds(cfg):
        for prompts, group, rule in itertools.product(
            cfg.search.prompts_per_step, cfg.search.group_size, cfg.search.lr_scaling
        ):
            points += 1
            per_update = prompts * group / cfg.algorithm.updates_per_rollout
            lr = scaled_lr(rule, cfg.algorithm.lr, per_update, cfg.algorithm.lr_reference_completions)
            trial = PlannedTrial("", prompts, group, seed, lr, rule, (rule,), adaptive_lr=rule == "clip_frac")
            trial_id = _trial_id(cfg, trial)
            if before := found.get(trial_id):
                if rule not in before.names:
                    found[trial_id] = replace(before, names=(*before.names, rule))
            else:
                found[trial_id] = replace(trial, trial_id=trial_id)
    trials = tuple(found.values())
    digest = hashlib.sha256("\n".join([cfg.stage.name, cfg.machine.name, *found]).encode()).hexdigest()[:12]
    return Plan(trials, points, digest, _warnings(cfg))


def trial_spec(
    cfg: SweepConfig, trial: PlannedTrial, *, attempt: int, sweep_dir: Path, micro_batch_tokens: int | None = None
) -> TrialSpec:
    """The trainer's orders for one attempt. `micro_batch_tokens`: a retry's; None: as configured."""
    trainer = cfg.trainer
    if micro_batch_tokens is not None:
        trainer = replace(trainer, micro_batch_tokens=micro_batch_tokens)
    return TrialSpec(
        trial_id=trial.trial_id,
        attempt=attempt,
        seed=trial.seed,
        steps=cfg.stage.steps,
        prompts_per_step=trial.prompts_per_step,
        group_size=trial.group_size,
        cards=cfg.search.cards_per_trial,
        model=cfg.model,
        task=cfg.task,
        algorithm=replace(cfg.algorithm, lr=trial.lr),
        rollout=cfg.rollout,
        evaluation=cfg.evaluation,
        trainer=trainer,
        checkpoint_dir=str(sweep_dir.absolute() / "checkpoints" / trial.trial_id),
        cache_dir=str(Path(cfg.paths.cache).expanduser().absolute()),
    )


def what_decides_the_result(spec: TrialSpec, *, adaptive_lr: bool) -> Mapping[str, Any]:
    """A trial's configuration without what cannot change its result: storage, machine, micro-batch."""
    body = to_json(spec)
    for key in _WITHOUT_EFFECT_ON_RESULT:
        body.pop(key)
    for key in _TRAINER_WITHOUT_EFFECT_ON_RESULT:
        body["trainer"].pop(key)
    if body["trainer"]["name"] != "simulated":
        body["trainer"].pop("simulated")
    return {**body, "adaptive_lr": adaptive_lr}


def _trial_id(cfg: SweepConfig, trial: PlannedTrial) -> str:
    spec = trial_spec(cfg, trial, attempt=1, sweep_dir=Path())
    body = json.dumps(what_decides_the_result(spec, adaptive_lr=trial.adaptive_lr), sort_keys=True)
    return hashlib.sha256(body.encode()).hexdigest()[:10]


def _seeds(cfg: SweepConfig) -> tuple[int, ...]:
    """The configured seeds; with `search.trials`, as many further ones as it takes for the grid to reach it."""
    per_seed = len(cfg.search.prompts_per_step) * len(cfg.search.group_size) * len(cfg.search.lr_scaling)
    if cfg.search.trials is None:
        return cfg.search.seeds
    wanted = math.ceil(cfg.search.trials / per_seed)
    seeds = list(cfg.search.seeds[:wanted])
    while len(seeds) < wanted:
        seeds.append(max(seeds, default=-1) + 1)
    return tuple(seeds)


def _warnings(cfg: SweepConfig) -> tuple[str, ...]:
    found = []
    if max(cfg.search.group_size) > 8 and min(cfg.search.prompts_per_step) < 8:
        found.append(
            f"search.group_size grows to {max(cfg.search.group_size)} while prompts_per_step is "
            f"{min(cfg.search.prompts_per_step)}: returns diminish near G=8, more prompts teach more than more samples "
            "of the same prompt"
        )
    return tuple(found)

"""A trial's specification from the configuration, and the part of it that decides the trial's result.

The hash of that part is the trial's id (`sweeps.planning.plan`).

Tested in tests/sweeps/planning/test_plan.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl.algorithms import follow_lengths
from rl.codec import to_json
from rl.spec import TrialSpec
from sweeps.config.identity import SECTIONS, VERSION, content_of, without_defaults
from sweeps.config.types import SweepConfig

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


def is_searchable(key: str) -> bool:
    """Whether a dotted key of a trial's specification may change the trial's result."""
    section, _, name = key.partition(".")
    without_effect = section == "trainer" and name in ("name", *_TRAINER_WITHOUT_EFFECT_ON_RESULT)
    return section in SECTIONS and bool(name) and not without_effect


def spec_of(
    cfg: SweepConfig, *, prompts_per_step: int, group_size: int, lr: float | None = None, seed: int = 0
) -> TrialSpec:
    """The specification of a trial with this batch. `lr`: None takes `algorithm.lr` as it is configured.

    Without a trial id and a checkpoint folder: the caller that runs the trial adds both.
    """
    algorithm = follow_lengths(cfg.algorithm, cfg.rollout)
    return TrialSpec(
        trial_id="",
        attempt=1,
        seed=seed,
        steps=cfg.stage.steps,
        prompts_per_step=prompts_per_step,
        group_size=group_size,
        cards=cfg.search.cards_per_trial,
        model=cfg.model,
        task=cfg.task,
        algorithm=algorithm if lr is None else replace(algorithm, lr=lr),
        rollout=cfg.rollout,
        evaluation=cfg.evaluation,
        trainer=cfg.trainer,
        checkpoint_dir="",
        cache_dir=str(Path(cfg.paths.cache).expanduser().absolute()),
    )


def result_identity(
    spec: TrialSpec, *, adaptive_lr: bool, content: Mapping[str, str] | None = None
) -> Mapping[str, Any]:
    """Everything in a specification that can change the trial's result. Storage, machine and micro-batch cannot.

    Settings at their defaults are left out (`sweeps.config.identity`).

    Args:
        adaptive_lr: the `clip_frac` rule changes the learning rate while the trial runs.
        content: `SweepConfig.content`, of which the hashes of the trial's own questions and model are part.
    """
    body = to_json(spec)
    for key in _WITHOUT_EFFECT_ON_RESULT:
        body.pop(key)
    for key in _TRAINER_WITHOUT_EFFECT_ON_RESULT:
        body["trainer"].pop(key)
    if body["trainer"]["name"] != "simulated":
        body["trainer"].pop("simulated")
    body["content"] = content_of({**body, "content": content})
    for section in SECTIONS:
        body[section] = without_defaults(section, body[section])
    return {**body, "adaptive_lr": adaptive_lr, "version": VERSION}

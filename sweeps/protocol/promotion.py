"""From one rung of the ladder to the next: whether the gate below is open, and what changes on the way up.

Pure: earlier sweeps and a configuration in, a verdict out. What must stay the same from rung to rung is the recipe;
everything else that differs is shown, and where the number of cards changes it has to be acknowledged.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeps.config.build import canonical
from sweeps.config.diff import changed_keys
from sweeps.config.types import SweepConfig
from sweeps.journal.journal import SweepRecord, TrialState

_NOT_OF_THE_RECIPE: Mapping[str, frozenset[str]] = {
    "model": frozenset(),
    "task": frozenset({"eval_questions", "reward_workers", "reward_timeout_seconds"}),
    "algorithm": frozenset(
        {"lr", "lr_schedule", "lr_warmup_updates", "lr_final_frac", "lr_reference_completions", "updates_per_rollout"}
    ),
    "rollout": frozenset({"engine", "max_batch_completions", "gpu_memory_utilization", "kv_cache_gib"}),
}
"""Parts of the configuration that are the recipe, each without its keys about rate, batch, engine and evaluation."""
_SHOWN_OF_MACHINE = ("machine.name", "machine.cards", "machine.interconnect:")


@dataclass(frozen=True)
class Promotion:
    """The step up to a stage. `problem` is empty where it may be taken."""

    below: str | None
    """The sweep whose open gate this stage stands on; None: it stands on none."""
    changes: tuple[str, ...]
    """`key: old -> new`, against that sweep."""
    problem: str
    """Why the stage must not start, and what to do; empty: it may."""


def recipe_hash(config: Mapping[str, Any]) -> str:
    """Of what must stay the same: weights, tokenizer, template, data, reward, lengths, sampling, loss.

    Args:
        config: as `sweeps.config.canonical` gives it.
    """
    recipe = {
        part: {k: v for k, v in config[part].items() if k not in left_out}
        for part, left_out in _NOT_OF_THE_RECIPE.items()
    }
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:12]


def promotion(records: Sequence[SweepRecord], cfg: SweepConfig) -> Promotion:
    """Whether this stage may start, from what `records` (oldest first) say of the stage below it.

    A simulated stage opens simulated ones only.
    """
    below = cfg.stage.needs_gate_of
    if not below:
        return Promotion(None, (), "")
    config = canonical(cfg)
    recipe, simulated = recipe_hash(config), cfg.simulated
    same = [
        (r, tried)
        for r in records
        if r.stage == below and (simulated or not r.simulated) and (tried := _config_with(r, recipe)) is not None
    ]
    opened = [(r, tried) for r, tried in same if r.gate and r.gate.open]
    if not opened:
        return Promotion(None, (), "" if cfg.gate.start_anyway else _closed(cfg, below, [r for r, _ in same]))
    newest, tried = opened[-1]
    changes = tuple(c for c in changed_keys(tried, config) if _shown(c))
    token = "read-" + hashlib.sha256("\n".join(changes).encode()).hexdigest()[:6]  # never a number on a command line
    more_cards = _cards(newest.config) != _cards(config)
    if more_cards and cfg.gate.acknowledge != token:
        return Promotion(newest.sweep_id, changes, _unread(_cards(newest.config), _cards(config), token))
    return Promotion(newest.sweep_id, changes, "")


def _config_with(record: SweepRecord, recipe: str) -> Mapping[str, Any] | None:
    """The sweep's configuration at the trials that had this recipe; None: none had it. A search may try several."""
    overrides = {
        json.dumps(t.planned.overrides, sort_keys=True): t.planned.overrides
        for t in record.trials.values()
        if t.state is not TrialState.PRUNED
    }
    tried = (_with_values(record.config, values) for values in overrides.values() or [{}])
    return next((config for config in tried if recipe_hash(config) == recipe), None)


def _with_values(config: Mapping[str, Any], values: Mapping[str, Any]) -> Mapping[str, Any]:
    """A canonical configuration with other values for these dotted keys."""
    if not values:
        return config
    changed = copy.deepcopy(dict(config))
    for key, value in values.items():
        *path, last = key.split(".")
        part = changed
        for name in path:
            part = part[name]
        part[last] = value
    return changed


def _closed(cfg: SweepConfig, below: str, same: Sequence[SweepRecord]) -> str:
    if not same:
        what = f"no {below} of this recipe has opened its gate in {cfg.paths.root}"
    else:
        why = "its gate is closed" if same[-1].gate else "it has not come to its gate"
        what = f"{same[-1].sweep_id} is the newest {below} of this recipe, and {why}"
    return (
        f"stage {cfg.stage.name} stands on an open gate of stage {below}: {what}. Run it first: "
        f"python sweep.py +stage={below} with the same model, task and algorithm; or say why not: "
        "'gate.start_anyway=\"REASON\"'"
    )


def _unread(old: int, new: int, token: str) -> str:
    return (
        f"from {old} to {new} cards a trial: look at what changes above, which is all that the lower rung does not "
        f"answer for; then add gate.acknowledge={token}"
    )


def _cards(config: Mapping[str, Any]) -> int:
    return config["search"]["cards_per_trial"]


def _shown(change: str) -> bool:
    if change.startswith("stage."):
        return change.startswith("stage.steps")
    return not change.startswith("machine.") or change.startswith(_SHOWN_OF_MACHINE)

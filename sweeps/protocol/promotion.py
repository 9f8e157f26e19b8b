"""Whether a stage may start: the gate of the stage below must be open, and what changes since is shown.

Pure functions of earlier sweeps and a configuration. The recipe must stay the same from stage to stage. Everything else
that differs is shown, and has to be acknowledged where trials get more or fewer cards.
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
from sweeps.config.identity import VERSION, content_of, with_defaults, without_defaults
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
"""The sections of the recipe, and the keys of each that are not part of it: rate, batch, engine, evaluation."""
_SHOWN_OF_MACHINE = ("machine.name", "machine.cards", "machine.interconnect:")


MOST_CHANGES_SHOWN = 8
"""Keys that a closed gate names where only another recipe was tried."""


@dataclass(frozen=True)
class Promotion:
    """Whether a stage may start, and after which sweep."""

    below: str | None
    """The sweep whose open gate allows this stage; None: there is none."""
    changes: tuple[str, ...]
    """`key: old -> new`, against that sweep."""
    problem: str
    """Why the stage cannot start, and what to do; empty: it can."""


def recipe_hash(config: Mapping[str, Any]) -> str:
    """Hash of what must stay the same: weights, tokenizer, template, data, reward, lengths, sampling, loss.

    Args:
        config: as `sweeps.config.canonical` gives it.
    """
    body = json.dumps({"version": VERSION, **_recipe(config)}, sort_keys=True)
    return hashlib.sha256(body.encode()).hexdigest()[:12]


def _recipe(config: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe without the keys that have their defaults, and the hashes of questions and model files."""
    recipe: dict[str, Any] = {
        part: {k: v for k, v in without_defaults(part, config[part]).items() if k not in left_out}
        for part, left_out in _NOT_OF_THE_RECIPE.items()
    }
    return {**recipe, "content": content_of(config)}


def _comparable(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration for `changed_keys`: with the keys that are newer than it, and the content that it uses."""
    return {**with_defaults(config), "content": content_of(config)}


def promotion(records: Sequence[SweepRecord], cfg: SweepConfig) -> Promotion:
    """Whether this stage may start after the sweeps in `records` (oldest first).

    A simulated stage allows simulated stages only.
    """
    below = cfg.stage.needs_gate_of
    if not below:
        return Promotion(None, (), "")
    config = canonical(cfg)
    recipe, simulated = recipe_hash(config), cfg.simulated
    candidates = [r for r in records if r.stage == below and (simulated or not r.simulated)]
    same = [(r, tried) for r in candidates if (tried := _config_with(r, recipe)) is not None]
    opened = [(r, tried) for r, tried in same if r.gate and r.gate.open]
    if not opened:
        if cfg.gate.start_anyway:
            return Promotion(None, (), "")
        return Promotion(None, (), _closed(cfg, below, [r for r, _ in same]) + _other_recipe(candidates, same, config))
    newest, tried = opened[-1]
    changes = tuple(c for c in changed_keys(_comparable(tried), _comparable(config)) if _shown(c))
    token = "read-" + hashlib.sha256("\n".join(changes).encode()).hexdigest()[:6]  # never a number on a command line
    more_cards = _cards(newest.config) != _cards(config)
    if more_cards and cfg.gate.acknowledge != token:
        return Promotion(newest.sweep_id, changes, _unread(_cards(newest.config), _cards(config), token))
    return Promotion(newest.sweep_id, changes, "")


def _config_with(record: SweepRecord, recipe: str) -> Mapping[str, Any] | None:
    """The sweep's configuration for trials of this recipe; None: no trial has it. A search may vary the recipe."""
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
        reason = f"no {below} sweep of this recipe in {cfg.paths.root} has an open gate"
    else:
        why = "its gate is closed" if same[-1].gate else "its gate was not judged"
        reason = f"{same[-1].sweep_id} is the newest {below} sweep of this recipe, and {why}"
    return (
        f"stage {cfg.stage.name} needs an open gate of stage {below}: {reason}. Run that stage first: "
        f"python sweep.py +stage={below} with the same model, task and algorithm; or give a reason to skip it: "
        "'gate.start_anyway=\"REASON\"'"
    )


def _other_recipe(candidates: Sequence[SweepRecord], same: Sequence[Any], config: Mapping[str, Any]) -> str:
    """The keys in which the newest sweep of another recipe differs; empty where there is a sweep of this recipe."""
    if same or not candidates:
        return ""
    newest = candidates[-1]
    parts = (*_NOT_OF_THE_RECIPE, "content")
    old, new = ({part: _comparable(c)[part] for part in parts} for c in (newest.config, config))
    left_out = {f"{part}.{key}" for part, keys in _NOT_OF_THE_RECIPE.items() for key in keys}
    changes = [c for c in changed_keys(old, new) if c.split(": ")[0] not in left_out]
    shown = "; ".join(changes[:MOST_CHANGES_SHOWN]) + ("; ..." if len(changes) > MOST_CHANGES_SHOWN else "")
    return f". The recipe of {newest.sweep_id} is another one: {shown}" if changes else ""


def _unread(old: int, new: int, token: str) -> str:
    return (
        f"from {old} to {new} cards a trial: read the changes above, which the lower stage has not tested; then add "
        f"gate.acknowledge={token}"
    )


def _cards(config: Mapping[str, Any]) -> int:
    return config["search"]["cards_per_trial"]


def _shown(change: str) -> bool:
    if change.startswith("stage."):
        return change.startswith("stage.steps")
    return not change.startswith("machine.") or change.startswith(_SHOWN_OF_MACHINE)

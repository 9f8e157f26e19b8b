"""The plan of a stage: the points of the search space resolved into trials, before anything starts.

A grid and random draws are planned completely. Optuna's proposals are not known in advance: such a plan contains their
number, and `sweeps/search/proposals.py` resolves each proposal with `resolve`. Pure: from a `SweepConfig` to a `Plan`,
without reading or writing anything. A trial's id is the hash of everything that can change its result, so points that
resolve to the same configuration are one trial.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rl.codec import to_json
from rl.spec import TrialSpec
from sweeps.config.axes import axes, draws, grid
from sweeps.config.points import Point, with_values
from sweeps.config.search_checks import CHANGES_EVALUATION
from sweeps.config.search_space import TRIAL_KEYS
from sweeps.config.trial_spec import result_identity, spec_of
from sweeps.config.types import ConfigError, SweepConfig

MAX_NOISE = 0.1
"""Half the width of the 95 % interval of an accuracy of 0.5. With a wider interval, pruning gets a warning."""
MAX_MISSES = 2000
"""After this many draws in a row that repeat a known trial, the space is taken to have no further ones."""


@dataclass(frozen=True)
class PlannedTrial:
    """One point of the search space with one seed."""

    trial_id: str
    prompts_per_step: int
    group_size: int
    seed: int
    lr: float
    lr_scaling: str
    names: tuple[str, ...]
    """The lr_scaling rules that give this same configuration."""
    adaptive_lr: bool
    """The `clip_frac` rule changes the learning rate while the trial runs."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """The point's values for the keys of `search.space` beyond the fields above; `algorithm.lr` is before scaling."""

    @property
    def label(self) -> str:
        """For tables: `4x8 hold,linear kl_coef=0.01`."""
        text = f"{self.prompts_per_step}x{self.group_size} {','.join(self.names)}"
        return f"{text} {self.varied}" if self.varied else text

    @property
    def varied(self) -> str:
        """The overrides without the learning rate, which tables show in a column: `kl_coef=0.01 temperature=0.9`."""
        rest = {k.rpartition(".")[2]: v for k, v in self.overrides.items() if k != "algorithm.lr"}
        return " ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in rest.items())

    @property
    def point(self) -> dict[str, Any]:
        """The trial's point of the search space. Trials that differ only in their seed have the same point."""
        return {k: getattr(self, k) for k in TRIAL_KEYS} | dict(self.overrides)


@dataclass(frozen=True)
class Plan:
    """The trials of one sweep, in the order in which they start."""

    trials: tuple[PlannedTrial, ...]
    points: int
    """Points of the search space, before points that resolve to the same trial were merged."""
    digest: str
    """Identifies the plan: a resume looks for an unfinished sweep with the same digest."""
    warnings: tuple[str, ...]
    proposals: int = 0
    """Trials that Optuna proposes while the sweep runs."""
    typical: tuple[PlannedTrial, ...] = ()
    """Trials at random points that stand for Optuna's proposals in estimates."""

    @property
    def size(self) -> int:
        """The number of trials, proposals included."""
        return len(self.trials) + self.proposals


def scaled_lr(rule: str, lr: float, completions_per_update: float, reference_completions: int) -> float:
    """The learning rate that a scaling rule gives. All rules give `lr` at the reference.

    `linear` is Goyal et al. 2017 (arXiv:1706.02677), `sqrt` Krizhevsky 2014 (arXiv:1404.5997); `hold` keeps `lr`, and
    `clip_frac` starts from `lr`.

    Raises:
        ValueError: unknown rule.
    """
    k = completions_per_update / reference_completions
    factors = {"hold": 1.0, "clip_frac": 1.0, "sqrt": math.sqrt(k), "linear": k}
    if rule not in factors:
        raise ValueError(f"search.lr_scaling has {rule!r}; known: {', '.join(factors)}")
    # Twelve digits: rules that agree mathematically must give the same trial id.
    return float(f"{lr * factors[rule]:.12g}")


def make_plan(cfg: SweepConfig) -> Plan:
    """Resolve the points into trials. Points that are the same trial are merged, in order of first appearance.

    Raises:
        ConfigError: the search space has fewer different trials than `search.trials`.
    """
    if cfg.search.method == "grid":
        trials, points = _grid_trials(cfg)
        return Plan(trials, points, _digest(cfg, trials), _warnings(cfg))
    drawn = _drawn_trials(cfg)
    if cfg.search.method == "random":
        return Plan(drawn, len(drawn), _digest(cfg, drawn), _warnings(cfg))
    return Plan((), 0, _digest(cfg, drawn), _warnings(cfg), proposals=len(drawn), typical=drawn)


def resolve(cfg: SweepConfig, point: Point, seed: int) -> PlannedTrial:
    """The trial at a point of the search space."""
    overrides = {k: v for k, v in point.items() if k not in TRIAL_KEYS}
    prompts, group, rule = (point[k] for k in TRIAL_KEYS)
    algorithm = with_values(cfg, overrides).algorithm
    per_update = prompts * group / algorithm.updates_per_rollout
    lr = scaled_lr(rule, algorithm.lr, per_update, algorithm.lr_reference_completions)
    trial = PlannedTrial("", prompts, group, seed, lr, rule, (rule,), rule == "clip_frac", overrides)
    return replace(trial, trial_id=_trial_id(cfg, trial))


def trial_spec(
    cfg: SweepConfig, trial: PlannedTrial, *, attempt: int, sweep_dir: Path, micro_batch_tokens: int | None = None
) -> TrialSpec:
    """What the trainer of one attempt receives.

    Args:
        micro_batch_tokens: of a retry after running out of memory; None: as configured.
    """
    spec = replace(
        _spec(cfg, trial),
        trial_id=trial.trial_id,
        attempt=attempt,
        checkpoint_dir=str(sweep_dir.absolute() / "checkpoints" / trial.trial_id),
    )
    if micro_batch_tokens is None:
        return spec
    return replace(spec, trainer=replace(spec.trainer, micro_batch_tokens=micro_batch_tokens))


def _spec(cfg: SweepConfig, trial: PlannedTrial) -> TrialSpec:
    return spec_of(
        with_values(cfg, trial.overrides),
        prompts_per_step=trial.prompts_per_step,
        group_size=trial.group_size,
        lr=trial.lr,
        seed=trial.seed,
    )


def _trial_id(cfg: SweepConfig, trial: PlannedTrial) -> str:
    identity = result_identity(_spec(cfg, trial), adaptive_lr=trial.adaptive_lr, content=cfg.content)
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:10]


def _grid_trials(cfg: SweepConfig) -> tuple[tuple[PlannedTrial, ...], int]:
    """The trials of the grid and the number of points they cover; with `search.trials`, exactly that many trials."""
    found: dict[str, PlannedTrial] = {}
    points, covered = grid(axes(cfg)), 0
    wanted = cfg.search.trials
    for seed in _seeds(cfg):
        for point in points:
            trial = resolve(cfg, point, seed)
            before = found.get(trial.trial_id)
            if before is None and len(found) == wanted:
                continue
            covered += 1
            if before is None:
                found[trial.trial_id] = trial
            elif trial.lr_scaling not in before.names:
                found[trial.trial_id] = replace(before, names=(*before.names, trial.lr_scaling))
        if len(found) == wanted:
            break
    return tuple(found.values()), covered


def _seeds(cfg: SweepConfig) -> Iterator[int]:
    """The configured seeds; with `search.trials`, further ones without end."""
    yield from cfg.search.seeds
    if cfg.search.trials is not None:
        yield from itertools.count(max(cfg.search.seeds, default=-1) + 1)


def _drawn_trials(cfg: SweepConfig) -> tuple[PlannedTrial, ...]:
    """Exactly `search.trials` different trials: each point with every seed, the last one perhaps with fewer."""
    wanted, seeds = cfg.search.trials or 0, cfg.search.seeds
    found: dict[str, PlannedTrial] = {}
    misses = 0
    for point in draws(axes(cfg), cfg.search.sampler_seed):
        if resolve(cfg, point, seeds[0]).trial_id in found:
            misses += 1
            if misses >= MAX_MISSES:
                raise ConfigError(
                    f"search.trials={wanted}: the search space has no more than {len(found)} different trials; ask "
                    f"for {len(found)}, or give its keys (search.space) more values"
                )
            continue
        misses = 0
        found |= {t.trial_id: t for seed in seeds if (t := resolve(cfg, point, seed))}
        if len(found) >= wanted:
            return tuple(found.values())[:wanted]
    raise AssertionError("unreachable: draws do not end")


def _digest(cfg: SweepConfig, trials: Iterable[PlannedTrial]) -> str:
    """A hash of the trials and of the rules that propose and end them."""
    search = cfg.search
    rules: dict[str, Any] = {}
    if search.method == "optuna":
        rules |= {k: getattr(search, k) for k in ("method", "trials", "sampler_seed", "startup_trials")}
        rules["space"] = [str(axis) for axis in axes(cfg)]
    if search.pruning != "none":
        rules |= {k: v for k, v in to_json(search).items() if k.startswith("pruning")}
    parts = [cfg.stage.name, cfg.machine.name, *(t.trial_id for t in trials)]
    if rules:
        parts.append(json.dumps(rules, sort_keys=True))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _warnings(cfg: SweepConfig) -> tuple[str, ...]:
    found = []
    ends = {axis.key: axis.extremes for axis in axes(cfg)}
    group, prompts = max(ends["group_size"]), min(ends["prompts_per_step"])
    if group > 8 and prompts < 8:
        found.append(
            f"search.group_size grows to {group} while prompts_per_step is {prompts}: returns diminish above G=8, and "
            "more prompts teach more than more completions of the same prompt"
        )
    found += [
        f"search.space varies {key}: the trials are evaluated differently, so their accuracies do not compare"
        for key in ends
        if key.startswith(CHANGES_EVALUATION)
    ]
    search = cfg.search
    if search.method == "optuna" and search.startup_trials * len(search.seeds) >= (search.trials or 0):
        found.append(
            f"search=optuna draws the first search.startup_trials={search.startup_trials} points at random, and "
            f"search.trials={search.trials} leaves no trial after them: Optuna proposes nothing"
        )
    answers = cfg.task.eval_questions * cfg.evaluation.samples_per_question
    half_width = 1.96 * math.sqrt(0.25 / answers)
    if cfg.search.pruning != "none" and half_width > MAX_NOISE:
        found.append(
            f"search.pruning={cfg.search.pruning} compares accuracies over {answers} answers, where the 95 % interval "
            f"of 0.5 is +-{half_width:.2f}: trials will be pruned by chance; raise task.eval_questions"
        )
    return tuple(found)

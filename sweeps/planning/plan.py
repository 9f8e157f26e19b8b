"""What a stage will run: the points of the search space resolved into trials, before anything starts.

A grid and points drawn at random are all in the plan. What Optuna will propose is not known yet: such a plan says how
many trials there will be, and `sweeps/search/proposals.py` resolves each proposal as here. Pure: from a `SweepConfig`
to a `Plan`, nothing is read and nothing is written. A trial's id is the hash of all that can change its result, so
points that resolve to the same configuration are one trial, and the same question asked twice is recognised.
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
from sweeps.config.types import ConfigError, SweepConfig
from sweeps.planning.space import MEASURED_WITH, TRIAL_KEYS, Point, axes, draws, grid, with_values

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
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """What `search.space` varies at this point beyond the fields above, by dotted key; the rate before scaling."""

    @property
    def label(self) -> str:
        text = f"{self.prompts_per_step}x{self.group_size} {'='.join(self.names)}"
        return f"{text} {self.varied}" if self.varied else text

    @property
    def varied(self) -> str:
        """The overrides but for the rate, which has a place of its own: `kl_coef=0.01 temperature=0.9`."""
        rest = {k.rpartition(".")[2]: v for k, v in self.overrides.items() if k != "algorithm.lr"}
        return " ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in rest.items())

    @property
    def point(self) -> dict[str, Any]:
        """Where in the search space it lies; its repeats over seeds lie there too."""
        return {k: getattr(self, k) for k in TRIAL_KEYS} | dict(self.overrides)


@dataclass(frozen=True)
class Plan:
    """The trials of one sweep, in the order in which they start. `digest` recognises the same plan at a resume."""

    trials: tuple[PlannedTrial, ...]
    points: int
    """Points of the search space before those that resolve to the same configuration were merged."""
    digest: str
    warnings: tuple[str, ...]
    proposals: int = 0
    """Trials that the search proposes while the sweep runs, from what earlier ones came to."""
    typical: tuple[PlannedTrial, ...] = ()
    """Trials at random points in place of those that will be proposed, for estimates."""

    @property
    def size(self) -> int:
        """How many trials there will be."""
        return len(self.trials) + self.proposals


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
    """Resolve the points. Those that are the same trial are merged, keeping the order of their first appearance.

    Raises:
        ConfigError: the space has fewer different points than trials were asked for.
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


def _grid_trials(cfg: SweepConfig) -> tuple[tuple[PlannedTrial, ...], int]:
    """The trials of the grid, and how many of its points they are; with `search.trials`, exactly so many trials."""
    found: dict[str, PlannedTrial] = {}
    points, taken = grid(axes(cfg)), 0
    wanted = cfg.search.trials
    for seed in _seeds(cfg):
        for point in points:
            trial = resolve(cfg, point, seed)
            before = found.get(trial.trial_id)
            if before is None and len(found) == wanted:
                continue
            taken += 1
            if before is None:
                found[trial.trial_id] = trial
            elif trial.lr_scaling not in before.names:
                found[trial.trial_id] = replace(before, names=(*before.names, trial.lr_scaling))
        if len(found) == wanted:
            break
    return tuple(found.values()), taken


MOST_NOISE = 0.1
"""Half of the 95 % interval of an accuracy of 0.5 above which early stopping gets a warning."""
MISSES_IN_A_ROW = 2000
"""After so many draws that bring nothing new, a space is taken to have no more points."""


def _drawn_trials(cfg: SweepConfig) -> tuple[PlannedTrial, ...]:
    """`search.trials` different trials, each point with every seed; the last may lack some: the count is exact."""
    wanted, seeds = cfg.search.trials or 0, cfg.search.seeds
    found: dict[str, PlannedTrial] = {}
    misses = 0
    for point in draws(axes(cfg), cfg.search.sampler_seed):
        if resolve(cfg, point, seeds[0]).trial_id in found:
            misses += 1
            if misses >= MISSES_IN_A_ROW:
                raise ConfigError(
                    f"search.trials={wanted}: the search space has no more than {len(found)} different trials; ask "
                    f"for {len(found)}, or give its keys (search.space) more values"
                )
            continue
        misses = 0
        found |= {t.trial_id: t for seed in seeds if (t := resolve(cfg, point, seed))}
        if len(found) >= wanted:
            return tuple(found.values())[:wanted]
    raise AssertionError("draws end never")


def _digest(cfg: SweepConfig, trials: Iterable[PlannedTrial]) -> str:
    """Recognises the plan: the same trials, found and ended by the same rules."""
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


def trial_spec(
    cfg: SweepConfig, trial: PlannedTrial, *, attempt: int, sweep_dir: Path, micro_batch_tokens: int | None = None
) -> TrialSpec:
    """The trainer's orders for one attempt. `micro_batch_tokens`: a retry's; None: as configured."""
    cfg = with_values(cfg, trial.overrides)
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


def _seeds(cfg: SweepConfig) -> Iterator[int]:
    """The configured seeds; with `search.trials`, as many further ones as anybody asks for."""
    yield from cfg.search.seeds
    if cfg.search.trials is not None:
        yield from itertools.count(max(cfg.search.seeds, default=-1) + 1)


def _warnings(cfg: SweepConfig) -> tuple[str, ...]:
    found = []
    ends = {axis.key: axis.extremes for axis in axes(cfg)}
    group, prompts = max(ends["group_size"]), min(ends["prompts_per_step"])
    if group > 8 and prompts < 8:
        found.append(
            f"search.group_size grows to {group} while prompts_per_step is {prompts}: returns diminish near G=8, more "
            "prompts teach more than more samples of the same prompt"
        )
    found += [
        f"search.space varies {key}: such trials are examined differently, and their accuracies do not compare"
        for key in ends
        if key.startswith(MEASURED_WITH)
    ]
    search = cfg.search
    if search.method == "optuna" and search.startup_trials * len(search.seeds) >= (search.trials or 0):
        found.append(
            f"search=optuna draws the first search.startup_trials={search.startup_trials} points at random, and there "
            f"are no more in {search.trials} trials: nothing is proposed from what they come to"
        )
    answers = cfg.task.eval_questions * cfg.evaluation.samples_per_question
    known_to = 1.96 * math.sqrt(0.25 / answers)
    if cfg.search.pruning != "none" and known_to > MOST_NOISE:
        found.append(
            f"search.pruning={cfg.search.pruning} compares accuracies over {answers} answers, where 0.5 is known to "
            f"+-{known_to:.2f} (95 %): it will end trials by chance; more task.eval_questions tell them apart"
        )
    return tuple(found)

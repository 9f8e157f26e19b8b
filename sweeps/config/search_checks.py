"""Checks of a search: its space, its number of trials, its pruning, with a sentence for each problem.

Every end and every choice of an axis is tried in the configuration, and so are the points that will run: a value that
the learner refuses is reported before anything is billed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from rl.spec import TrialSpec
from sweeps.config.axes import Axis, axes, draws, grid, grid_size, takes_ranges
from sweeps.config.identity import SECTIONS
from sweeps.config.points import Point, at_point, hint_of, value_at, with_values
from sweeps.config.search_space import TRIAL_KEYS
from sweeps.config.trial_spec import result_identity, spec_of
from sweeps.config.types import AxisConfig, SweepConfig
from sweeps.config.unused_keys import unused_keys
from sweeps.config.value_checks import value_problems

MAX_GRID_POINTS = 100_000
MAX_POINTS_TRIED = 2_000
"""At most this many of the points that may run are tried."""

CHANGES_EVALUATION = (
    "evaluation.",
    *("task.kind", "task.name", "task.path", "task.subset", "task.params"),
    *("task.question_field", "task.answer_field"),
    *("task.eval_questions", "task.data_seed", "task.scorer"),
)
"""Keys that decide how a trial is evaluated. Accuracies do not compare between trials that differ in one of them."""


def search_problems(config: SweepConfig) -> Iterator[str]:
    """Everything that is wrong with how points are chosen and pruned. Assumes that `value_problems` found nothing."""
    if found := [*_count(config), *_pruning(config)]:
        yield from found
        return
    for key, axis in config.search.space.items():
        if found := list(_axis(config, key, axis)):
            yield from found
            return
    if found := list(_conditions(config)):
        yield from found
        return
    yield from _points(config)


def _count(config: SweepConfig) -> Iterator[str]:
    search = config.search
    if search.trials is not None and search.trials < 1:
        yield f"search.trials={search.trials} should be 1 or more, or null for the grid once"
    elif search.trials is None and search.method != "grid":
        yield f"search={search.method} needs search.trials=N: the number of trials"
    for key, least in (("sampler_seed", 0), ("startup_trials", 1)):
        if getattr(search, key) < least:
            yield f"search.{key}={getattr(search, key)} should be {least} or more"


def _pruning(config: SweepConfig) -> Iterator[str]:
    search, every = config.search, config.evaluation.every_steps
    if search.pruning != "none" and not 0 < every < config.stage.steps:
        yield (
            f"search.pruning={search.pruning} compares trials at their evaluations during training, and "
            f"evaluation.every_steps={every} makes none in {config.stage.steps} steps; set it above 0 and below "
            "stage.steps"
        )
    for key in ("pruning_min_trials", "pruning_factor"):
        if getattr(search, key) < 2:
            yield f"search.{key}={getattr(search, key)} should be 2 or more"
    if search.pruning_warmup_completions is not None and search.pruning_warmup_completions < 1:
        yield (
            f"search.pruning_warmup_completions={search.pruning_warmup_completions} should be 1 or more, or null for "
            "the first evaluation"
        )
    if not 0 < search.pruning_percentile < 100:
        yield f"search.pruning_percentile={search.pruning_percentile:g} should be above 0 and below 100"


def _axis(config: SweepConfig, key: str, axis: AxisConfig) -> Iterator[str]:
    where = f"search.space.{key}"
    if key in ("trainer.name", "algorithm.name") or (key not in TRIAL_KEYS and key.partition(".")[0] not in SECTIONS):
        yield f"{where}: {_not_searchable(key)}"
        return
    search = config.search
    if key.startswith(CHANGES_EVALUATION) and (search.method == "optuna" or search.pruning != "none"):
        by = "search=optuna" if search.method == "optuna" else f"search.pruning={search.pruning}"
        yield (
            f"{where}: {key} changes how trials are evaluated, and {by} compares their accuracies; vary it with "
            "search=grid or search=random, without pruning"
        )
        return
    if bool(axis.choices) == (axis.low is not None or axis.high is not None):
        yield f"{where} should have either a list of values, or low and high"
        return
    yield from _choices(config, key, axis) if axis.choices else _range(config, key, axis)


def _choices(config: SweepConfig, key: str, axis: AxisConfig) -> Iterator[str]:
    if axis.log or axis.step is not None:
        yield f"search.space.{key} has a list of values: log and step belong to a range"
    yield from _values(config, key, axis.choices)


def _range(config: SweepConfig, key: str, axis: AxisConfig) -> Iterator[str]:
    where, low, high = f"search.space.{key}", axis.low, axis.high
    if config.search.method == "grid":
        yield f"{where} is a range, and search=grid runs every combination: give a list of values, or use search=random"
    elif not takes_ranges(key):
        yield f"{where} is a range, and {key} is not a number: give a list of values"
    elif low is None or high is None or not math.isfinite(low) or not math.isfinite(high) or low >= high:
        yield f"{where}={{low: {low}, high: {high}}} should have a low below its high, both finite"
    elif axis.log and axis.step is not None:
        yield f"{where} has log and step: choose one of them"
    elif axis.log and low <= 0:
        yield f"{where} has log and low={low:g}: low should be above 0 on a logarithmic scale"
    elif axis.step is not None and not 0 < axis.step <= high - low:
        yield f"{where} has step={axis.step:g}: it should be above 0 and at most high - low = {high - low:g}"
    elif axis.step is not None and axis.step != int(axis.step) and int in (hint_of(key), *get_args(hint_of(key))):
        yield f"{where} has step={axis.step:g}, and {key} takes whole numbers"
    else:
        yield from _values(config, key, [_written(low), _written(high)])


def _written(value: float) -> float | int:
    """The end of a range as a person types it: 4, not 4.0."""
    return int(value) if value == int(value) else value


def _values(config: SweepConfig, key: str, values: Any) -> Iterator[str]:
    """The first value that the key cannot have; or that no value changes the trial's result."""
    texts, identities = set(), []
    for value in values:
        try:
            typed = value_at(config, key, value)
        except (ValueError, KeyError) as error:
            yield f"search.space.{key}: {error}"
            return
        if key not in TRIAL_KEYS:
            texts.add(str(typed))
            identities.append(_identity(with_values(config, {key: typed})))
    if len(texts) > 1 and all(identity == identities[0] for identity in identities):
        yield f"search.space.{key}: as configured, {key} cannot change a trial's result"


def _identity(config: SweepConfig) -> Mapping[str, Any]:
    """What decides the result of a trial at the first value of each list."""
    return result_identity(_spec(config), adaptive_lr=config.search.lr_scaling[0] == "clip_frac")


def _spec(config: SweepConfig) -> TrialSpec:
    """The specification of a trial at the first value of each list."""
    return spec_of(config, prompts_per_step=config.search.prompts_per_step[0], group_size=config.search.group_size[0])


def _not_searchable(key: str) -> str:
    if key == "stage.steps":
        return "all trials of a stage have the same length, which its gate and its forecast assume"
    if key == "trainer.name":
        return "one trainer runs all trials of a sweep: choose it with trainer="
    if key == "algorithm.name":
        return (
            "algorithm.name changes a label only, not what is trained; write 'search.space.algorithm=[grpo,dapo]' to "
            "compare presets"
        )
    if key == "search.seeds":
        return "seeds repeat each point and are not searched: write search.seeds=[0,1,2]"
    return f"{key} cannot change a trial's result"


def _conditions(config: SweepConfig) -> Iterator[str]:
    space = axes(config)
    by_key = {a.key: a for a in space}
    seen: set[str] = set()
    for axis in space:
        for other, values in axis.when.items():
            where = f"search.space.{axis.key}.when"
            if other not in by_key:
                yield f"{where} names {other}, which is not varied; it can name {', '.join(sorted(by_key))}"
            elif other not in seen:
                yield f"{where} names {other}, and the condition of {other} depends on {axis.key}"
            elif missing := [v for v in values if v not in by_key[other].choices]:
                has = (
                    ", ".join(map(str, by_key[other].choices)) or "a range; a condition can name values of a list only"
                )
                yield f"{where} names {other}={missing[0]}, and {other} has {has}"
        seen.add(axis.key)


def _points(config: SweepConfig) -> Iterator[str]:
    """The first end of an axis, or else the first point, at which a trial cannot run."""
    space, search = axes(config), config.search
    if search.method == "grid" and not search.space:
        return  # `value_problems` checks the lists
    if search.method == "grid" and grid_size(space) > MAX_GRID_POINTS:
        yield f"the grid has up to {grid_size(space):,} points: use search=random search.trials=N"
        return
    if search.method != "grid" and not search.trials:
        return
    drawn = grid(space) if search.method == "grid" else draws(space, search.sampler_seed)
    tried = list(itertools.islice(drawn, min(MAX_POINTS_TRIED, search.trials or MAX_POINTS_TRIED)))
    for axis in space:
        for value in axis.extremes if axis.key in search.space else ():
            point = next((p for p in tried if axis.key in p), None)
            if point is not None and (found := value_problems(at_point(config, {**point, axis.key: value}))):
                yield f"search.space.{axis.key} at {value}: {found[0]}"
                return
    for point in tried:
        if found := value_problems(at_point(config, point)):
            yield f"at the point {_text(point)} of the search space: {found[0]}"
            return
    yield from _unused(config, space, tried)


def _unused(config: SweepConfig, space: Sequence[Axis], tried: Sequence[Point]) -> Iterator[str]:
    """The first key that is varied where other settings switch it off: trials would be the same, and paid for twice."""
    for point in tried:
        of = unused_keys(at_point(config, point))
        for key in point:
            if key not in of:
                continue
            other = of[key]
            where = f"search.space.{key}: at the point {_text(point)} of the search space {key} has no effect"
            with_effect = [
                value
                for axis in space
                if axis.key == other
                for value in axis.choices
                if key not in unused_keys(at_point(config, {**point, other: value}))
            ]
            axis = next(a for a in space if a.key == key)
            if with_effect and axis.choices:
                yield (
                    f"{where}; write 'search.space.{key}={{choices:{_typed(axis.choices)},"
                    f"when:{{{other}:{_typed(with_effect)}}}}}'"
                )
            else:
                switch = f"search.{other}" if other in TRIAL_KEYS else other
                yield f"{where}: set {switch}, or leave {key} out of the search space"
            return


def _typed(values: Sequence[Any]) -> str:
    return f"[{','.join('null' if v is None else str(v) for v in values)}]"


def _text(point: Mapping[str, Any]) -> str:
    return ", ".join(f"{k}={v}" for k, v in point.items())

"""The search space: which keys are varied, over what, and what a configuration looks like at one of its points.

A point maps each key that is active there to its value. The three keys of a trial's batch and rate are lists of their
own in `conf/search/`; `search.space` adds any other key, or replaces one of the three. Pure, and without a generator of
its own: a draw is a function of a seed, so that it is the same whenever it is made.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from rl.codec import from_json, to_json
from sweeps.config.overrides import known_keys, no_such_key
from sweeps.config.types import AxisConfig, ConfigError, SearchConfig, SweepConfig

TRIAL_KEYS = ("prompts_per_step", "group_size", "lr_scaling")
"""Keys of `search` that are a list each, and axes of the space."""
SECTIONS = ("model", "task", "algorithm", "rollout", "evaluation", "trainer")
"""Parts of the configuration that are parts of a trial's specification."""
MEASURED_WITH = (
    "evaluation.",
    *("task.kind", "task.name", "task.path", "task.params", "task.question_field", "task.answer_field"),
    *("task.eval_questions", "task.data_seed", "task.scorer"),
)
"""Keys that decide which examination gives a trial its accuracy: where they differ, accuracies do not compare."""
DIGITS = 4
"""Significant digits of a number drawn from a range: what is shown is what ran, and can be typed."""

Point = Mapping[str, Any]


@dataclass(frozen=True)
class Axis:
    """One key of the space. Exactly one of `choices` and the range is there."""

    key: str
    choices: tuple[Any, ...]
    low: float
    high: float
    log: bool
    step: float | None
    """Never None for whole numbers on a linear scale."""
    whole: bool
    """Only whole numbers."""
    when: Mapping[str, tuple[Any, ...]]

    def active(self, point: Point) -> bool:
        """Whether this key is varied at a point that has the values of the keys it depends on."""
        return all(other in point and point[other] in values for other, values in self.when.items())

    def at(self, share: float) -> Any:
        """The value at this share of the axis, 0 <= share < 1."""
        if self.choices:
            return self.choices[int(share * len(self.choices))]
        if self.step is not None:
            steps = int(share * (self.steps + 1))
            return self.number(self.low + steps * self.step)
        if self.log:
            low, high = math.log(self.low), math.log(self.high + self.whole)
            return self.number(math.exp(low + share * (high - low)))
        return self.number(self.low + share * (self.high - self.low))

    @property
    def steps(self) -> int:
        """Whole multiples of `step` between low and high."""
        return math.floor((self.high - self.low) / (self.step or 1) + 1e-9)

    def number(self, value: float) -> Any:
        """A value of the range as it is written down: whole, or rounded, and never outside."""
        if self.whole:
            return min(max(math.floor(value + 1e-9), int(self.low)), int(self.high))
        digits = 12 if self.step is not None else DIGITS
        return min(max(float(f"{value:.{digits}g}"), self.low), self.high)

    @property
    def extremes(self) -> tuple[Any, ...]:
        """Every choice, or both ends of the range."""
        return self.choices or (self.number(self.low), self.number(self.high))

    def __str__(self) -> str:
        if self.choices:
            text = ", ".join(map(str, self.choices))
        else:
            how = (
                " log"
                if self.log
                else f" step {self.step:g}"
                if self.step and not (self.whole and self.step == 1)
                else ""
            )
            text = f"{self.low:g} to {self.high:g}{how}"
        conditions = " and ".join(f"{k}={' or '.join(map(str, v))}" for k, v in self.when.items())
        return text + (f"  when {conditions}" if conditions else "")


# ---------------------------------------------------------------------------------------------------------------------
# From what was typed to axes
# ---------------------------------------------------------------------------------------------------------------------


def flat_space(nested: Any) -> dict[str, Any]:
    """`search.space` as it was composed, nested by dots or not, as one entry a key for `AxisConfig`.

    Raises:
        ConfigError: a key that does not exist, or a value that is neither a list nor a range.
    """
    if not isinstance(nested, Mapping):
        raise ConfigError(f"search.space={nested} should map keys to what they are varied over; {_AS_IN}")
    return dict(_flat(nested, ""))


_AS_IN = "as in 'search.space.algorithm.lr={low:1e-6,high:1e-4,log:true}' or search.space.rollout.temperature=[0.8,1.0]"


def _flat(nested: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    keys, open_ended = known_keys()
    for name, value in nested.items():
        key = f"{prefix}{name}"
        below = [k for k in keys if k.startswith(f"{key}.")]
        if key.removeprefix("search.") in TRIAL_KEYS and key.startswith("search."):
            raise ConfigError(f"search.space.{key}: write search.space.{key.removeprefix('search.')}")
        if isinstance(value, Mapping) and (below or key in open_ended):
            yield from _flat(value, f"{key}.")
        elif key in TRIAL_KEYS or (key in keys and not below) or key.startswith(tuple(f"{k}." for k in open_ended)):
            yield key, _axis_as_typed(key, value)
        elif below:
            raise ConfigError(f"search.space.{key}={value}: {key} is a group of keys; name one of them, {_AS_IN}")
        else:
            raise ConfigError(f"search.space: {no_such_key(key)}")


def _axis_as_typed(key: str, value: Any) -> dict[str, Any]:
    if isinstance(value, list):
        return {"choices": value}
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"search.space.{key}={value} is one value, and there is nothing to search in it: give a list, a range, or "
            f"set it for all trials ({key if key not in TRIAL_KEYS else 'search.' + key}={value}); {_AS_IN}"
        )
    if unknown := set(value) - {f.name for f in dataclasses.fields(AxisConfig)}:
        raise ConfigError(
            f"search.space.{key} has {', '.join(sorted(map(str, unknown)))}; it takes low and high with log or step, "
            f"or choices, and when; {_AS_IN}"
        )
    when = value.get("when") or {}
    if not isinstance(when, Mapping):
        raise ConfigError(f"search.space.{key}.when={when} should map another key to its values: when:{{KEY:VALUE}}")
    return {**value, "when": dict(_conditions(when, ""))}


def _conditions(nested: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, list[Any]]]:
    for name, value in nested.items():
        if isinstance(value, Mapping):
            yield from _conditions(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value if isinstance(value, list) else [value]


def axes(cfg: SweepConfig) -> tuple[Axis, ...]:
    """All axes, each after those it depends on. The order in which keys were typed does not matter."""
    lists = {key: AxisConfig(choices=getattr(cfg.search, key)) for key in TRIAL_KEYS}
    left = [_axis(cfg, key, axis) for key, axis in (lists | dict(sorted(cfg.search.space.items()))).items()]
    ordered: list[Axis] = []
    while left:
        known = {a.key for a in ordered}
        ready = [a for a in left if a.when.keys() <= known] or left  # a circle is refused by the checks
        ordered += ready
        left = [a for a in left if a not in ready]
    return tuple(ordered)


def _axis(cfg: SweepConfig, key: str, axis: AxisConfig) -> Axis:
    whole = is_whole(key, axis)
    step = 1.0 if whole and not axis.log and axis.step is None else axis.step
    choices = tuple(value_at(cfg, key, c) for c in axis.choices)
    when = {other: tuple(_as_compared(cfg, other, v) for v in values) for other, values in axis.when.items()}
    return Axis(key, choices, axis.low or 0.0, axis.high or 0.0, axis.log, step, whole, when)


def _as_compared(cfg: SweepConfig, key: str, value: Any) -> Any:
    """A value of a condition; one that its key cannot have stays as it was typed, for the checks to find."""
    try:
        return value_at(cfg, key, value)
    except (ValueError, KeyError, AttributeError):
        return value


def is_whole(key: str, axis: AxisConfig) -> bool:
    """Whether a range of this key holds whole numbers only; where any type is allowed, its ends decide."""
    hint = hint_of(key)
    if hint is Any:
        return not axis.log and all(x is None or x == int(x) for x in (axis.low, axis.high, axis.step))
    return int in (hint, *typing.get_args(hint))


def takes_ranges(key: str) -> bool:
    """Whether the key is a number."""
    hint = hint_of(key)
    return hint is Any or bool({int, float} & {hint, *typing.get_args(hint)})


@cache
def hint_of(key: str) -> Any:
    """The annotation of a key's field; of a trial key, that of one entry of its list."""
    if key in TRIAL_KEYS:
        return typing.get_args(typing.get_type_hints(SearchConfig)[key])[0]
    hint: Any = SweepConfig
    for part in key.split("."):
        if dataclasses.is_dataclass(hint):
            hint = typing.get_type_hints(hint).get(part, Any)
        else:
            hint = typing.get_args(hint)[1] if typing.get_args(hint) else Any
    return hint


# ---------------------------------------------------------------------------------------------------------------------
# A configuration at a point
# ---------------------------------------------------------------------------------------------------------------------


def with_values(cfg: SweepConfig, values: Point) -> SweepConfig:
    """The configuration with other values for these dotted keys of its sections; typed like any other.

    Raises:
        ValueError: a value that its key cannot have; the message names the key and the type.
    """
    bodies: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, *path = key.split(".")
        body = bodies.setdefault(section, to_json(getattr(cfg, section)))
        for part in path[:-1]:
            body = body[part]
        body[path[-1]] = value
    changed: dict[str, Any] = {}
    for section, body in bodies.items():
        kind = type(getattr(cfg, section))
        try:
            changed[section] = from_json(kind, body)
        except ValueError as error:
            raise ValueError(str(error).replace(kind.__name__, section, 1)) from None
    return replace(cfg, **changed) if changed else cfg


def at_point(cfg: SweepConfig, point: Point) -> SweepConfig:
    """The configuration of the trials at a point: nothing is left to be searched in it."""
    of_trial = {k: (v,) for k, v in point.items() if k in TRIAL_KEYS}
    cfg = with_values(cfg, {k: v for k, v in point.items() if k not in TRIAL_KEYS})
    search = replace(cfg.search, method="grid", space={}, trials=None, seeds=cfg.search.seeds[:1], **of_trial)
    return replace(cfg, search=search)


def value_at(cfg: SweepConfig, key: str, value: Any) -> Any:
    """A value as its key's field has it: 1 typed for a float is 1.0.

    Raises:
        ValueError: as `with_values`.
    """
    if key in TRIAL_KEYS:
        hint = hint_of(key)
        allowed = typing.get_args(hint)
        if (allowed and value not in allowed) or (not allowed and type(value) is not hint):
            right = f"one of {', '.join(allowed)}" if allowed else f"of type {hint.__name__}"
            raise ValueError(f"{key}={value!r} should be {right}")
        return value
    section, *path = key.split(".")
    plain: Any = to_json(getattr(with_values(cfg, {key: value}), section))
    for part in path:
        plain = plain[part]
    return plain


def recipes(cfg: SweepConfig) -> list[SweepConfig]:
    """The configuration with each model and each task that the space can ask for: what has to be at hand."""
    ends = [replace(a, choices=a.extremes, when={}) for a in axes(cfg) if a.key.startswith(("model.", "task."))]
    return [with_values(cfg, point) for point in grid(ends)]


# ---------------------------------------------------------------------------------------------------------------------
# Points
# ---------------------------------------------------------------------------------------------------------------------


def grid(space: Sequence[Axis]) -> list[dict[str, Any]]:
    """Every combination of choices; a key that is not active in one does not multiply it."""
    points: list[dict[str, Any]] = [{}]
    for axis in space:
        points = [
            {**point, axis.key: value} if active else point
            for point in points
            for active in [axis.active(point)]
            for value in (axis.choices if active else (None,))
        ]
    return points


def grid_size(space: Sequence[Axis]) -> int:
    """The most points that the grid can have."""
    return math.prod(len(a.choices) for a in space)


def draws(space: Sequence[Axis], seed: int) -> Iterator[dict[str, Any]]:
    """Points drawn at random, without end. The n-th is a function of the seed, n and the axes alone."""
    for number in itertools.count():
        yield draw(space, f"{seed}:{number}")


def draw(space: Sequence[Axis], seed: str) -> dict[str, Any]:
    """One point. Each key has a generator of its own: a further axis leaves the values of the others alone."""
    point: dict[str, Any] = {}
    for axis in space:
        if axis.active(point):
            point[axis.key] = axis.at(random.Random(f"{seed}:{axis.key}").random())
    return point

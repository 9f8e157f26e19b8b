"""The axes of the search space, and the points on them: a grid, or random draws.

`search.prompts_per_step`, `search.group_size` and `search.lr_scaling` are always axes. `search.space` adds further
keys, or replaces one of the three. Draws are pure functions of a seed, so a resumed sweep draws the same points.
"""

from __future__ import annotations

import itertools
import math
import random
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sweeps.config.points import Point, hint_of, value_at, with_values
from sweeps.config.search_space import TRIAL_KEYS
from sweeps.config.types import AxisConfig, SweepConfig

DIGITS = 4
"""Significant digits of a number drawn from a range. The tables show all of them, so a shown value can be typed."""


@dataclass(frozen=True)
class Axis:
    """One varied key: either `choices`, or the range from `low` to `high`."""

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
    """The key is varied only where each of these other keys has one of these values."""

    def active(self, point: Point) -> bool:
        """Whether the key is varied at a point that already has the values of the keys in `when`."""
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
        """How many whole steps fit between `low` and `high`."""
        return math.floor((self.high - self.low) / (self.step or 1) + 1e-9)

    def number(self, value: float) -> Any:
        """A value of the range as it is stored: whole, or rounded to `DIGITS`, and never outside the range."""
        if self.whole:
            return min(max(math.floor(value + 1e-9), int(self.low)), int(self.high))
        digits = 12 if self.step is not None else DIGITS
        return min(max(float(f"{value:.{digits}g}"), self.low), self.high)

    @property
    def extremes(self) -> tuple[Any, ...]:
        """Every choice, or both ends of the range."""
        return self.choices or (self.number(self.low), self.number(self.high))

    @property
    def values_text(self) -> str:
        """For tables: `8, 16` or `1e-06 to 0.0001 log`."""
        if self.choices:
            return ", ".join(map(str, self.choices))
        scale = ""
        if self.log:
            scale = " log"
        elif self.step and not (self.whole and self.step == 1):
            scale = f" step {self.step:g}"
        return f"{self.low:g} to {self.high:g}{scale}"

    @property
    def condition_text(self) -> str:
        """For tables: `algorithm.kl_placement=loss`; empty where the key is always varied."""
        return " and ".join(f"{k}={' or '.join(map(str, v))}" for k, v in self.when.items())

    def __str__(self) -> str:
        return f"{self.values_text}  when {self.condition_text}" if self.when else self.values_text


def axes(cfg: SweepConfig) -> tuple[Axis, ...]:
    """All axes, each after those that its condition names. The order in which keys were typed does not matter."""
    lists = {key: AxisConfig(choices=getattr(cfg.search, key)) for key in TRIAL_KEYS}
    left = [_axis(cfg, key, axis) for key, axis in (lists | dict(sorted(cfg.search.space.items()))).items()]
    ordered: list[Axis] = []
    while left:
        known = {a.key for a in ordered}
        ready = [a for a in left if a.when.keys() <= known] or left  # the checks refuse circular conditions
        ordered += ready
        left = [a for a in left if a not in ready]
    return tuple(ordered)


def _axis(cfg: SweepConfig, key: str, axis: AxisConfig) -> Axis:
    whole = is_whole(key, axis)
    step = 1.0 if whole and not axis.log and axis.step is None else axis.step
    choices = tuple(value_at(cfg, key, c) for c in axis.choices)
    when = {other: tuple(_value_in_condition(cfg, other, v) for v in values) for other, values in axis.when.items()}
    return Axis(key, choices, axis.low or 0.0, axis.high or 0.0, axis.log, step, whole, when)


def _value_in_condition(cfg: SweepConfig, key: str, value: Any) -> Any:
    """The value in the type of its key. A value that the key cannot have is left as typed; the checks refuse it."""
    try:
        return value_at(cfg, key, value)
    except (ValueError, KeyError, AttributeError):
        return value


def is_whole(key: str, axis: AxisConfig) -> bool:
    """Whether a range of this key has whole numbers only. Where the key takes any type, the range's ends decide."""
    hint = hint_of(key)
    if hint is Any:
        return not axis.log and all(x is None or x == int(x) for x in (axis.low, axis.high, axis.step))
    return int in (hint, *typing.get_args(hint))


def takes_ranges(key: str) -> bool:
    """Whether the key is a number."""
    hint = hint_of(key)
    return hint is Any or bool({int, float} & {hint, *typing.get_args(hint)})


def grid(space: Sequence[Axis]) -> list[dict[str, Any]]:
    """Every combination of choices. A key whose condition is not met does not multiply the points."""
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
    """Endless random points. The n-th is a function of the seed, n and the axes alone."""
    for number in itertools.count():
        yield draw(space, f"{seed}:{number}")


def draw(space: Sequence[Axis], seed: str) -> dict[str, Any]:
    """One point. Each key has its own generator, so a further axis does not change the values of the others."""
    point: dict[str, Any] = {}
    for axis in space:
        if axis.active(point):
            point[axis.key] = axis.at(random.Random(f"{seed}:{axis.key}").random())
    return point


def recipes(cfg: SweepConfig) -> list[SweepConfig]:
    """The configuration with each model and each task of the search space: all of them must be available."""
    ends = [replace(a, choices=a.extremes, when={}) for a in axes(cfg) if a.key.startswith(("model.", "task."))]
    return [with_values(cfg, point) for point in grid(ends)]

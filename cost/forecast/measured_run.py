"""The measurements that a forecast rests on: step times of a run, and which of its steps count.

A run is given in plain numbers, whatever trainer or log it comes from. Warm-up steps, steps done again after a restore
and the steps of an asynchronous run whose queue is still filling are recognised and left out, and the result names
them. Nothing is repaired silently: step numbers that repeat or go backwards are refused.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cost.forecast.sampling import NS_PER_SECOND, ForecastError

MIN_STEPS = 5
"""Fewer usable steps do not show a spread."""
OFF_STEP_KINDS = ("start", "model_load", "evaluation", "checkpoint", "saving", "other")
"""Time of a run that lies outside of its steps. `other` is the part of the elapsed time that nothing else explains."""

_WARM_UP_AT_MOST = 5
_WARM_UP_RATIO = 1.15
_WARM_UP_DEVIATIONS = 4.0
_FILLING_SLACK = 0.5
"""Staleness of a filled queue may lie this far below its plateau."""


@dataclass(frozen=True)
class MeasuredStep:
    """One step. `phase_ns` is wall-clock time by phase and sums to the step, without work that runs beside it."""

    step: int
    prompts: int
    completions: int
    cards: int
    phase_ns: Mapping[str, int]
    tokens: int | None = None
    """Sampled tokens of all completions; None where they were not reported."""
    staleness: float | None = None
    """Policy version minus the version sampled with; None where it was not reported."""
    replay: bool = False
    """Done again after a restore."""

    @property
    def ns(self) -> int:
        return sum(self.phase_ns.values())

    @property
    def seconds(self) -> float:
        return self.ns / NS_PER_SECOND


@dataclass(frozen=True)
class OffStep:
    """One stretch of time outside of the steps. `kind` is one of OFF_STEP_KINDS."""

    kind: str
    ns: int


@dataclass(frozen=True)
class MeasuredRun:
    """The steps of one trial, in order, and its time outside of them."""

    name: str
    trainer: str
    model: str
    task: str
    card_type: str
    steps: tuple[MeasuredStep, ...]
    off_steps: tuple[OffStep, ...] = ()
    elapsed_ns: int | None = None
    """Wall-clock time of the whole run, if known: gives the off-step time that `off_steps` does not name."""
    asynchronous: bool = False
    """Whether completions are sampled while earlier ones are trained on."""

    @property
    def unexplained_ns(self) -> int | None:
        """Elapsed time that is in no step and in no named off-step stretch."""
        if self.elapsed_ns is None:
            return None
        return self.elapsed_ns - sum(s.ns for s in self.steps) - sum(o.ns for o in self.off_steps)


@dataclass(frozen=True)
class UsableSteps:
    """The steps of one run that a profile is fitted to, and why the others are not among them."""

    steps: tuple[MeasuredStep, ...]
    warm_up: tuple[MeasuredStep, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Reason to number of steps, warm-up included."""
    notes: tuple[str, ...] = ()


def usable_steps(run: MeasuredRun) -> UsableSteps:
    """The steps that show the steady state. Raises ForecastError where a step cannot be right."""
    _check(run)
    left_out: dict[str, int] = {}
    notes: list[str] = []
    steps = [s for s in run.steps if not s.replay]
    if replays := len(run.steps) - len(steps):
        left_out["done again after a restore"] = replays
    if run.asynchronous:
        filling = _filling_steps(steps)
        if filling is None:
            notes.append(f"{run.name}: asynchronous without staleness, so a filling queue cannot be recognised")
        elif filling:
            left_out["queue still filling"] = filling
            steps = steps[filling:]
    warm_up = _warm_up_steps(steps)
    if warm_up:
        left_out["warm-up"] = warm_up
    return UsableSteps(tuple(steps[warm_up:]), tuple(steps[:warm_up]), left_out, tuple(notes))


def _check(run: MeasuredRun) -> None:
    last = None
    for step in run.steps:
        where = f"{run.name}, step {step.step}"
        if not step.replay:
            if last is not None and step.step <= last:
                what = "repeats" if step.step == last else f"comes after step {last}"
                raise ForecastError(
                    f"{where}: the step {what}; pass each step once, in order, and mark steps done again as replay"
                )
            last = step.step
        if min(step.prompts, step.completions, step.cards) < 1:
            raise ForecastError(f"{where}: prompts, completions and cards must each be at least 1")
        if any(ns < 0 for ns in step.phase_ns.values()) or step.ns <= 0:
            raise ForecastError(f"{where}: phase times must not be negative and must sum to more than 0")
        if step.tokens is not None and step.tokens < 0:
            raise ForecastError(f"{where}: tokens must not be negative")
    for off in run.off_steps:
        if off.kind not in OFF_STEP_KINDS:
            raise ForecastError(f"{run.name}: off-step kind {off.kind!r} is not one of {', '.join(OFF_STEP_KINDS)}")
        if off.ns < 0:
            raise ForecastError(f"{run.name}: off-step time of kind {off.kind} must not be negative")
    unexplained = run.unexplained_ns
    if unexplained is not None and unexplained < 0:
        raise ForecastError(
            f"{run.name}: steps and off-step times sum to {-unexplained / NS_PER_SECOND:.3f} s more than elapsed_ns"
        )


def _filling_steps(steps: Sequence[MeasuredStep]) -> int | None:
    """Leading steps before staleness reaches its plateau, the median of the last five. None: staleness unknown."""
    staleness = [s.staleness for s in steps]
    if not staleness or any(value is None for value in staleness):
        return None
    known = [value for value in staleness if value is not None]
    plateau = statistics.median(known[-MIN_STEPS:])
    return next((i for i, value in enumerate(known) if value >= plateau - _FILLING_SLACK), 0)


def _warm_up_steps(steps: Sequence[MeasuredStep]) -> int:
    """Leading steps that are clearly slower than the ones after them: compilation, allocation, first transfers.

    A step is warm-up if it takes 15 % and four robust deviations more than the median of the later steps of its size.
    """
    for i, step in enumerate(steps[: min(_WARM_UP_AT_MOST, len(steps) // 4)]):
        later = [s.seconds for s in steps[i + 1 :] if (s.completions, s.cards) == (step.completions, step.cards)]
        if len(later) < MIN_STEPS - 1:
            return i
        median = statistics.median(later)
        deviation = 1.4826 * statistics.median(abs(s - median) for s in later)
        if step.seconds <= max(_WARM_UP_RATIO * median, median + _WARM_UP_DEVIATIONS * deviation):
            return i
    return min(_WARM_UP_AT_MOST, len(steps) // 4)

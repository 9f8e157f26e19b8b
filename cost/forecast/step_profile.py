"""A StepProfile: what a step costs, phase by phase, fitted from the usable steps of one or more runs.

Each phase is a line on its own: `a + b x completions per card`. Sampling has a large constant and training is nearly
proportional, so one line for the whole step is wrong as soon as prompts or group size change. Steps of one size only
cannot show the line: `line` then splits their seconds by a prior, and its basis is "prior".

A rare step of more than three times the usual time is an incident and is kept apart with its rate. Everything shorter
stays in the spread, so heavy tails widen the interval and a single outlier does not move the median.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cost.forecast.measured_run import MIN_STEPS, MeasuredRun, MeasuredStep, UsableSteps, usable_steps
from cost.forecast.priors import Basis, constant_share, length_exponent
from cost.forecast.sampling import NS_PER_SECOND, ForecastError

_INCIDENT_RATIO = 3.0
_INCIDENT_SHARE = 0.1
"""Slow steps that are more frequent than this are no incidents: they are how the run behaves."""
_WINSORISE_DEVIATIONS = 3.0
_UNKNOWN_SPREAD = 0.15
"""Relative spread of a phase where no size has two steps."""
_ONE_OBSERVATION_LOG_ERROR = 0.2


@dataclass(frozen=True)
class Level:
    """Steps of one size. Seconds are means over the steps that are no incidents."""

    prompts: int
    completions: int
    cards: int
    steps: int
    phase_seconds: Mapping[str, float]
    phase_error: Mapping[str, float]
    """Standard error of each mean, as a share of it."""

    @property
    def work(self) -> float:
        """Completions per card."""
        return self.completions / self.cards

    @property
    def seconds(self) -> float:
        return sum(self.phase_seconds.values())


@dataclass(frozen=True)
class PhaseLine:
    """Seconds of a phase: `constant_seconds + seconds_per_completion x completions per card`."""

    phase: str
    constant_seconds: float
    seconds_per_completion: float
    basis: Basis
    """measured: from steps of several sizes; prior: from steps of one size, split by a prior."""


@dataclass(frozen=True)
class Trend:
    """How the length of completions (`of` tokens) or the time of a step (`of` seconds) changes as training goes on.

    The logarithm is a line in the square root of the step: growth that slows down. `slope_error` is the standard error
    from the data alone; a forecast weighs it against a prior.
    """

    of: Literal["tokens", "seconds"]
    slope: float
    slope_error: float
    centre: float
    """Mean square root of the step over the measured steps."""
    mean_tokens: float | None = None
    """Mean tokens per completion over the measured steps; None where tokens were not reported."""


@dataclass(frozen=True)
class OffStepFit:
    """Time outside of steps of one kind: per evaluation or checkpoint; for other kinds per trial."""

    kind: str
    seconds: float
    log_error: float
    """Standard deviation of the logarithm of one further observation."""
    observations: int
    steps: tuple[int, ...]
    """Steps of the runs in which it was observed."""
    seconds_per_step: float | None = None
    """Of unexplained time, where runs of different lengths show that it grows with the steps; None: not known."""
    basis: Basis = "measured"


@dataclass(frozen=True)
class StepProfile:
    """What a forecast needs to know of the steps measured on one card type with one trainer, model and task."""

    trainer: str
    model: str
    task: str
    card_type: str
    asynchronous: bool
    basis: Basis
    levels: tuple[Level, ...]
    residuals: tuple[float, ...]
    """Seconds of each step as a share of its level's mean, sorted, without incidents."""
    incidents: tuple[Mapping[str, float], ...]
    """Seconds by phase that each incident took above its level's mean."""
    trend: Trend
    length_exponents: Mapping[str, tuple[float, float]]
    """Phase to (mean, error) of the power of the completion length with which it grows."""
    off_steps: tuple[OffStepFit, ...]
    notes: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """Usable steps, incidents included."""
        return len(self.residuals) + len(self.incidents)

    @property
    def phases(self) -> tuple[str, ...]:
        return tuple(self.levels[0].phase_seconds)

    def line(self, phase: str) -> PhaseLine:
        """The line of one phase, for display. Raises KeyError for a phase that was not measured."""
        works = [level.work for level in self.levels]
        seconds = [level.phase_seconds[phase] for level in self.levels]
        if len(set(works)) > 1:
            constant, slope = fit_line(works, seconds, [level.steps for level in self.levels])
            return PhaseLine(phase, constant, slope, "measured")
        mean = _mean(seconds, [level.steps for level in self.levels])
        share = constant_share(phase, works[0])
        return PhaseLine(phase, share * mean, (1.0 - share) * mean / works[0], "prior")

    def off_step(self, kind: str) -> OffStepFit | None:
        return next((fit for fit in self.off_steps if fit.kind == kind), None)


def fit_profile(runs: Sequence[MeasuredRun]) -> StepProfile:
    """Fit one profile. Raises ForecastError for too few usable steps and for runs that must not be mixed."""
    if not runs:
        raise ForecastError(f"no run was given; a profile needs at least {MIN_STEPS} usable steps")
    for name in ("trainer", "model", "task", "card_type", "asynchronous"):
        values = sorted({str(getattr(run, name)) for run in runs})
        if len(values) > 1:
            raise ForecastError(f"runs of different {name} cannot share a profile: {', '.join(values)}; fit one each")
    usable = [usable_steps(run) for run in runs]
    _check_count(usable)
    by_size: dict[tuple[int, int, int], list[MeasuredStep]] = {}
    for part in usable:
        for step in part.steps:
            by_size.setdefault((step.prompts, step.completions, step.cards), []).append(step)
    phases = sorted({phase for steps in by_size.values() for step in steps for phase in step.phase_ns})
    usual, slow = _set_incidents_apart(by_size)
    levels = _levels(usual, phases)
    residuals = [step.seconds / levels[size].seconds for size, steps in usual.items() for step in steps]
    incidents = [{p: _seconds(step, p) - levels[size].phase_seconds[p] for p in phases} for size, step in slow]
    trend = _trend(usable)
    first = runs[0]
    return StepProfile(
        trainer=first.trainer,
        model=first.model,
        task=first.task,
        card_type=first.card_type,
        asynchronous=first.asynchronous,
        basis="measured",
        levels=tuple(levels.values()),
        residuals=tuple(sorted(residuals)),
        incidents=tuple(incidents),
        trend=trend,
        length_exponents={p: _length_exponent(usable, p) if trend.of == "tokens" else (1.0, 0.0) for p in phases},
        off_steps=tuple(_off_steps(runs, usable, levels)),
        notes=tuple(_notes(usable, len(incidents))),
    )


def fit_line(works: Sequence[float], seconds: Sequence[float], weights: Sequence[float]) -> tuple[float, float]:
    """Weighted least squares of `constant + slope x work`, neither below 0."""
    total = sum(weights)
    x = _mean(works, weights)
    y = _mean(seconds, weights)
    spread = sum(w * (a - x) ** 2 for w, a in zip(weights, works, strict=True))
    slope = sum(w * (a - x) * (b - y) for w, a, b in zip(weights, works, seconds, strict=True)) / spread
    if slope < 0.0:
        return y, 0.0
    if y - slope * x < 0.0:
        return 0.0, sum(w * a * b for w, a, b in zip(weights, works, seconds, strict=True)) / (total * x * x + spread)
    return y - slope * x, slope


def _check_count(usable: Sequence[UsableSteps]) -> None:
    found = sum(len(part.steps) for part in usable)
    if found >= MIN_STEPS:
        return
    left_out: dict[str, int] = {}
    for part in usable:
        for reason, count in part.left_out.items():
            left_out[reason] = left_out.get(reason, 0) + count
    why = "".join(f"; {count} left out: {reason}" for reason, count in left_out.items())
    raise ForecastError(
        f"usable: {_steps(found)}{why}. A profile needs at least {MIN_STEPS}: measure {MIN_STEPS - found} more"
    )


def _seconds(step: MeasuredStep, phase: str) -> float:
    return step.phase_ns.get(phase, 0) / NS_PER_SECOND


def _mean(values: Iterable[float], weights: Sequence[float]) -> float:
    return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)


_Size = tuple[int, int, int]


def _set_incidents_apart(
    by_size: Mapping[_Size, Sequence[MeasuredStep]],
) -> tuple[dict[_Size, list[MeasuredStep]], list[tuple[_Size, MeasuredStep]]]:
    """Steps by size without incidents, and the incidents with their size."""
    usual: dict[_Size, list[MeasuredStep]] = {}
    slow: list[tuple[_Size, MeasuredStep]] = []
    for size, steps in sorted(by_size.items()):
        limit = _INCIDENT_RATIO * statistics.median(s.seconds for s in steps)
        usual[size] = [s for s in steps if s.seconds <= limit]
        slow += [(size, s) for s in steps if s.seconds > limit]
    if len(slow) > _INCIDENT_SHARE * sum(len(steps) for steps in by_size.values()):
        return {size: list(steps) for size, steps in sorted(by_size.items())}, []
    return usual, slow


def _levels(usual: Mapping[_Size, Sequence[MeasuredStep]], phases: Sequence[str]) -> dict[_Size, Level]:
    """Means by size. The relative spread is pooled over all sizes, so that a size with two steps has one too."""
    means = {
        size: {p: statistics.fmean(_seconds(s, p) for s in steps) for p in phases} for size, steps in usual.items()
    }
    freedom = sum(len(steps) - 1 for steps in usual.values())
    spread: dict[str, float] = {}
    for p in phases:
        squares = sum(
            (_seconds(s, p) / means[size][p] - 1.0) ** 2
            for size, steps in usual.items()
            for s in steps
            if means[size][p]
        )
        spread[p] = math.sqrt(squares / freedom) if freedom else _UNKNOWN_SPREAD
    # Student's t has a larger variance than the normal distribution that stands in for it.
    heavier = math.sqrt(freedom / (freedom - 2)) if freedom > 2 else 2.0
    return {
        size: Level(*size, len(steps), means[size], {p: heavier * spread[p] / math.sqrt(len(steps)) for p in phases})
        for size, steps in usual.items()
    }


def _winsorised(values: Sequence[float]) -> list[float]:
    """Values pulled in to three robust deviations from their median."""
    middle = statistics.median(values)
    deviations = [abs(v - middle) for v in values]
    # Where more than half of the values are equal, as in times of whole seconds, the median deviation is 0.
    robust = 1.4826 * statistics.median(deviations) or 1.2533 * statistics.fmean(deviations)
    reach = _WINSORISE_DEVIATIONS * robust
    return [min(max(v, middle - reach), middle + reach) for v in values]


def _slope(groups: Sequence[tuple[Sequence[float], Sequence[float]]]) -> tuple[float, float]:
    """Slope of y on x within groups, each with its own level, and the standard error; (0, inf) where not defined."""
    sxx = sxy = 0.0
    centred: list[tuple[float, float]] = []
    for xs, ys in groups:
        if len(xs) < 2:
            continue
        x_mean, y_mean = statistics.fmean(xs), statistics.fmean(ys)
        pairs = [(x - x_mean, y - y_mean) for x, y in zip(xs, ys, strict=True)]
        sxx += sum(x * x for x, _ in pairs)
        sxy += sum(x * y for x, y in pairs)
        centred += pairs
    freedom = len(centred) - sum(len(xs) >= 2 for xs, _ in groups) - 1
    if sxx <= 0.0 or freedom < 1:
        return 0.0, math.inf
    slope = sxy / sxx
    variance = sum((y - slope * x) ** 2 for x, y in centred) / freedom
    return slope, math.sqrt(variance / sxx)


def _lengths(part: UsableSteps) -> list[float] | None:
    """Mean tokens per completion of every step; None unless all are known and above 0."""
    lengths = [s.tokens / s.completions for s in part.steps if s.tokens]
    return lengths if len(lengths) == len(part.steps) else None


def _trend(usable: Sequence[UsableSteps]) -> Trend:
    parts = [part for part in usable if part.steps]
    lengths = [_lengths(part) for part in parts]
    known = [values for values in lengths if values is not None]
    roots = [[math.sqrt(s.step) for s in part.steps] for part in parts]
    centre = statistics.fmean(root for values in roots for root in values)
    if len(known) == len(parts):
        series = [_winsorised([math.log(v) for v in values]) for values in known]
        mean = statistics.fmean(v for values in known for v in values)
        return Trend("tokens", *_slope(list(zip(roots, series, strict=True))), centre, mean)
    seconds = [_winsorised([math.log(s.seconds) for s in part.steps]) for part in parts]
    return Trend("seconds", *_slope(list(zip(roots, seconds, strict=True))), centre)


def _length_exponent(usable: Sequence[UsableSteps], phase: str) -> tuple[float, float]:
    """Power of the mean length with which the phase grows from step to step, weighed against the prior."""
    groups = []
    for part in usable:
        lengths = _lengths(part)
        seconds = [_seconds(s, phase) for s in part.steps]
        if lengths and min(seconds) > 0.0:
            groups.append((_winsorised([math.log(v) for v in lengths]), _winsorised([math.log(v) for v in seconds])))
    prior, prior_error = length_exponent(phase)
    slope, error = _slope(groups)
    if math.isinf(error):
        return prior, prior_error
    precision, prior_precision = 1.0 / max(error, 0.01) ** 2, 1.0 / prior_error**2
    mean = (slope * precision + prior * prior_precision) / (precision + prior_precision)
    return max(0.0, mean), math.sqrt(1.0 / (precision + prior_precision))


def _off_steps(
    runs: Sequence[MeasuredRun], usable: Sequence[UsableSteps], levels: Mapping[_Size, Level]
) -> Iterable[OffStepFit]:
    seen: dict[str, list[tuple[float, int]]] = {}
    for run, part in zip(runs, usable, strict=True):
        per_trial: dict[str, int] = {}
        for off in run.off_steps:
            if off.kind in ("evaluation", "checkpoint"):
                seen.setdefault(off.kind, []).append((off.ns / NS_PER_SECOND, len(run.steps)))
            else:
                per_trial[off.kind] = per_trial.get(off.kind, 0) + off.ns
        if run.unexplained_ns is not None:
            per_trial["other"] = per_trial.get("other", 0) + run.unexplained_ns
        for kind, ns in per_trial.items():
            seen.setdefault(kind, []).append((ns / NS_PER_SECOND, len(run.steps)))
        excess = 0.0
        for step in part.warm_up:
            level = levels.get((step.prompts, step.completions, step.cards))
            excess += max(0.0, step.seconds - level.seconds) if level else 0.0
        seen.setdefault("warm_up", []).append((excess, len(run.steps)))
    for kind, observed in sorted(seen.items()):
        seconds = [s for s, _ in observed]
        mean = statistics.fmean(seconds)
        if mean == 0.0:
            if kind != "warm_up":
                yield OffStepFit(kind, 0.0, 0.0, len(observed), tuple(n for _, n in observed))
            continue
        if len(observed) > 1:
            # The mean of n observations is uncertain too: a further one lies sqrt(1 + 1/n) deviations from it.
            log_error = statistics.stdev(seconds) / mean * math.sqrt(1.0 + 1.0 / len(observed))
        else:
            log_error = _ONE_OBSERVATION_LOG_ERROR
        steps = tuple(n for _, n in observed)
        slope = None
        if kind == "other" and len(set(steps)) > 1:
            slope = fit_line(steps, seconds, [1.0] * len(steps))[1]
        yield OffStepFit(kind, mean, log_error, len(observed), steps, slope)


def _notes(usable: Sequence[UsableSteps], incidents: int) -> Iterable[str]:
    left_out: dict[str, int] = {}
    for part in usable:
        for reason, count in part.left_out.items():
            left_out[reason] = left_out.get(reason, 0) + count
        yield from part.notes
    for reason, count in left_out.items():
        yield f"{_steps(count)} left out: {reason}"
    if incidents:
        yield f"{_steps(incidents)} took more than {_INCIDENT_RATIO:g} times the usual time: counted as incidents"


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"

"""Forecast the seconds of a step, a trial and a sweep from a StepProfile: P10, P50 and P90, by category.

Pure arithmetic on draws that are the same every time. A figure is measured, scaled or a prior, and the forecast records
which. Categories sum to their total exactly, in nanoseconds. Money is computed from the result in `lease_cost`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cost.forecast.hardware import Hardware, ModelSize
from cost.forecast.priors import DEFAULT_PRIORS, Basis, Priors, weakest
from cost.forecast.sampling import (
    DRAWS,
    ForecastError,
    Interval,
    interval,
    normal,
    poisson,
    split_p50_p90,
    total_of,
    uniform,
    uniform_table,
)
from cost.forecast.scaling import ScaledPhases, Size, hardware_ratio, phases_at
from cost.forecast.step_profile import OffStepFit, StepProfile

if TYPE_CHECKING:
    from cost.forecast.sampling import Draws

_NOISE_STEPS = 128
"""Steps drawn one by one; longer trials repeat them, whose mean is by then known to a percent."""
_TREND_POINTS = 32
_SECONDS_TREND_SHARE = 0.5
"""A step's own time changes less than the length: only a part of it follows the length."""
_LARGEST_LOG_CHANGE = math.log(4.0)
_ONE_TIME_PROBABILITY = 0.7
"""That a single incident among the measured steps does not come again."""
_OFF_STEP_CATEGORY = {
    "start": "startup",
    "model_load": "startup",
    "warm_up": "startup",
    "evaluation": "evaluation",
    "checkpoint": "checkpoint",
    "saving": "checkpoint",
    "other": "other",
}
_UNMEASURED_SECONDS = {"start": 60.0, "evaluation": 60.0, "checkpoint": 20.0}
_UNMEASURED_LOG_ERROR = 0.7


@dataclass(frozen=True)
class Machine:
    """What is rented, or one's own."""

    name: str
    cards: int
    hardware: Hardware


@dataclass(frozen=True)
class TrialWork:
    """What one trial has to do. `steps_done` are not forecast again: they are those of a trial that is running."""

    steps: int
    prompts: int
    group_size: int
    cards: int
    evaluations: int = 0
    checkpoints: int = 0
    steps_done: int = 0
    tokens_per_completion: float | None = None
    """Mean tokens expected; None: as measured."""
    max_completion_tokens: int | None = None
    """Limits a growing length; None: no limit."""
    updates_per_step: int = 1

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 <= self.steps_done < self.steps:
            raise ForecastError(f"steps_done {self.steps_done} must be at least 0 and below steps {self.steps}")
        if min(self.prompts, self.group_size, self.cards) < 1:
            raise ForecastError("prompts, group_size and cards must each be at least 1")
        if min(self.evaluations, self.checkpoints) < 0:
            raise ForecastError("evaluations and checkpoints must not be negative")

    @property
    def size(self) -> Size:
        return Size(self.prompts * self.group_size, self.cards)

    @property
    def steps_left(self) -> int:
        return self.steps - self.steps_done


@dataclass(frozen=True)
class Preemptions:
    """Machines that the provider takes back, at a mean rate while a trial runs."""

    per_hour: float
    checkpoint_every_steps: int
    recovery_seconds: float
    """From the preemption until training goes on: a new machine, start, restore."""

    def __post_init__(self) -> None:
        if self.per_hour < 0 or self.recovery_seconds < 0 or self.checkpoint_every_steps < 1:
            raise ForecastError("preemptions: per_hour and recovery_seconds must be >= 0, checkpoint_every_steps >= 1")


@dataclass(frozen=True)
class SweepWork:
    """The trials of one stage on one machine, and what the machine's lease contains besides."""

    trainer: str
    model: str
    task: str
    machine: Machine
    trials: tuple[TrialWork, ...]
    max_concurrent: int | None = None
    bring_up_seconds: float = 0.0
    """Billed time before the first trial: the machine, the environment, the download of the model."""
    between_trials_seconds: float = 0.0
    release_seconds: float = 0.0
    """Billed time after the last trial until the machine is released."""
    preemptions: Preemptions | None = None
    model_size: ModelSize | None = None

    def __post_init__(self) -> None:
        if not self.trials:
            raise ForecastError("a sweep needs at least one trial")
        if min(self.bring_up_seconds, self.between_trials_seconds, self.release_seconds) < 0:
            raise ForecastError("times of a lease must not be negative")
        for trial in self.trials:
            if trial.cards > self.machine.cards:
                raise ForecastError(
                    f"a trial of {trial.cards} cards does not fit {self.machine.name}, which has {self.machine.cards}"
                )


@dataclass(frozen=True)
class Category:
    """Time of one category at the P50 and the P90 of the total, in nanoseconds, and what it rests on."""

    name: str
    p50_ns: int
    p90_ns: int
    basis: Basis


@dataclass(frozen=True)
class TrialForecast:
    """Wall-clock time. `categories` sum to `wall_ns` at P50 and at P90."""

    work: TrialWork
    step_ns: Interval
    wall_ns: Interval
    tokens: Interval | None
    """Sampled tokens of the steps ahead; None where the profile's steps did not report theirs."""
    categories: tuple[Category, ...]


@dataclass(frozen=True)
class Forecast:
    """A sweep on one machine. `lease_ns` is wall clock; `card_ns` is that times the machine's cards, by category."""

    machine: str
    machine_cards: int
    card_type: str
    basis: Basis
    """The weakest basis among the phases of its steps."""
    trials: tuple[TrialForecast, ...]
    lease_ns: Interval
    card_ns: Interval
    categories: tuple[Category, ...]
    notes: tuple[str, ...]


def predict(
    profile: StepProfile,
    sweep: SweepWork,
    *,
    measured_on: Hardware | None = None,
    priors: Priors = DEFAULT_PRIORS,
) -> Forecast:
    """Forecast a sweep. Raises ForecastError for a profile of another trainer, model or task, and for missing figures.

    `measured_on` describes the cards of the profile; needed where the sweep runs on another card type.
    """
    for name in ("trainer", "model", "task"):
        if (measured := getattr(profile, name)) != (wanted := getattr(sweep, name)):
            raise ForecastError(
                f"the profile's {name} is {measured!r}, the forecast is for {wanted!r}: measure that one"
            )
    hardware = sweep.machine.hardware
    if hardware.card_type == profile.card_type:
        measured_on = None
    notes = list(profile.notes)
    found: list[_TrialDraws] = []
    for i, work in enumerate(sweep.trials):
        phases = phases_at(
            profile,
            work.size,
            priors,
            measured_on=measured_on,
            hardware=hardware,
            model=sweep.model_size,
            updates_per_step=work.updates_per_step,
        )
        trial = _trial(profile, work, i, phases, sweep.preemptions, measured_on, hardware, priors)
        notes += [note for note in (*phases.notes, *trial.notes) if note not in notes]
        found.append(trial)
    lease = sweep.bring_up_seconds + _makespan([t.wall for t in found], sweep) + sweep.release_seconds
    parts, basis = _lease_parts(found, lease, sweep)
    lease_ns = interval(lease)
    cards = sweep.machine.cards
    card_ns = Interval(lease_ns.p10 * cards, lease_ns.p50 * cards, lease_ns.p90 * cards)
    return Forecast(
        machine=sweep.machine.name,
        machine_cards=cards,
        card_type=hardware.card_type,
        basis=weakest(t.step_basis for t in found),
        trials=tuple(_trial_forecast(t) for t in found),
        lease_ns=lease_ns,
        card_ns=card_ns,
        categories=_categories(card_ns, parts, basis),
        notes=tuple(notes),
    )


@dataclass(frozen=True)
class _TrialDraws:
    work: TrialWork
    step: Draws
    """Seconds of one step, at the mean trend of the steps ahead."""
    parts: dict[str, Draws]
    """Seconds of the trial by category."""
    basis: dict[str, Basis]
    step_basis: Basis
    tokens: Draws | None
    notes: tuple[str, ...]

    @property
    def wall(self) -> Draws:
        return total_of(self.parts.values())


def _trial(
    profile: StepProfile,
    work: TrialWork,
    index: int,
    phases: ScaledPhases,
    preemptions: Preemptions | None,
    measured_on: Hardware | None,
    hardware: Hardware,
    priors: Priors,
) -> _TrialDraws:
    import numpy as np

    steps = work.steps_left
    level = np.exp(_level_log_error(profile, priors) * normal("level"))
    noise, one_step = _noise(profile, steps, index)
    change, notes = _log_length_changes(profile, work, priors)
    parts: dict[str, Draws] = {}
    means: list[Draws] = []
    for phase, seconds in phases.seconds.items():
        exponent, exponent_error = profile.length_exponents.get(phase, (0.0, 0.0))
        power = np.maximum(exponent + exponent_error * normal(f"length {phase}"), 0.0)
        mean = seconds * level * np.exp(power[:, None] * change).mean(axis=1)
        means.append(mean)
        parts[phase] = mean * noise * steps + _incident_seconds(profile, phase, steps, index)
    basis: dict[str, Basis] = dict(phases.basis)
    for kind, count in _off_step_counts(profile, work).items():
        fit = profile.off_step(kind)
        if fit is None:
            if profile.off_step("other") is not None:
                notes.append(f"{kind} was not measured apart: it is part of the unexplained time")
                continue
            fit = OffStepFit(kind, _UNMEASURED_SECONDS[kind], _UNMEASURED_LOG_ERROR, 0, (), basis="prior")
            notes.append(f"{kind} was not measured: {fit.seconds:g} s each, within a factor of 2.5")
        seconds = _off_step_seconds(fit, count, work, index)
        rests_on: list[Basis] = [fit.basis]
        if kind == "evaluation" and measured_on is not None:
            seconds = seconds * hardware_ratio("rollout", measured_on, hardware, priors)
            rests_on.append("scaled")
        name = _OFF_STEP_CATEGORY[kind]
        if name in parts:
            rests_on.append(basis[name])
        parts[name] = parts[name] + seconds if name in parts else seconds
        basis[name] = weakest(rests_on)
    step = total_of(means) * one_step
    if preemptions is not None and preemptions.per_hour > 0:
        parts |= _preempted(preemptions, parts, step, index)
        basis |= {"lost_work": "prior", "recovery": "prior"}
    tokens = None
    if profile.trend.mean_tokens is not None:
        tokens = work.size.completions * steps * profile.trend.mean_tokens * np.exp(change).mean(axis=1)
    return _TrialDraws(work, step, parts, basis, weakest(phases.basis.values()), tokens, tuple(notes))


def _trial_forecast(trial: _TrialDraws) -> TrialForecast:
    wall_ns = interval(trial.wall)
    return TrialForecast(
        trial.work,
        interval(trial.step),
        wall_ns,
        interval(trial.tokens, scale=1) if trial.tokens is not None else None,
        _categories(wall_ns, trial.parts, trial.basis),
    )


def _lease_parts(
    trials: Sequence[_TrialDraws], lease: Draws, sweep: SweepWork
) -> tuple[dict[str, Draws], dict[str, Basis]]:
    """Card-seconds of the lease by category, and the basis of each. What no trial uses is idle."""
    import numpy as np

    parts: dict[str, Draws] = {}
    basis: dict[str, Basis] = {}
    for trial in trials:
        for name, draws in trial.parts.items():
            parts[name] = parts.get(name, np.zeros(DRAWS)) + draws * trial.work.cards
            basis[name] = weakest([trial.basis[name], basis.get(name, trial.basis[name])])
    if sweep.bring_up_seconds:
        parts["startup"] = parts.get("startup", np.zeros(DRAWS)) + sweep.bring_up_seconds * sweep.machine.cards
        basis["startup"] = "prior"
    # Below zero only by the rounding of floats.
    parts["idle"] = np.maximum(lease * sweep.machine.cards - total_of(parts.values()), 0.0)
    basis["idle"] = weakest(basis.values())
    return parts, basis


def _categories(total: Interval, parts: Mapping[str, Draws], basis: Mapping[str, Basis]) -> tuple[Category, ...]:
    return tuple(Category(name, p50, p90, basis[name]) for name, (p50, p90) in split_p50_p90(total, parts).items())


def _level_log_error(profile: StepProfile, priors: Priors) -> float:
    return priors.data_sheet_log_error if profile.basis == "prior" else priors.level_log_error


def _noise(profile: StepProfile, steps: int, index: int) -> tuple[Draws, Draws]:
    """Mean of `steps` residuals drawn from the measured ones, and one residual. The order is fixed, so that the sum
    grows with every step."""
    import numpy as np

    residuals = np.array(profile.residuals)
    picked = residuals[(uniform_table("residual", _NOISE_STEPS) * len(residuals)).astype(int)]
    picked = np.roll(picked, 97 * index, axis=0)
    sums = picked.cumsum(axis=1)
    rounds, rest = divmod(steps, _NOISE_STEPS)
    total = rounds * sums[:, -1] + (sums[:, rest - 1] if rest else 0.0)
    return total / steps, picked[:, 0]


def _log_length_changes(profile: StepProfile, work: TrialWork, priors: Priors) -> tuple[Draws, list[str]]:
    """Logarithm of the length against that of the measured steps, shape [DRAWS, points of the steps ahead], and notes.

    Two hypotheses are weighed by their evidence: no trend, and a slope with a normal prior.
    """
    import numpy as np

    trend = profile.trend
    spread = priors.trend_log_change / math.sqrt(200.0)
    if trend.of == "seconds":
        spread *= _SECONDS_TREND_SHARE
    chance, mean, error = slope_posterior(trend.slope, trend.slope_error, spread, priors.trend_probability)
    slope = np.where(uniform("trend") > 1.0 - chance, mean + error * normal("slope"), 0.0)
    points = np.linspace(work.steps_done + 1, work.steps, min(_TREND_POINTS, work.steps_left))
    change = slope[:, None] * (np.sqrt(points)[None, :] - trend.centre)
    change = np.clip(change, -_LARGEST_LOG_CHANGE, _LARGEST_LOG_CHANGE)
    if work.tokens_per_completion is not None:
        if trend.mean_tokens is None:
            raise ForecastError("tokens_per_completion needs a profile whose steps report their tokens")
        change = change + math.log(work.tokens_per_completion / trend.mean_tokens)
    if work.max_completion_tokens is not None and trend.mean_tokens is not None:
        change = np.minimum(change, math.log(work.max_completion_tokens / trend.mean_tokens))
    subject = "length of completions" if trend.of == "tokens" else "time of a step"
    return change, [f"the {subject} changes as training goes on"] if chance > 0.8 else []


def slope_posterior(slope: float, error: float, spread: float, probability: float) -> tuple[float, float, float]:
    """Probability that there is a trend, and mean and standard deviation of its slope if there is one.

    The slope is 0, or drawn from a normal distribution with standard deviation `spread`; it was measured with `error`.
    """
    if math.isinf(error):
        return probability, 0.0, spread
    variance, prior = max(error, 1e-9) ** 2, spread**2
    log_odds = 0.5 * math.log(variance / (variance + prior)) + 0.5 * slope**2 * prior / (variance * (variance + prior))
    log_odds += math.log(probability / (1.0 - probability))
    chance = 1.0 / (1.0 + math.exp(-min(max(log_odds, -700.0), 700.0)))
    return chance, slope * prior / (variance + prior), math.sqrt(variance * prior / (variance + prior))


def _incident_seconds(profile: StepProfile, phase: str, steps: int, index: int) -> Draws:
    """Seconds that incidents add to a phase. A single one comes again in fewer than half of the draws."""
    import numpy as np

    seen = len(profile.incidents)
    if not seen:
        return np.zeros(DRAWS)
    count = np.roll(_negative_binomial(seen, profile.steps / (profile.steps + steps), "incidents"), 97 * index)
    if seen == 1:
        count = np.where(uniform("one-time incident") < _ONE_TIME_PROBABILITY, 0.0, count)
    excess = sum(incident[phase] for incident in profile.incidents if phase in incident) / seen
    return count * max(0.0, excess)


def _negative_binomial(successes: int, probability: float, name: str) -> Draws:
    """Counts to come when `successes` were seen in the share `probability` of all steps, by inversion."""
    import numpy as np

    odds = (1.0 - probability) / probability
    if successes > 50 or successes * odds > 500.0:
        # A Poisson count whose rate has a gamma distribution; far above 1 the rate is all of its spread.
        # Gamma quantiles: E. B. Wilson, M. M. Hilferty, "The distribution of chi-square", 1931.
        root = 1.0 - 1.0 / (9.0 * successes) + normal(name) / (3.0 * math.sqrt(successes))
        return odds * successes * np.maximum(root, 0.0) ** 3
    term = probability**successes
    below = [term]
    while below[-1] < 1.0 - 0.5 / DRAWS and len(below) < 20_000:
        k = len(below)
        term *= (successes + k - 1) / k * (1.0 - probability)
        below.append(below[-1] + term)
    return np.searchsorted(np.array(below), uniform(name)).astype(float)


def _off_step_counts(profile: StepProfile, work: TrialWork) -> dict[str, int]:
    """How often each kind of off-step time is still to come."""
    counts = {"evaluation": work.evaluations, "checkpoint": work.checkpoints, "other": 1, "saving": 1}
    if not work.steps_done:
        counts |= {"start": 1, "model_load": 1, "warm_up": 1}
    optional = {"other", "saving", "model_load", "warm_up"}
    return {kind: count for kind, count in counts.items() if count and (kind not in optional or profile.off_step(kind))}


def _off_step_seconds(fit: OffStepFit, count: int, work: TrialWork, index: int) -> Draws:
    import numpy as np

    error = np.exp(fit.log_error * np.roll(normal(f"off-step {fit.kind}"), 97 * index))
    if fit.kind != "other" or not fit.steps:
        return count * fit.seconds * error
    measured = sum(fit.steps) / len(fit.steps)
    if fit.seconds_per_step is not None:
        growing = fit.seconds_per_step * measured
    elif work.steps_left == measured:
        return fit.seconds * error
    else:
        # Runs of one length do not show how much of it grows with the steps: every share is as likely.
        growing = fit.seconds * uniform("unexplained")
    once = 0.0 if work.steps_done else fit.seconds - growing
    return (once + growing * work.steps_left / measured) * error


def _preempted(preemptions: Preemptions, parts: Mapping[str, Draws], step: Draws, index: int) -> dict[str, Draws]:
    """Lost work and recovery. Lost steps are part of the time in which a machine can be taken, too."""
    import numpy as np

    productive = total_of(parts.values())
    interval_seconds = preemptions.checkpoint_every_steps * float(np.median(step))
    interval_seconds = np.minimum(interval_seconds, productive)
    rate = preemptions.per_hour / 3_600.0
    each = interval_seconds / 2.0 + preemptions.recovery_seconds
    share = rate * each
    if float(np.median(share)) >= 0.9:
        raise ForecastError(
            f"{preemptions.per_hour:g} preemptions per hour leave no progress: write checkpoints more often"
        )
    count = poisson(rate * productive / (1.0 - np.minimum(share, 0.9)), f"preemptions {index % 16}")
    spread = np.sqrt(count / 12.0) * interval_seconds * normal("lost work")
    lost = np.clip(count * interval_seconds / 2.0 + spread, 0.0, count * interval_seconds)
    return {"lost_work": lost, "recovery": count * preemptions.recovery_seconds}


def _makespan(walls: Sequence[Draws], sweep: SweepWork) -> Draws:
    """When the last trial ends, if each starts as soon as enough cards are free, in the given order."""
    import numpy as np

    cards = sweep.trials[0].cards
    if any(trial.cards != cards for trial in sweep.trials):
        raise ForecastError("trials of one sweep must use the same number of cards")
    lanes = min(sweep.machine.cards // cards, sweep.max_concurrent or len(walls), len(walls))
    busy = np.zeros((DRAWS, max(1, lanes)))
    for i, wall in enumerate(walls):
        first = busy.argmin(axis=1)
        gap = sweep.between_trials_seconds if i >= busy.shape[1] else 0.0
        busy[np.arange(DRAWS), first] += wall + gap
    return busy.max(axis=1)

"""Seconds of each phase at another size, on other cards, on other hardware: draws with their uncertainty and basis.

More cards may be slower. What a step measured on one card pays for more of them is computed (gradients, weight sync,
unequal work); what a step measured on several cards keeps is a prior of published comparisons, whose error reaches
beyond "no gain at all".

Tested in tests/cost/forecast/test_predict.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cost.forecast.hardware import Hardware, ModelSize
from cost.forecast.priors import Basis, Priors, half_work, weakest
from cost.forecast.sampling import DRAWS, ForecastError, normal
from cost.forecast.step_profile import Level, StepProfile

if TYPE_CHECKING:
    from cost.forecast.sampling import Draws

_BOUND_BY = {"rollout": "bandwidth", "train": "flops", "logprob": "flops"}
"""Which figure of the hardware a phase depends on. Phases without an entry do not change with the card."""


@dataclass(frozen=True)
class Size:
    """Completions of a step and the cards that share them."""

    completions: int
    cards: int

    def __post_init__(self) -> None:
        if self.completions < 1 or self.cards < 1:
            raise ForecastError(f"completions {self.completions} and cards {self.cards} must each be at least 1")

    @property
    def work(self) -> float:
        return self.completions / self.cards


@dataclass(frozen=True)
class ScaledPhases:
    """Draws of each phase's seconds, what they rest on, and one sentence for each basis that is not "measured"."""

    seconds: Mapping[str, Draws]
    basis: Mapping[str, Basis]
    notes: tuple[str, ...]


def phases_at(
    profile: StepProfile,
    size: Size,
    priors: Priors,
    *,
    measured_on: Hardware | None = None,
    hardware: Hardware | None = None,
    model: ModelSize | None = None,
    updates_per_step: int = 1,
) -> ScaledPhases:
    """Mean seconds of each phase in one step of `size`, without trend, noise and incidents.

    `measured_on` and `hardware` are needed where the forecast is for another card type; `model` where steps measured on
    one card are forecast for several.
    """
    import numpy as np

    seconds: dict[str, Draws] = {}
    basis: dict[str, Basis] = {}
    notes: list[str] = []
    one_card = all(level.cards == 1 for level in profile.levels)
    cards_measured = size.cards in {level.cards for level in profile.levels}
    size_error = _size_log_error(profile, size, priors)
    for phase in profile.phases:
        draws = _at_size(profile, phase, size, priors)
        draws = draws * np.exp(size_error * normal("size"))
        basis[phase] = profile.basis
        if not cards_measured:
            basis[phase] = weakest([basis[phase], "scaled"])
            draws = draws * card_log_error(_nearest_cards(profile, size), size.cards, priors)
        if hardware is not None and hardware.card_type != profile.card_type:
            if measured_on is None:
                raise ForecastError(
                    f"the figures of {profile.card_type} are needed to scale its steps to {hardware.card_type}"
                )
            draws = draws * hardware_ratio(phase, measured_on, hardware, priors)
            basis[phase] = weakest([basis[phase], "scaled"])
        seconds[phase] = draws
    if not cards_measured:
        notes.append(f"scaled to {size.cards} cards; more cards may be slower")
    if hardware is not None and hardware.card_type != profile.card_type:
        notes.append(f"scaled from {profile.card_type} to {hardware.card_type} by data sheet")
    if one_card and size.cards > 1:
        if model is None or hardware is None:
            raise ForecastError(
                "steps measured on one card need the model's size and the hardware for a forecast on several cards"
            )
        added = communication_seconds(model, hardware, size.cards, updates_per_step, priors)
        error = {"train": np.ones(DRAWS), "sync": np.exp(priors.broadcast_log_error * normal("broadcast"))}
        for phase, extra in added.items():
            seconds[phase] = seconds.get(phase, np.zeros(DRAWS)) + extra * error[phase]
            basis.setdefault(phase, "prior")
        for phase in ("train", "logprob"):
            if phase in seconds:
                seconds[phase] = seconds[phase] * straggler_factor(size, priors)
        notes.append("weight sync, gradient exchange and unequal work of several cards are computed, not measured")
    return ScaledPhases(seconds, basis, tuple(notes))


def shared_time(seconds: Draws | float, phase: str, measured: Size, size: Size, priors: Priors) -> Draws:
    """Seconds of a phase at another size from those at one: a constant share and a share in proportion to the work.

    The constant share is that of the phase at this work per card. Where several cards become more or fewer it is the
    published serial share, which contains communication and unequal work.
    """
    import numpy as np

    if measured.cards > 1 and size.cards != measured.cards:
        share = np.maximum(priors.serial_share + priors.serial_share_error * normal("serial_share"), 0.0)
    else:
        half = half_work(phase, priors)
        half = half * np.exp(priors.half_work_log_error * normal(f"half_work {phase}"))
        share = np.ones_like(half) if math.isinf(half_work(phase, priors)) else half / (half + measured.work)
    ratio = share + (1.0 - share) * size.work / measured.work
    return seconds * np.maximum(ratio, 0.05)


def card_log_error(measured_cards: int, cards: int, priors: Priors) -> Draws:
    """Factor around 1 for the error of a change in cards."""
    import numpy as np

    doublings = abs(math.log2(cards / measured_cards))
    return np.exp(priors.card_log_error_per_doubling * doublings * normal("cards"))


def hardware_ratio(phase: str, measured_on: Hardware, hardware: Hardware, priors: Priors) -> Draws:
    """Factor from one card type to another; 1 for phases that do not follow the card."""
    import numpy as np

    bound = _BOUND_BY.get(phase)
    if bound is None:
        return np.ones_like(normal("hardware"))
    if bound == "flops":
        log_ratio = priors.flops_exponent * math.log(measured_on.tflops / hardware.tflops)
    else:
        log_ratio = priors.bandwidth_exponent * math.log(measured_on.memory_gb_per_s / hardware.memory_gb_per_s)
    error = priors.hardware_log_error * (1.0 + abs(log_ratio))
    return np.exp(log_ratio + error * normal("hardware"))


def communication_seconds(
    model: ModelSize, hardware: Hardware, cards: int, updates_per_step: int, priors: Priors
) -> dict[str, float]:
    """Seconds that data parallelism adds to a step on one machine: gradient exchange (train) and weight sync (sync).

    A ring all-reduce moves 2 (n - 1) / n of the gradient bytes through each card (P. Patarasuk, X. Yuan, "Bandwidth
    optimal all-reduce algorithms for clusters of workstations", 2009).
    """
    if hardware.interconnect_gb_per_s <= 0:
        raise ForecastError(
            f"{hardware.card_type} has no interconnect: a trial on {cards} of its cards cannot be forecast"
        )
    one_way = hardware.interconnect_gb_per_s / 2.0 * 1e9
    reduce = 2.0 * (cards - 1) / cards * model.gradient_bytes / (one_way * priors.all_reduce_efficiency)
    return {"train": updates_per_step * reduce, "sync": model.weight_bytes / (priors.broadcast_gb_per_s * 1e9)}


def straggler_factor(size: Size, priors: Priors) -> float:
    """How much longer the card with the most tokens takes than the mean card: the expected maximum of normal sums."""
    if size.cards == 1:
        return 1.0
    return 1.0 + priors.length_spread / math.sqrt(size.work) * math.sqrt(2.0 * math.log(size.cards))


def _at_size(profile: StepProfile, phase: str, size: Size, priors: Priors) -> Draws:
    import numpy as np

    drawn = [
        np.maximum(level.phase_seconds[phase] * (1.0 + level.phase_error[phase] * normal(f"mean {phase} {i}")), 0.0)
        for i, level in enumerate(profile.levels)
    ]
    works = np.array([level.work for level in profile.levels])
    weights = np.array([float(level.steps) for level in profile.levels])
    values = np.array(drawn)
    if len(set(works.tolist())) > 1:
        return _line_at(works, values, weights, size.work)
    mean = (weights[:, None] * values).sum(axis=0) / weights.sum()
    nearest = _nearest_level(profile, size)
    measured = Size(nearest.completions, nearest.cards)
    return mean if measured.work == size.work else shared_time(mean, phase, measured, size, priors)


def _line_at(works: Draws, values: Draws, weights: Draws, work: float) -> Draws:
    """Weighted least squares through the levels, for every draw, with constant and slope not below 0."""
    import numpy as np

    w = weights[:, None]
    total = weights.sum()
    x = float((weights * works).sum() / total)
    y = (w * values).sum(axis=0) / total
    spread = float((weights * (works - x) ** 2).sum())
    slope = np.maximum((w * (works - x)[:, None] * (values - y)).sum(axis=0) / spread, 0.0)
    through_zero = (w * works[:, None] * values).sum(axis=0) / float((weights * works**2).sum())
    at_work = y + slope * (work - x)
    return np.where(y - slope * x < 0.0, through_zero * work, at_work)


def _size_log_error(profile: StepProfile, size: Size, priors: Priors) -> float:
    """0 at a size that was measured; larger the further the size lies from those that were."""
    if any((level.completions, level.cards) == (size.completions, size.cards) for level in profile.levels):
        return 0.0
    works = [level.work for level in profile.levels]
    beyond = max(0.0, math.log2(size.work / max(works)), math.log2(min(works) / size.work))
    return priors.size_log_error + priors.size_log_error_per_doubling * beyond


def _nearest_level(profile: StepProfile, size: Size) -> Level:
    return min(
        profile.levels,
        key=lambda level: (abs(math.log(level.work / size.work)), abs(math.log(level.cards / size.cards))),
    )


def _nearest_cards(profile: StepProfile, size: Size) -> int:
    return min((level.cards for level in profile.levels), key=lambda cards: abs(math.log(cards / size.cards)))

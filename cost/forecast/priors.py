"""The few numbers a forecast falls back on where nothing was measured, each with its source and its uncertainty.

A measured figure never uses them. They are one dataclass, so that a benchmark can estimate them again without the
published set that it predicts.

Tested in tests/cost/forecast/test_predict.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Basis = Literal["measured", "scaled", "prior"]
"""measured: from steps like these. scaled: by a ratio of hardware or cards. prior: from model size and data sheet."""

_BASES: tuple[Basis, ...] = ("measured", "scaled", "prior")


@dataclass(frozen=True)
class Priors:
    """Errors are standard deviations; `log_error` means of the logarithm, so 0.1 is about 10 %."""

    level_log_error: float = 0.025
    """How far later steps, or another trial of the same settings, lie from the measured level: 33 public runs of 50 to
    700 steps on one card."""
    size_log_error: float = 0.03
    """A line through other sizes, at a size that was not measured: a public one-card sweep of five sizes."""
    size_log_error_per_doubling: float = 0.03
    """Added for every doubling beyond the sizes that were measured."""

    rollout_half_work: float = 150.0
    """Completions per card at which the constant is half of the sampling phase: the same sweep, 2.5 s / 0.015 s."""
    train_half_work: float = 3.0
    """The same for training and log-probabilities: 0.2 s / 0.075 s."""
    half_work_log_error: float = 1.0
    serial_share: float = 0.62
    """Share of a step, measured on several cards, that more cards do not shorten (Amdahl): published step times of the
    same work on 16 to 512 cards."""
    serial_share_error: float = 0.3
    """Wide enough that more cards may be slower outright, as two published comparisons are."""
    card_log_error_per_doubling: float = 0.08

    async_step_share: float = 0.67
    """Seconds of an asynchronous step as a share of the synchronous one on the same cards, phases unknown."""
    async_step_log_error: float = 0.27
    async_rollout_share: float = 0.7
    """What remains of the sampling seconds when no step waits for its longest completion."""
    async_rollout_log_error: float = 0.25

    flops_exponent: float = 0.77
    """Training time falls with peak FLOP/s to this power: faster cards reach a smaller share of their peak."""
    bandwidth_exponent: float = 0.5
    """The same for sampling and memory bandwidth: small models are bound by launches, large ones by bandwidth."""
    hardware_log_error: float = 0.2
    """Of a ratio between two card types, and the same again for every factor of e between them."""

    trend_probability: float = 0.25
    """How likely the length of completions changes for good, before any step is seen. In 14 of 64 public runs it
    changed by more than 15 % between steps 1 to 20 and 21 to 200."""
    trend_log_change: float = 0.5
    """Standard deviation of that change over the first 200 steps; in those 14 runs it was 0.43."""

    length_exponent: float = 0.8
    """Sampling and training seconds grow with the mean length to this power."""
    length_exponent_error: float = 0.3

    all_reduce_efficiency: float = 0.6
    """Share of the interconnect's bandwidth that gradients reach."""
    broadcast_gb_per_s: float = 10.0
    """Weight sync to engines on other cards: published syncs of 7B to 744B reach 2 to 44 GB/s without RDMA."""
    broadcast_log_error: float = 1.0
    length_spread: float = 0.5
    """Standard deviation of the length of one completion, as a share of its mean: sets how unequal cards' work is."""

    data_sheet_log_error: float = 0.55
    """Of a step that follows from model size and data sheet alone: a factor of 2 at P90."""


DEFAULT_PRIORS = Priors()

WHOLE_STEP = "step"
"""Phase of a step whose trainer reports nothing but its whole time."""
_TRAIN_LIKE = ("train", "logprob")
_CONSTANT = ("sync",)


def half_work(phase: str, priors: Priors = DEFAULT_PRIORS) -> float:
    """Completions per card at which a phase's constant is half of its seconds; infinite for a constant phase."""
    if phase in _CONSTANT:
        return math.inf
    if phase in _TRAIN_LIKE:
        return priors.train_half_work
    return (
        priors.rollout_half_work if phase == "rollout" else math.sqrt(priors.rollout_half_work * priors.train_half_work)
    )


def weakest(bases: Iterable[Basis]) -> Basis:
    """The basis of a figure made of several: a prior outweighs everything, a measurement nothing."""
    return max(bases, key=_BASES.index)


def constant_share(phase: str, work: float, priors: Priors = DEFAULT_PRIORS) -> float:
    """Share of a phase that does not depend on the completions, at `work` completions per card."""
    half = half_work(phase, priors)
    return 1.0 if math.isinf(half) else half / (half + work)


def length_exponent(phase: str, priors: Priors = DEFAULT_PRIORS) -> tuple[float, float]:
    """Prior (mean, error) of the power of the completion length with which a phase grows."""
    if phase == "rollout" or phase in _TRAIN_LIKE:
        return priors.length_exponent, priors.length_exponent_error
    if phase == WHOLE_STEP:
        return priors.length_exponent / 2.0, priors.length_exponent_error
    return 0.0, 0.1

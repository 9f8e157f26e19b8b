"""The learning-rate schedule as a pure function of the optimiser update (not of steps, epochs or micro-batches)."""

from __future__ import annotations

import math

from rl.spec import AlgorithmSpec, ConfigurationError


def lr_factor(spec: AlgorithmSpec, update: int, total_updates: int) -> float:
    """Factor of the base learning rate at update `update` (0-based) of `total_updates`, in [0, 1].

    `total_updates` is steps x `updates_per_rollout`. Warm-up is linear, never gives 0 and reaches 1 at update
    `lr_warmup_updates` - 1. After the warm-up, `linear` and `cosine` fall to exactly `lr_final_frac` at update
    `total_updates` - 1.

    Raises:
        ConfigurationError: the warm-up is longer than the run.
        ValueError: `update` is outside the run, for example because a resumed run counted updates twice.
    """
    warmup = spec.lr_warmup_updates
    if warmup > total_updates:
        raise ConfigurationError(
            f"algorithm.lr_warmup_updates={warmup} is longer than the run of {total_updates} optimiser updates"
        )
    if not 0 <= update < total_updates:
        raise ValueError(f"update {update} is outside a run of {total_updates} optimiser updates (0-based)")
    if update < warmup:
        return (update + 1) / warmup
    first, last = max(warmup - 1, 0), total_updates - 1
    if spec.lr_schedule == "constant" or last == first:
        return 1.0
    progress = (update - first) / (last - first)
    if spec.lr_schedule == "cosine":
        progress = 0.5 * (1 - math.cos(math.pi * progress))
    return (1 - progress) + progress * spec.lr_final_frac

"""How often to write a checkpoint: from the seconds that one takes and the mean time between preemptions."""

from __future__ import annotations

import math

from cost.forecast.sampling import ForecastError


def young_seconds(checkpoint_seconds: float, seconds_between_preemptions: float) -> float:
    """First-order optimum of J. W. Young, "A first order approximation to the optimum checkpoint interval", 1974.

    The interval is the productive time between two checkpoints.
    """
    _check(checkpoint_seconds, seconds_between_preemptions)
    return math.sqrt(2.0 * checkpoint_seconds * seconds_between_preemptions)


def daly_seconds(checkpoint_seconds: float, seconds_between_preemptions: float) -> float:
    """Higher-order optimum of J. T. Daly, "A higher order estimate of the optimum checkpoint interval", 2006, eq. 37.

    Where a checkpoint takes more than twice the time between preemptions the interval is that time itself.
    """
    _check(checkpoint_seconds, seconds_between_preemptions)
    delta, mean = checkpoint_seconds, seconds_between_preemptions
    if delta >= 2.0 * mean:
        return mean
    ratio = delta / (2.0 * mean)
    return math.sqrt(2.0 * delta * mean) * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - delta


def checkpoint_every_steps(
    step_seconds: float, checkpoint_seconds: float, preemptions_per_hour: float, steps: int
) -> int:
    """Steps between two checkpoints, from 1 to `steps`: Daly's interval. Without preemptions, only the last step."""
    if step_seconds <= 0:
        raise ForecastError(f"step_seconds must be above 0, not {step_seconds}")
    if steps < 1:
        raise ForecastError(f"steps must be at least 1, not {steps}")
    if preemptions_per_hour == 0:
        return steps
    if preemptions_per_hour < 0:
        raise ForecastError(f"preemptions_per_hour must not be negative: {preemptions_per_hour}")
    if checkpoint_seconds == 0:
        return 1
    interval = daly_seconds(checkpoint_seconds, 3_600.0 / preemptions_per_hour)
    return max(1, min(steps, round(interval / step_seconds)))


def overhead_share(interval_seconds: float, checkpoint_seconds: float, seconds_between_preemptions: float) -> float:
    """Share of the productive time that checkpoints and lost work add, to first order."""
    _check(checkpoint_seconds, seconds_between_preemptions)
    if interval_seconds <= 0:
        raise ForecastError(f"the interval must be above 0 seconds, not {interval_seconds}")
    lost = (interval_seconds + checkpoint_seconds) / 2.0 / seconds_between_preemptions
    return checkpoint_seconds / interval_seconds + lost


def _check(checkpoint_seconds: float, seconds_between_preemptions: float) -> None:
    if checkpoint_seconds <= 0:
        raise ForecastError(f"a checkpoint must take more than 0 seconds, not {checkpoint_seconds}")
    if seconds_between_preemptions <= 0:
        raise ForecastError(f"the time between preemptions must be above 0 seconds, not {seconds_between_preemptions}")

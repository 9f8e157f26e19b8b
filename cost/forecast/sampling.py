"""Repeatable random draws for a forecast, quantiles of them, and exact splits of a total over its categories.

Every uncertain quantity has a name, and a name always gives the same draws. Two forecasts therefore differ only by
their inputs: more steps or a higher preemption rate never give a shorter forecast by chance. Nothing here reads a clock
or a global random state.

Tested in tests/cost/forecast/test_predict.py.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

from cost.money import largest_remainder

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Draws = NDArray  # one float64 per draw, shape [DRAWS]

DRAWS = 2_000
NS_PER_SECOND = 10**9


class ForecastError(ValueError):
    """A forecast cannot be made from what was given. The message says what is missing and what would be right."""


@dataclass(frozen=True)
class Interval:
    """10th, 50th and 90th percentile of one quantity, as whole numbers: nanoseconds, or 1e-12 of a currency."""

    p10: int
    p50: int
    p90: int

    def __post_init__(self) -> None:
        if not self.p10 <= self.p50 <= self.p90:
            raise ForecastError(f"percentiles must not decrease: {self.p10}, {self.p50}, {self.p90}")


@functools.cache
def uniform(name: str) -> Draws:
    """Uniform draws in (0, 1), one in each of DRAWS equal strata, in an order that belongs to the name."""
    import numpy as np

    order = np.random.default_rng(zlib.crc32(name.encode())).permutation(DRAWS)
    draws = (order + 0.5) / DRAWS
    draws.setflags(write=False)
    return draws


@functools.cache
def normal(name: str) -> Draws:
    """Standard normal draws with the ranks of `uniform(name)`."""
    import numpy as np

    grid = np.array([NormalDist().inv_cdf((i + 0.5) / DRAWS) for i in range(DRAWS)])
    draws = grid[(uniform(name) * DRAWS).astype(int)]
    draws.setflags(write=False)
    return draws


@functools.cache
def uniform_table(name: str, columns: int) -> Draws:
    """Independent uniform draws, shape [DRAWS, columns]."""
    import numpy as np

    table = np.random.default_rng(zlib.crc32(name.encode())).random((DRAWS, columns))
    table.setflags(write=False)
    return table


def poisson(mean: Draws, name: str) -> Draws:
    """Poisson counts by inversion: for one draw the count never falls as its mean rises. `mean` has shape [DRAWS]."""
    import numpy as np

    mean = np.minimum(mean, 1e4)
    u = uniform(name)
    term = np.exp(-np.minimum(mean, 600.0))
    if float(mean.max()) > 600.0:
        # Far above the range where single terms can be added up, the normal approximation is exact to a percent.
        return np.maximum(0.0, np.rint(mean + np.sqrt(mean) * normal(name)))
    below, count = term.copy(), np.zeros_like(mean)
    k = 0
    while (open_ := below < u).any() and k < 2_000:
        k += 1
        count[open_] += 1
        term = term * mean / k
        below = below + term
    return count


def interval(draws: Draws, scale: int = NS_PER_SECOND) -> Interval:
    """Percentiles of draws, multiplied by `scale` and rounded: by default seconds become nanoseconds."""
    import numpy as np

    p10, p50, p90 = (round(float(q) * scale) for q in np.quantile(draws, (0.1, 0.5, 0.9)))
    return Interval(p10, p50, p90)


def split_p50_p90(total: Interval, parts: Mapping[str, Draws]) -> dict[str, tuple[int, int]]:
    """P50 and P90 of each part such that the parts sum to those of the total exactly.

    At P50 the parts have the proportions of the draws around the median. What P90 adds is split in proportion to how
    strongly each part varies with the total (its covariance), so that no part is smaller at P90 than at P50.
    """
    import numpy as np

    names = list(parts)
    values = np.array([parts[name] for name in names])
    whole = values.sum(axis=0)
    middle = np.argsort(whole, kind="stable")[int(0.4 * DRAWS) : int(0.6 * DRAWS)]
    p50 = largest_remainder(total.p50, _weights(values[:, middle].mean(axis=1)))
    centred = whole - whole.mean()
    covariance = np.maximum((values * centred).mean(axis=1), 0.0)
    added = largest_remainder(total.p90 - total.p50, _weights(covariance, otherwise=p50))
    return {name: (p50[i], p50[i] + added[i]) for i, name in enumerate(names)}


def total_of(parts: Iterable[Draws]) -> Draws:
    """Sum of draws; zeros where there are none."""
    import numpy as np

    return np.sum([np.zeros(DRAWS), *parts], axis=0)


def _weights(values: Draws, otherwise: Sequence[int] = ()) -> list[int]:
    """Integer weights in proportion to non-negative floats; `otherwise` (or equal ones) where all are zero."""
    largest = float(max(values, default=0.0))
    if largest <= 0.0:
        return list(otherwise) if any(otherwise) else [1] * len(values)
    return [round(float(value) / largest * 10**15) for value in values]

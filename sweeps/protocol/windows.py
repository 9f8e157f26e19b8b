"""Windows over a curve, the noise of a run, and differences in units of that noise.

A window is the shortest run of rows that covers a number of steps *and* a number of completions. Rows without a value
are passed over: a window covers known values only.

The noise of a run is measured on the run itself: the standard deviation of one row around a slowly moving level, from
the mean absolute difference of neighbouring rows (2 sigma / sqrt(pi) for normal noise). A trend changes it little, one
jump changes it by a share of the jump.

Tested in tests/sweeps/protocol/test_run_curves.py.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from sweeps.protocol.run_curves import RunCurves

_MEAN_ABSOLUTE_DIFFERENCE = 2.0 / math.sqrt(math.pi)
"""Of two independent standard normal numbers."""
FEWEST_ROWS_FOR_NOISE = 4


@dataclass(frozen=True)
class Window:
    """Some neighbouring rows of one curve."""

    first_step: int
    last_step: int
    steps: int
    """Steps that the rows cover."""
    completions: int | None
    values: tuple[float, ...]

    @property
    def rows(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        return math.fsum(self.values) / len(self.values)

    @property
    def median(self) -> float:
        return statistics.median(self.values)


_KnownRow = tuple[int, int, int | None, float]
"""Last step, steps covered, completions, value."""


def _window(rows: Collection[_KnownRow]) -> Window:
    first_step, first_steps, _, _ = next(iter(rows))
    completions = [row[2] for row in rows]
    known = [c for c in completions if c is not None]
    return Window(
        first_step - first_steps + 1,
        [row[0] for row in rows][-1],
        sum(row[1] for row in rows),
        sum(known) if len(known) == len(completions) else None,
        tuple(row[3] for row in rows),
    )


@dataclass
class RollingWindow:
    """The newest window of a curve, row by row."""

    steps: int
    """Steps that a window covers at least; 0: every row so far is one window."""
    completions: int = 0
    """Completions that a window covers at least. Rows of unknown size never reach a number above 0."""
    _rows: deque[_KnownRow] = field(default_factory=deque)
    _covered: int = 0
    _completions: int = 0
    _unknown: int = 0

    def add(self, step: int, steps: int, completions: int | None, value: float | None) -> Window | None:
        """The window that ends at this row; None: there are too few rows so far, or the row has no value."""
        if value is None:
            return None
        self._rows.append((step, steps, completions, value))
        self._covered += steps
        self._completions += completions or 0
        self._unknown += completions is None
        while self.steps and len(self._rows) > 1 and self._full_without_first():
            _, old_steps, old_completions, _ = self._rows.popleft()
            self._covered -= old_steps
            self._completions -= old_completions or 0
            self._unknown -= old_completions is None
        return self.window if self._full(self._covered, self._completions, self._unknown) else None

    @property
    def window(self) -> Window:
        """The rows so far, whether they fill a window or not. There must be one."""
        return _window(self._rows)

    @property
    def coverage(self) -> str:
        """How much of a window there is, for messages."""
        steps = f"{self._covered} of {self.steps} steps"
        if not self.completions:
            return steps
        return (
            f"{steps}, {'an unknown number' if self._unknown else self._completions} of {self.completions} completions"
        )

    def _full(self, steps: int, completions: int, unknown: int) -> bool:
        return steps >= self.steps and (not self.completions or (not unknown and completions >= self.completions))

    def _full_without_first(self) -> bool:
        _, steps, completions, _ = self._rows[0]
        return self._full(
            self._covered - steps, self._completions - (completions or 0), self._unknown - (completions is None)
        )


@dataclass
class RunningNoise:
    """The noise of one row, from all rows so far."""

    _last: float | None = None
    _sum: float = 0.0
    _count: int = 0

    def add(self, value: float | None) -> None:
        if value is None:
            return
        if self._last is not None:
            self._sum += abs(value - self._last)
            self._count += 1
        self._last = value

    @property
    def value(self) -> float | None:
        """None: too few rows."""
        if self._count + 1 < FEWEST_ROWS_FOR_NOISE:
            return None
        return self._sum / self._count / _MEAN_ABSOLUTE_DIFFERENCE


def noise_of(values: Sequence[float]) -> float | None:
    """The standard deviation of one row around a slowly moving level; None: too few rows."""
    noise = RunningNoise()
    for value in values:
        noise.add(value)
    return noise.value


def in_noise(difference: float, noise: float | None, first: Window, second: Window) -> float | None:
    """A difference of two window means in standard errors of such a difference; None: the noise is unknown.

    Without any noise a difference is infinitely clear, and no difference is 0.
    """
    if noise is None:
        return None
    error = noise * math.sqrt(1.0 / first.rows + 1.0 / second.rows)
    if error == 0.0:
        return math.copysign(math.inf, difference) if difference else 0.0
    return difference / error


def windows(run: RunCurves, curve: str, steps: int, completions: int = 0) -> tuple[Window, ...]:
    """Every full window of a curve, by its last row.

    Where the completions of a run are unknown, windows go by steps alone.
    """
    rows, completions = _known_rows(run, curve, completions)
    rolling = RollingWindow(steps, completions)
    return tuple(w for row in rows if (w := rolling.add(*row)) is not None)


def first_window(run: RunCurves, curve: str, steps: int, completions: int = 0) -> Window | None:
    """The first full window of a curve; None: the run is too short."""
    rows, completions = _known_rows(run, curve, completions)
    rolling = RollingWindow(steps, completions)
    return next((w for row in rows if (w := rolling.add(*row)) is not None), None)


def last_window(run: RunCurves, curve: str, steps: int, completions: int = 0) -> Window | None:
    """The last full window of a curve; None: the run is too short."""
    rows, completions = _known_rows(run, curve, completions)
    covered = have = 0
    for start in range(len(rows) - 1, -1, -1):
        covered, have = covered + rows[start][1], have + (rows[start][2] or 0)
        if covered >= steps and have >= completions:
            return _window(rows[start:])
    return None


def _known_rows(run: RunCurves, curve: str, completions: int) -> tuple[list[_KnownRow], int]:
    """Rows with a value, as `RollingWindow.add` takes them, and the completions that a window can be asked for."""
    rows = [
        (step, steps, have, value)
        for step, steps, have, value in zip(
            run.steps, run.row_steps(), run.row_completions(), run.values(curve), strict=True
        )
        if value is not None
    ]
    return rows, 0 if any(have is None for _, _, have, _ in rows) else completions


@dataclass(frozen=True)
class Change:
    """One curve in the first and in the last part of a run."""

    first: Window
    last: Window
    noise_units: float
    """Last minus first, in standard errors of that difference."""

    @property
    def difference(self) -> float:
        return self.last.mean - self.first.mean


def change(run: RunCurves, curve: str, steps: int, completions: int = 0) -> Change | None:
    """First against last part of a run: a fifth of its steps each, or one window where that is longer.

    The error is the larger of two: that of independent rows, and that of tenths of the run (from the differences of
    neighbouring tenths), which counts noise that lasts for many rows. A steady rise over the whole run is about 10
    errors by the second measure.

    None: the run is too short for two parts that do not overlap, or has too few rows to measure its noise.
    """
    covered = sum(s for s, v in zip(run.row_steps(), run.values(curve), strict=True) if v is not None)
    part = max(steps, covered // 5)
    first, last = first_window(run, curve, part, completions), last_window(run, curve, part, completions)
    if first is None or last is None or first.last_step >= last.first_step:
        return None
    values = run.known(curve)
    rows = noise_of(values)
    if rows is None:
        return None
    tenths = _tenths(values)
    error = max(
        rows * math.sqrt(1.0 / first.rows + 1.0 / last.rows),
        (noise_of(tenths) or 0.0) * math.sqrt(len(values) / 10.0 * (1.0 / first.rows + 1.0 / last.rows)),
    )
    difference = last.mean - first.mean
    if error == 0.0:
        return Change(first, last, math.copysign(math.inf, difference) if difference else 0.0)
    return Change(first, last, difference / error)


def _tenths(values: Sequence[float]) -> list[float]:
    """Means of ten equal parts; empty where a part would have fewer than two rows."""
    if len(values) < 20:
        return []
    edges = [round(i * len(values) / 10) for i in range(11)]
    return [statistics.fmean(values[a:b]) for a, b in itertools.pairwise(edges)]

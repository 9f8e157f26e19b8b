"""The curves of one run in the form that gate rules and the diagnosis read: rows, evaluations, facts.

A row is one line of a log. It covers one step, or several where the trainer logs means of several steps, so windows
count steps and completions and never rows. A value that is `None` is missing: not logged, undefined or never computed.
Missing is not zero. NaN and infinities are kept as they are, because they are a finding of their own; every other
reader treats them as missing.

No I/O and no heavy import.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class CurveKind:
    """What is known about a curve before any run: its smallest and largest possible value."""

    lowest: float
    highest: float


_SHARE = CurveKind(0.0, 1.0)
_FROM_ZERO = CurveKind(0.0, math.inf)
_ANY = CurveKind(-math.inf, math.inf)

CURVES: Mapping[str, CurveKind] = {
    "reward": _ANY,
    "acc": _SHARE,
    "ratio_mean": _FROM_ZERO,
    "clip_frac": _SHARE,
    # Some trainers log a signed estimate instead of k3.
    "kl": _ANY,
    "entropy": _FROM_ZERO,
    "response_length": _FROM_ZERO,
    "grad_norm": _FROM_ZERO,
    "truncated_frac": _SHARE,
    "reward_std": _FROM_ZERO,
    "zero_std_frac": _SHARE,
    "phantom_credit_frac": _SHARE,
    "scorer_error_frac": _SHARE,
    "approx_kl": _ANY,
    "lr": _FROM_ZERO,
    "staleness": _FROM_ZERO,
    "sampler_ratio_mean": _FROM_ZERO,
    "logp_diff_mean": _FROM_ZERO,
    "logp_diff_max": _FROM_ZERO,
    "mismatch_kl": _ANY,
    "idle_frac": _SHARE,
    "tokens_per_s": _FROM_ZERO,
    "step_seconds": _FROM_ZERO,
    "rollout_seconds": _FROM_ZERO,
    "train_seconds": _FROM_ZERO,
    "sync_seconds": _FROM_ZERO,
    "outside_step_seconds": _FROM_ZERO,
    "nonfinite_values": _FROM_ZERO,
}
"""Every curve by name. `nonfinite_values` is how many numbers of the step are NaN or infinite. Where the source
does not count them, those among the curves of the row count."""
PART = "reward_part/"
"""Prefix of the curve of one reward function, for example `reward_part/format`."""


def is_curve(name: str) -> bool:
    return name in CURVES or (name.startswith(PART) and len(name) > len(PART))


def curve_kind(name: str) -> CurveKind:
    return CURVES.get(name, _ANY)


@dataclass(frozen=True)
class Row:
    """One line of a log."""

    step: int
    """The last step that the row covers; the first step of a run is 1."""
    steps: int
    """How many steps the row covers; its values are means over them."""
    completions: int | None
    """Completions of these steps; None: unknown."""
    values: Mapping[str, float | None]

    def value(self, curve: str) -> float | None:
        """A finite value, or None."""
        if curve == "nonfinite_values" and curve not in self.values:
            reported = [v for v in self.values.values() if v is not None]
            return float(sum(not math.isfinite(v) for v in reported)) if reported else None
        value = self.values.get(curve)
        return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True)
class Evaluation:
    """Accuracy on questions that are not trained on."""

    step: int
    """Steps trained before; 0: the start model."""
    accuracy: float
    questions: int | None
    """None: unknown."""


@dataclass(frozen=True)
class RunFacts:
    """What is known about a run beside its curves. None: unknown."""

    updates_per_rollout: int | None = None
    group_size: int | None = None
    lr: float | None = None
    max_completion_tokens: int | None = None
    elapsed_seconds: float | None = None
    """Wall time of the whole run: load, evaluations and saving included."""
    logp_noise: float | None = None
    """Mean |log pi_old - log pi_sample| of equal weights, as preflight measures it: the rounding of the engines."""


@dataclass(frozen=True)
class RunCurves:
    """One run. All tuples of `curves` and `completions` are as long as `steps`.

    Raises:
        ValueError: lengths differ, steps do not increase, rows overlap, or a curve has an unknown name.
    """

    steps: tuple[int, ...]
    """The last step of each row."""
    curves: Mapping[str, tuple[float | None, ...]]
    completions: tuple[int | None, ...] = ()
    """Completions so far at the end of each row; empty or None: unknown."""
    rows_are_means_of: int = 1
    """Steps that one row covers."""
    evaluations: tuple[Evaluation, ...] = ()
    """In the order of their steps."""
    facts: RunFacts = field(default_factory=RunFacts)

    def __post_init__(self) -> None:
        if self.rows_are_means_of < 1:
            raise ValueError(f"rows_are_means_of is {self.rows_are_means_of}: a row covers at least one step")
        if any(later - earlier < 1 for earlier, later in zip(self.steps, self.steps[1:], strict=False)):
            raise ValueError("steps must increase from row to row; drop repeated and restarted steps first")
        for name, values in self.curves.items():
            if not is_curve(name):
                raise ValueError(f"unknown curve {name!r}; known: {', '.join(CURVES)}, {PART}NAME")
            if len(values) != len(self.steps):
                raise ValueError(f"curve {name} has {len(values)} values for {len(self.steps)} rows")
        if self.completions and len(self.completions) != len(self.steps):
            raise ValueError(f"completions has {len(self.completions)} values for {len(self.steps)} rows")
        if any(e1.step > e2.step for e1, e2 in zip(self.evaluations, self.evaluations[1:], strict=False)):
            raise ValueError("evaluations must be in the order of their steps")

    @property
    def last_step(self) -> int:
        """0 for a run without rows."""
        return self.steps[-1] if self.steps else 0

    def values(self, curve: str) -> tuple[float | None, ...]:
        """Finite values of a curve, row by row; all None where the curve is missing."""
        if curve == "nonfinite_values":
            return tuple(row.value(curve) for row in self.rows())
        return tuple(v if v is not None and math.isfinite(v) else None for v in self._raw(curve))

    def known(self, curve: str) -> tuple[float, ...]:
        """The finite values of a curve."""
        return tuple(v for v in self.values(curve) if v is not None)

    def has(self, curve: str) -> bool:
        """Whether at least one row has a finite value of this curve."""
        return any(v is not None and math.isfinite(v) for v in self._raw(curve))

    def parts(self) -> tuple[str, ...]:
        """The curves of single reward functions that have values."""
        return tuple(sorted(name for name in self.curves if name.startswith(PART) and self.has(name)))

    def rows(self) -> Iterator[Row]:
        for index, (step, completions) in enumerate(zip(self.steps, self.row_completions(), strict=True)):
            values = {name: curve[index] for name, curve in self.curves.items()}
            yield Row(step, self._covered(index), completions, values)

    def row_steps(self) -> tuple[int, ...]:
        """Steps that each row covers."""
        return tuple(self._covered(index) for index in range(len(self.steps)))

    def row_completions(self) -> tuple[int | None, ...]:
        """Completions of the steps that each row covers; None: unknown."""
        so_far = self.completions or (None,) * len(self.steps)
        found: list[int | None] = []
        for index, (step, total) in enumerate(zip(self.steps, so_far, strict=True)):
            earlier_step, earlier = (self.steps[index - 1], so_far[index - 1]) if index else (0, 0)
            if total is None or earlier is None or step <= earlier_step:
                found.append(None)
            else:
                found.append(round((total - earlier) * self._covered(index) / (step - earlier_step)))
        return tuple(found)

    def head(self, rows: int) -> RunCurves:
        """The run as it was after this many rows."""
        rows = min(rows, len(self.steps))
        last = self.steps[rows - 1] if rows else 0
        return replace(
            self,
            steps=self.steps[:rows],
            curves={name: values[:rows] for name, values in self.curves.items()},
            completions=self.completions[:rows],
            evaluations=tuple(e for e in self.evaluations if e.step <= last),
        )

    def after(self, step: int) -> RunCurves:
        """The rows that end after this step. Steps and completions keep counting from the start of the run."""
        first = sum(s <= step for s in self.steps)
        return replace(
            self,
            steps=self.steps[first:],
            curves={name: values[first:] for name, values in self.curves.items()},
            completions=self.completions[first:],
            evaluations=tuple(e for e in self.evaluations if e.step > step),
        )

    def _raw(self, curve: str) -> tuple[float | None, ...]:
        return self.curves.get(curve) or (None,) * len(self.steps)

    def _covered(self, index: int) -> int:
        """A row never covers steps of the row before it."""
        earlier = self.steps[index - 1] if index else 0
        return max(1, min(self.rows_are_means_of, self.steps[index] - earlier))

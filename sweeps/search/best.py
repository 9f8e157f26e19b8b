"""The best point of a search, as overrides for the next command."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sweeps.config.search_space import TRIAL_KEYS
from sweeps.config.types import SweepConfig
from sweeps.journal.journal import SweepRecord, TrialRecord, TrialState
from sweeps.search.proposals import objective, points_of


@dataclass(frozen=True)
class Best:
    """The point with the highest accuracy among those whose trials all completed."""

    accuracy: float
    """Of the last evaluation; the mean over `seeds` trials."""
    start: float | None
    """Of the evaluation before training, the mean over the same trials; None: it is unknown."""
    seeds: int
    points: int
    """All points of the search. The best of many is partly the best by chance."""
    batch: tuple[str, ...]
    """Overrides for the lists of `search`."""
    values: tuple[str, ...]
    """Overrides for the keys of `search.space`."""


def best(cfg: SweepConfig, record: SweepRecord) -> Best | None:
    """The best point; None for a grid without `search.space`, or where fewer than two points can be compared."""
    if cfg.search.method == "grid" and not cfg.search.space:
        return None
    points, found = points_of(record), best_completed(record)
    if found is None or len(points) < 2:
        return None
    accuracy, trials = found
    planned = trials[0].planned
    batch = tuple(f"search.{key}=[{planned.point[key]}]" for key in TRIAL_KEYS)
    values = tuple(f"{key}={as_typed(value)}" for key, value in planned.overrides.items())
    return Best(accuracy, start_accuracy(trials), len(trials), len(points), batch, values)


def best_completed(record: SweepRecord) -> tuple[float, Sequence[TrialRecord]] | None:
    """The highest accuracy of a point, the mean over its trials, and these trials; of points that completed."""
    completed = [trials for trials in points_of(record) if {t.state for t in trials} == {TrialState.COMPLETED}]
    found = [(value, trials) for trials in completed if (value := objective(trials)) is not None]
    return max(found, key=lambda pair: pair[0]) if found else None


def start_accuracy(trials: Sequence[TrialRecord]) -> float | None:
    """Mean accuracy before training; None where a trial has no such evaluation."""
    first = [trial.summary.first_evaluation for trial in trials]
    accuracies = [e.accuracy for e in first if e is not None and e.step == 0 and e.accuracy is not None]
    return sum(accuracies) / len(accuracies) if accuracies and len(accuracies) == len(trials) else None


def instead_of(typed: Sequence[str], values: Sequence[str]) -> list[str]:
    """The typed overrides, with `values` in place of overrides for the same keys."""
    keys = {value.partition("=")[0] for value in values}
    return [*(t for t in typed if t.partition("=")[0].lstrip("+") not in keys), *values]


def as_typed(value: Any) -> str:
    """A value as Hydra reads it on a command line, before the shell's own quotes."""
    if isinstance(value, str):
        return value if re.fullmatch(r"[A-Za-z_][\w./-]*", value) else json.dumps(value)
    if isinstance(value, list):
        return f"[{','.join(map(as_typed, value))}]"
    return json.dumps(value)

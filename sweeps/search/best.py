"""What a search has found: the point with the highest accuracy, as it can be typed."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sweeps.config.search_space import TRIAL_KEYS
from sweeps.config.types import SweepConfig
from sweeps.journal.journal import SweepRecord, TrialState
from sweeps.search.proposals import objective, points_of


@dataclass(frozen=True)
class Best:
    """The best of those whose trials all went to their end, of `points` points in all: partly by luck."""

    accuracy: float
    """Of the last evaluation, the mean over `seeds` trials."""
    seeds: int
    points: int
    batch: tuple[str, ...]
    """Overrides for the lists of `search`."""
    values: tuple[str, ...]
    """Overrides for what `search.space` varied."""


def best(cfg: SweepConfig, record: SweepRecord) -> Best | None:
    """The best point; None where nothing was searched beyond the lists of a grid, or nothing can be compared."""
    if cfg.search.method == "grid" and not cfg.search.space:
        return None
    points = points_of(record)
    whole = [trials for trials in points if {t.state for t in trials} == {TrialState.COMPLETED}]
    worth = [(value, trials) for trials in whole if (value := objective(trials)) is not None]
    if not worth or len(points) < 2:
        return None
    accuracy, trials = max(worth, key=lambda found: found[0])
    planned = trials[0].planned
    batch = tuple(f"search.{key}=[{planned.point[key]}]" for key in TRIAL_KEYS)
    values = tuple(f"{key}={as_typed(value)}" for key, value in planned.overrides.items())
    return Best(accuracy, len(trials), len(points), batch, values)


def instead_of(typed: Sequence[str], values: Sequence[str]) -> list[str]:
    """Overrides in which these values have taken the place of others for the same keys."""
    keys = {value.partition("=")[0] for value in values}
    return [*(t for t in typed if t.partition("=")[0].lstrip("+") not in keys), *values]


def as_typed(value: Any) -> str:
    """A value as Hydra reads it on a command line, before the shell's own quotes."""
    if isinstance(value, str):
        return value if re.fullmatch(r"[A-Za-z_][\w./-]*", value) else json.dumps(value)
    if isinstance(value, list):
        return f"[{','.join(map(as_typed, value))}]"
    return json.dumps(value)

"""What a reader of one format returns: rows as they stand in the file, with the trainer's own names.

Tested in tests/rl/trainers/logs/test_public_logs.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rl.trainers.logs.progress_bars import Bar
from rl.trainers.logs.run import Note


@dataclass(frozen=True, slots=True)
class Record:
    """Numbers that were logged together."""

    line: int
    """Line of the file, from 1; 0 where the file has no lines."""
    step: int | None
    """As logged; None: the format has no step numbers."""
    values: Mapping[str, float]
    index: int = 0
    """Position in the file, to compare with other records, bars and summaries."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A trainer's report that a run ended."""

    index: int
    """Position among the document's lines."""
    runtime_seconds: float | None = None
    steps_per_second: float | None = None
    """Rounded to 3 decimals by the trainer."""


@dataclass
class Parsed:
    """Everything that one reader found in a file."""

    format: str
    trainer: str | None
    """Whose names the format has; None: the names decide."""
    records: list[Record] = field(default_factory=list)
    summaries: list[Summary] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    configuration: dict[str, Any] = field(default_factory=dict)
    """Settings that the log states, by their path, such as `data/train_batch_size`."""
    notes: list[Note] = field(default_factory=list)
    rows_are_means: bool = False
    """A row is the mean over all steps since the one before."""
    elapsed_seconds: float | None = None


def skipped(count: int, first_line: int, what: str) -> list[Note]:
    """The note on lines that could not be read; none where there were none."""
    if not count:
        return []
    return [Note("skipped", f"{count} {what} could not be read (first: line {first_line}).")]

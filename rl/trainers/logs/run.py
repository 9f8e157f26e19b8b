"""What is read from the log of a GRPO run: rows of curves, evaluations, configuration facts, and notes on both.

A value that the log does not have is None. It is never 0.

Tested in tests/rl/trainers/logs/test_public_logs.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

from rl import messages
from rl.messages import EIGHT_CURVES

COMPANIONS = (
    *("reward_std", "approx_kl", "truncated_frac", "zero_std_frac", "lr", "loss", "sampler_ratio_mean"),
    *("logp_diff_mean", "logp_diff_max", "mismatch_kl", "staleness", "step_seconds"),
)
CURVES = EIGHT_CURVES + COMPANIONS
PHASES = tuple(phase for phase in messages.PHASES if phase not in ("startup", "recovery"))
"""Phases of a step; a log does not tell the seconds before the first step."""

NoteKind = Literal[
    "unwired",
    "rounded",
    "zero_by_construction",
    "restarted",
    "repeated_steps",
    "out_of_order",
    "missing_steps",
    "stopped_early",
    "no_steps",
    "cut",
    "skipped",
    "step_numbers",
    "derived",
    "meaning",
]
"""
unwired: 0 in every row because the trainer never computes it; the curve is removed.
rounded: 0 in every row because smaller values are printed as 0; the curve is removed.
zero_by_construction: 0 in every row and right, but without information; the curve is kept.
restarted: the step counter starts again; each start is an attempt.
repeated_steps: the same row is in the log more than once; it is kept once.
out_of_order: rows that were not logged in the order of their steps; they are sorted.
missing_steps: steps between the first and the last row that the log does not cover.
stopped_early: the run planned more steps than the log covers.
no_steps: an attempt that ended, by its own report, without a single step.
cut: the file ends inside a line, a dictionary or a compressed block.
skipped: lines that look like metrics, or like nothing at all, and could not be read.
step_numbers: how steps were numbered where the log has no step numbers, or has other ones than ours.
derived: a value that was computed from other values in the log.
meaning: a metric of this trainer that differs from our definition of the curve.
"""


class LogError(ValueError):
    """The file cannot be read as the log of a GRPO run. The message says why and what was looked for."""


@dataclass(frozen=True)
class Note:
    """One observation about the log that a reader of its curves has to know."""

    kind: NoteKind
    text: str
    curve: str | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """One logged row. All curves are means over the steps that the row covers; None: not in the log.

    TRL reports `grad_norm` and `lr` of the last of these steps instead of the mean.
    """

    step: int
    """Steps done at the end of the row; 1 after the first step, whatever the log's own counter starts with."""
    rows_are_means_of: int = 1
    """How many steps this row is the mean of."""
    attempt: int = 1
    """1 for the first run of the step counter; a restart in the same file is the next."""
    line: int = 0
    """Line of the file where the row starts, from 1; 0 in files without lines."""

    reward: float | None = None
    acc: float | None = None
    ratio_mean: float | None = None
    clip_frac: float | None = None
    kl: float | None = None
    entropy: float | None = None
    response_length: float | None = None
    grad_norm: float | None = None

    reward_std: float | None = None
    approx_kl: float | None = None
    truncated_frac: float | None = None
    zero_std_frac: float | None = None
    lr: float | None = None
    loss: float | None = None
    sampler_ratio_mean: float | None = None
    logp_diff_mean: float | None = None
    logp_diff_max: float | None = None
    mismatch_kl: float | None = None
    staleness: float | None = None
    step_seconds: float | None = None
    """Wall-clock seconds per step."""
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds per step by phase (PHASES). Evaluation and checkpoint may lie outside of `step_seconds`."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Mean of each reward function by name."""

    def curves(self) -> dict[str, float]:
        """Every value that the row has, under the names of docs/curves.md."""
        named = {name: value for name in CURVES if (value := getattr(self, name)) is not None}
        named |= {f"{phase}_seconds": seconds for phase, seconds in self.phase_seconds.items()}
        return named | {f"reward_{name}": value for name, value in self.rewards.items()}


@dataclass(frozen=True)
class Evaluation:
    """One result on questions outside of training."""

    step: int
    """Steps trained when it was taken; 0: before training."""
    name: str
    """As the trainer writes it."""
    value: float
    curve: str | None = None
    """The curve that it is an evaluation of, such as `acc` or `reward`; None: none of ours."""
    attempt: int = 1


@dataclass(frozen=True)
class Facts:
    """Configuration that the log states, in one way or another. None: it does not."""

    model: str | None = None
    group_size: int | None = None
    prompts_per_step: int | None = None
    lr: float | None = None
    """As configured; where no configuration is printed, the highest rate that was logged."""
    updates_per_rollout: int | None = None
    max_completion_tokens: int | None = None
    seed: int | None = None
    cards: int | None = None
    steps_planned: int | None = None
    logging_steps: int | None = None
    """The trainer logs every so many steps."""

    def known(self) -> dict[str, str | int | float]:
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}


@dataclass(frozen=True)
class ImportedRun:
    """The log of one run. `rows` has every attempt in the order of the file; `lineage` has the steps that count."""

    trainer: str
    """Whose metric names it has: a name of `rl.trainers.logs.names.TRAINERS`."""
    format: str
    """How it is written, for example `TRL dictionaries on a console`."""
    rows: tuple[Row, ...]
    evaluations: tuple[Evaluation, ...] = ()
    facts: Facts = field(default_factory=Facts)
    notes: tuple[Note, ...] = ()
    elapsed_seconds: float | None = None
    """Wall-clock seconds of the whole run, from the trainer's own summary or its progress bar."""
    unmapped: tuple[str, ...] = ()
    """Metric names of the log that no curve takes a value from."""

    @property
    def attempts(self) -> int:
        return self.rows[-1].attempt

    @property
    def steps(self) -> int:
        """Steps done at the end of the last attempt."""
        return self.lineage[-1].step

    @property
    def rows_are_means_of(self) -> int:
        """Steps that most rows are the mean of."""
        return Counter(row.rows_are_means_of for row in self.rows).most_common(1)[0][0]

    @property
    def lineage(self) -> tuple[Row, ...]:
        """The rows that led to the final policy, by step: a later attempt replaces what it did again."""
        kept: list[Row] = []
        for row in self.rows:
            while kept and kept[-1].attempt < row.attempt and kept[-1].step >= row.step:
                kept.pop()
            kept.append(row)
        return tuple(kept)

    def curve(self, name: str) -> list[tuple[int, float]]:
        """Steps and values of one curve along the lineage, without rows that lack it."""
        return [(row.step, value) for row in self.lineage if (value := row.curves().get(name)) is not None]

    def notes_of(self, kind: NoteKind) -> list[Note]:
        return [note for note in self.notes if note.kind == kind]

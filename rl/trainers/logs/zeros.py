"""Curves whose values cannot be what their name says: 0 in every row, or a share above 1.

A missing value is not zero: a curve that was never computed, or was rounded away, is removed. One that is 0 by
construction stays, with a note.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rl.trainers.logs.run import Facts, Note, NoteKind, Row

FEWEST_ROWS = 3
"""In fewer rows a 0 proves nothing: the first step has a KL of 0, a warm-up a learning rate of 0."""

_SHARES = ("acc", "clip_frac", "truncated_frac", "zero_std_frac")
"""Curves between 0 and 1."""

Verdict = tuple[NoteKind, str] | None
"""What a curve of zeros is; None: an ordinary value, nothing is noted."""


def judge(rows: Sequence[Row], facts: Facts) -> tuple[tuple[Row, ...], list[Note]]:
    """The rows without the curves that are no measurement, and a note for each."""
    notes: list[Note] = []
    removed: dict[str, None] = {}
    for curve, verdict_of in _VERDICTS.items():
        values = [value for row in rows if (value := getattr(row, curve)) is not None]
        if len(values) < FEWEST_ROWS or any(value != 0 for value in values):
            continue
        if verdict := verdict_of(rows, facts):
            kind, text = verdict
            notes.append(Note(kind, f"{curve} is 0 in all {len(values)} rows: {text}", curve))
            if kind != "zero_by_construction" and kind != "meaning":
                removed[curve] = None
    for curve in _SHARES:
        largest = max((value for row in rows if (value := getattr(row, curve)) is not None), default=0.0)
        if largest > 1 + 1e-6:
            text = f"{curve} is up to {largest:g}: it is no share (a percentage, or a count). It is removed."
            notes.append(Note("meaning", text, curve))
            removed[curve] = None
    ratios = [row.ratio_mean for row in rows if row.ratio_mean is not None]
    if len(ratios) >= FEWEST_ROWS and all(ratio == 1 for ratio in ratios):
        text = "ratio_mean is exactly 1 in every row: with one update per rollout a policy is compared with itself."
        notes.append(Note("zero_by_construction", text, "ratio_mean"))
    return tuple(replace(row, **removed) for row in rows) if removed else tuple(rows), notes


def _any(rows: Sequence[Row], curve: str) -> bool:
    """Whether the curve has a value other than 0."""
    return any(getattr(row, curve) for row in rows)


def _all(rows: Sequence[Row], curve: str, value: float) -> bool:
    values = [getattr(row, curve) for row in rows]
    return bool(values) and all(found == value for found in values)


def _clip_frac(rows: Sequence[Row], facts: Facts) -> Verdict:
    if facts.updates_per_rollout is not None and facts.updates_per_rollout > 1:
        return (
            "meaning",
            f"with {facts.updates_per_rollout} updates per rollout either nothing is clipped, or it is not computed.",
        )
    return "zero_by_construction", "with one update per rollout the ratio is 1 and nothing can be clipped."


def _approx_kl(rows: Sequence[Row], facts: Facts) -> Verdict:
    if _any(rows, "clip_frac") or (facts.updates_per_rollout or 1) > 1:
        return (
            "rounded",
            "the policy moves within a rollout; the value is printed too coarsely, or not computed. It is removed.",
        )
    return "zero_by_construction", "with one update per rollout a policy is compared with itself."


def _loss(rows: Sequence[Row], facts: Facts) -> Verdict:
    if _any(rows, "kl"):
        return "rounded", "it has the KL in it, which is not 0; the value is printed too coarsely. It is removed."
    return (
        "zero_by_construction",
        "advantages have a mean of 0, so the loss on the first update is 0; its gradient is not.",
    )


def _kl(rows: Sequence[Row], facts: Facts) -> Verdict:
    return "unwired", "there is no reference, or it is not computed. It is removed."


def _lr(rows: Sequence[Row], facts: Facts) -> Verdict:
    return "rounded", "it is printed too coarsely. It is removed."


def _grad_norm(rows: Sequence[Row], facts: Facts) -> Verdict:
    if _all(rows, "zero_std_frac", 1.0):
        return None
    return "unwired", "no training has no gradient at all. It is removed."


def _reward_std(rows: Sequence[Row], facts: Facts) -> Verdict:
    rewards = {row.reward for row in rows}
    if _all(rows, "zero_std_frac", 1.0) or len(rewards) == 1:
        return None
    return "unwired", "rewards differ, and not every group is known to be without spread. It is removed."


def _never_zero(rows: Sequence[Row], facts: Facts) -> Verdict:
    return "unwired", "the true value is never 0 throughout. It is removed."


_VERDICTS: dict[str, Callable[[Sequence[Row], Facts], Verdict]] = {
    "clip_frac": _clip_frac,
    "approx_kl": _approx_kl,
    "loss": _loss,
    "kl": _kl,
    "lr": _lr,
    "grad_norm": _grad_norm,
    "reward_std": _reward_std,
    "entropy": _never_zero,
    "response_length": _never_zero,
    "ratio_mean": _never_zero,
    "sampler_ratio_mean": _never_zero,
    "logp_diff_mean": _never_zero,
    "logp_diff_max": _never_zero,
    "mismatch_kl": _never_zero,
    "step_seconds": _never_zero,
}
"""Not listed: reward, acc, truncated_frac, zero_std_frac, staleness. 0 throughout is an ordinary value of theirs."""

"""A bank of real GRPO runs as `RunCurves`, for the benchmarks of gates and diagnosis. Columns: the bank's own README.

A bank is a folder with runs.csv, evals.csv, curves/ and extra/. An empty cell is missing, never 0.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sweeps.protocol.run_curves import CURVES, PART, Evaluation, RunCurves, RunFacts

BANK = Path(__file__).resolve().parents[2] / "shared" / "data" / "grpo_runs"
ZERO_BY_CONSTRUCTION = "zero_by_construction"
ACCURACY_METRICS = ("acc", "math500")
"""Evaluations whose metric contains one of these are shares of right answers."""


@dataclass(frozen=True)
class BankRun:
    """One run of the bank with its label."""

    run_id: str
    source: str
    """The first part of the run's name; runs of one source come from one repository."""
    arm: str
    """Runs that differ only by their seed."""
    label: str
    label_kind: str
    recovers: bool
    curves: RunCurves


def read_bank(folder: Path) -> tuple[BankRun, ...]:
    """All runs of a bank, in the order of its file.

    Raises:
        FileNotFoundError: there is no bank in this folder.
    """
    evaluations = _evaluations(folder / "evals.csv")
    return tuple(_run(folder, row, evaluations.get(row["run_id"], ())) for row in _rows(folder / "runs.csv"))


def _run(folder: Path, row: Mapping[str, str], evaluations: tuple[Evaluation, ...]) -> BankRun:
    run_id = row["run_id"]
    lines = _rows(folder / "curves" / f"{run_id}.csv")
    columns = {name: [_number(line.get(name)) for line in lines] for name in lines[0] if name in CURVES}
    # True zeros that carry no information: the ratio is 1 by construction with one update per rollout.
    for name in CURVES:
        if name in row.get(ZERO_BY_CONSTRUCTION, ""):
            columns.pop(name, None)
    columns |= _reward_parts(folder / "extra" / f"{run_id}.csv", lines)
    steps = [round(float(line["step"])) for line in lines]
    prompts, group = _number(row["prompts_per_step"]), _number(row["group_size"])
    per_step = round(prompts * group) if prompts and group else None
    facts = RunFacts(
        updates_per_rollout=_count(row["updates_per_rollout"]),
        group_size=_count(row["group_size"]),
        lr=_number(row["lr"]),
        max_completion_tokens=_count(row["max_completion_tokens"]),
        elapsed_seconds=_number(row.get("total_elapsed_seconds")),
    )
    curves = RunCurves(
        tuple(steps),
        {name: tuple(values) for name, values in columns.items()},
        tuple(step * per_step if per_step else None for step in steps),
        _count(row["rows_are_means_of"]) or 1,
        evaluations,
        facts,
    )
    source = run_id.split("_")[0]
    arm = run_id.rsplit("_seed", 1)[0]
    recovers = row.get("recovers", "").strip().lower() in ("yes", "true", "1")
    return BankRun(run_id, source, arm, row["label"], row.get("label_kind", ""), recovers, curves)


def _reward_parts(file: Path, lines: list[dict[str, str]]) -> dict[str, list[float | None]]:
    """The extra columns that are parts of the reward: those that add up to the reward in nearly every row."""
    if not file.exists():
        return {}
    by_step = {line["step"]: line for line in _rows(file)}
    names = [n for n in next(iter(by_step.values())) if n != "step" and not n.endswith("_std")]
    parts = {PART + n: [_number(by_step.get(line["step"], {}).get(n)) for line in lines] for n in names}
    rewards = [_number(line["reward"]) for line in lines]
    equal = [
        reward is not None and None not in values and abs(sum(v for v in values if v is not None) - reward) < 0.01
        for reward, *values in zip(rewards, *parts.values(), strict=True)
    ]
    return parts if sum(equal) >= 0.9 * len(equal) else {}


def _evaluations(file: Path) -> dict[str, tuple[Evaluation, ...]]:
    found: dict[str, list[Evaluation]] = {}
    for row in _rows(file) if file.exists() else []:
        if any(name in row["metric"] for name in ACCURACY_METRICS):
            evaluation = Evaluation(round(float(row["step"])), float(row["value"]), _count(row["n"]))
            found.setdefault(row["run_id"], []).append(evaluation)
    return {run: tuple(sorted(e, key=lambda one: one.step)) for run, e in found.items()}


def _rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _count(text: str | None) -> int | None:
    number = _number(text)
    return None if number is None else round(number)

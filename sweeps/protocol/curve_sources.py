"""`RunCurves` from where curves come from: the reports of our own trials, and imported logs of other trainers."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rl.spec import EvalReport, StepReport
from sweeps.journal.metrics import NS_PER_SECOND, step_metrics
from sweeps.journal.trial_summary import not_finite_names
from sweeps.protocol.run_curves import CURVES, PART, Evaluation, Row, RunCurves, RunFacts

if TYPE_CHECKING:
    from rl.trainers.logs import ImportedRun
    from sweeps.journal.state import SweepRecord, TrialRecord
    from sweeps.journal.trial_reports import TrialReports

_OTHER_NAMES = {"reward_error_frac": "scorer_error_frac"}
"""Names of step metrics that differ from the names of curves here."""
_PHASES = ("rollout", "train", "sync")


def step_row(report: StepReport, cards: int) -> Row:
    """One reported step as a row, for rules that are evaluated while a trial runs. Phases are seconds per card."""
    metrics = step_metrics(report, cards)
    values: dict[str, float | None] = {}
    for name, value in metrics.items():
        curve = _OTHER_NAMES.get(name, name)
        if curve in CURVES:
            values[curve] = value
    for phase in _PHASES:
        if phase in report.phase_card_ns:
            values[f"{phase}_seconds"] = report.phase_card_ns[phase] / NS_PER_SECOND / cards
    values |= {PART + name: mean.value for name, mean in report.curves.rewards.items()}
    values["nonfinite_values"] = float(len(not_finite_names(report)))
    return Row(report.step, 1, round(report.curves.reward.count), values)


def run_of_reports(
    steps: Mapping[int, StepReport], evaluations: Mapping[int, EvalReport], cards: int, facts: RunFacts
) -> RunCurves:
    """A trial of ours from its reports, as `sweeps.journal.trial_reports` gives them."""
    rows = [step_row(steps[number], cards) for number in sorted(steps)]
    measured = [
        Evaluation(number, accuracy, len(evaluations[number].results))
        for number in sorted(evaluations)
        if (accuracy := evaluations[number].accuracy) is not None
    ]
    return run_of_rows(rows, measured, facts)


def run_of_trial(record: SweepRecord, trial: TrialRecord, reports: TrialReports) -> RunCurves:
    """A trial of a sweep, with the facts of its configuration."""
    settings = {
        "algorithm.updates_per_rollout": record.config["algorithm"]["updates_per_rollout"],
        "rollout.max_completion_tokens": record.config["rollout"]["max_completion_tokens"],
    } | dict(trial.planned.overrides)
    facts = RunFacts(
        updates_per_rollout=settings["algorithm.updates_per_rollout"],
        group_size=trial.planned.group_size,
        lr=trial.planned.lr,
        max_completion_tokens=settings["rollout.max_completion_tokens"],
    )
    cards = 1 if trial.started is None else trial.started.cards
    return run_of_reports(reports.steps, reports.evaluations, cards, facts)


def run_of_rows(
    rows: Iterable[Row], evaluations: Iterable[Evaluation] = (), facts: RunFacts | None = None
) -> RunCurves:
    """Rows of one step each, or of the same number of steps, as one run."""
    rows = list(rows)
    names = sorted({name for row in rows for name in row.values})
    so_far: list[int | None] = []
    total: int | None = 0
    for row in rows:
        total = None if total is None or row.completions is None else total + row.completions
        so_far.append(total)
    return RunCurves(
        tuple(row.step for row in rows),
        {name: tuple(row.values.get(name) for row in rows) for name in names},
        tuple(so_far),
        statistics.mode(row.steps for row in rows) if rows else 1,
        tuple(evaluations),
        facts or RunFacts(),
    )


def run_of_log(log: ImportedRun) -> RunCurves:
    """An imported log: the steps that count, without curves that are 0 by construction."""
    rows = log.lineage
    empty = {note.curve for note in log.notes if note.kind == "zero_by_construction"}
    columns: dict[str, list[float | None]] = {}
    for index, row in enumerate(rows):
        values = {name: value for name, value in row.curves().items() if name in CURVES and name not in empty}
        values |= {PART + name: value for name, value in row.rewards.items()}
        for name, value in values.items():
            columns.setdefault(name, [None] * len(rows))[index] = value
    facts = log.facts
    per_step = facts.prompts_per_step * facts.group_size if facts.prompts_per_step and facts.group_size else None
    accuracies = {e.step: Evaluation(e.step, e.value, None) for e in log.evaluations if e.curve == "acc"}
    return RunCurves(
        tuple(row.step for row in rows),
        {name: tuple(values) for name, values in columns.items()},
        tuple(row.step * per_step if per_step else None for row in rows),
        log.rows_are_means_of,
        tuple(accuracies[step] for step in sorted(accuracies)),
        RunFacts(
            updates_per_rollout=facts.updates_per_rollout,
            group_size=facts.group_size,
            lr=facts.lr,
            max_completion_tokens=facts.max_completion_tokens,
            elapsed_seconds=log.elapsed_seconds,
        ),
    )

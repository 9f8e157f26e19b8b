"""Every report of a trial, read from the journal: for readers that need more than its summary.

Tested in tests/sweeps/journal/test_journal.py.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rl.spec import EvalReport, StepReport
from sweeps.journal.event_codec import messages_in
from sweeps.journal.journal import sweep_events

if TYPE_CHECKING:
    from cost.ledger.ledger import Ledger


@dataclass
class TrialReports:
    """Every report of one trial. A report that was made again after a restore replaces the earlier one."""

    steps: dict[int, StepReport] = field(default_factory=dict)
    """By step number."""
    evaluations: dict[int, EvalReport] = field(default_factory=dict)
    """By the number of steps trained before."""


def trial_reports(ledger: Ledger, sweep_id: str, trial_ids: Collection[str] | None = None) -> dict[str, TrialReports]:
    """All reports of these trials, in one pass over the journal; of every trial that reported, for None.

    All of them are in memory at once: meant for one trial, or for small sweeps.
    """
    found: dict[str, TrialReports] = {}
    for event in sweep_events(ledger, sweep_id):
        for recorded in messages_in(event):
            if trial_ids is not None and recorded.trial_id not in trial_ids:
                continue
            reports = found.setdefault(recorded.trial_id, TrialReports())
            match recorded.message:
                case StepReport() as step:
                    reports.steps[step.step] = step
                case EvalReport() as evaluation:
                    reports.evaluations[evaluation.step] = evaluation
    return found


def steps_of(ledger: Ledger, sweep_id: str, trial_id: str) -> dict[int, StepReport]:
    """Every step of one trial, by number."""
    return trial_reports(ledger, sweep_id, {trial_id}).get(trial_id, TrialReports()).steps

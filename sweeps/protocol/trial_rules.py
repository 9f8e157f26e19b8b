"""The gate rules of a stage on every trial of a sweep, row by row: the same while trials run and after they end.

Tested in tests/sweeps/protocol/test_trial_rules.py and tests/sweeps/driver/test_rule_stops.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rl.spec import StepReport
from sweeps.journal.event_codec import messages_in
from sweeps.protocol.curve_sources import step_row
from sweeps.protocol.gate_rules import Rule, RuleProgress, RuleResult, Severity

if TYPE_CHECKING:
    from cost.records import StoredEvent


@dataclass
class _Trial:
    last_step: int = 0
    progress: list[RuleProgress] = field(default_factory=list)
    results: tuple[RuleResult, ...] | None = None
    """The final results; None: more rows may come."""


class TrialRules:
    """Every rule on every trial. A step that is reported again after a restore is not added again."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        self._trials: dict[str, _Trial] = {}

    def add(self, trial_id: str, report: StepReport, cards: int) -> None:
        """Add a reported step. `cards`: those of the trial."""
        trial = self._trials.setdefault(trial_id, _Trial(progress=[RuleProgress(rule) for rule in self.rules]))
        if not self.rules or report.step <= trial.last_step or trial.results is not None:
            return
        trial.last_step = report.step
        row = step_row(report, cards)
        for progress in trial.progress:
            progress.add(row)

    def add_reports(self, events: Iterable[StoredEvent], cards: int) -> None:
        """Add every step in these events of the journal: those that an earlier driver received."""
        for event in events:
            for recorded in messages_in(event):
                if isinstance(message := recorded.message, StepReport):
                    self.add(recorded.trial_id, message, cards)

    def end(self, trial_id: str) -> None:
        """The trial is over: keep its results, and free the rows."""
        if (trial := self._trials.get(trial_id)) is not None and trial.results is None:
            trial.results, trial.progress = tuple(p.result for p in trial.progress), []

    def failed_stop(self, trial_id: str) -> RuleResult | None:
        """The first rule of severity `stop` that fails after the trial's newest step; None: none does."""
        if (trial := self._trials.get(trial_id)) is None or trial.results is not None:
            return None
        failed = (p for p in trial.progress if p.failed and p.rule.severity is Severity.STOP)
        return next((p.result for p in failed), None)

    def results(self) -> Mapping[str, Mapping[str, RuleResult]]:
        """The result of each rule on each trial that reported a step: by rule, then by trial."""
        found: dict[str, dict[str, RuleResult]] = {rule.name: {} for rule in self.rules}
        for trial_id, trial in self._trials.items():
            results = trial.results if trial.results is not None else [p.result for p in trial.progress]
            for result in results:
                found[result.rule][trial_id] = result
        return found

"""How long the starts and evaluations of a sweep's attempts take, measured while it runs.

Tested in tests/sweeps/scheduling/test_budget_controller.py.
"""

from __future__ import annotations

from sweeps.config.types import SweepConfig
from sweeps.journal.journal import SweepRecord


class MeasuredPhases:
    """The longest start and the longest evaluation so far, in nanoseconds; 0 where there was none."""

    def __init__(self, cfg: SweepConfig, record: SweepRecord) -> None:
        """Begins with what an earlier driver of the sweep has recorded: of evaluations, the mean of each trial."""
        self._every, self._steps = cfg.evaluation.every_steps, cfg.stage.steps
        self.start_ns = self.evaluation_ns = 0
        for trial in record.trials.values():
            summary = trial.summary
            if summary.started is not None:
                self.add_start(sum(summary.started.phase_card_ns.values()) // summary.started.cards)
            if summary.accuracies:
                self.add_evaluation(summary.evaluation_wall_ns // len(summary.accuracies))

    def add_start(self, duration_ns: int) -> None:
        self.start_ns = max(self.start_ns, duration_ns)

    def add_evaluation(self, duration_ns: int) -> None:
        self.evaluation_ns = max(self.evaluation_ns, duration_ns)

    def is_evaluated(self, step: int) -> bool:
        """Whether trainers evaluate after this step."""
        return step in (0, self._steps) or (self._every > 0 and step % self._every == 0)

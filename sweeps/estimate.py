"""How long a sweep will take, from what its kind took before; None where nothing was measured. Never invents a time.

This is the plan's first figure, not the forecast between stages: seconds per completion of earlier sweeps of the same
model and trainer on the same machine, plus what their starts, evaluations and checkpoints took.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from sweeps.config_types import SweepConfig
from sweeps.journal import SweepRecord, TrialRecord
from sweeps.plan import Plan, PlannedTrial

NS_PER_SECOND = 1e9
ALLOWANCE = 1.2
"""A bound on a trial's time is this much above what was measured."""


@dataclass(frozen=True)
class StepTime:
    """What one trial of a kind took. Seconds of wall clock on `cards` cards."""

    seconds_per_completion: float
    fixed_seconds: float
    """Start, evaluations, checkpoints: once per trial."""
    source: str

    def of(self, trial: PlannedTrial, steps: int) -> float:
        return self.fixed_seconds + steps * trial.prompts_per_step * trial.group_size * self.seconds_per_completion


def measured(records: Sequence[SweepRecord], cfg: SweepConfig) -> StepTime | None:
    """From the newest earlier sweep of the same model, trainer and cards on this machine."""
    for record in reversed(records):
        config = record.config
        same = (
            record.machine == cfg.machine.name
            and config["model"]["kind"] == cfg.model.kind
            and config["model"]["path"] == cfg.model.path
            and config["trainer"]["name"] == cfg.trainer.name
            and config["rollout"]["max_completion_tokens"] == cfg.rollout.max_completion_tokens
        )
        per_trial = [t for trial in record.trials.values() if (t := _of_trial(trial)) is not None] if same else []
        if per_trial:
            return StepTime(
                statistics.median(seconds for seconds, _ in per_trial),
                statistics.median(fixed for _, fixed in per_trial),
                f"measured in {record.sweep_id}",
            )
    return None


def sweep_seconds(plan: Plan, cfg: SweepConfig, time: StepTime) -> float:
    """Wall-clock seconds of the whole plan: trials that run at once share the clock."""
    at_once = max(
        1, min(cfg.machine.cards // cfg.search.cards_per_trial, cfg.search.max_concurrent or cfg.machine.cards)
    )
    lanes = [0.0] * at_once
    for trial in plan.trials:
        lanes.sort()
        lanes[0] += time.of(trial, cfg.stage.steps)
    return max(lanes)


def _of_trial(trial: TrialRecord) -> tuple[float, float] | None:
    steps = [s for s in trial.steps.values() if not s.replay]
    if not steps or trial.started is None:
        return None
    completions = len(steps) * trial.planned.prompts_per_step * trial.planned.group_size
    fixed_ns = sum(trial.started.phase_card_ns.values()) // trial.started.cards
    fixed_ns += sum(e.wall_ns for e in trial.evaluations.values())
    fixed_ns += trial.checkpoint.wall_ns if trial.checkpoint else 0
    return sum(s.wall_ns for s in steps) / NS_PER_SECOND / completions, fixed_ns / NS_PER_SECOND

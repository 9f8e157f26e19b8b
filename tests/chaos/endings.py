"""Which trials must be pruned, computed from the evaluations in the journal with exact numbers, not by the product."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from cost.records import StoredEvent
from rl.spec import EvalReport
from sweeps.config.types import SweepConfig
from sweeps.journal.event_codec import messages_in
from sweeps.journal.journal import SweepRecord
from tests.chaos.killing import Plan


@dataclass
class _Trial:
    seed: int
    completions_per_step: int
    curve: list[tuple[int, Fraction]] = field(default_factory=list)

    def at(self, completions: int) -> Fraction | None:
        """The accuracy at a number of completions, interpolated linearly between two evaluations."""
        known = dict(self.curve)
        if completions in known:
            return known[completions]
        before = [x for x in known if x < completions]
        after = [x for x in known if x > completions]
        if not before or not after:
            return None
        low, high = max(before), min(after)
        return known[low] + (known[high] - known[low]) * Fraction(completions - low, high - low)


def pruned(plan: Plan, cfg: SweepConfig, record: SweepRecord, events: Iterable[StoredEvent]) -> Iterator[str]:
    """Each trial is stopped exactly at the evaluation at which the rule prunes it, and never started again."""
    trials = {
        t.trial_id: _Trial(t.planned.seed, t.planned.prompts_per_step * t.planned.group_size)
        for t in record.trials.values()
    }
    stopped: set[str] = set()
    due: dict[str, int] = {}
    for event in events:
        if event.kind == "command" and event.body["command"]["type"] == "stop":
            trial_id = event.body["trial_id"]
            if due.pop(trial_id, None) is None:
                yield f"{trial_id} was pruned, which the rule does not ask for: {event.body['command']['text']}"
            stopped.add(trial_id)
            continue
        for trial_id, step in due.items():
            yield f"{trial_id} should be pruned after step {step}, and was not"
        due.clear()
        if event.kind == "attempt_started" and event.body["trial_id"] in stopped:
            yield f"{event.body['trial_id']} was pruned, and started again"
        for recorded in messages_in(event):
            if isinstance(recorded.message, EvalReport) and _must_be_pruned(
                plan, cfg, trials, recorded.trial_id, recorded.message
            ):
                due[recorded.trial_id] = recorded.message.step
    if stopped != {t.trial_id for t in record.trials.values() if t.pruned}:
        yield f"{stopped} were stopped, and the record has other pruned trials"


def _must_be_pruned(
    plan: Plan, cfg: SweepConfig, trials: Mapping[str, _Trial], trial_id: str, report: EvalReport
) -> bool:
    trial, now = trials[trial_id], report.step * trials[trial_id].completions_per_step
    assert report.accuracy is not None
    if not trial.curve or now > trial.curve[-1][0]:
        trial.curve.append((now, Fraction(report.accuracy)))
    if cfg.search.pruning == "none" or now != trial.curve[-1][0] or not 0 < report.step < plan.steps:
        return False
    first = plan.evaluate_every * max(cfg.search.prompts_per_step) * max(cfg.search.group_size)
    others = [t for t in trials.values() if t.seed == trial.seed and t is not trial]
    if cfg.search.pruning == "median":
        known = [value for t in others if (value := t.at(now)) is not None]
        best = max(value for completions, value in trial.curve if completions > 0)
        return now >= first and len(known) + 1 >= cfg.search.pruning_min_trials and best < statistics.median(known)
    before = trial.curve[-2][0] if len(trial.curve) > 1 else 0
    rungs = (first * cfg.search.pruning_factor**n for n in range(20))
    return any(_falls(cfg, trial, others, rung) for rung in rungs if before < rung <= now)


def _falls(cfg: SweepConfig, trial: _Trial, others: Sequence[_Trial], rung: int) -> bool:
    """Whether the trial is not among the best 1 in `pruning_factor` that reached this rung."""
    mine = trial.at(rung)
    known = [value for t in others if (value := t.at(rung)) is not None]
    if mine is None or len(known) + 1 < cfg.search.pruning_min_trials:
        return False
    kept = max(1, math.floor((len(known) + 1) / cfg.search.pruning_factor))
    return sum(value > mine for value in known) >= kept

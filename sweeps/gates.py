"""The gates between two stages: pure judgements over what the journal says, each with its reasons.

A gate is open when no check fails. A check that has nothing to judge says so (`ok=None`) and closes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from rl.spec import Mean, StepReport
from rl.tasks.evaluation import paired_difference
from sweeps.config_types import GateConfig
from sweeps.journal import SweepRecord, TrialRecord, TrialState


@dataclass(frozen=True)
class Check:
    """One question to the sweep and its answer. `ok` is None where there was nothing to judge."""

    name: str
    ok: bool | None
    reason: str


@dataclass(frozen=True)
class Verdict:
    """What a gate says. `forced` is the reason a person gave for passing a closed gate."""

    gate: str
    checks: tuple[Check, ...]
    simulated: bool
    forced: str = ""

    @property
    def healthy(self) -> bool:
        return all(c.ok is not False for c in self.checks)

    @property
    def open(self) -> bool:
        return self.healthy or bool(self.forced)


def metric_gate(record: SweepRecord, steps: int, cfg: GateConfig) -> Verdict:
    """Are the curves of this sweep healthy enough to spend more on the next stage?"""
    checks = (
        _all_steps_done(record, steps),
        _ratio_on_first_update(record, cfg.ratio_tolerance),
        _sampler_agrees(record, cfg.max_logp_diff),
        _finite(record),
        _accuracy_held(record),
        _cards_released(record),
    )
    return Verdict("metric", checks, record.simulated, cfg.force)


def _all_steps_done(record: SweepRecord, steps: int) -> Check:
    short = [
        f"{t.trial_id} ({t.state}, step {max(t.steps, default=0)} of {steps})"
        for t in record.trials.values()
        if t.state is not TrialState.COMPLETED or max(t.steps, default=0) < steps
    ]
    if short:
        return Check("all steps done", False, "not finished: " + ", ".join(short))
    return Check("all steps done", True, f"{len(record.trials)} trials of {steps} steps")


def _ratio_on_first_update(record: SweepRecord, tolerance: float) -> Check:
    """On the first update of a rollout nothing has moved yet: pi/pi_old has to be 1."""
    worst: tuple[float, str] | None = None
    for trial, step in _steps(record):
        first = step.curves.updates[0].ratio.value if step.curves.updates else None
        if first is not None and step.staleness == 0:
            distance = abs(first - 1.0) if math.isfinite(first) else math.inf
            if worst is None or distance > worst[0]:
                worst = (distance, f"{trial.trial_id} step {step.step}")
    if worst is None:
        return Check("ratio 1 on the first update", None, "no step had an update on fresh rollouts")
    where = f"largest distance {worst[0]:.2g} ({worst[1]}), allowed {tolerance:g}"
    return Check("ratio 1 on the first update", worst[0] <= tolerance, where)


def _sampler_agrees(record: SweepRecord, limit: float) -> Check:
    """What sampled and what is trained are the same policy up to rounding; stale weights differ by far more."""
    worst: tuple[float, str] | None = None
    for trial, step in _steps(record):
        value = step.curves.logp_diff.value
        if value is not None and step.staleness == 0:
            distance = value if math.isfinite(value) else math.inf
            if worst is None or distance > worst[0]:
                worst = (distance, f"{trial.trial_id} step {step.step}")
    if worst is None:
        return Check("sampler agrees with learner", None, "no step had fresh rollouts")
    where = f"largest mean |dlogp| {worst[0]:.2g} ({worst[1]}), allowed {limit:g}"
    return Check("sampler agrees with learner", worst[0] <= limit, where)


def _accuracy_held(record: SweepRecord) -> Check:
    """At least one trial did not lose accuracy: its paired difference by question does not lie below 0 (95 %)."""
    judged, fell = 0, []
    for trial in record.trials.values():
        if len(trial.evaluations) < 2:
            continue
        judged += 1
        before, after = trial.evaluations[min(trial.evaluations)], trial.evaluations[max(trial.evaluations)]
        change = paired_difference(before.results, after.results)
        if change.high < 0:
            fell.append(f"{trial.trial_id} by {-change.value:.2f}")
    if not judged:
        return Check("accuracy held", None, "no trial was evaluated before and after")
    if not fell:
        return Check("accuracy held", True, f"no trial lost accuracy, of {judged}")
    return Check("accuracy held", len(fell) < judged, f"fell in {len(fell)} of {judged} trials: " + ", ".join(fell))


def _finite(record: SweepRecord) -> Check:
    judged = 0
    for trial, step in _steps(record):
        judged += 1
        if bad := {name for name, value in _numbers(step) if not math.isfinite(value)}:
            return Check("finite numbers", False, f"{', '.join(sorted(bad))} of {trial.trial_id} at step {step.step}")
    if not judged:
        return Check("finite numbers", None, "no step was reported")
    return Check("finite numbers", True, f"every curve of {judged} steps")


def _cards_released(record: SweepRecord) -> Check:
    if record.unreleased:
        held = ", ".join(record.unreleased)
        return Check("cards released", False, f"processes or cards were still held after the end of {held}")
    return Check("cards released", True, "every attempt's processes ended and its cards came back")


def _steps(record: SweepRecord) -> Iterator[tuple[TrialRecord, StepReport]]:
    for trial in record.trials.values():
        for number in sorted(trial.steps):
            yield trial, trial.steps[number]


def _numbers(step: StepReport) -> Iterator[tuple[str, float]]:
    curves = step.curves
    means: dict[str, Mean | None] = {
        "reward": curves.reward,
        "acc": curves.acc,
        "response_length": curves.response_length,
        "logp_diff": curves.logp_diff,
        "sampler_ratio": curves.sampler_ratio,
        "mismatch_kl": curves.mismatch_kl,
        **curves.rewards,
    }
    for index, update in enumerate(curves.updates):
        yield "grad_norm", update.grad_norm
        yield "loss", update.loss
        for name in ("ratio", "kl", "entropy", "approx_kl", "clip_frac"):
            means[f"{name} of update {index}"] = getattr(update, name)
    for name, mean in means.items():
        if mean is not None and mean.value is not None:
            yield name, mean.value

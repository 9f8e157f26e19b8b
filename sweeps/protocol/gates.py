"""The gates between two stages: checks of a sweep's record, each with its reason. Pure functions.

A gate is open when no check fails. A check that has nothing to judge has `ok=None` and closes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from rl.tasks.evaluation import paired_difference
from sweeps.config.types import GateConfig
from sweeps.journal.events import GateCheck, GateVerdict
from sweeps.journal.journal import SweepRecord, TrialRecord, TrialState
from sweeps.journal.trial_summary import Worst


def metric_gate(record: SweepRecord, steps: int, cfg: GateConfig) -> GateVerdict:
    """Judge whether the curves of this sweep are healthy enough to spend money on the next stage."""
    checks = (
        _all_steps_done(record, steps),
        _ratio_on_first_update(record, cfg.ratio_tolerance),
        _sampler_agrees(record, cfg.max_logp_diff),
        _finite(record),
        _accuracy_kept(record),
        _cards_released(record),
    )
    return GateVerdict("metric", checks, record.simulated, cfg.force)


def _all_steps_done(record: SweepRecord, steps: int) -> GateCheck:
    short = [
        f"{t.trial_id} ({t.state}, step {t.summary.step} of {steps})"
        for t in record.trials.values()
        if t.state is not TrialState.PRUNED and (t.state is not TrialState.COMPLETED or t.summary.step < steps)
    ]
    if record.to_propose:
        short.append(f"{record.to_propose} trials that the search has yet to propose")
    pruned = sum(t.state is TrialState.PRUNED for t in record.trials.values())
    if short:
        return GateCheck("all steps done", False, "not finished: " + ", ".join(short))
    if pruned == len(record.trials):
        return GateCheck("all steps done", False, "every trial was pruned (search.pruning)")
    text = f"{len(record.trials) - pruned} trials of {steps} steps"
    return GateCheck("all steps done", True, text + (f", {pruned} pruned (search.pruning)" if pruned else ""))


def _ratio_on_first_update(record: SweepRecord, tolerance: float) -> GateCheck:
    """Before the first update of a rollout the policy has not changed: pi/pi_old must be 1."""
    name = "ratio 1 on the first update"
    worst = _worst((t, t.summary.ratio_off) for t in record.trials.values())
    if worst is None:
        return GateCheck(name, None, "no step had an update on fresh rollouts")
    where = f"largest distance {worst[0]:.2g} ({worst[1]}), allowed {tolerance:g}"
    return GateCheck(name, worst[0] <= tolerance, where)


def _sampler_agrees(record: SweepRecord, limit: float) -> GateCheck:
    """Sampler and learner have the same policy, up to rounding. With stale weights they differ by far more."""
    name = "sampler agrees with learner"
    worst = _worst((t, t.summary.logp_diff) for t in record.trials.values())
    if worst is None:
        return GateCheck(name, None, "no step had fresh rollouts")
    where = f"largest mean |dlogp| {worst[0]:.2g} ({worst[1]}), allowed {limit:g}"
    return GateCheck(name, worst[0] <= limit, where)


def _worst(found: Iterable[tuple[TrialRecord, Worst | None]]) -> tuple[float, str] | None:
    """The largest value over the trials, and where it was; the first of equal values."""
    known = [(worst, trial) for trial, worst in found if worst is not None]
    if not known:
        return None
    worst, trial = max(known, key=lambda one: one[0].value)
    return worst.value, f"{trial.trial_id} step {worst.step}"


def _accuracy_kept(record: SweepRecord) -> GateCheck:
    """Fails when every trial lost accuracy: the paired difference by question is below 0 (95 % interval)."""
    judged, fell = 0, []
    for trial in record.trials.values():
        before, after = trial.summary.first_evaluation, trial.summary.last_evaluation
        if before is None or after is None:
            continue
        judged += 1
        change = paired_difference(before.results, after.results)
        if change.high < 0:
            fell.append(f"{trial.trial_id} by {-change.value:.2f}")
    if not judged:
        return GateCheck("accuracy kept", None, "no trial was evaluated before and after")
    if not fell:
        return GateCheck("accuracy kept", True, f"no trial lost accuracy, of {judged}")
    return GateCheck("accuracy kept", len(fell) < judged, f"fell in {len(fell)} of {judged} trials: " + ", ".join(fell))


def _finite(record: SweepRecord) -> GateCheck:
    for trial in record.trials.values():
        if bad := trial.summary.not_finite:
            return GateCheck("finite numbers", False, f"{', '.join(bad.names)} of {trial.trial_id} at step {bad.step}")
    judged = sum(trial.summary.step for trial in record.trials.values())
    if not judged:
        return GateCheck("finite numbers", None, "no step was reported")
    return GateCheck("finite numbers", True, f"every curve of {judged} steps")


def _cards_released(record: SweepRecord) -> GateCheck:
    if record.unreleased:
        attempts = ", ".join(record.unreleased)
        return GateCheck("cards released", False, f"processes or cards were still in use after the end of {attempts}")
    return GateCheck("cards released", True, "every attempt's processes ended and its cards were returned")

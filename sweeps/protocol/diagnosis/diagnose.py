"""From the curves of one run to named findings. Pure: no I/O, no heavy import.

Every check lists the curves that it needs. If one of them is missing, the finding is reported as not judged, with the
reason; it is never taken for absent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rl.messages import EIGHT_CURVES
from sweeps.protocol.diagnosis import policy, reward, system
from sweeps.protocol.diagnosis.finding import Diagnosis, Finding, NotJudged, Result
from sweeps.protocol.diagnosis.limits import DEFAULT_LIMITS, Limits
from sweeps.protocol.diagnosis.reading import Reading
from sweeps.protocol.gate_rules import Severity
from sweeps.protocol.run_curves import CURVES, RunCurves


@dataclass(frozen=True)
class Check:
    """One finding: the curves without which it cannot be judged, and its rule."""

    name: str
    needs: tuple[str, ...]
    judge: Callable[[Reading], Result]


CHECKS = (
    Check("not_finite", (), policy.not_finite),
    Check("scorer_errors", ("scorer_error_frac",), policy.scorer_errors),
    Check("reward_collapse", ("reward",), reward.reward_collapse),
    Check("reward_decline", ("reward",), reward.reward_decline),
    Check("reward_hacking", ("reward",), reward.reward_hacking),
    Check("phantom_credit", ("phantom_credit_frac",), reward.phantom_credit),
    Check("no_learning", ("reward",), reward.no_learning),
    Check("dead_groups", ("reward",), reward.dead_groups),
    Check("groups_of_one", (), reward.groups_of_one),
    Check("entropy_collapse", ("entropy",), policy.entropy_collapse),
    Check("entropy_explosion", ("entropy",), policy.entropy_explosion),
    Check("kl_runaway", ("kl",), policy.kl_runaway),
    Check("gradient_spikes", ("grad_norm",), policy.gradient_spikes),
    Check("learning_rate_too_high", (), policy.learning_rate_too_high),
    Check("learning_rate_too_low", ("reward",), policy.learning_rate_too_low),
    Check("length_explosion", ("response_length",), policy.length_explosion),
    Check("length_collapse", ("response_length",), policy.length_collapse),
    Check("limit_too_short", (), policy.limit_too_short),
    Check("evaluation_fell", (), reward.evaluation_fell),
    Check("evaluation_gap", (), reward.evaluation_gap),
    Check("evaluation_too_small", (), reward.evaluation_too_small),
    Check("weight_sync_broken", (), system.weight_sync_broken),
    Check("sampler_mismatch", (), system.sampler_mismatch),
    Check("stale_policy", ("staleness",), system.stale_policy),
    Check("rollout_bound", ("rollout_seconds", "step_seconds"), system.rollout_bound),
    Check("training_bound", ("train_seconds", "step_seconds"), system.training_bound),
    Check("time_outside_steps", ("step_seconds",), system.time_outside_steps),
)
"""In the order in which they are printed among findings of equal severity."""
ORDER = (Severity.STOP, Severity.CLOSE, Severity.WARN, Severity.NOTE)


def diagnose(run: RunCurves, limits: Limits = DEFAULT_LIMITS) -> Diagnosis:
    """What is wrong with this run, what was excluded, and what could not be judged."""
    reading = Reading(run, limits)
    findings: list[Finding] = []
    excluded: list[str] = []
    silent: list[NotJudged] = []
    for check in CHECKS:
        missing = [curve for curve in check.needs if not run.has(curve)]
        result = NotJudged(check.name, f"missing: {', '.join(missing)}") if missing else check.judge(reading)
        match result:
            case Finding():
                findings.append(result)
            case NotJudged():
                silent.append(result)
            case None:
                excluded.append(check.name)
    findings.sort(key=lambda f: ORDER.index(f.severity))
    known = [c for c in CURVES if run.has(c) and c != "nonfinite_values"]
    return Diagnosis(
        tuple(findings),
        tuple(excluded),
        tuple(silent),
        tuple(known),
        tuple(c for c in EIGHT_CURVES if c not in known),
        run.last_step,
    )

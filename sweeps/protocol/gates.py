"""The gates between two stages: checks of a sweep's record, each with its reason. Pure functions.

A gate is open when no check fails. A check that has nothing to judge has `ok=None` and closes nothing. The fixed checks
are in this module; the rules of the stage (`sweeps/protocol/gate_rules.py`) follow them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rl.tasks.evaluation import Estimate, paired_difference
from sweeps.config.types import GateConfig
from sweeps.journal.events import GAIN, GateCheck, GateVerdict
from sweeps.journal.journal import SweepRecord, TrialRecord, TrialState
from sweeps.journal.trial_summary import Worst
from sweeps.protocol.gate_rules import Rule, RuleResult, Severity, over_trials
from sweeps.protocol.trial_rules import TrialRules

MAX_SCORER_ERROR_FRAC = 0.01
"""Share of completions whose scorer may fail: such completions count as wrong, so more of them distort the reward."""
REQUIRED_CURVES = frozenset({"reward", "acc", "ratio_mean", "entropy", "response_length", "grad_norm"})
"""Curves that are defined in every step, whatever the algorithm. `clip_frac` needs two updates, `kl` a reference."""


def metric_gate(record: SweepRecord, steps: int, cfg: GateConfig, rules: TrialRules) -> GateVerdict:
    """Judge whether this sweep is healthy enough to spend money on the next stage.

    Some checks are fixed: a gate without them would open without evidence. The others are the rules of the stage.
    """
    checks = (
        _all_steps_done(record, steps),
        _ratio_on_first_update(record, cfg.ratio_tolerance),
        _curves_reported(record),
        _scorer_works(record),
        _reward_differs(record),
        _evaluated(record),
        _accuracy_kept(record),
        _gain_proven(record),
        _cards_released(record),
        *_rule_checks(record, rules),
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
    stopped = sum(t.rule_stop is not None for t in record.trials.values())
    pruned = sum(t.state is TrialState.PRUNED for t in record.trials.values()) - stopped
    if short:
        return GateCheck("all steps done", False, "not finished: " + ", ".join(short))
    early = [f"{pruned} pruned (search.pruning)"] if pruned else []
    early += [f"{stopped} stopped by gate rules"] if stopped else []
    if pruned + stopped == len(record.trials):
        return GateCheck("all steps done", False, "every trial ended early: " + ", ".join(early))
    text = f"{len(record.trials) - pruned - stopped} trials of {steps} steps"
    return GateCheck("all steps done", True, ", ".join([text, *early]))


def _ratio_on_first_update(record: SweepRecord, tolerance: float) -> GateCheck:
    """Before the first update of a rollout the policy has not changed: pi/pi_old must be 1."""
    name = "ratio 1 on the first update"
    worst = _worst((t, t.summary.ratio_off) for t in record.trials.values())
    if worst is None:
        return GateCheck(name, None, "no step had an update on fresh rollouts")
    where = f"largest distance {worst[0]:.2g} ({worst[1]}), allowed {tolerance:g}"
    return GateCheck(name, worst[0] <= tolerance, where)


def _worst(found: Iterable[tuple[TrialRecord, Worst | None]]) -> tuple[float, str] | None:
    """The largest value over the trials, and where it was; the first of equal values."""
    known = [(worst, trial) for trial, worst in found if worst is not None]
    if not known:
        return None
    worst, trial = max(known, key=lambda one: one[0].value)
    return worst.value, f"{trial.trial_id} step {worst.step}"


def _changes(record: SweepRecord) -> list[tuple[TrialRecord, Estimate]]:
    """Of each trial that was evaluated twice, the paired difference of its accuracy, last minus first."""
    return [
        (trial, paired_difference(before.results, after.results))
        for trial in record.trials.values()
        if (before := trial.summary.first_evaluation) is not None
        and (after := trial.summary.last_evaluation) is not None
        and before.accuracy is not None
        and after.accuracy is not None
    ]


def _accuracy_kept(record: SweepRecord) -> GateCheck:
    """Fails when every trial lost accuracy: the paired difference by question is below 0 (95 % interval)."""
    changes = _changes(record)
    judged, fell = len(changes), [f"{t.trial_id} by {-c.value:.2f}" for t, c in changes if c.high < 0]
    if not judged:
        return GateCheck("accuracy kept", None, "no trial was evaluated before and after")
    if not fell:
        return GateCheck("accuracy kept", True, f"no trial lost accuracy, of {judged}")
    return GateCheck("accuracy kept", len(fell) < judged, f"fell in {len(fell)} of {judged} trials: " + ", ".join(fell))


def _curves_reported(record: SweepRecord) -> GateCheck:
    """A curve without a single value was never computed, which is not the same as 0."""
    name = "curves reported"
    trials = [t for t in record.trials.values() if t.summary.step]
    if not trials:
        return GateCheck(name, None, "no step was reported")
    missing = {curve for trial in trials for curve in trial.summary.missing_curves}
    if required := sorted(missing & REQUIRED_CURVES):
        which = [t.trial_id for t in trials if set(required) & set(t.summary.missing_curves)]
        return GateCheck(name, False, f"{', '.join(required)} had no value in any step of {', '.join(which)}")
    text = "each of the eight curves has values"
    if missing:
        text = f"{', '.join(sorted(missing))} is undefined with these settings; the others have values"
    return GateCheck(name, True, text)


def _scorer_works(record: SweepRecord) -> GateCheck:
    """A completion whose scorer fails counts as wrong, so a broken scorer looks like a model that learns nothing."""
    name = "scorer works"
    shares = {t.trial_id: t for t in record.trials.values() if t.summary.scorer_errors.value is not None}
    if not shares:
        return GateCheck(name, None, "no completion was scored")
    worst = max(shares.values(), key=lambda t: t.summary.scorer_errors.value or 0.0)
    share, errors = worst.summary.scorer_errors.value or 0.0, worst.summary.scorer_errors
    if not share:
        return GateCheck(name, True, "no scorer error")
    count = f"{errors.total:.0f} of {errors.count:.0f} completions of {worst.trial_id}"
    text = f"the scorer failed for {count} ({share:.1%}, allowed {MAX_SCORER_ERROR_FRAC:.0%})"
    first = worst.summary.scorer_error
    return GateCheck(name, share <= MAX_SCORER_ERROR_FRAC, f"{text}; the first error: {first}" if first else text)


def _reward_differs(record: SweepRecord) -> GateCheck:
    """Without a group whose rewards differ there is no gradient, so nothing can be learned. One trial is enough."""
    name = "rewards differ"
    judged = [t for t in record.trials.values() if t.summary.zero_std.count]
    if not judged:
        return GateCheck(name, None, "no group was scored")
    flat = [t for t in judged if t.summary.zero_std.total == t.summary.zero_std.count]
    if len(flat) < len(judged):
        share = min((t.summary.zero_std.value or 0.0) for t in judged)
        more = f"; none in {', '.join(t.trial_id for t in flat)}" if flat else ""
        return GateCheck(name, True, f"up to {1 - share:.0%} of a trial's groups have rewards that differ{more}")
    last = [t.summary.last.reward for t in judged if t.summary.last and t.summary.last.reward is not None]
    reward = f" (reward {last[0]:.3g} in the last step)" if last else ""
    return GateCheck(
        name,
        False,
        f"all rewards of a group were equal in every group of every trial{reward}, so there was no gradient; "
        "use questions that the model solves sometimes, and check the scorer on a right answer",
    )


def _evaluated(record: SweepRecord) -> GateCheck:
    """An evaluation without a single sampled answer has no accuracy."""
    name = "evaluations have answers"
    evaluations = [(t, e) for t in record.trials.values() for e in t.summary.accuracies]
    if not evaluations:
        return GateCheck(name, None, "no trial was evaluated")
    if empty := [f"{t.trial_id} step {e.step}" for t, e in evaluations if e.acc is None]:
        return GateCheck(name, False, f"no answer in the evaluation of {', '.join(empty)}")
    return GateCheck(name, True, f"all {len(evaluations)} evaluations")


def _gain_proven(record: SweepRecord) -> GateCheck:
    """The accuracy of a trial rose: its paired difference by question is above 0 (95 % interval). Closes nothing."""
    name = GAIN
    changes = _changes(record)
    if not changes:
        return GateCheck(name, None, "no trial was evaluated before and after")
    proven = [(trial, change) for trial, change in changes if change.low > 0]
    trial, best = max(proven or changes, key=lambda pair: pair[1].value)
    text = f"{trial.trial_id} {best.value:+.2f} [{best.low:+.2f}, {best.high:+.2f}]"
    if proven:
        return GateCheck(name, True, f"accuracy rose in {len(proven)} of {len(changes)} trials, most in {text}")
    return GateCheck(
        name,
        None,
        f"no trial is proven to have gained; the largest change is {text}. More task.eval_questions see more",
    )


def _cards_released(record: SweepRecord) -> GateCheck:
    if record.unreleased:
        attempts = ", ".join(record.unreleased)
        return GateCheck("cards released", False, f"processes or cards were still in use after the end of {attempts}")
    return GateCheck("cards released", True, "every attempt's processes ended and its cards were returned")


def _rule_checks(record: SweepRecord, rules: TrialRules) -> Iterable[GateCheck]:
    found = rules.results()
    for rule in rules.rules:
        yield _rule_check(rule, found[rule.name], record)


def _rule_check(rule: Rule, results: Mapping[str, RuleResult], record: SweepRecord) -> GateCheck:
    """One rule over the trials. A trial that a `stop` rule ended counts for the rules of severity `stop` only."""
    stops = rule.severity is Severity.STOP
    if not stops:
        results = {name: r for name, r in results.items() if record.trials[name].rule_stop is None}
        if not results and record.trials:
            return GateCheck(rule.name, None, "no trial has reported a step and was not stopped by a gate rule")
    judged = over_trials(rule, results)
    if judged.outcome == "not judged":
        return GateCheck(rule.name, None, judged.text)
    if not judged.failed:
        return GateCheck(rule.name, True, _nearest(rule, results))
    ends = [f"{name}: {stop.summary}" for name in judged.failed if (stop := record.trials[name].rule_stop)]
    text = "; ".join([judged.text, *ends, *_not_finite(rule, judged.failed, record), rule.reason, rule.remedy])
    left = len(results) - len(judged.failed) - len(judged.not_judged)
    # A stop ends single trials: the gate closes only where no other trial is left.
    closes = judged.outcome == "failed" and (rule.severity is Severity.CLOSE or (stops and not left))
    return GateCheck(rule.name, False if closes else None, text, warning=not closes)


def _not_finite(rule: Rule, failed: Iterable[str], record: SweepRecord) -> Iterable[str]:
    """The names of the curves that a rule on `nonfinite_values` counts."""
    for name in failed if rule.curve == "nonfinite_values" else ():
        if bad := record.trials[name].summary.not_finite:
            yield f"{', '.join(bad.names)} of {name} at step {bad.step}"


def _nearest(rule: Rule, results: Mapping[str, RuleResult]) -> str:
    """The result of the trial that is nearest to the limit of a rule that no trial fails."""
    judged = {name: r for name, r in results.items() if r.value is not None and r.limit is not None}

    def margin(name: str) -> float:
        value, limit = judged[name].value or 0.0, judged[name].limit or 0.0
        return value - limit if rule.direction == "below" else limit - value

    name = min(judged, key=margin)
    unjudged = len(results) - len(judged)
    more = f" (nearest of {len(judged)}" + (f", {unjudged} not judged)" if unjudged else ")")
    return f"{results[name].text} in {name}{more if len(results) > 1 else ''}"

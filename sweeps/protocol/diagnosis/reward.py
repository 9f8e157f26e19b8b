"""Findings about reward, groups and accuracy: does the policy learn what it is meant to learn?

Tested in tests/sweeps/protocol/diagnosis/test_diagnose.py.
"""

from __future__ import annotations

import math
import statistics

from sweeps.protocol.diagnosis.finding import Evidence, Finding, NotJudged, Result
from sweeps.protocol.diagnosis.limits import Limits
from sweeps.protocol.diagnosis.reading import Reading, compare_evaluations, since, span
from sweeps.protocol.gate_rules import Rule, Severity, TimesOwn, judge
from sweeps.protocol.run_curves import PART, Evaluation
from sweeps.protocol.windows import Change, windows


def collapse_rule(limits: Limits, with_completions: bool = True) -> Rule:
    """The rule behind `reward_collapse`, also for a gate. The diagnosis and a gate cannot disagree on it."""
    return Rule(
        "reward_collapse",
        "reward",
        "mean",
        limits.window_steps,
        limits.window_completions if with_completions else 0,
        "below",
        TimesOwn(limits.collapse, "best", limits.clear),
        Severity.STOP,
        "",
        "",
        "",
    )


def reward_collapse(r: Reading) -> Result:
    known = None not in r.run.row_completions()
    progress = judge(collapse_rule(r.limits, known), r.run)
    result = progress.result
    if result.outcome == "not judged":
        return NotJudged("reward_collapse", result.text)
    if result.outcome == "passed":
        if progress.stopped_at is None:
            return None
        text = (
            f"reward was below {r.limits.collapse:.0%} of its best window at step {progress.stopped_at}, and came back"
        )
        return Finding(
            "reward_recovered",
            Severity.NOTE,
            text,
            (r.evidence("reward", text, progress.stopped_at, progress.stopped_at),),
        )
    start = result.failed_since or result.first_step or 1
    severity = Severity.STOP if known else Severity.CLOSE
    detail = "" if known else "How many completions a step has is unknown, so this does not stop a trial."
    before = [c for c, found in _before_collapse(r, start).items() if found]
    if before:
        detail = f"{detail} In the steps before: {', '.join(before)}.".strip()
    return Finding("reward_collapse", severity, result.text, (r.evidence("reward", result.text, start),), detail)


def _before_collapse(r: Reading, start: int) -> dict[str, bool]:
    """What else changed while the reward fell."""
    found = {}
    for curve, text in (("entropy", "entropy rose"), ("kl", "KL rose"), ("grad_norm", "gradient norm rose")):
        series = r.series(curve)
        early = [w for w in series if w.last_step < start]
        during = [w for w in series if start <= w.last_step <= start + 2 * r.limits.window_steps]
        found[text] = bool(
            early and during and max(w.mean for w in during) > 3.0 * statistics.median(w.mean for w in early) > 0.0
        )
    return found


def reward_decline(r: Reading) -> Result:
    found = r.change("reward")
    if found is None:
        return NotJudged("reward_decline", "the run is too short for two windows of reward")
    if min(r.run.known("reward")) < 0.0:
        return _below_start(r, found)
    # Parts of a fifth of the run: a shorter window falls below the best one by chance, or by a few hard prompts.
    parts = windows(r.run, "reward", found.last.steps, r.limits.window_completions)
    best, last = max(parts, key=lambda w: w.mean), parts[-1]
    distance = r.distance("reward", best, last)
    if distance is None or distance > -r.limits.clear:
        return None
    if last.mean >= r.limits.decline * best.mean or last.mean < r.limits.collapse * best.mean:
        return None
    text = (
        f"mean reward {last.mean:.3g} in {span(last)}, {last.mean / best.mean:.0%} of {best.mean:.3g} in {span(best)}"
    )
    start = since(parts, r.limits.decline * best.mean, above=False)
    return Finding("reward_decline", Severity.WARN, text, (r.evidence("reward", text, start),))


def _below_start(r: Reading, found: Change) -> Result:
    """A reward with negative values has no ratio; it is compared with its own start, in its own noise."""
    if found.noise_units > -r.limits.clear:
        return None
    text = (
        f"mean reward {found.last.mean:.3g} in {span(found.last)}, {-found.noise_units:.1f} noise below "
        f"{found.first.mean:.3g} in {span(found.first)}"
    )
    return Finding("reward_decline", Severity.WARN, text, (r.evidence("reward", text, found.last.first_step),))


def no_learning(r: Reading) -> Result:
    found = r.change("reward")
    if found is None:
        return NotJudged("no_learning", "the run is too short for two windows of reward")
    if abs(found.noise_units) >= r.limits.gain:
        return None
    text = (
        f"mean reward {found.first.mean:.3g} in {span(found.first)} and {found.last.mean:.3g} in {span(found.last)}: "
        f"{found.noise_units:+.1f} noise"
    )
    evidence = (r.evidence("reward", text, found.first.first_step),)
    rise = r.evaluation_change
    visible = _visible_gain(r, found)
    doubt = ""
    if r.room_to_learn is False:
        doubt = "at this level little is left to learn"
    elif rise is not None and rise.errors >= r.limits.evaluation_hint:
        doubt = (
            f"the evaluation rose by {rise.difference:.3f} ({rise.errors:.1f} standard errors) from step "
            f"{rise.first.step} to {rise.last.step}"
        )
    elif visible is None:
        doubt = "how many completions a step has is unknown, so a small gain may be hidden"
    elif visible > r.limits.visible_gain:
        doubt = f"with so few completions a gain of up to {visible:.1f} standard deviations of a reward is hidden"
    elif found.noise_units >= 2.0:
        doubt = "a gain is likely, but not proven"
    elif r.room_to_learn is None:
        doubt = "whether more could be learned is unknown"
    if doubt:
        return Finding("no_learning", Severity.NOTE, f"{text}; {doubt}", evidence)
    return Finding("no_learning", Severity.WARN, text, evidence)


def _visible_gain(r: Reading, found: Change) -> float | None:
    """The smallest gain that would have been clear, in standard deviations of the reward of one completion."""
    if not found.first.completions or not found.last.completions:
        return None
    return r.limits.gain * math.sqrt(1.0 / found.first.completions + 1.0 / found.last.completions)


def dead_groups(r: Reading) -> Result:
    last = r.last("zero_std_frac")
    if last is None:
        if not r.run.has("zero_std_frac"):
            return _constant_reward(r)
        return NotJudged("dead_groups", "the run is too short for a window of zero_std_frac")
    if last.mean < r.limits.dead_groups:
        return None
    text = f"{last.mean:.0%} of groups have no reward spread in {span(last)}"
    start = r.since("zero_std_frac", r.limits.dead_groups, above=True)
    evidence = (r.evidence("zero_std_frac", text, start),)
    if r.room_to_learn is True:
        return Finding("dead_groups", Severity.WARN, text, evidence)
    detail = "The task is nearly solved: the groups are all right." if r.room_to_learn is False else ""
    return Finding("dead_groups", Severity.NOTE, text, evidence, detail)


def groups_of_one(r: Reading) -> Result:
    if r.run.facts.group_size is None or not r.run.steps:
        return NotJudged("groups_of_one", "the group size is unknown")
    if r.run.facts.group_size > 1:
        return None
    text = "every group has one completion"
    return Finding("groups_of_one", Severity.NOTE, text, (r.evidence("reward", text, r.run.steps[0]),))


def _constant_reward(r: Reading) -> Result:
    last = r.last("reward")
    if last is None:
        return NotJudged("dead_groups", "zero_std_frac is missing, and the run is too short for a window of reward")
    if len(set(last.values)) > 1 or last.rows < 2 or r.room_to_learn is False:
        return NotJudged("dead_groups", "zero_std_frac is missing")
    text = f"every reward is {last.values[0]:g} in {span(last)}"
    return Finding("dead_groups", Severity.WARN, text, (r.evidence("reward", text, last.first_step),))


def phantom_credit(r: Reading) -> Result:
    last = r.last("phantom_credit_frac")
    if last is None:
        return NotJudged("phantom_credit", "the run is too short for a window of phantom_credit_frac")
    idle = r.last("zero_std_frac")
    teaching = max(1.0 - (idle.mean if idle is not None else 0.0), last.mean)
    share = last.mean / teaching if teaching else 0.0
    # With few groups left that teach at all, their kind does not matter.
    if share < r.limits.phantom_credit or last.mean < 0.05:
        return None
    text = f"{share:.0%} of the groups with reward spread are equally correct in {span(last)} ({last.mean:.0%} of all)"
    accuracy = r.change("acc")
    severity, detail = Severity.WARN, ""
    if r.room_to_learn is False:
        severity, detail = Severity.NOTE, "The task is nearly solved, so that few groups differ in correctness."
    elif accuracy is not None and accuracy.noise_units >= r.limits.gain:
        severity, detail = Severity.NOTE, f"Accuracy rises nevertheless ({accuracy.noise_units:+.1f} noise)."
    elif accuracy is not None:
        severity, detail = Severity.CLOSE, f"Accuracy has not risen ({accuracy.noise_units:+.1f} noise)."
    start = r.since("phantom_credit_frac", r.limits.phantom_credit * teaching, above=True)
    return Finding("phantom_credit", severity, text, (r.evidence("phantom_credit_frac", text, start),), detail)


def reward_hacking(r: Reading) -> Result:
    reward = r.change("reward")
    if reward is None:
        return NotJudged("reward_hacking", "the run is too short for two windows of reward")
    rise = r.evaluation_change
    if rise is not None and rise.errors >= 2.0:
        return None
    accuracy = r.change("acc")
    if accuracy is not None:
        return _reward_against_accuracy(r, reward, accuracy)
    if reward.noise_units < r.limits.gain:
        return None
    if rise is not None and rise.difference <= 0.0 and reward.noise_units >= r.limits.clear:
        text = (
            f"reward rose from {reward.first.mean:.3g} to {reward.last.mean:.3g} ({reward.noise_units:.1f} noise), "
            f"evaluation accuracy changed by {rise.difference:+.3f} from step {rise.first.step} to {rise.last.step}"
        )
        return Finding("reward_hacking", Severity.CLOSE, text, (r.evidence("reward", text, _rise_began(r, reward)),))
    if r.run.parts():
        return _reward_parts(r, reward)
    return NotJudged("reward_hacking", "reward rose, and there is neither acc nor a second evaluation beside it")


def _reward_against_accuracy(r: Reading, reward: Change, accuracy: Change) -> Result:
    fell = accuracy.noise_units <= -r.limits.gain
    if reward.noise_units < (0.0 if fell else r.limits.clear) or accuracy.noise_units >= 2.0:
        return None
    if not fell and r.room_to_learn is False:
        return None
    text = (
        f"reward went from {reward.first.mean:.3g} to {reward.last.mean:.3g} ({reward.noise_units:+.1f} noise), "
        f"accuracy from {accuracy.first.mean:.3g} to {accuracy.last.mean:.3g} ({accuracy.noise_units:+.1f} noise)"
    )
    evidence = (
        r.evidence(
            "reward", text, _rise_began(r, reward) if reward.noise_units >= r.limits.gain else reward.last.first_step
        ),
        r.evidence("acc", text, accuracy.last.first_step),
    )
    return Finding("reward_hacking", Severity.CLOSE, text, evidence)


def _rise_began(r: Reading, reward: Change) -> int:
    """The first step of the windows that have at least a quarter of the gain."""
    return r.since("reward", reward.first.mean + reward.difference / 4.0, above=True)


def _reward_parts(r: Reading, reward: Change) -> Result:
    """Without accuracy: some reward functions carry the gain, others never moved."""
    still = [p for p in r.run.parts() if len(set(r.run.known(p))) == 1]
    changes = {p: c for p in r.run.parts() if p not in still and (c := r.change(p)) is not None}
    if not still or not changes:
        return None
    carriers = [p for p, c in changes.items() if c.difference >= 0.5 * reward.difference]
    if not carriers:
        return None
    text = (
        f"reward rose from {reward.first.mean:.3g} to {reward.last.mean:.3g} by {_names(carriers)} alone; "
        f"{_names(still)} never changed"
    )
    evidence = tuple(r.evidence(c, text, changes[c].last.first_step) for c in carriers)
    detail = "Accuracy is missing: whether an unchanged reward is the one for right answers is for you to judge."
    return Finding("reward_hacking", Severity.WARN, text, evidence, detail)


def _names(parts: list[str]) -> str:
    return ", ".join(p.removeprefix(PART) for p in parts)


def evaluation_fell(r: Reading) -> Result:
    found = r.evaluation_change
    if found is None:
        return NotJudged("evaluation_fell", "fewer than two evaluations with a known number of questions")
    if found.errors > -r.limits.gain:
        return None
    text = (
        f"evaluation accuracy {found.first.accuracy:.3f} at step {found.first.step} and {found.last.accuracy:.3f} at "
        f"step {found.last.step}: {found.errors:.1f} standard errors"
    )
    return Finding("evaluation_fell", Severity.CLOSE, text, (_at_last_evaluation(r, text),))


def evaluation_gap(r: Reading) -> Result:
    accuracy = r.last("acc")
    if accuracy is None or not r.run.evaluations:
        return NotJudged("evaluation_gap", "needs acc and an evaluation")
    last = r.run.evaluations[-1]
    if last.step < accuracy.first_step:
        return NotJudged("evaluation_gap", "no evaluation within or after the last window of acc")
    found = compare_evaluations(Evaluation(accuracy.last_step, accuracy.mean, accuracy.completions), last)
    if found is None:
        return NotJudged("evaluation_gap", "the number of questions or of completions is unknown")
    if -found.difference < r.limits.evaluation_gap or -found.errors < r.limits.gain:
        return None
    text = (
        f"accuracy {accuracy.mean:.3f} in training ({span(accuracy)}), {last.accuracy:.3f} on {last.questions} "
        f"evaluation questions at step {last.step}"
    )
    return Finding("evaluation_gap", Severity.WARN, text, (r.evidence("acc", text, accuracy.first_step),))


def evaluation_too_small(r: Reading) -> Result:
    found = r.evaluation_change
    if found is None:
        return NotJudged("evaluation_too_small", "fewer than two evaluations with a known number of questions")
    later = (compare_evaluations(found.first, evaluation) for evaluation in r.run.evaluations[1:])
    largest = max((c for c in later if c is not None), key=lambda c: abs(c.errors))
    visible = 1.96 * found.standard_error
    if abs(largest.errors) >= r.limits.evaluation_clear or visible <= r.limits.evaluation_resolution:
        return None
    text = (
        f"{found.last.questions} questions see differences of {visible:.2f} and more; from step {found.first.step} to "
        f"{found.last.step} the accuracy changed by {found.difference:+.3f}"
    )
    return Finding("evaluation_too_small", Severity.WARN, text, (_at_last_evaluation(r, text),))


def _at_last_evaluation(r: Reading, text: str) -> Evidence:
    step = max(1, r.run.evaluations[-1].step)
    return Evidence("eval_acc", text, step, step, tuple((e.step, e.accuracy) for e in r.run.evaluations))

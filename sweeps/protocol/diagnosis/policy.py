"""Findings about the policy: entropy, KL, gradients, learning rate, length and truncation.

Tested in tests/sweeps/protocol/diagnosis/test_diagnose.py.
"""

from __future__ import annotations

import statistics

from sweeps.protocol.diagnosis.finding import Evidence, Finding, NotJudged, Result
from sweeps.protocol.diagnosis.reading import Reading, span
from sweeps.protocol.diagnosis.reward import no_learning
from sweeps.protocol.gate_rules import Severity

TOO_SHORT = "the run is too short for two windows of {}"


def not_finite(r: Reading) -> Result:
    rows = [(row.step, row.value("nonfinite_values")) for row in r.run.rows()]
    judged = [(step, count) for step, count in rows if count is not None]
    if not judged:
        return NotJudged("not_finite", "no row has a value")
    bad = [step for step, count in judged if count]
    if not bad:
        return None
    names = sorted(n for n in r.run.curves if any(v is not None and v - v != 0.0 for v in r.run.curves[n]))
    text = f"{', '.join(names)} not finite in {len(bad)} of {len(judged)} rows, first at step {bad[0]}"
    at_the_end = [step for step, count in judged[-3:] if count]
    severity = Severity.STOP if len(at_the_end) == 3 else Severity.WARN
    evidence = Evidence(names[0], text, bad[0], bad[-1])
    return Finding("not_finite", severity, text, (evidence,))


def scorer_errors(r: Reading) -> Result:
    shares = r.run.known("scorer_error_frac")
    worst = max(shares)
    if worst == 0.0:
        return None
    steps = [s for s, v in zip(r.run.steps, r.run.values("scorer_error_frac"), strict=True) if v]
    mean = statistics.fmean(shares)
    text = f"{mean:.1%} of all completions had a scorer error, {worst:.0%} at worst; first at step {steps[0]}"
    severity = Severity.CLOSE if mean >= 0.01 else Severity.WARN
    return Finding("scorer_errors", severity, text, (r.evidence("scorer_error_frac", text, steps[0], steps[-1]),))


def entropy_collapse(r: Reading) -> Result:
    ends = r.ends("entropy")
    if ends is None:
        return NotJudged("entropy_collapse", TOO_SHORT.format("entropy"))
    first, last = ends
    if first.mean <= 0.0 or last.mean > r.limits.entropy_collapse * first.mean:
        return None
    start = r.since("entropy", r.limits.entropy_collapse * first.mean, above=False)
    text = f"entropy {last.mean:.3g} in {span(last)}, {last.mean / first.mean:.1%} of {first.mean:.3g} in {span(first)}"
    evidence = (r.evidence("entropy", text, start),)
    if r.room_to_learn is False:
        detail = "Little is left to learn, so this is normal."
    elif r.room_to_learn is None:
        detail = "Whether more could be learned is unknown."
    elif not r.hurt and not r.stalled_since(start):
        detail = "The reward has risen since, or the run is too short to judge."
    else:
        return Finding("entropy_collapse", Severity.WARN, text, evidence)
    return Finding("entropy_collapse", Severity.NOTE, text, evidence, detail)


def entropy_explosion(r: Reading) -> Result:
    ends = r.ends("entropy")
    if ends is None:
        return NotJudged("entropy_explosion", TOO_SHORT.format("entropy"))
    first, last = ends
    if first.mean <= 0.0 or last.mean < r.limits.entropy_explosion * first.mean:
        return None
    start = r.since("entropy", r.limits.entropy_explosion * first.mean, above=True)
    text = (
        f"entropy {last.mean:.3g} in {span(last)}, {last.mean / first.mean:.1f} times {first.mean:.3g} in {span(first)}"
    )
    severity = Severity.WARN if r.harmful else Severity.NOTE
    return Finding("entropy_explosion", severity, text, (r.evidence("entropy", text, start),))


def kl_runaway(r: Reading) -> Result:
    series = r.series("kl")
    if not series or series[0].last_step >= series[-1].first_step:
        return NotJudged("kl_runaway", TOO_SHORT.format("kl"))
    first, last = series[0], series[-1]
    quarter = [w for w in series if w.last_step <= r.run.last_step / 2.0 and w.first_step > r.run.last_step / 4.0]
    before = statistics.median(w.median for w in quarter) if quarter else first.median
    faster = last.median >= max(r.limits.kl_floor, r.limits.kl_growth * before)
    large = last.median >= max(r.limits.kl_large, r.limits.kl_large_growth * first.median)
    if not faster and not large:
        return None
    level = max(2.0 * before if faster else r.limits.kl_large / 2.0, r.limits.kl_floor / 2.0)
    start = r.since("kl", min(level, last.median / 2.0), above=True, median=True)
    text = (
        f"median KL {last.median:.3g} in {span(last)}, {before:.3g} in the second quarter, {first.median:.3g} at first"
    )
    evidence = (r.evidence("kl", text, start),)
    earlier = [w for w in r.series("reward") if w.last_step <= max(start, first.last_step)]
    reward = r.last("reward")
    gain = r.distance("reward", earlier[-1], reward) if earlier and reward is not None else None
    if gain is not None and gain >= r.limits.gain:
        detail = f"The reward rose by {gain:.1f} noise in the same time."
        return Finding("kl_runaway", Severity.NOTE, text, evidence, detail)
    if r.room_to_learn is False and not r.hurt:
        return Finding("kl_runaway", Severity.NOTE, text, evidence, "The reward is high nevertheless.")
    return Finding("kl_runaway", Severity.WARN, text, evidence)


def gradient_spikes(r: Reading) -> Result:
    found = spikes(r)
    if found is None:
        return NotJudged("gradient_spikes", "fewer than 20 rows with a gradient norm above 0")
    steps, typical, largest = found
    if not steps:
        return None
    times = f"{r.limits.gradient_spike:g} times {typical:.3g}"
    text = f"{len(steps)} gradient norms of more than {times}, the largest {largest:.3g}"
    rows = len(r.run.known("grad_norm"))
    recurring = len(steps) >= r.limits.gradient_spikes and len(steps) >= 0.01 * rows
    severity = Severity.WARN if recurring else Severity.NOTE
    return Finding("gradient_spikes", severity, text, (r.evidence("grad_norm", text, steps[0], steps[-1]),))


def spikes(r: Reading) -> tuple[list[int], float, float] | None:
    """Steps with a spike, the typical norm, the largest one. Norms of 0 belong to steps in which no group differed."""
    norms = [v for v in r.run.known("grad_norm") if v > 0.0]
    if len(norms) < 20:
        return None
    typical = statistics.median(norms)
    values = zip(r.run.steps, r.run.values("grad_norm"), strict=True)
    steps = [step for step, v in values if v is not None and v > r.limits.gradient_spike * typical]
    return steps, typical, max(norms)


def learning_rate_too_high(r: Reading) -> Result:
    looked, signs, evidence = [], [], []
    clip = r.last("clip_frac") if r.run.facts.updates_per_rollout != 1 else None
    if clip is not None:
        looked.append("clip_frac")
        if clip.mean > r.limits.clip_high:
            text = f"clip_frac {clip.mean:.1%} in {span(clip)}"
            signs.append(text)
            start = r.since("clip_frac", r.limits.clip_high, above=True)
            evidence.append(r.evidence("clip_frac", text, start))
    decisive = bool(signs)
    moved = r.last("approx_kl")
    if moved is not None:
        looked.append("approx_kl")
        if moved.mean > r.limits.approx_kl_high:
            text = f"approx_kl {moved.mean:.3g} in {span(moved)}"
            signs.append(text)
            evidence.append(r.evidence("approx_kl", text, r.since("approx_kl", r.limits.approx_kl_high, above=True)))
    spiked = spikes(r)
    if spiked is not None:
        looked.append("grad_norm")
        if len(spiked[0]) >= r.limits.gradient_spikes:
            text = f"{len(spiked[0])} gradient spikes"
            signs.append(text)
            evidence.append(r.evidence("grad_norm", text, spiked[0][0], spiked[0][-1]))
    if r.series("kl"):
        looked.append("kl")
        grown = kl_runaway(r)
        if isinstance(grown, Finding) and grown.severity is Severity.WARN:
            signs.append(grown.summary)
            evidence += grown.evidence
    if not looked:
        return NotJudged(
            "learning_rate_too_high", "clip_frac, approx_kl, grad_norm and kl are missing or not conclusive"
        )
    if r.hurt:
        signs.append("the reward fell")
    if not evidence or not (decisive or len(signs) >= 2):
        return None
    return Finding("learning_rate_too_high", Severity.WARN, "; ".join(signs), tuple(evidence))


def learning_rate_too_low(r: Reading) -> Result:
    idle = no_learning(r)
    if isinstance(idle, NotJudged):
        return NotJudged("learning_rate_too_low", idle.why)
    if idle is None or idle.severity is not Severity.WARN or r.hurt:
        return None
    groups, norms = r.last("zero_std_frac"), r.last("grad_norm")
    if groups is not None and groups.mean >= r.limits.dead_groups:
        return None
    if norms is not None and norms.mean == 0.0:
        return None
    signs, evidence, looked = [], [], []
    for curve, limit in (
        ("kl", r.limits.kl_idle),
        ("approx_kl", r.limits.kl_idle / 10.0),
        ("clip_frac", r.limits.clip_idle),
    ):
        window = r.last(curve) if curve == "kl" or r.run.facts.updates_per_rollout != 1 else None
        if window is None:
            continue
        looked.append(curve)
        if abs(window.mean) < limit:
            text = f"{curve} {window.mean:.2g} in {span(window)}"
            signs.append(text)
            evidence.append(r.evidence(curve, text, r.run.steps[0]))
    if not looked:
        return NotJudged(
            "learning_rate_too_low", "no gain, but kl, and clip_frac of several updates per rollout, are missing"
        )
    if len(signs) < len(looked):
        return None
    rate = r.run.facts.lr
    text = f"no gain of reward, and {'; '.join(signs)}" + ("" if rate is None else f", at a learning rate of {rate:g}")
    return Finding("learning_rate_too_low", Severity.WARN, text, tuple(evidence))


def length_explosion(r: Reading) -> Result:
    ends = r.ends("response_length")
    if ends is None:
        return NotJudged("length_explosion", TOO_SHORT.format("response_length"))
    first, last = ends
    cut = r.ends("truncated_frac")
    limit = r.run.facts.max_completion_tokens
    longer = last.mean >= r.limits.length_growth * first.mean
    now_cut = (
        cut is not None and cut[1].mean >= r.limits.cut_share and cut[1].mean - cut[0].mean >= r.limits.cut_share / 2
    )
    at_limit = limit is not None and first.mean < r.limits.near_limit * limit <= last.mean
    if not longer and not now_cut and not at_limit:
        return None
    text = (
        f"{last.mean:.0f} tokens in {span(last)}, {last.mean / first.mean:.1f} times {first.mean:.0f} in {span(first)}"
    )
    start = r.since("response_length", (first.mean + last.mean) / 2.0, above=True)
    evidence = [r.evidence("response_length", text, start)]
    if now_cut and cut is not None:
        cut_text = f"{cut[1].mean:.0%} of completions are cut at the limit in {span(cut[1])}"
        text = f"{text}; {cut_text}"
        evidence.append(r.evidence("truncated_frac", cut_text, cut[1].first_step))
    harmful = r.harmful and r.improved is False
    return Finding("length_explosion", Severity.WARN if harmful else Severity.NOTE, text, tuple(evidence))


def length_collapse(r: Reading) -> Result:
    ends = r.ends("response_length")
    if ends is None:
        return NotJudged("length_collapse", TOO_SHORT.format("response_length"))
    first, last = ends
    if last.mean > r.limits.length_collapse * first.mean:
        return None
    text = f"{last.mean:.0f} tokens in {span(last)}, {last.mean / first.mean:.0%} of {first.mean:.0f} in {span(first)}"
    start = r.since("response_length", r.limits.length_collapse * first.mean, above=False)
    severity = Severity.WARN if r.harmful else Severity.NOTE
    return Finding("length_collapse", severity, text, (r.evidence("response_length", text, start),))


def limit_too_short(r: Reading) -> Result:
    limit = r.run.facts.max_completion_tokens
    first, last = r.first("truncated_frac"), r.last("truncated_frac")
    if first is not None and last is not None:
        whole = statistics.fmean(r.run.known("truncated_frac"))
        if min(first.mean, last.mean, whole) < r.limits.cut_share:
            return None
        text = f"{whole:.0%} of completions (mean over the run) are cut at the limit, from the first window on"
        evidence = (r.evidence("truncated_frac", text, first.first_step),)
    else:
        first, last = r.first("response_length"), r.last("response_length")
        if first is None or last is None or limit is None:
            return NotJudged("limit_too_short", "needs truncated_frac, or response_length and the completion limit")
        whole = statistics.fmean(r.run.known("response_length"))
        if min(first.mean, last.mean, whole) < r.limits.near_limit * limit:
            return None
        text = f"mean length {whole:.0f} of at most {limit} tokens (mean over the run): most completions are cut"
        evidence = (r.evidence("response_length", text, first.first_step),)
    if r.improved:
        return Finding("limit_too_short", Severity.NOTE, f"{text}; the run learns nevertheless", evidence)
    if r.room_to_learn is False:
        return Finding("limit_too_short", Severity.NOTE, f"{text}; the reward is high nevertheless", evidence)
    return Finding("limit_too_short", Severity.WARN, text, evidence)

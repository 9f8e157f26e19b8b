"""Findings about the machinery: weight sync, sampler against learner, staleness, and where the time goes.

Tested in tests/sweeps/protocol/diagnosis/test_diagnose.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from sweeps.protocol.diagnosis.finding import Evidence, Finding, NotJudged, Result
from sweeps.protocol.diagnosis.reading import Reading, span
from sweeps.protocol.gate_rules import Severity
from sweeps.protocol.windows import Window

MISMATCH_CURVES = ("mismatch_kl", "logp_diff_mean")
"""The clearer one first: `mismatch_kl` grows with the square of the difference."""


def weight_sync_broken(r: Reading) -> Result:
    staleness = _grows_by_one(r)
    if staleness is not None:
        return Finding("weight_sync_broken", Severity.STOP, staleness.text, (staleness,))
    grown = _mismatch(r)
    if isinstance(grown, NotJudged):
        if r.run.has("staleness"):
            return None
        return NotJudged("weight_sync_broken", grown.why)
    if grown is None or not _looks_like_no_sync(r):
        return None
    curve, first, last, start = grown
    text = f"{_growth(curve, first, last)}, and the reward of what is sampled does not move"
    return Finding("weight_sync_broken", Severity.CLOSE, text, (r.evidence(curve, text, start),))


def sampler_mismatch(r: Reading) -> Result:
    grown = _mismatch(r)
    if isinstance(grown, NotJudged):
        return NotJudged("sampler_mismatch", grown.why)
    if grown is None or _looks_like_no_sync(r) or _grows_by_one(r) is not None:
        return None
    curve, first, last, start = grown
    text = _growth(curve, first, last)
    return Finding("sampler_mismatch", Severity.WARN, text, (r.evidence(curve, text, start),))


def _mismatch(r: Reading) -> tuple[str, Window, Window, int] | NotJudged | None:
    """The curve that grows steadily from its first window on."""
    judged = False
    for curve in MISMATCH_CURVES:
        ends = r.ends(curve)
        if ends is None:
            continue
        judged = True
        first, last = ends
        # Squared differences grow by the square.
        growth = r.limits.mismatch_growth ** (2 if curve == "mismatch_kl" else 1)
        noise = r.run.facts.logp_noise if curve == "logp_diff_mean" else None
        level = growth * max(first.median, noise or 0.0)
        if last.median > level > 0.0 and _rank_correlation(r.run.known(curve)) >= 0.5:
            return curve, first, last, r.since(curve, level, above=True, median=True)
    return None if judged else NotJudged("", "needs two windows of mismatch_kl or logp_diff_mean")


def _looks_like_no_sync(r: Reading) -> bool:
    """What is sampled does not change: neither reward nor length has a trend although the learner moves away."""
    reward = r.change("reward")
    if reward is None or abs(reward.noise_units) >= r.limits.gain or r.hurt:
        return False
    length = r.change("response_length")
    return length is None or abs(length.noise_units) < r.limits.gain


def _grows_by_one(r: Reading) -> Evidence | None:
    """Staleness that rises by the steps done: no sync advanced the policy version."""
    rows = [(s, v) for s, v in zip(r.run.steps, r.run.values("staleness"), strict=True) if v is not None]
    steps = r.limits.window_steps // 2
    late = [(s, v) for s, v in rows if s > r.run.last_step - steps]
    late = late if len(late) >= 3 else rows[-3:]
    if len(late) < 3 or late[-1][0] - late[0][0] < steps // 2:
        return None
    rise = (late[-1][1] - late[0][1]) / (late[-1][0] - late[0][0])
    if rise < 0.9 or any(later[1] <= earlier[1] for earlier, later in itertools.pairwise(late)):
        return None
    start = next(
        (rows[i][0] for i in range(len(rows) - 1, 0, -1) if rows[i][1] <= rows[i - 1][1]), rows[0][0] if rows else 1
    )
    text = f"staleness rises by {rise:.1f} per step, to {late[-1][1]:g}: no sync advances the policy"
    return r.evidence("staleness", text, start)


def _growth(curve: str, first: Window, last: Window) -> str:
    times = f"{last.median / first.median:.1f} times" if first.median > 0.0 else "up from"
    return f"{curve} {last.median:.3g} in {span(last)}, {times} {first.median:.3g} in {span(first)}"


def _rank_correlation(values: Sequence[float]) -> float:
    """Spearman's, of the values with their order; ties take their mean rank."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for i in range(start, end + 1):
            ranks[order[i]] = (start + end) / 2.0
        start = end + 1
    middle = (len(values) - 1) / 2.0
    spread = math.fsum((rank - middle) ** 2 for rank in ranks)
    time = math.fsum((i - middle) ** 2 for i in range(len(values)))
    if not spread or not time:
        return 0.0
    return math.fsum((i - middle) * (rank - middle) for i, rank in enumerate(ranks)) / math.sqrt(spread * time)


def stale_policy(r: Reading) -> Result:
    ends = r.ends("staleness")
    if ends is None:
        return NotJudged("stale_policy", "the run is too short for two windows of staleness")
    first, last = ends
    if last.mean < 2.0 or last.mean < r.limits.staleness_growth * first.mean or _grows_by_one(r) is not None:
        return None
    # An asynchronous run fills its queue at the start; only growth that goes on is a finding.
    series = r.series("staleness")
    middle = series[len(series) // 2]
    if last.mean < 1.2 * middle.mean:
        return None
    text = f"staleness {last.mean:.1f} in {span(last)}, {first.mean:.1f} in {span(first)}, and still rising"
    start = r.since("staleness", max(2.0, r.limits.staleness_growth * first.mean), above=True)
    return Finding("stale_policy", Severity.WARN, text, (r.evidence("staleness", text, start),))


def rollout_bound(r: Reading) -> Result:
    return _bound_by(r, "rollout_bound", "rollout_seconds")


def training_bound(r: Reading) -> Result:
    return _bound_by(r, "training_bound", "train_seconds")


def _bound_by(r: Reading, name: str, phase: str) -> Result:
    pairs = [
        (part, step)
        for part, step in zip(r.run.values(phase), r.run.values("step_seconds"), strict=True)
        if part is not None and step is not None and step > 0.0
    ]
    if len(pairs) < 5:
        return NotJudged(name, f"fewer than 5 rows with {phase} and step_seconds")
    share = math.fsum(part for part, _ in pairs) / math.fsum(step for _, step in pairs)
    if share < r.limits.phase_share:
        return None
    text = f"{share:.0%} of the step seconds are {phase}"
    return Finding(name, Severity.NOTE, text, (r.evidence(phase, text, r.run.steps[0]),))


def time_outside_steps(r: Reading) -> Result:
    seconds = r.run.values("step_seconds")
    inside = math.fsum(s * steps for s, steps in zip(seconds, r.run.row_steps(), strict=True) if s is not None)
    outside = math.fsum(v for v in r.run.known("outside_step_seconds"))
    if r.run.has("outside_step_seconds"):
        whole = inside + outside
    elif r.run.facts.elapsed_seconds is not None and None not in seconds:
        whole = r.run.facts.elapsed_seconds
        outside = whole - inside
    else:
        return NotJudged("time_outside_steps", "needs step_seconds, and outside_step_seconds or the elapsed time")
    if whole <= 0.0 or outside / whole < r.limits.outside_share:
        return None
    text = f"{outside / whole:.0%} of {whole:.0f} s lie outside of steps"
    evidence = Evidence("step_seconds", text, r.run.steps[0], r.run.last_step)
    return Finding("time_outside_steps", Severity.NOTE, text, (evidence,))

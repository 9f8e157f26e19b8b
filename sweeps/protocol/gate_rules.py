"""The rules of a gate: a small closed language over the curves of a trial, and what a rule finds.

A rule compares an aggregate of the newest window of one curve with a constant, or with the same trial's best or first
window. Its severity decides what a failure does: `stop` ends the trial while it runs, `close` closes the gate after the
stage, `warn` is printed. docs/diagnosis.md explains the language with examples; the rules of each stage are in
`conf/gate/rules/`, and `sweeps/protocol/gate_rule_files.py` reads them.

Rules are evaluated row by row (`RuleProgress.add`), so a rule means the same while a trial runs and after it. A curve
that is missing makes a rule "not judged", with the reason; it never passes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from sweeps.protocol.run_curves import Row, RunCurves
from sweeps.protocol.windows import RollingWindow, RunningNoise, Window, in_noise


class Severity(StrEnum):
    """What a failed rule does, and how bad a finding of the diagnosis is."""

    STOP = "stop"
    """End the trial now: it checkpoints, ends and releases its cards."""
    CLOSE = "close"
    """Close the gate: the stage above does not start."""
    WARN = "warn"
    """Print it; nothing else happens."""
    NOTE = "note"
    """Of the diagnosis only: true and worth knowing, but no reason to act."""


RULE_SEVERITIES = (Severity.STOP, Severity.CLOSE, Severity.WARN)
"""Those that a rule may have."""


Aggregate = Literal["mean", "median", "min", "max", "slope", "share"]
Direction = Literal["below", "above"]


@dataclass(frozen=True)
class Constant:
    """`below 0.5`"""

    value: float


@dataclass(frozen=True)
class TimesOwn:
    """`below 0.2 x best and by 5 noise`: a multiple of a window of the same trial, which must be positive."""

    factor: float
    window: Literal["best", "first"]
    noise: float = 0.0
    """Fails only if the distance to that window is at least this many standard errors of it."""


@dataclass(frozen=True)
class NoiseFromOwn:
    """`below first - 5 noise`: a distance from a window of the same trial; works for values of any sign."""

    noise: float
    window: Literal["best", "first"]


Limit = Constant | TimesOwn | NoiseFromOwn


@dataclass(frozen=True)
class Rule:
    """One rule of a gate. A rule fails where its aggregate is `direction` its `limit`."""

    name: str
    curve: str
    aggregate: Aggregate
    window_steps: int | None
    """Steps that the window covers at least; None: the whole run so far."""
    window_completions: int
    """Completions that the window covers at least; 0: any number."""
    direction: Direction
    limit: Limit
    severity: Severity
    reason: str
    """What a failure means."""
    remedy: str
    """What to do then."""
    cannot_see: str
    """What the rule is blind to."""
    where: tuple[Direction, float] | None = None
    """For `share`: the condition on a single row."""
    after_step: int = 0
    """Rows that end before or at this step are left out."""
    every_trial: bool = False
    """The rule fails for a sweep only if it fails for every judged trial; otherwise one trial is enough."""


@dataclass(frozen=True)
class RuleResult:
    """What one rule found on one trial."""

    rule: str
    severity: Severity
    outcome: Literal["passed", "failed", "not judged"]
    text: str
    """The numbers, or why the rule was not judged."""
    value: float | None = None
    limit: float | None = None
    """The number that `value` was compared with."""
    first_step: int | None = None
    """First and last step of the judged window."""
    last_step: int | None = None
    failed_since: int | None = None
    """The first step of the window with which the present run of failures began."""


@dataclass
class RuleProgress:
    """One rule on one trial, row by row. Rows after a restore that repeat a step are not added again."""

    rule: Rule
    failed: bool = False
    """Whether the rule fails after the last row so far."""
    stopped_at: int | None = None
    """The step at which the rule failed for the first time, even if it passed later."""
    failed_since: int | None = None
    """The first step of the window with which the present run of failures began."""
    _rolling: RollingWindow = field(init=False)
    _noise: RunningNoise = field(init=False, default_factory=RunningNoise)
    _first: _Own | None = None
    _best: _Own | None = None
    _now: _Own | None = None
    _smallest: float = math.inf
    _rows: int = 0

    def __post_init__(self) -> None:
        self._rolling = RollingWindow(self.rule.window_steps or 0, self.rule.window_completions)

    def add(self, row: Row) -> bool:
        """Takes the next row. Returns whether the rule fails after it."""
        rule = self.rule
        if row.step <= rule.after_step:
            return False
        self._rows += 1
        value = row.value(rule.curve)
        if value is None:
            return self.failed
        self._noise.add(value)
        self._smallest = min(self._smallest, value)
        window = self._rolling.add(row.step, row.steps, row.completions, value)
        if window is None:
            return False
        self._now = now = _Own(aggregate(window, rule.aggregate, rule.where), window)
        self._first = self._first or now
        if self._best is None or (
            now.value > self._best.value if rule.direction == "below" else now.value < self._best.value
        ):
            self._best = now
        failed = self._compare(now).failed is True
        if failed:
            self.stopped_at = row.step if self.stopped_at is None else self.stopped_at
            self.failed_since = self.failed_since if self.failed else window.first_step
        else:
            self.failed_since = None
        self.failed = failed
        return failed

    @property
    def result(self) -> RuleResult:
        """What the rule found after the last row so far, with its numbers."""
        rule = self.rule
        if self._now is None:
            return RuleResult(rule.name, rule.severity, "not judged", self._why_no_window())
        compared = self._compare(self._now)
        if compared.failed is None:
            return RuleResult(rule.name, rule.severity, "not judged", self._text(compared))
        window = self._now.window
        return RuleResult(
            rule.name,
            rule.severity,
            "failed" if compared.failed else "passed",
            self._text(compared),
            self._now.value,
            compared.limit,
            window.first_step,
            window.last_step,
            self.failed_since,
        )

    def _why_no_window(self) -> str:
        if not self._rows:
            after = f" after step {self.rule.after_step}" if self.rule.after_step else ""
            return f"no row{after} so far"
        if self._smallest == math.inf:
            return f"{self.rule.curve} is missing in all {self._rows} rows"
        return f"{self.rule.curve} covers {self._rolling.coverage}"

    def _own(self, window: Literal["best", "first"]) -> _Own:
        own = self._best if window == "best" else self._first
        assert own is not None  # set with the first window
        return own

    def _compare(self, now: _Own) -> _Compared:
        limit = self.rule.limit
        if isinstance(limit, Constant):
            return _Compared(self._beyond(now.value, limit.value), limit.value)
        own = self._own(limit.window)
        away = in_noise(now.value - own.value, self._noise.value, now.window, own.window)
        if isinstance(limit, NoiseFromOwn):
            if away is None:
                return _Compared(None, problem=_NO_NOISE)
            far = -away if self.rule.direction == "below" else away
            return _Compared(far > limit.noise, own.value, away)
        if self._smallest < 0.0:
            return _Compared(None, problem="negative")
        if own.value <= 0.0:
            return _Compared(None, problem="zero")
        if limit.noise and away is None:
            return _Compared(None, problem=_NO_NOISE)
        clear = away is None or abs(away) >= limit.noise
        return _Compared(clear and self._beyond(now.value, limit.factor * own.value), limit.factor * own.value, away)

    def _beyond(self, value: float, limit: float) -> bool:
        return value < limit if self.rule.direction == "below" else value > limit

    def _text(self, compared: _Compared) -> str:
        rule, limit, now = self.rule, self.rule.limit, self._now
        assert now is not None
        window = now.window
        what = (
            f"{rule.aggregate} of {rule.curve} over steps {window.first_step} to {window.last_step} is {now.value:.4g}"
        )
        if isinstance(limit, Constant):
            return f"{what}, limit {limit.value:g}"
        own = self._own(limit.window)
        own_text = f"{limit.window} window (steps {own.window.first_step} to {own.window.last_step}) {own.value:.4g}"
        match compared.problem:
            case "negative":
                return (
                    f"{rule.curve} has negative values (down to {self._smallest:.4g}), so a ratio has no meaning; "
                    "compare in noise instead"
                )
            case "zero":
                return f"the {own_text} is not positive, so there is no ratio to it"
            case "no noise":
                return f"too few rows to measure the noise of {rule.curve}"
        away = compared.away or 0.0
        if isinstance(limit, NoiseFromOwn):
            return f"{what}, {away:+.1f} noise from the {own_text}, limit {limit.noise:g} noise {rule.direction}"
        text = f"{what}, {now.value / own.value:.3g} times the {own_text}, limit {limit.factor:g} times"
        return f"{text}; {abs(away):.1f} noise away, at least {limit.noise:g} needed" if limit.noise else text


_NO_NOISE = "no noise"


@dataclass(frozen=True)
class _Own:
    """The aggregate of a window of the trial."""

    value: float
    window: Window


@dataclass(frozen=True)
class _Compared:
    failed: bool | None
    """None: cannot be judged, for the reason in `problem`."""
    limit: float | None = None
    away: float | None = None
    """From the trial's own window, in noise."""
    problem: str = ""


def aggregate(window: Window, name: Aggregate, where: tuple[Direction, float] | None = None) -> float:
    """One number for a window. `slope` is the least-squares change per 100 steps; of a single row it is 0."""
    match name:
        case "mean":
            return window.mean
        case "median":
            return window.median
        case "min":
            return min(window.values)
        case "max":
            return max(window.values)
        case "share":
            if where is None:
                raise ValueError("the aggregate share needs a condition")
            direction, limit = where
            met = [v < limit if direction == "below" else v > limit for v in window.values]
            return sum(met) / len(met)
        case "slope":
            if window.rows == 1:
                return 0.0
            middle, mean = (window.rows - 1) / 2.0, window.mean
            rising = math.fsum((i - middle) * (v - mean) for i, v in enumerate(window.values))
            per_row = rising / math.fsum((i - middle) ** 2 for i in range(window.rows))
            return per_row * 100.0 * window.rows / window.steps


def judge(rule: Rule, run: RunCurves) -> RuleProgress:
    """One rule on all rows of a run."""
    progress = RuleProgress(rule)
    for row in run.rows():
        progress.add(row)
    return progress


def first_stop(rules: Sequence[Rule], run: RunCurves) -> RuleResult | None:
    """The result with which a `stop` rule would have ended this run first; None: none would have."""
    running = [RuleProgress(rule) for rule in rules if rule.severity is Severity.STOP]
    for row in run.rows():
        for progress in running:
            if progress.add(row):
                return progress.result
    return None


@dataclass(frozen=True)
class SweepResult:
    """What one rule found on all trials of a sweep."""

    rule: str
    severity: Severity
    outcome: Literal["passed", "failed", "not judged"]
    text: str
    failed: tuple[str, ...]
    """Trials for which the rule failed."""
    not_judged: tuple[str, ...]


def over_trials(rule: Rule, results: Mapping[str, RuleResult]) -> SweepResult:
    """One rule over the trials of a sweep, from its result per trial. Trials that were not judged count for nothing."""
    failed = tuple(t for t, r in results.items() if r.outcome == "failed")
    silent = tuple(t for t, r in results.items() if r.outcome == "not judged")
    judged = len(results) - len(silent)
    if not judged:
        why = sorted({r.text for r in results.values()}) or ["no trial"]
        return SweepResult(rule.name, rule.severity, "not judged", "; ".join(why), (), silent)
    fails = len(failed) == judged if rule.every_trial else bool(failed)
    text = f"failed in {len(failed)} of {judged} judged trials"
    if silent:
        text += f", {len(silent)} not judged"
    if failed:
        text += "; " + "; ".join(f"{trial}: {results[trial].text}" for trial in failed)
    return SweepResult(rule.name, rule.severity, "failed" if fails else "passed", text, failed, silent)

"""Reads the rules of a gate from YAML (`conf/gate/rules/*.yaml`) and refuses rules that cannot work.

A file has one key, `rules`, with a list. Every problem of a file is reported at once, one sentence each: what is wrong,
where, and what would be right. docs/diagnosis.md describes every key.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sweeps.protocol.gate_rules import (
    RULE_SEVERITIES,
    Aggregate,
    Constant,
    Direction,
    Limit,
    NoiseFromOwn,
    Rule,
    Severity,
    TimesOwn,
)
from sweeps.protocol.run_curves import CURVES, PART, curve_kind, is_curve

AGGREGATES = typing.get_args(Aggregate)
REQUIRED = ("name", "curve", "aggregate", "window", "fails", "severity", "reason", "remedy", "cannot_see")
OPTIONAL = ("where", "after_step", "trials")
_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
_CONSTANT = re.compile(rf"(below|above) {_NUMBER}")
_TIMES_OWN = re.compile(rf"(below|above) {_NUMBER} x (best|first)(?: and by {_NUMBER} noise)?")
_NOISE = re.compile(rf"(below|above) (best|first) ([-+]) {_NUMBER} noise")
FORMS = (
    '"below 0.5", "above 3 x first", "below 0.2 x best and by 5 noise", "below first - 5 noise" '
    "(below or above; best or first)"
)


class GateRuleError(ValueError):
    """The rules cannot be used. `problems` has one sentence per problem."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


def parse_rules(
    text: str, *, file: str = "gate rules", stage_steps: int | None = None, completions_per_step: int | None = None
) -> tuple[Rule, ...]:
    """The rules of a YAML text.

    Args:
        file: name of the file, for messages.
        stage_steps: steps of the stage that the rules are for; None: lengths of windows are not checked.
        completions_per_step: of the smallest trial; None: windows in completions are not checked.

    Raises:
        GateRuleError: the text is no YAML, or a rule cannot work.
    """
    import yaml

    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise GateRuleError([f"{file}: no valid YAML: {' '.join(str(error).split())}"]) from None
    if not isinstance(data, dict) or list(data) != ["rules"] or not isinstance(data["rules"], list):
        raise GateRuleError([f"{file}: expected one key, `rules`, with a list of rules"])
    if not data["rules"]:
        raise GateRuleError([f"{file}: the list `rules` is empty, so no gate could ever close"])
    problems: list[str] = []
    rules = []
    for number, entry in enumerate(data["rules"], start=1):
        name = entry.get("name") if isinstance(entry, dict) else None
        found = _Problems(f"{file}: rule {number}" + (f" ({name})" if isinstance(name, str) else ""))
        rule = _rule(entry, found, stage_steps, completions_per_step)
        if rule is not None and not found.sentences:
            rules.append(rule)
        problems += found.sentences
    problems += [f"{file}: {sentence}" for sentence in (*_twice(rules), *_contradictions(rules))]
    if problems:
        raise GateRuleError(problems)
    return tuple(rules)


class _Problems:
    def __init__(self, place: str) -> None:
        self.place = place
        self.sentences: list[str] = []

    def add(self, sentence: str) -> None:
        self.sentences.append(f"{self.place}: {sentence}")


def _rule(entry: Any, found: _Problems, stage_steps: int | None, completions_per_step: int | None) -> Rule | None:
    if not isinstance(entry, dict):
        found.add("a rule is a mapping of keys to values")
        return None
    for key in entry:
        if key not in (*REQUIRED, *OPTIONAL):
            found.add(f"unknown key `{key}`{_meant(str(key), (*REQUIRED, *OPTIONAL))}")
    if missing := [key for key in REQUIRED if key not in entry]:
        found.add(f"missing {', '.join(f'`{key}`' for key in missing)}")
        return None
    texts = {key: entry[key] for key in ("name", "reason", "remedy", "cannot_see")}
    for key, value in texts.items():
        if not isinstance(value, str) or not value.strip():
            found.add(f"`{key}` must be a text")
    curve, aggregate = entry["curve"], entry["aggregate"]
    if not isinstance(curve, str) or not is_curve(curve):
        found.add(f"unknown curve `{curve}`{_meant(str(curve), CURVES)}")
    if aggregate not in AGGREGATES:
        found.add(f"unknown aggregate `{aggregate}`{_meant(str(aggregate), AGGREGATES)}")
    severity = entry["severity"]
    if severity not in RULE_SEVERITIES:
        found.add(f"unknown severity `{severity}`{_meant(str(severity), RULE_SEVERITIES)}")
    steps, completions = _window(entry["window"], found)
    after_step = entry.get("after_step", 0)
    if not _whole(after_step) or after_step < 0:
        found.add(f"`after_step` is {after_step!r}, expected a number of steps, 0 or more")
        after_step = 0
    where = _where(entry.get("where"), aggregate, found)
    limit = _limit(entry["fails"], found)
    trials = entry.get("trials", "any")
    if trials not in ("any", "every"):
        found.add(f"`trials` is {trials!r}, expected any or every")
    if severity == Severity.STOP and trials == "every":
        found.add("`severity: stop` ends a single trial while it runs, so `trials: every` cannot apply to it")
    if found.sentences or limit is None:
        return None
    rule = Rule(
        texts["name"],
        curve,
        aggregate,
        steps,
        completions,
        limit[0],
        limit[1],
        Severity(severity),
        texts["reason"],
        texts["remedy"],
        texts["cannot_see"],
        where,
        after_step,
        trials == "every",
    )
    too_long = () if stage_steps is None else why_never_judged(rule, stage_steps, completions_per_step)
    for sentence in (*too_long, *_pointless(rule)):
        found.add(sentence)
    return rule


def _window(value: Any, found: _Problems) -> tuple[int | None, int]:
    if value == "whole run":
        return None, 0
    form = "expected `whole run`, or {steps: N} with, if wanted, {completions: M}"
    if not isinstance(value, dict) or set(value) - {"steps", "completions"} or "steps" not in value:
        found.add(f"`window` is {value!r}, {form}")
        return None, 0
    steps, completions = value["steps"], value.get("completions", 0)
    if not _whole(steps) or steps < 1 or not _whole(completions) or completions < 0:
        found.add(f"`window` is {value!r}; steps and completions are counts, steps at least 1")
        return None, 0
    return steps, completions


def _where(value: Any, aggregate: Any, found: _Problems) -> tuple[Direction, float] | None:
    if (aggregate == "share") != (value is not None):
        found.add('`where` (for example "above 0.5") belongs to `aggregate: share`, and to no other')
        return None
    if value is None:
        return None
    if not (match := _CONSTANT.fullmatch(str(value).strip())):
        found.add(f'`where` is {value!r}, expected for example "above 0.5"')
        return None
    return typing.cast(Direction, match[1]), float(match[2])


def _limit(value: Any, found: _Problems) -> tuple[Direction, Limit] | None:
    text = " ".join(str(value).split())
    if match := _CONSTANT.fullmatch(text):
        return typing.cast(Direction, match[1]), Constant(float(match[2]))
    if match := _TIMES_OWN.fullmatch(text):
        limit = TimesOwn(float(match[2]), typing.cast(Any, match[3]), float(match[4] or 0.0))
        return typing.cast(Direction, match[1]), limit
    if match := _NOISE.fullmatch(text):
        if (match[1] == "below") != (match[3] == "-"):
            found.add(f"`fails` is {text!r}: below goes with -, above goes with +")
            return None
        return typing.cast(Direction, match[1]), NoiseFromOwn(float(match[4]), typing.cast(Any, match[2]))
    found.add(f"`fails` is {text!r}, expected a form like {FORMS}")
    return None


def why_never_judged(rule: Rule, stage_steps: int, completions_per_step: int | None) -> tuple[str, ...]:
    """Why a stage of this length is too short for the rule; empty: it is long enough."""
    return tuple(_too_long(rule, stage_steps, completions_per_step))


def _too_long(rule: Rule, stage_steps: int, completions_per_step: int | None) -> Iterable[str]:
    left = stage_steps - rule.after_step
    steps = rule.window_steps or 1
    if steps > left:
        after = f" after step {rule.after_step}" if rule.after_step else ""
        yield f"the window covers {steps} steps, the stage has {left}{after}, so the rule would never be judged"
    elif rule.window_steps and not isinstance(rule.limit, Constant) and 2 * steps > left:
        yield (
            f"the window covers {steps} of the stage's {left} steps, so the {rule.limit.window} window overlaps the "
            f"last; at most {left // 2} steps"
        )
    if completions_per_step is not None and rule.window_completions > left * completions_per_step:
        yield (
            f"the window covers {rule.window_completions} completions, a trial of this stage has "
            f"{left * completions_per_step}, so the rule would never be judged"
        )


def _pointless(rule: Rule) -> Iterable[str]:
    """Rules that every value fails, and rules that no value can fail."""
    limit, below = rule.limit, rule.direction == "below"
    if not isinstance(limit, Constant):
        if rule.aggregate == "slope" or (rule.aggregate == "share" and isinstance(limit, NoiseFromOwn)):
            yield f"`aggregate: {rule.aggregate}` is compared with a constant only"
        elif rule.aggregate not in ("mean", "median") and (isinstance(limit, NoiseFromOwn) or limit.noise):
            yield f"noise is that of a mean; `aggregate: {rule.aggregate}` has no such scale"
        if rule.window_steps is None:
            yield f"the whole run cannot be compared with its own {limit.window} window; give the window in steps"
    lowest, highest = _bounds(rule)
    if isinstance(limit, Constant):
        if (below and limit.value > highest) or (not below and limit.value < lowest):
            yield f"nothing can satisfy it: {_subject(rule)} lies between {lowest:g} and {highest:g}"
        elif (below and limit.value <= lowest) or (not below and limit.value >= highest):
            yield f"it can never fail: {_subject(rule)} lies between {lowest:g} and {highest:g}"
    elif isinstance(limit, TimesOwn):
        if limit.factor <= 0.0:
            yield f"the factor is {limit.factor:g}, expected more than 0"
        elif limit.window == "best" and (limit.factor > 1.0 if below else limit.factor < 1.0):
            best = "highest" if below else "lowest"
            yield f"nothing can satisfy it: for {rule.direction}, best is the {best} window so far"
    elif limit.noise == 0.0 and limit.window == "best":
        yield "it would fail for every window but the best; give a distance in noise"


def _bounds(rule: Rule) -> tuple[float, float]:
    if rule.aggregate == "share":
        return 0.0, 1.0
    if rule.aggregate == "slope":
        return -math.inf, math.inf
    kind = curve_kind(rule.curve)
    return kind.lowest, kind.highest


def _subject(rule: Rule) -> str:
    return "a share" if rule.aggregate == "share" else rule.curve


def _twice(rules: Sequence[Rule]) -> Iterable[str]:
    seen: set[str] = set()
    for rule in rules:
        if rule.name in seen:
            yield f"two rules are named {rule.name!r}"
        seen.add(rule.name)


def _contradictions(rules: Sequence[Rule]) -> Iterable[str]:
    """Two constant limits on the same number that leave no value."""
    for one, other in itertools.combinations(rules, 2):
        same = all(
            getattr(one, key) == getattr(other, key)
            for key in ("curve", "aggregate", "window_steps", "window_completions", "where", "after_step")
        )
        if not same or not isinstance(one.limit, Constant) or not isinstance(other.limit, Constant):
            continue
        low, high = (one, other) if one.direction == "below" else (other, one)
        if low.direction == "below" and high.direction == "above" and _value(low) > _value(high):
            yield (
                f"nothing can satisfy {low.name!r} and {high.name!r} together: {low.aggregate} of {low.curve} would "
                f"have to be at least {_value(low):g} and at most {_value(high):g}"
            )


def _value(rule: Rule) -> float:
    assert isinstance(rule.limit, Constant)
    return rule.limit.value


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _meant(given: str, known: Iterable[str] | Mapping[str, Any]) -> str:
    known = list(known)
    close = difflib.get_close_matches(given, known, n=1)
    extra = f", {PART}NAME" if "reward_std" in known else ""
    return f"; did you mean `{close[0]}`?" if close else f"; known: {', '.join(known)}{extra}"

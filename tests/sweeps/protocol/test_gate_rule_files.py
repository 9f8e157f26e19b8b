"""Files of gate rules: what is shipped works, and every mistake has one clear sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sweeps.config.overrides import CONF_DIR
from sweeps.protocol.gate_rule_files import GateRuleError, parse_rules
from sweeps.protocol.gate_rules import Constant, NoiseFromOwn, Severity, TimesOwn, first_stop
from tests.sweeps.protocol.curves import a_run, collapsing, curve

FILES = sorted((CONF_DIR / "gate" / "rules").glob("*.yaml"))
STEPS = {"smoke": 20, "single": 200, "multi": 200}
GOOD: dict[str, Any] = {
    "name": "collapse",
    "curve": "reward",
    "aggregate": "mean",
    "window": {"steps": 20, "completions": 64},
    "fails": "below 0.2 x best and by 5 noise",
    "severity": "stop",
    "reason": "it died",
    "remedy": "start again",
    "cannot_see": "the rest",
}


def problems(*rules: Any, **limits: Any) -> tuple[str, ...]:
    with pytest.raises(GateRuleError) as caught:
        parse_rules(yaml.safe_dump({"rules": list(rules)}), file="f.yaml", **limits)
    return caught.value.problems


def parsed(**changes: Any):
    entry = {k: v for k, v in (GOOD | changes).items() if v is not None}
    (rule,) = parse_rules(yaml.safe_dump({"rules": [entry]}))
    return rule


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_the_shipped_rules_are_valid_for_their_stage(path: Path) -> None:
    rules = parse_rules(path.read_text(), file=path.name, stage_steps=STEPS[path.stem], completions_per_step=16)
    assert len(rules) >= 5


def test_there_are_rules_for_every_stage() -> None:
    assert {p.stem for p in FILES} == set(STEPS)


def test_the_shipped_rules_of_a_long_stage_stop_a_dead_run() -> None:
    rules = parse_rules((CONF_DIR / "gate/rules/single.yaml").read_text())
    dead = collapsing()
    stop = first_stop(rules, dead)
    assert stop is not None
    assert (stop.rule, stop.severity) == ("reward collapsed", Severity.STOP)
    assert first_stop(rules, a_run(200, reward=curve(0.9, noise=0.05))) is None


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("below 0.5", Constant(0.5)),
        ("above 1e-3", Constant(0.001)),
        ("below 0.2 x best", TimesOwn(0.2, "best")),
        ("above 3 x first", TimesOwn(3.0, "first")),
        ("below 0.2 x best and by 5 noise", TimesOwn(0.2, "best", 5.0)),
        ("below first - 5 noise", NoiseFromOwn(5.0, "first")),
        ("above  best +  2.5 noise", NoiseFromOwn(2.5, "best")),
    ],
)
def test_every_form_of_a_limit(text: str, limit: object) -> None:
    rule = parsed(fails=text)
    assert rule.limit == limit
    assert rule.direction == text.split()[0]


def test_optional_keys() -> None:
    rule = parsed(severity="close", trials="every", after_step=20, window="whole run", fails="below 0.5")
    assert (rule.every_trial, rule.after_step, rule.window_steps, rule.window_completions) == (True, 20, None, 0)
    share = parsed(aggregate="share", where="above 0.9", fails="above 0.5", curve="truncated_frac")
    assert share.where == ("above", 0.9)
    assert parsed(curve="reward_part/format").curve == "reward_part/format"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"curve": "rewrad"}, "unknown curve `rewrad`; did you mean `reward`?"),
        ({"curve": "zzz"}, "unknown curve `zzz`; known: reward, acc"),
        ({"aggregate": "avg"}, "unknown aggregate `avg`; known: mean, median, min, max, slope, share"),
        ({"severity": "stopp"}, "unknown severity `stopp`; did you mean `stop`?"),
        ({"severity": "note"}, "unknown severity `note`"),
        ({"fails": "under 0.5"}, "`fails` is 'under 0.5', expected a form like"),
        ({"fails": "below first + 5 noise"}, "below goes with -, above goes with +"),
        ({"window": 20}, "`window` is 20, expected `whole run`, or {steps: N}"),
        ({"window": {"rows": 20}}, "expected `whole run`, or {steps: N}"),
        ({"window": {"steps": 0}}, "counts, steps at least 1"),
        ({"window": {"steps": True}}, "counts, steps at least 1"),
        ({"after_step": -1}, "`after_step` is -1, expected a number of steps"),
        ({"where": "above 0.5"}, '`where` (for example "above 0.5") belongs to `aggregate: share`'),
        ({"aggregate": "share", "fails": "above 0.5"}, "belongs to `aggregate: share`"),
        ({"aggregate": "share", "where": "high", "fails": "above 0.5"}, "`where` is 'high'"),
        ({"trials": "some"}, "`trials` is 'some', expected any or every"),
        ({"trials": "every"}, "`severity: stop` ends a single trial"),
        ({"reason": ""}, "`reason` must be a text"),
        ({"remedy": None}, "missing `remedy`"),
        ({"colour": "red"}, "unknown key `colour`"),
        ({"windows": {"steps": 1}}, "unknown key `windows`; did you mean `window`?"),
        ({"curve": "acc", "fails": "below 1.5"}, "nothing can satisfy it: acc lies between 0 and 1"),
        ({"curve": "acc", "fails": "above -0.5"}, "nothing can satisfy it: acc lies between 0 and 1"),
        ({"curve": "acc", "fails": "below 0"}, "it can never fail: acc lies between 0 and 1"),
        ({"curve": "truncated_frac", "fails": "above 1"}, "it can never fail: truncated_frac lies between 0 and 1"),
        ({"curve": "entropy", "fails": "below 0"}, "it can never fail: entropy lies between 0 and inf"),
        ({"aggregate": "share", "where": "above 0.5", "fails": "above 1"}, "it can never fail: a share lies between 0"),
        ({"fails": "below 1.5 x best"}, "nothing can satisfy it: for below, best is the highest window so far"),
        ({"fails": "above 0.5 x best"}, "nothing can satisfy it: for above, best is the lowest window so far"),
        ({"fails": "below 0 x best"}, "the factor is 0, expected more than 0"),
        ({"fails": "below best - 0 noise"}, "it would fail for every window but the best"),
        ({"aggregate": "slope", "fails": "below 0.5 x first"}, "`aggregate: slope` is compared with a constant only"),
        ({"aggregate": "max"}, "noise is that of a mean; `aggregate: max` has no such scale"),
        ({"window": "whole run"}, "the whole run cannot be compared with its own best window"),
    ],
)
def test_every_mistake_has_one_sentence_with_its_place(changes: dict, sentence: str) -> None:
    entry = {k: v for k, v in (GOOD | changes).items() if v is not None}
    (only,) = problems(entry)
    assert only.startswith("f.yaml: rule 1 (collapse): ")
    assert sentence in only


@pytest.mark.parametrize(
    ("changes", "limits", "sentence"),
    [
        ({"window": {"steps": 30}}, {"stage_steps": 20}, "the window covers 30 steps, the stage has 20, so the rule"),
        ({"after_step": 15}, {"stage_steps": 20}, "the stage has 5 after step 15"),
        (
            {"window": {"steps": 15}},
            {"stage_steps": 20},
            "covers 15 of the stage's 20 steps, so the best window overlaps",
        ),
        (
            {"window": {"steps": 10, "completions": 1000}},
            {"stage_steps": 20, "completions_per_step": 16},
            "covers 1000 completions, a trial of this stage has 320",
        ),
    ],
)
def test_a_window_longer_than_the_stage_is_refused(changes: dict, limits: dict, sentence: str) -> None:
    (only,) = problems(GOOD | changes, **limits)
    assert sentence in only


def test_two_rules_that_leave_no_value_are_refused() -> None:
    low = GOOD | {"name": "low", "fails": "below 0.6"}
    high = GOOD | {"name": "high", "fails": "above 0.4"}
    (only,) = problems(low, high)
    assert only == (
        "f.yaml: nothing can satisfy 'low' and 'high' together: "
        "mean of reward would have to be at least 0.6 and at most 0.4"
    )
    parse_rules(yaml.safe_dump({"rules": [low | {"fails": "below 0.4"}, high | {"fails": "above 0.6"}]}))


def test_two_rules_of_one_name_are_refused() -> None:
    assert problems(GOOD, GOOD) == ("f.yaml: two rules are named 'collapse'",)


def test_all_problems_of_a_file_are_reported_at_once() -> None:
    found = problems(GOOD | {"curve": "rewrad", "severity": "kill"}, "no mapping", GOOD | {"name": "b", "fails": "x"})
    assert len(found) == 4
    assert found[2] == "f.yaml: rule 2: a rule is a mapping of keys to values"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "expected one key, `rules`"),
        ("rules: 3", "expected one key, `rules`"),
        ("checks: []", "expected one key, `rules`"),
        ("rules: []", "the list `rules` is empty"),
        ("rules: [", "no valid YAML"),
    ],
)
def test_a_file_without_rules_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(GateRuleError, match=r"f\.yaml: ") as caught:
        parse_rules(text, file="f.yaml")
    assert len(caught.value.problems) == 1
    assert sentence in str(caught.value)

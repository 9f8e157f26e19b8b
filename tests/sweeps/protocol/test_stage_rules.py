"""Which rules a stage has, and what is refused before anything is billed."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeps.config.build import compose
from sweeps.config.types import ConfigError
from sweeps.protocol.stage_rules import stage_rules

RULE = """
  - name: {name}
    curve: {curve}
    aggregate: mean
    window: {{steps: {steps}}}
    fails: {fails}
    severity: close
    reason: r
    remedy: r
    cannot_see: c
"""


def a_file(folder: Path, **changes: object) -> str:
    values = {"name": "a", "curve": "acc", "steps": 5, "fails": "below 0.1"} | changes
    path = folder / "rules.yaml"
    path.write_text("rules:" + RULE.format(**values))
    return f"gate.rules={path}"


@pytest.mark.parametrize("stage", ["smoke", "single", "multi"])
def test_a_stage_of_its_own_length_has_every_rule_of_its_file(stage: str) -> None:
    found = stage_rules(compose([f"+stage={stage}", "trainer=simulated"]))
    assert len(found.rules) >= 5
    assert found.left_out == ()


def test_a_shortened_stage_leaves_out_the_rules_that_it_is_too_short_for_and_names_them() -> None:
    found = stage_rules(compose(["+stage=smoke", "stage.steps=4"]))
    assert [text.split(":")[0] for text in found.left_out] == ["reward fell"]
    assert "covers 10 steps" in found.left_out[0]
    assert "reward fell" not in [rule.name for rule in found.rules]


def test_a_file_of_rules_replaces_those_of_the_stage(tmp_path: Path) -> None:
    found = stage_rules(compose(["+stage=smoke", a_file(tmp_path)]))
    assert [rule.name for rule in found.rules] == ["a"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"curve": "rewrad"}, "unknown curve `rewrad`; did you mean `reward`?"),
        ({"steps": 21}, "the window covers 21 steps, the stage has 20"),
        ({"fails": "above -1"}, "nothing can satisfy it: acc lies between 0 and 1"),
        ({"fails": "below 0"}, "it can never fail"),
    ],
)
def test_a_rule_that_cannot_work_is_a_configuration_error(tmp_path: Path, changes: dict, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        stage_rules(compose(["+stage=smoke", a_file(tmp_path, **changes)]))
    assert text in str(caught.value)


def test_a_file_that_cannot_be_read_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: the file cannot be read \(No such file"):
        stage_rules(compose(["+stage=smoke", f"gate.rules={tmp_path}/none.yaml"]))
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        stage_rules(compose(["+stage=smoke", f"gate.rules={tmp_path}/binary.yaml"]))


def test_the_key_of_the_removed_limit_names_the_rule_that_has_it_now() -> None:
    with pytest.raises(ConfigError, match="sampler agrees with learner"):
        compose(["+stage=smoke", "gate.max_logp_diff=0.1"])

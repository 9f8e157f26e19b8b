"""What identifies a trial and a recipe: settings that differ from their defaults, and the content of files."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from rl import spec
from rl.codec import to_json
from rl.spec import AlgorithmSpec
from sweeps.config import identity
from sweeps.config.build import canonical, compose
from sweeps.config.diff import changed_keys
from sweeps.config.identity import content_of, with_defaults, without_defaults
from sweeps.config.types import SweepConfig
from sweeps.journal.events import GateCheck, GateVerdict
from sweeps.journal.journal import SweepRecord
from sweeps.planning.plan import make_plan
from sweeps.protocol.promotion import promotion, recipe_hash


@dataclass(frozen=True)
class NewerAlgorithm(AlgorithmSpec):
    """The section `algorithm` with a new key."""

    made_up: str = "off"


@pytest.fixture
def newer(monkeypatch) -> None:
    monkeypatch.setattr(spec, "AlgorithmSpec", NewerAlgorithm)


def newer_config(cfg: SweepConfig, made_up: str) -> SweepConfig:
    fields = {f.name: getattr(cfg.algorithm, f.name) for f in dataclasses.fields(AlgorithmSpec)}
    return replace(cfg, algorithm=NewerAlgorithm(**fields, made_up=made_up))


def ids(cfg: SweepConfig) -> list[str]:
    return [t.trial_id for t in make_plan(cfg).trials]


def an_open_smoke(cfg: SweepConfig) -> SweepRecord:
    record = SweepRecord("smoke-1")
    record.stage, record.config = "smoke", canonical(cfg)
    record.gate = GateVerdict("metric", (GateCheck("ok", True, ""),), simulated=False)
    return record


def test_a_new_key_at_its_default_changes_no_trial_no_plan_and_no_gate(newer):
    old = compose(["+stage=smoke"])
    assert ids(newer_config(old, "off")) == ids(old)
    assert make_plan(newer_config(old, "off")).digest == make_plan(old).digest
    step = promotion([an_open_smoke(old)], newer_config(compose(["+stage=single"]), "off"))
    assert step.problem == ""
    assert not any("made_up" in change for change in step.changes)


def test_a_new_key_with_another_value_changes_every_trial_and_is_named_at_the_closed_gate(newer):
    old = compose(["+stage=smoke"])
    assert not set(ids(newer_config(old, "on"))) & set(ids(old))
    step = promotion([an_open_smoke(old)], newer_config(compose(["+stage=single"]), "on"))
    assert "algorithm.made_up: off -> on" in step.problem


def test_a_typed_default_is_the_same_trial_as_an_absent_key():
    body = to_json(AlgorithmSpec("grpo"))
    assert without_defaults("algorithm", body) == {"name": "grpo"}
    assert without_defaults("algorithm", body | {"lr": 2.0}) == {"name": "grpo", "lr": 2.0}


def test_a_changed_default_keeps_the_ids_of_the_former_value(monkeypatch):
    @dataclass(frozen=True)
    class WithAnotherDefault(AlgorithmSpec):
        adam_beta2: float = 0.95

    before = without_defaults("algorithm", to_json(AlgorithmSpec("grpo", adam_beta2=0.999)))
    monkeypatch.setattr(spec, "AlgorithmSpec", WithAnotherDefault)
    monkeypatch.setattr(identity, "FORMER_DEFAULTS", {"algorithm.adam_beta2": 0.999})
    assert without_defaults("algorithm", to_json(WithAnotherDefault("grpo", adam_beta2=0.999))) == before
    assert without_defaults("algorithm", to_json(WithAnotherDefault("grpo"))) == before | {"adam_beta2": 0.95}


def test_a_journal_from_before_a_key_existed_is_compared_with_the_key_at_its_default(newer):
    old = canonical(compose(["+stage=smoke"]))
    new = canonical(newer_config(compose(["+stage=smoke"]), "on"))
    assert changed_keys(with_defaults(old), new) == ["algorithm.made_up: off -> on"]


FILE_TASK = ("task=module", "task.kind=file", "task.name=mine", "task.path=mine.jsonl")


@pytest.fixture
def with_file(tmp_path: Path, monkeypatch) -> tuple[str, ...]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.jsonl").write_text("")
    return FILE_TASK


def test_other_questions_or_weights_are_other_trials_and_close_the_gate_by_name(with_file):
    cfg = replace(compose(["+stage=smoke", *with_file]), content={"task.path=mine.jsonl": "aaa"})
    other = replace(cfg, content={"task.path=mine.jsonl": "bbb"})
    assert not set(ids(cfg)) & set(ids(other))
    assert recipe_hash(canonical(cfg)) != recipe_hash(canonical(other))
    single = compose(["+stage=single", *with_file])
    assert promotion([an_open_smoke(cfg)], replace(single, content=cfg.content)).problem == ""
    step = promotion([an_open_smoke(cfg)], replace(single, content=other.content))
    assert "content.questions: aaa -> bbb" in step.problem


def test_the_content_of_other_recipes_of_a_search_does_not_matter(with_file):
    cfg = replace(compose(["+stage=smoke", *with_file]), content={"task.path=mine.jsonl": "aaa"})
    more = replace(cfg, content={"task.path=mine.jsonl": "aaa", "task.path=yours.jsonl": "ccc"})
    assert ids(cfg) == ids(more)
    assert content_of(canonical(more)) == {"questions": "aaa"}

"""The checks of the native trainer with the tiny model, and with a sync and a sampler that are broken."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rl.checks.result import CheckResult
from rl.rollout.transformers_engine import TransformersEngine
from rl.trainers.native import preflight
from rl.trainers.native.preflight import check_model
from tests.rl.trainers.native.test_trainer import trial


def checks(model_cache: Path, folder: Path, **changes: object) -> dict[str, CheckResult]:
    spec = trial(model_cache, folder, task={"eval_questions": 32, "format_pattern": r"\d$"}, **changes)
    return {r.name: r for r in check_model(spec, sample_seconds=20.0, show=lambda text: None)}


@pytest.fixture(scope="module")
def healthy(model_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, CheckResult]:
    return checks(model_cache, tmp_path_factory.mktemp("checkpoint"))


def test_a_healthy_trial_passes_all_checks(healthy: dict[str, CheckResult]) -> None:
    assert list(healthy) == [
        *("model", "tokenizer and chat template", "base accuracy", "groups that teach", "loss mask"),
        *("on-policy ratio", "sampler against learner", "weight sync", "checkpoint"),
    ]
    assert {r.status for r in healthy.values()} <= {"passed", "warned"}
    for name in ("loss mask", "on-policy ratio", "sampler against learner", "weight sync", "checkpoint"):
        assert healthy[name].status == "passed"


def test_the_checks_print_what_they_saw(healthy: dict[str, CheckResult]) -> None:
    assert "mean ratio 1.0000" in healthy["on-policy ratio"].seen
    assert "8 groups of 4 sampled" in healthy["groups that teach"].seen
    assert "noise floor" in healthy["sampler against learner"].seen
    assert "policy version 1" in healthy["weight sync"].seen
    assert "equal bit for bit" in healthy["checkpoint"].seen


def test_a_sync_that_copies_nothing_fails(model_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sync_nothing(self: TransformersEngine, policy: object, version: int) -> None:
        self._version = version

    monkeypatch.setattr(TransformersEngine, "sync", sync_nothing)
    assert checks(model_cache, tmp_path)["weight sync"].status == "failed"


def test_a_checkpoint_that_reads_other_weights_fails(
    model_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rl import checkpoint

    read = checkpoint.read

    def read_zeros(path: Path) -> checkpoint.CheckpointContents:
        found = read(path)
        tensors = {part: {n: t * 0 for n, t in named.items()} for part, named in found.tensors.items()}
        return replace(found, tensors=tensors)

    monkeypatch.setattr(checkpoint, "read", read_zeros)
    assert checks(model_cache, tmp_path)["checkpoint"].status == "failed"


def test_a_sampler_with_other_log_probabilities_than_the_learner_fails() -> None:
    assert preflight._noise_floor("vllm", 0.5, 1.0, 0.2).status == "failed"
    assert preflight._noise_floor("vllm", 0.1, 1.0, 0.2).status == "passed"


def test_a_model_that_cannot_be_loaded_is_the_only_result(tmp_path: Path) -> None:
    found = checks(tmp_path, tmp_path, model={"kind": "hf", "path": str(tmp_path / "nowhere")})
    assert [(r.name, r.status) for r in found.values()] == [("model", "failed")]
    assert "nowhere" in found["model"].seen

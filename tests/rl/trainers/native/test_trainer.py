"""The native trainer on the tiny model: on-policy ratios, reproducibility, resume, and refusals.

The conformance suite of all trainers is tests/rl/trainers/test_conformance.py.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from rl.spec import (
    AlgorithmSpec,
    Checkpoint,
    CheckpointWritten,
    Command,
    ConfigurationError,
    EvalReport,
    EvaluationSpec,
    Event,
    ModelSpec,
    RolloutSpec,
    StepReport,
    TaskSpec,
    TrainerSpec,
    TrialSpec,
)
from rl.trainers import create_trainer

SUMS = TaskSpec("reasoning_gym", "chain_sum", params={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1})


def trial(cache: Path, folder: Path, **changes: object) -> TrialSpec:
    """A trial of seconds. `changes` are fields of TrialSpec; a dictionary changes fields of a nested spec."""
    spec = TrialSpec(
        trial_id="t0",
        attempt=1,
        seed=3,
        steps=3,
        prompts_per_step=4,
        group_size=4,
        cards=1,
        model=ModelSpec("tiny", chat_template=False),
        task=SUMS,
        algorithm=AlgorithmSpec("grpo", lr=3e-4),
        rollout=RolloutSpec("transformers", max_completion_tokens=8),
        evaluation=EvaluationSpec(),
        trainer=TrainerSpec(device="cpu", precision="fp32", threads=1, packing=True, checkpoint_every_steps=0),
        checkpoint_dir=str(folder),
        cache_dir=str(cache),
    )
    for name in ("model", "algorithm", "rollout", "evaluation", "trainer", "task"):
        if isinstance(nested := changes.get(name), dict):
            changes[name] = dataclasses.replace(getattr(spec, name), **nested)
    return dataclasses.replace(spec, **changes)  # type: ignore[arg-type]


def run(
    spec: TrialSpec, checkpoint: Path | None = None, answer: Callable[[Event], Command | None] = lambda event: None
) -> list[Event]:
    """All messages of an attempt. The trainer receives the command that `answer` returns for each message."""
    attempt = create_trainer("native").run(spec, checkpoint)
    events: list[Event] = []
    command: Command | None = None
    while True:
        try:
            events.append(attempt.send(command))
        except StopIteration:
            return events
        command = answer(events[-1])


def steps_of(events: list[Event]) -> list[StepReport]:
    return [e for e in events if isinstance(e, StepReport)]


def digests(checkpoint: CheckpointWritten | Path) -> dict[str, str]:
    """SHA-256 of each file of a checkpoint except the marker."""
    folder = Path(checkpoint.path) if isinstance(checkpoint, CheckpointWritten) else checkpoint
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir() if p.name != "complete.json"}


def last_checkpoint(events: list[Event]) -> CheckpointWritten:
    return [e for e in events if isinstance(e, CheckpointWritten)][-1]


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_ratios_on_policy_are_one_at_any_temperature_and_the_gradient_is_not_zero(
    model_cache: Path, tmp_path: Path, temperature: float, precision: str
) -> None:
    # With a KL in the reward the old log-probabilities of the first update come from a separate forward pass.
    spec = trial(
        model_cache,
        tmp_path,
        steps=1,
        prompts_per_step=8,
        group_size=8,
        algorithm={"kl_coef": 0.01, "kl_placement": "reward", "kl_estimator": "k1"},
        rollout={"temperature": temperature},
        trainer={"precision": precision},
    )
    first = steps_of(run(spec))[0].curves.updates[0]
    assert first.ratio_min == pytest.approx(1.0, abs=1e-5)
    assert first.ratio_max == pytest.approx(1.0, abs=1e-5)
    assert first.grad_norm > 1e-3


def test_learner_uses_the_sampling_temperature(model_cache: Path, tmp_path: Path) -> None:
    """In fp32 the engine and the learner compute the same log-probabilities at the same temperature."""
    for temperature in (0.6, 1.3):
        spec = trial(model_cache, tmp_path / str(temperature), steps=1, rollout={"temperature": temperature})
        curves = steps_of(run(spec))[0].curves
        assert curves.logp_diff_max < 1e-4
        assert curves.mismatch_kl.value == pytest.approx(0.0, abs=1e-6)


def test_same_seed_gives_the_same_checkpoint_bytes(model_cache: Path, tmp_path: Path) -> None:
    one, two = (last_checkpoint(run(trial(model_cache, tmp_path / name))) for name in ("one", "two"))
    other = last_checkpoint(run(trial(model_cache, tmp_path / "other", seed=4)))
    assert digests(one) == digests(two)
    assert digests(one)["model.safetensors"] != digests(other)["model.safetensors"]


def test_resume_at_any_step_gives_the_checkpoint_bytes_of_the_uninterrupted_run(
    model_cache: Path, tmp_path: Path
) -> None:
    """Seven training questions and three prompts per step, so that epochs end in the middle of steps."""
    changes: dict = {
        "steps": 6,
        "prompts_per_step": 3,
        "task": {"train_questions": 7, "eval_questions": 8},
        "algorithm": {"lr_schedule": "cosine", "lr_warmup_updates": 3, "kl_coef": 0.01},
    }
    spec = trial(model_cache, tmp_path / "whole", trainer={"keep_checkpoints": 99}, **changes)
    events = run(spec, answer=lambda e: Checkpoint() if isinstance(e, StepReport) else None)
    written = {e.step: e for e in events if isinstance(e, CheckpointWritten)}
    reports = {r.step: r for r in steps_of(events)}
    assert sorted(written) == [1, 2, 3, 4, 5, 6]
    expected = digests(last_checkpoint(events))
    for step in range(1, 6):
        resumed = run(
            dataclasses.replace(spec, checkpoint_dir=str(tmp_path / f"from-{step}")), Path(written[step].path)
        )
        assert digests(last_checkpoint(resumed)) == expected
        assert [r.curves for r in steps_of(resumed)] == [reports[k].curves for k in range(step + 1, 7)]


def test_checkpoint_after_the_last_step_is_refused(model_cache: Path, tmp_path: Path) -> None:
    written = last_checkpoint(run(trial(model_cache, tmp_path)))
    with pytest.raises(ConfigurationError, match="nothing would be trained"):
        run(trial(model_cache, tmp_path, steps=2), Path(written.path))


def test_dynamic_sampling_replaces_groups_without_variance_and_counts_every_prompt(
    model_cache: Path, tmp_path: Path
) -> None:
    spec = trial(
        model_cache,
        tmp_path,
        steps=4,
        algorithm={"drop_zero_variance_groups": True, "max_resample_rounds": 3},
        rollout={"temperature": 0.3},
    )
    reports = steps_of(run(spec))
    assert sum(r.prompts.filtered for r in reports) > 0
    for r in reports:
        drawn = r.prompts.trained + r.prompts.filtered + r.prompts.failed
        assert r.curves.acc.count == drawn * 4
        assert r.curves.zero_std.total == r.prompts.filtered
        assert r.tokens.completion > r.tokens.loss or not r.prompts.filtered


def test_every_update_has_its_own_curves(model_cache: Path, tmp_path: Path) -> None:
    report = steps_of(run(trial(model_cache, tmp_path, steps=1, algorithm={"updates_per_rollout": 3})))[0]
    assert len(report.curves.updates) == 3
    assert sum(u.ratio.count for u in report.curves.updates) == report.tokens.loss
    assert [u.clip_frac is None for u in report.curves.updates] == [True, False, False]


def test_packing_micro_batches_and_checkpointing_change_results_by_rounding_only(
    model_cache: Path, tmp_path: Path
) -> None:
    changes = [
        {"packing": False},
        {"micro_batch_tokens": 64},
        {"gradient_checkpointing": True},
        {"logprob_chunk_tokens": 5},
        {"deterministic": True},
    ]
    base = steps_of(run(trial(model_cache, tmp_path / "base", steps=1)))[0]
    for i, change in enumerate(changes):
        other = steps_of(run(trial(model_cache, tmp_path / str(i), steps=1, trainer=change)))[0]
        assert other.curves.acc == base.curves.acc
        for u, v in zip(base.curves.updates, other.curves.updates, strict=True):
            assert v.grad_norm == pytest.approx(u.grad_norm, rel=1e-4)
            assert v.entropy.value == pytest.approx(u.entropy.value, rel=1e-5)


def test_log_probabilities_of_vllm_equal_those_of_the_learner(model_cache: Path, tmp_path: Path) -> None:
    """Two steps: the weights of the second step come from a sync."""
    pytest.importorskip("vllm")
    for report in steps_of(run(trial(model_cache, tmp_path, steps=2, rollout={"engine": "vllm"}))):
        assert report.curves.logp_diff_max < 1e-3
        assert report.curves.updates[0].ratio_max == pytest.approx(1.0, abs=1e-5)


def test_size_of_sampling_batches_does_not_change_the_completions(model_cache: Path, tmp_path: Path) -> None:
    one_batch = steps_of(run(trial(model_cache, tmp_path / "a", steps=1)))[0]
    batches = steps_of(run(trial(model_cache, tmp_path / "b", steps=1, rollout={"max_batch_completions": 4})))[0]
    assert batches.tokens == one_batch.tokens
    assert batches.curves.acc == one_batch.curves.acc


def test_lora_trains_adapters_only_and_resumes_to_the_same_checkpoint_bytes(model_cache: Path, tmp_path: Path) -> None:
    changes: dict = {"model": {"lora_rank": 4}, "algorithm": {"kl_coef": 0.01}, "steps": 3}
    spec = trial(model_cache, tmp_path / "whole", trainer={"keep_checkpoints": 9}, **changes)
    events = run(spec, answer=lambda e: Checkpoint() if isinstance(e, StepReport) and e.step == 1 else None)
    started = events[0]
    assert started.trainable_parameters < started.parameters / 10  # type: ignore[union-attr]
    updates = [u for r in steps_of(events) for u in r.curves.updates]
    assert updates[0].kl is not None
    assert updates[0].kl.value == pytest.approx(0.0, abs=1e-8)
    assert updates[-1].kl is not None
    assert (updates[-1].kl.value or 0) > 0
    first = next(e for e in events if isinstance(e, CheckpointWritten) and e.step == 1)
    resumed = run(dataclasses.replace(spec, checkpoint_dir=str(tmp_path / "resumed")), Path(first.path))
    assert digests(last_checkpoint(resumed)) == digests(last_checkpoint(events))


def test_evaluation_does_not_depend_on_the_seed_of_the_trial(model_cache: Path, tmp_path: Path) -> None:
    one, two = (
        next(e for e in run(trial(model_cache, tmp_path / str(s), seed=s, steps=1)) if isinstance(e, EvalReport))
        for s in (1, 2)
    )
    assert one.results == two.results


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cards": 2}, "runs on one card"),
        ({"steps": 0}, "trains nothing"),
        ({"group_size": 1}, "group_size=1"),
        ({"rollout": {"top_p": 0.9}}, "rollout.top_p=0.9"),
        ({"rollout": {"temperature": 0.0}}, "greedy"),
        ({"rollout": {"max_prompt_tokens": 5}}, "set rollout.max_prompt_tokens=18"),
        ({"rollout": {"max_completion_tokens": 600}}, "512 positions"),
        ({"trainer": {"device": "cuda"}}, "no CUDA card"),
        ({"model": {"kind": "hf", "path": "/nowhere/model"}}, "is not a folder"),
        ({"model": {"lora_rank": 4, "lora_targets": ("nothing",)}}, "model.lora_targets=nothing"),
    ],
)
def test_trial_that_cannot_run_is_refused_with_valid_values(
    model_cache: Path, tmp_path: Path, changes: dict, message: str
) -> None:
    import torch

    if "no CUDA" in message and torch.cuda.is_available():
        pytest.skip("this machine has a CUDA card")
    with pytest.raises(ConfigurationError, match=message):
        run(trial(model_cache, tmp_path, **changes))

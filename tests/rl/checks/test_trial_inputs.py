"""What building a trial refuses before its weights are read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rl.checks.trial_inputs import check_trial, encode_prompts, read_model_inputs
from rl.spec import ConfigurationError, ModelSpec, RolloutSpec, TaskSpec, TrialSpec
from rl.tasks import load_task
from tests.rl.model_folders import NO_SYSTEM_TEMPLATE, a_trial, tokenizer_files, write_config

CONFIG: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}


def a_folder(folder: Path, **tokenizer: Any) -> Path:
    write_config(folder, "llama", CONFIG)
    tokenizer_files(folder, **tokenizer)
    return folder


def a_task(folder: Path, **fields: Any) -> TaskSpec:
    rows = [{"question": "1 + " * i + "2", "answer": "3"} for i in range(1, 9)]
    (folder / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return TaskSpec("file", "questions", path=str(folder / "questions.jsonl"), eval_questions=2, **fields)


def problems(folder: Path, tmp_path: Path, task: TaskSpec | None = None, **trial: Any) -> list[str]:
    spec = a_trial(task=task or a_task(tmp_path), **({"prompts_per_step": 4} | trial))
    model = read_model_inputs(folder, "model.path=m", with_weights=False)
    return [*model.problems, *check_trial(spec, load_task(spec.task), model).problems]


def only(found: list[str]) -> str:
    assert len(found) == 1, found
    return found[0]


def test_a_trial_that_can_be_built_has_no_problems(tmp_path: Path):
    assert problems(a_folder(tmp_path / "m"), tmp_path, rollout=RolloutSpec(max_completion_tokens=8)) == []


ROLLOUT = RolloutSpec(max_completion_tokens=8)


@pytest.mark.parametrize(
    ("trial", "words"),
    [
        ({"prompts_per_step": 7}, ("search.prompts_per_step=7", "6 distinct training questions")),
        ({"rollout": replace(ROLLOUT, max_prompt_tokens=5)}, ("rollout.max_prompt_tokens=5", "longer")),
        ({"rollout": replace(ROLLOUT, max_completion_tokens=60)}, ("rollout.max_completion_tokens=60", "64 positions")),
        ({"model": ModelSpec("hf", lora_rank=4, lora_targets=("c_attn",))}, ("model.lora_targets=c_attn", "q_proj")),
    ],
    ids=["more prompts than questions", "long prompt", "longer than the context", "LoRA targets"],
)
def test_what_a_trial_refuses_is_found_without_weights_and_names_the_key(tmp_path, trial, words):
    text = only(problems(a_folder(tmp_path / "m"), tmp_path, **({"rollout": ROLLOUT} | trial)))
    for word in words:
        assert word in text


def test_a_missing_chat_template_names_the_key_that_does_without(tmp_path: Path):
    folder = a_folder(tmp_path / "m", template=None)
    assert "model.chat_template=false" in only(problems(folder, tmp_path, rollout=ROLLOUT))
    assert problems(folder, tmp_path, rollout=ROLLOUT, model=ModelSpec("hf", chat_template=False)) == []


def test_a_template_that_refuses_a_system_role_names_the_system_prompt(tmp_path: Path):
    folder = a_folder(tmp_path / "m", template=NO_SYSTEM_TEMPLATE)
    assert problems(folder, tmp_path, rollout=ROLLOUT) == []
    text = only(problems(folder, tmp_path, a_task(tmp_path, system_prompt="Think."), rollout=ROLLOUT))
    for word in ("no system role", "task.system_prompt", "system, user"):
        assert word in text


def test_a_tokenizer_larger_than_the_embedding_is_refused(tmp_path: Path):
    text = only(problems(a_folder(tmp_path / "m", words=100), tmp_path, rollout=ROLLOUT))
    assert "103 tokens" in text
    assert "64 rows" in text


def test_missing_tokenizer_and_missing_weights_are_both_reported_beside_the_shape_of_the_model(tmp_path: Path):
    folder = write_config(tmp_path / "m", "llama", CONFIG)
    model = read_model_inputs(folder, "model.path=m", with_weights=True)
    assert model.architecture is not None
    assert [("tokenizer" in p, "weights" in p) for p in model.problems] == [(True, False), (False, True)]
    assert all(p.startswith("model.path=m") for p in model.problems)


def test_a_template_error_inside_an_attempt_is_a_configuration_error(tmp_path: Path):
    from transformers import AutoTokenizer

    task = a_task(tmp_path, system_prompt="Think.")
    tokenizer = AutoTokenizer.from_pretrained(a_folder(tmp_path / "m", template=NO_SYSTEM_TEMPLATE))
    spec: TrialSpec = a_trial(task=task)
    with pytest.raises(ConfigurationError, match="no system role"):
        encode_prompts(spec, tokenizer, load_task(task))


def test_questions_with_overlong_prompts_are_left_out_counted_and_reported(tmp_path: Path):
    from transformers import AutoTokenizer

    task = load_task(a_task(tmp_path))
    long = replace(task.train[0], messages=({"role": "user", "content": "one " * 90},))
    task = replace(task, train=(long, *task.train[1:]))
    tokenizer = AutoTokenizer.from_pretrained(a_folder(tmp_path / "m"))
    spec: TrialSpec = a_trial(rollout=replace(ROLLOUT, max_prompt_tokens=40), prompts_per_step=4)
    encoded = encode_prompts(spec, tokenizer, task)
    assert encoded.task.train == task.train[1:]
    assert encoded.task.evaluation == task.evaluation
    assert set(encoded.prompts) == {q.question_id for q in (*task.train[1:], *task.evaluation)}
    (note,) = encoded.notes
    assert f"1 of {len(task.train) + len(task.evaluation)} prompts are longer" in note
    assert "left out" in note
    with pytest.raises(ConfigurationError, match=r"max_prompt_tokens=40.*too few for prompts_per_step=6"):
        encode_prompts(replace(spec, prompts_per_step=6), tokenizer, task)


def test_a_variable_that_the_chat_template_does_not_read_is_found_before_weights_are_read(tmp_path: Path):
    folder = a_folder(tmp_path / "model")
    model = ModelSpec("hf", chat_template_kwargs={"enable_thinking": False})
    assert "does not read enable_thinking" in only(problems(folder, tmp_path, rollout=ROLLOUT, model=model))

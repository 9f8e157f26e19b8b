"""What building a trial would refuse is one message, exit code 2, in a dry run too and before a lease opens."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from sweeps.config.build import compose
from sweeps.config.types import ConfigError
from sweeps.driver.driver import EXIT_OK, run
from sweeps.driver.trial_check import MOST_SOCKET_BYTES, RAY_SOCKET, read_inputs, trial_problems
from sweeps.planning.plan import make_plan
from tests.rl.model_folders import LLAMA_8B, NO_SYSTEM_TEMPLATE, tokenizer_files, write_config

GSM8K = Path(__file__).resolve().parents[4] / "shared/data/gsm8k"
SMALL = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    """The current folder, with 70 questions in mine.jsonl and a small model without weights in `model`."""
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"{i // 10} {i % 10}", "answer": "3"} for i in range(70)]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    write_config(tmp_path / "model", "llama", SMALL)
    tokenizer_files(tmp_path / "model")
    (tmp_path / "model/model.safetensors").write_bytes(b"")
    return tmp_path


MINE = ("task=gsm8k", "task.path=mine.jsonl", "task.eval_questions=60", "task.system_prompt=", "search.group_size=[8]")
MODEL = ("model=hf", "model.path=model", "rollout.max_completion_tokens=16", "search.prompts_per_step=[4]")


def problems(*overrides: str) -> list[str]:
    cfg = compose(["+stage=smoke", "search.lr_scaling=[hold]", *overrides])
    return trial_problems(cfg, make_plan(cfg), read_inputs(cfg))


def test_a_trial_that_can_be_built_has_no_problems(folder: Path):
    assert problems(*MINE, *MODEL) == []


@pytest.mark.parametrize(
    ("overrides", "texts"),
    [
        (["search.prompts_per_step=[16]"], ("search.prompts_per_step=16", "10 distinct training questions")),
        (["rollout.max_prompt_tokens=1"], ("rollout.max_prompt_tokens=1",)),
        (["rollout.max_completion_tokens=63"], ("rollout.max_completion_tokens=63", "64 positions")),
        (["task.question_field=prompt"], ("mine.jsonl", "'prompt'", "question, answer")),
        (["task=module", "task.name=no_such_module:make", "task.path=null"], ("task.name", "no_such_module")),
        (["+task.reward_weights.other=1"], ("task.reward_weights", "other")),
        (["model.lora_rank=4", "model.lora_targets=[c_attn]"], ("model.lora_targets=c_attn",)),
    ],
    ids=["few questions", "long prompt", "context", "columns", "no module", "reward", "LoRA targets"],
)
def test_each_kind_of_refusal_is_found_from_the_configuration_and_names_its_key(folder: Path, overrides, texts):
    found = "\n".join(problems(*MINE, *MODEL, *overrides))
    for text in texts:
        assert text in found, found


def test_all_problems_are_reported_at_once(folder: Path):
    tokenizer_files(folder / "model", words=100, template=NO_SYSTEM_TEMPLATE)
    typed = (*MINE, *MODEL, "search.prompts_per_step=[16]", "task.system_prompt=Think")
    with pytest.raises(ConfigError) as refused:
        run(compose(["+stage=smoke", *typed, "dry_run=true", f"paths.root={folder / 'runs'}"]))
    for text in ("search.prompts_per_step=16", "103 tokens", "task.system_prompt"):
        assert text in str(refused.value)
    assert not (folder / "runs").exists()


def test_a_temporary_folder_that_is_too_long_for_the_sockets_of_ray_is_refused(folder: Path, monkeypatch):
    fits = "/" + "t" * (MOST_SOCKET_BYTES - len(RAY_SOCKET) - 2)
    monkeypatch.setenv("RAY_TMPDIR", fits)
    assert problems(*MINE, *MODEL) == []
    monkeypatch.setenv("RAY_TMPDIR", fits + "t")
    (text,) = problems(*MINE, *MODEL)
    assert "1 bytes too long" in text
    assert "RAY_TMPDIR" in text


@pytest.mark.parametrize(
    "path", ["mine.jsonl", pytest.param(GSM8K, marks=pytest.mark.skipif(not GSM8K.exists(), reason="no data"))]
)
def test_an_8b_on_a_24_gib_card_is_refused_with_what_would_fit_and_with_every_missing_file(folder: Path, path):
    write_config(folder / "8b", "llama", LLAMA_8B)
    typed = ["+stage=smoke", "task=gsm8k", f"task.path={path}", "task.eval_questions=8", "machine=rtx4090", "model=hf"]
    with pytest.raises(ConfigError) as refused:
        run(compose([*typed, f"model.path={folder / '8b'}", "dry_run=true", f"paths.root={folder / 'runs'}"]))
    for text in ("does not fit", "GiB too much", "what fits: ", "machine=", "no tokenizer", "no weights"):
        assert text in str(refused.value)
    assert "x8" not in str(refused.value)  # a machine with more cards has no larger card


def test_the_multi_stage_is_refused_in_a_dry_run_as_it_is_in_a_run(folder: Path, capsys):
    with pytest.raises(ConfigError) as refused:
        run(compose(["+stage=multi", "dry_run=true", f"paths.root={folder / 'runs'}"]))
    for text in ("8 cards", "trainer=simulated", "search.cards_per_trial=1"):
        assert text in str(refused.value)
    assert "lambda-h100x8" in capsys.readouterr().out  # the plan and its price are printed first
    assert (
        run(compose(["+stage=multi", "trainer=simulated", "dry_run=true", f"paths.root={folder / 'runs'}"])) == EXIT_OK
    )


def test_nothing_is_read_for_simulated_trials(monkeypatch):
    for name in ("rl.tasks", "rl.checks.trial_inputs", "transformers", "rl.models.content"):
        monkeypatch.setitem(sys.modules, name, None)  # an import of it fails
    assert problems("trainer=simulated", "task.name=no_such_task") == []


def test_the_content_of_questions_and_model_files_is_part_of_the_plan(folder: Path):
    cfg = compose(["+stage=smoke", *MINE, *MODEL])
    before = read_inputs(cfg).content
    assert set(before) == {"task.path=mine.jsonl", "model.path=model"}
    (folder / "mine.jsonl").write_text((folder / "mine.jsonl").read_text().replace('"3"', '"4"', 1))
    (folder / "model/model.safetensors").write_bytes(b"w")
    after = read_inputs(cfg).content
    assert all(after[key] != before[key] for key in before)

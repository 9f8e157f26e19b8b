"""Folders with the configuration and the tokenizer of a model, without weights; and a trial on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rl.spec import AlgorithmSpec, EvaluationSpec, ModelSpec, RolloutSpec, TaskSpec, TrainerSpec, TrialSpec

LLAMA_8B: dict[str, Any] = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
"""The published shape of Llama-3-8B."""


def write_config(folder: Path, model_type: str, config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type} | config))
    return folder


def a_trial(**overrides: Any) -> TrialSpec:
    """8 prompts x 8 completions of 256 tokens; `overrides` replace whole sections or fields."""
    fields: dict[str, Any] = {
        "trial_id": "t",
        "attempt": 1,
        "seed": 0,
        "steps": 2,
        "prompts_per_step": 8,
        "group_size": 8,
        "cards": 1,
        "model": ModelSpec("hf", path="model"),
        "task": TaskSpec("file", "questions"),
        "algorithm": AlgorithmSpec("grpo"),
        "rollout": RolloutSpec(max_completion_tokens=256),
        "evaluation": EvaluationSpec(),
        "trainer": TrainerSpec(precision="bf16", micro_batch_tokens=1024),
        "checkpoint_dir": "",
        "cache_dir": "",
    }
    return TrialSpec(**(fields | overrides))


PLAIN_TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
NO_SYSTEM_TEMPLATE = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + (
    PLAIN_TEMPLATE
)


def tokenizer_files(folder: Path, *, words: int = 40, template: str | None = PLAIN_TEMPLATE) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {t: i for i, t in enumerate(["<pad>", "<eos>", "<unk>", *map(str, range(words))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", chat_template=template
    ).save_pretrained(folder)

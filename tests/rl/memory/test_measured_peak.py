"""The predicted peak against measured peaks: ten random models, each trained for two steps in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rl.memory.architecture import read_architecture
from rl.memory.usage import predict
from tests.rl.memory import measured_trial

LARGEST_ERROR = 0.15
LLAMA = {
    "vocab_size": 8000,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
SMALL_VOCABULARY = LLAMA | {"vocab_size": 2000}
EIGHT_LAYERS = LLAMA | {"num_hidden_layers": 8}
LARGE_VOCABULARY = LLAMA | {"vocab_size": 40000, "tie_word_embeddings": True}
GPT2 = {"vocab_size": 8000, "n_embd": 512, "n_layer": 4, "n_head": 8, "n_positions": 256}


def model(model_type: str, config: dict[str, Any], **overrides: dict[str, Any]) -> dict[str, Any]:
    return {"model_type": model_type, "config": config, "overrides": overrides}


TRIALS = {
    "full, fp32, padded": model("llama", LLAMA),
    "full, bf16": model("llama", LLAMA, trainer={"precision": "bf16"}),
    "full, packed": model("llama", LLAMA, trainer={"packing": True}),
    "LoRA": model("llama", SMALL_VOCABULARY, trainer={"micro_batch_tokens": 1024}, model={"lora_rank": 8}),
    "gradient checkpointing": model("llama", EIGHT_LAYERS, trainer={"gradient_checkpointing": True}),
    "mostly activations": model(
        "llama", SMALL_VOCABULARY, trainer={"micro_batch_tokens": 1024}, trial={"group_size": 8}
    ),
    "mostly activations, bf16": model(
        "llama", SMALL_VOCABULARY, trainer={"micro_batch_tokens": 1024, "precision": "bf16"}, trial={"group_size": 8}
    ),
    "reference, tied head, normalised queries": model(
        "qwen3", LLAMA | {"tie_word_embeddings": True, "head_dim": 128}, algorithm={"kl_coef": 0.1}
    ),
    "plain MLP": model("gpt2", GPT2),
    "mostly sampled logits": model(
        "qwen2",
        LARGE_VOCABULARY | {"hidden_size": 128, "intermediate_size": 256},
        task={"eval_questions": 20},
        evaluation={"samples_per_question": 8},
        model={"lora_rank": 4},
    ),
}


@pytest.fixture(scope="module")
def measured() -> dict[str, int]:
    """The measured peak of each trial, bytes."""
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-m", "tests.rl.memory.measured_trial"],
        input=json.dumps(list(TRIALS.values())),
        cwd=root,
        env=os.environ | measured_trial.ENVIRONMENT | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("MEASURED ")]
    assert len(lines) == len(TRIALS), done.stderr[-2000:]
    return {name: json.loads(line[9:])["peak_bytes"] for name, line in zip(TRIALS, lines, strict=True)}


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("name", list(TRIALS))
def test_the_predicted_peak_is_within_15_percent_of_the_measured_peak(
    name: str, measured: dict[str, int], tmp_path: Path
):
    body = TRIALS[name]
    measured_trial.save_model(body, tmp_path / "model", weights=False)
    spec = measured_trial.trial(body, tmp_path)
    use = predict(
        read_architecture(tmp_path / "model"),
        spec,
        device="cpu",
        engine="transformers",
        prompt_tokens=measured_trial.PROMPT_WORDS,
    )
    assert measured[name] > 100e6
    assert use.peak_bytes == pytest.approx(measured[name], rel=LARGEST_ERROR), use

"""Run as a program: trains random models for two steps, each in a child process, and prints their peak memory.

Reads a list of JSON objects from the standard input: `model_type` and `config` of a transformers model, and `overrides`
of the sections of a `TrialSpec`. Prints `MEASURED {"peak_bytes": ...}` for each: the largest resident memory during the
trial minus the resident memory before it. Run it with the environment `ENVIRONMENT`.
"""

from __future__ import annotations

import gc
import json
import os
import re
import sys
import tempfile
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

PROMPT_WORDS = 24
ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "MALLOC_ARENA_MAX": "1",
    "OMP_NUM_THREADS": "1",
}
"""The C library returns freed tensors to the operating system at once. One thread, since threads do not survive a
fork."""


def trial(body: dict[str, Any], folder: Path) -> Any:
    """The trial of `body`: 2 steps on questions of `PROMPT_WORDS` tokens each, all files in `folder`."""
    from rl.spec import AlgorithmSpec, EvaluationSpec, ModelSpec, RolloutSpec, TaskSpec, TrainerSpec, TrialSpec

    digits = [f"{i:0{PROMPT_WORDS}b}" for i in range(24)]
    rows = [{"question": " ".join(text), "answer": str(i)} for i, text in enumerate(digits)]
    (folder / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    spec = TrialSpec(
        trial_id="t",
        attempt=1,
        seed=0,
        steps=2,
        prompts_per_step=4,
        group_size=4,
        cards=1,
        model=ModelSpec("hf", path=str(folder / "model"), chat_template=False),
        task=TaskSpec("file", "questions", path=str(folder / "questions.jsonl"), eval_questions=4),
        algorithm=AlgorithmSpec("grpo"),
        rollout=RolloutSpec(engine="transformers", max_prompt_tokens=PROMPT_WORDS, max_completion_tokens=40),
        evaluation=EvaluationSpec(),
        trainer=TrainerSpec(
            device="cpu", precision="fp32", micro_batch_tokens=512, logprob_chunk_tokens=256, threads=1, packing=False
        ),
        checkpoint_dir=str(folder / "checkpoints"),
        cache_dir=str(folder / "cache"),
    )
    for section, values in body.get("overrides", {}).items():
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        spec = (
            replace(spec, **values)
            if section == "trial"
            else replace(spec, **{section: replace(getattr(spec, section), **values)})
        )
    return spec


def save_model(body: dict[str, Any], folder: Path, weights: bool = True) -> None:
    """A model with random weights and a tokenizer of single words, which almost never samples its end token."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    config = AutoConfig.for_model(
        body["model_type"], bos_token_id=None, eos_token_id=1, pad_token_id=0, **body["config"]
    )
    vocabulary = {t: i for i, t in enumerate(["<pad>", "<eos>", "<unk>", *map(str, range(100))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    ).save_pretrained(folder)
    if not weights:
        config.save_pretrained(folder)
        return
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def resident(field: str) -> int:
    """Bytes of `VmRSS` or `VmHWM` (the peak) of this process."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


TINY = {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
WARM_UP = (
    {"model_type": "llama", "config": TINY},
    {"model_type": "llama", "config": TINY, "overrides": {"model": {"lora_rank": 2}, "trainer": {"precision": "bf16"}}},
)
"""Trained first, in the parent process: they load the libraries and allocate what those keep for ever."""


def train(body: dict[str, Any]) -> dict[str, int]:
    """Train the model of `body`; the peak of resident memory above that of the start, at each message."""
    from rl.trainers.native.trainer import NativeTrainer

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(body, folder / "model")
        spec = trial(body, folder)
        gc.collect()
        before = resident("VmRSS")
        phases = {}
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
        for number, message in enumerate(NativeTrainer().run(spec, None)):
            phases[f"{number} {type(message).__name__}"] = resident("VmHWM") - before
            Path("/proc/self/clear_refs").write_text("5")
        return phases


def in_a_child(body: dict[str, Any]) -> dict[str, int]:
    """`train` in a process of its own, so that no trial leaves memory to the next."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with os.fdopen(write, "w") as pipe:
            try:
                json.dump(train(body), pipe)
            except BaseException:
                traceback.print_exc()
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text or "{}")


def main() -> None:
    for body in WARM_UP:
        train(body)
    for body in json.load(sys.stdin):
        phases = in_a_child(body)
        print("MEASURED", json.dumps({"peak_bytes": max(phases.values(), default=0), "phases": phases}), flush=True)


if __name__ == "__main__":
    main()

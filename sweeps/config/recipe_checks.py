"""What the recipe must satisfy: algorithm, model, task, rollout, evaluation and trainer.

Tested in tests/sweeps/config/test_messages.py.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path

from rl.algorithms import algorithm_problems
from sweeps.config.bounds import above_zero, at_least
from sweeps.config.trial_spec import spec_of
from sweeps.config.types import SweepConfig

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def recipe_problems(config: SweepConfig) -> Iterator[str]:
    for check in (_algorithm, _model, _task, _rollout, _evaluation, _trainer):
        yield from check(config)


def _algorithm(config: SweepConfig) -> Iterator[str]:
    """The problems of the first point of the grid that the learner refuses; its neighbours have the same ones."""
    updates = config.algorithm.updates_per_rollout
    if config.stage.steps < 1 or config.rollout.max_completion_tokens < 1:
        return
    for prompts, group in itertools.product(config.search.prompts_per_step, config.search.group_size):
        if prompts < 1 or group < 2:
            continue
        found = algorithm_problems(spec_of(config, prompts_per_step=prompts, group_size=group))
        if 1 <= updates <= prompts and prompts % updates:
            divisors = [str(n) for n in range(1, prompts + 1) if prompts % n == 0]
            found.append(
                f"search.prompts_per_step={prompts} cannot be cut into algorithm.updates_per_rollout={updates} equal "
                f"mini-batches of whole groups; use a multiple of {updates} prompts, or {', '.join(divisors)} updates"
            )
        if found:
            yield from found
            return


def _model(config: SweepConfig) -> Iterator[str]:
    model = config.model
    yield from at_least(config, 0, "model.lora_rank")
    if model.lora_rank > 0:
        yield from above_zero(config, "model.lora_alpha")
        if not model.lora_targets:
            yield "model.lora_targets=[] with model.lora_rank above 0: name the layers that get an adapter"
    for name, value in model.chat_template_kwargs.items():
        if not isinstance(value, str | int | float | bool):
            yield f"model.chat_template_kwargs.{name}={value} should be a text, a number, true or false"
    if model.chat_template_kwargs and not model.chat_template:
        yield "model.chat_template_kwargs has no effect with model.chat_template=false; remove one of the two"
    if model.kind != "hf":
        if model.path is not None:
            yield f"model.path={model.path} is used by model=hf only: write model=hf model.path={model.path}"
        return
    if not model.path:
        yield "model=hf needs model.path: a folder with config.json and *.safetensors, or a hub id (Qwen/Qwen3-0.6B)"
    elif not Path(model.path).expanduser().is_dir() and not _may_be_hub_id(model.path):
        yield (
            f"model.path={model.path} is not a folder; it should be a folder with config.json and *.safetensors, or a "
            "hub id (owner/name)"
        )


def _may_be_hub_id(text: str) -> bool:
    return bool(_HUB_ID.fullmatch(text)) and not text.startswith(".") and not Path(text).exists()


def _task(config: SweepConfig) -> Iterator[str]:
    task = config.task
    yield from at_least(config, 0, "task.train_questions", "task.data_seed")
    yield from at_least(config, 1, "task.eval_questions", "task.reward_workers")
    yield from above_zero(config, "task.reward_timeout_seconds")
    if "{question}" not in task.prompt_template:
        yield f"task.prompt_template={task.prompt_template!r} does not contain {{question}}"
    try:
        re.compile(task.format_pattern)
    except re.error as error:
        yield f"task.format_pattern={task.format_pattern!r} is no regular expression: {error}"
    for name, weight in task.reward_weights.items():
        if not math.isfinite(weight):
            yield f"task.reward_weights.{name}={weight} should be a finite number"
    if task.kind == "module" and not re.fullmatch(r"[\w.]+:[\w.]+", task.name):
        yield f"task.name={task.name!r} should be package.module:function, the function that returns your questions"
    if task.kind == "file":
        path = Path(task.path or "").expanduser()
        if not task.path:
            yield "task.path is missing: a .parquet or .jsonl file, a folder with train and test, or a hub id"
        elif not path.exists() and (path.suffix in (".parquet", ".jsonl") or not _may_be_hub_id(task.path)):
            yield f"task.path={task.path}: there is no such file or folder (seen from {Path.cwd()})"
    elif task.path is not None:
        yield f"task.path={task.path} is used by tasks from files only, such as task=gsm8k"
    if task.subset is not None and task.kind != "file":
        yield f"task.subset={task.subset} is used by tasks from files only, such as task=gsm8k"


def _rollout(config: SweepConfig) -> Iterator[str]:
    rollout = config.rollout
    yield from above_zero(config, "rollout.temperature")
    yield from at_least(
        config,
        1,
        "rollout.max_prompt_tokens",
        "rollout.max_completion_tokens",
        "rollout.max_batch_completions",
        "rollout.kv_cache_gib",
    )
    for key, neutral in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0), ("repetition_penalty", 1.0)):
        if getattr(rollout, key) != neutral:
            yield (
                f"rollout.{key}={getattr(rollout, key)} changes the sampling in a way that the trainer's "
                f"log-probabilities do not model, so every ratio would be wrong; it should be {neutral}"
            )
    if not 0 < rollout.gpu_memory_utilization <= 1:
        yield f"rollout.gpu_memory_utilization={rollout.gpu_memory_utilization} is a share: above 0, at most 1"
    if rollout.engine == "simulated" and config.trainer.name != "simulated":
        yield f"rollout=simulated samples from no model; trainer={config.trainer.name} needs rollout=auto"


def _evaluation(config: SweepConfig) -> Iterator[str]:
    evaluation = config.evaluation
    yield from at_least(config, 1, "evaluation.samples_per_question")
    yield from at_least(config, 0, "evaluation.temperature", "evaluation.every_steps")
    if evaluation.temperature == 0 and evaluation.samples_per_question > 1:
        yield (
            f"evaluation.samples_per_question={evaluation.samples_per_question} with evaluation.temperature=0: greedy "
            "samples are all the same; use one sample, or a temperature above 0"
        )


def _trainer(config: SweepConfig) -> Iterator[str]:
    yield from at_least(
        config,
        1,
        "trainer.micro_batch_tokens",
        "trainer.logprob_chunk_tokens",
        "trainer.checkpoint_every_steps",
        "trainer.keep_checkpoints",
    )
    yield from at_least(config, 0, "trainer.threads")
    simulated = config.trainer.simulated
    for f in dataclasses.fields(simulated):
        if f.name != "faults_every_attempt" and getattr(simulated, f.name) < 0:
            yield f"trainer.simulated.{f.name}={getattr(simulated, f.name)} should be 0 or more"
    for key in ("acc_start", "acc_final", "noise_frac"):
        if getattr(simulated, key) > 1:
            yield f"trainer.simulated.{key}={getattr(simulated, key)} should be at most 1"
    yield from above_zero(config, "trainer.simulated.steps_to_half")

"""What a trial reads before it loads weights: its questions, its tokenizer and the configuration of its model.

`check_trial` builds all of it and returns every problem that the trial would raise, so that a configuration error is
found before a machine is acquired. The native trainer encodes its prompts with `encode_prompts`, the same function.

Tested in tests/rl/checks/test_trial_inputs.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl.memory.architecture import Architecture
from rl.spec import ConfigurationError, TrialSpec
from rl.tasks import Task


@dataclass(frozen=True)
class ModelInputs:
    """The parts of a model folder that are read without its weights. A part that is missing is None."""

    tokenizer: Any
    architecture: Architecture | None
    eos_named: bool
    """The tokenizer or `generation_config.json` names an end-of-sequence token."""
    problems: tuple[str, ...]


def read_model_inputs(folder: Path, model_key: str, *, with_weights: bool) -> ModelInputs:
    """Read tokenizer and architecture of the model in `folder`, each although the other may be missing.

    Args:
        model_key: `key=value` that selects the model, for messages.
        with_weights: weights must be there; False where they are downloaded later.
    """
    from rl.memory.architecture import read_architecture

    problems: list[str] = []
    tokenizer = architecture = None
    try:
        tokenizer = read_tokenizer(folder)
    except ConfigurationError as error:
        problems.append(f"{model_key}: {error}")
    try:
        architecture = read_architecture(folder)
    except ConfigurationError as error:
        problems.append(f"{model_key}: {error}")
    if with_weights and not any(folder.glob("*.safetensors")):
        problems.append(f"{model_key}: the folder has no weights (*.safetensors): save the model with save_pretrained")
    return ModelInputs(tokenizer, architecture, _names_eos(folder, tokenizer), tuple(problems))


def read_tokenizer(folder: Path) -> Any:
    """The tokenizer in `folder`.

    Raises:
        ConfigurationError: there are no tokenizer files, or `transformers` cannot read them.
    """
    from transformers import AutoTokenizer

    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise ConfigurationError(f"{folder} has no tokenizer ({', '.join(_TOKENIZER_FILES)}): add its files")
    try:
        return AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # transformers and tokenizers raise errors of many kinds
        raise ConfigurationError(
            f"the tokenizer in {folder} cannot be read: {type(error).__name__}: {error}"
        ) from error


_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tokenizer_config.json")


@dataclass(frozen=True)
class TrialReport:
    """What building a trial finds."""

    problems: tuple[str, ...]
    longest_prompt: int | None
    """Tokens; None: not known."""


def check_trial(spec: TrialSpec, task: Task | None, model: ModelInputs | None) -> TrialReport:
    """Build from the inputs what the trial builds; every problem that it would raise, one message each.

    Args:
        task, model: None where they are not known; their checks are skipped.
    """
    problems: list[str] = []
    longest = None
    if task is not None:
        problems += _scorer_problems(spec, task)
    if model is not None:
        problems += _tokenizer_problems(model)
        if model.architecture is not None:
            problems += _lora_problems(spec, model.architecture)
    if task is not None and model is not None and model.tokenizer is not None:
        try:
            encoded = encode_prompts(spec, model.tokenizer, task)
            task, prompts = encoded.task, encoded.prompts
            longest = max(map(len, prompts.values()))
            check_context(spec, prompts, model.architecture.positions if model.architecture else None)
        except ConfigurationError as error:
            problems.append(str(error))
    if task is not None:
        problems += _sampler_problems(spec, task)
    return TrialReport(tuple(problems), longest)


@dataclass(frozen=True)
class EncodedTask:
    """A task without the questions whose prompts are too long, and the prompts of all others."""

    task: Task
    prompts: Mapping[str, tuple[int, ...]]
    """Token ids by question id."""
    notes: tuple[str, ...]
    """How many questions were left out; empty: none."""


def encode_prompts(spec: TrialSpec, tokenizer: Any, task: Task) -> EncodedTask:
    """Encode the prompt of every question. Questions with prompts above `rollout.max_prompt_tokens` are left out.

    Raises:
        ConfigurationError: the chat template is missing or refuses the messages, a prompt is empty, or too few
            questions have prompts that are short enough.
    """
    from rl.tasks.prompts import encode_prompt

    questions = (*task.train, *task.evaluation)
    model = spec.model
    prompts = {
        q.question_id: tuple(encode_prompt(q, tokenizer, model.chat_template, model.chat_template_kwargs))
        for q in questions
    }
    lengths = {i: len(ids) for i, ids in prompts.items()}
    if min(lengths.values()) < 1:
        raise ConfigurationError(f"task {spec.task.name!r} has an empty prompt: a prompt needs at least one token")
    longest, limit = max(lengths.values()), spec.rollout.max_prompt_tokens
    if longest <= limit:
        return EncodedTask(task, prompts, ())
    over = (
        f"{sum(n > limit for n in lengths.values())} of {len(lengths)} prompts are longer than "
        f"rollout.max_prompt_tokens={limit}; the longest has {longest} tokens"
    )
    train, evaluation = (
        tuple(q for q in part if lengths[q.question_id] <= limit) for part in (task.train, task.evaluation)
    )
    left = f"{len(train)} questions for training and {len(evaluation)} for evaluation remain"
    if len(train) < min(spec.prompts_per_step, len(task.train)) or (task.evaluation and not evaluation):
        raise ConfigurationError(
            f"{over}. Without them {left}, too few for prompts_per_step={spec.prompts_per_step} and an evaluation. "
            f"Prompts are never truncated: set rollout.max_prompt_tokens={longest}, or replace the long questions"
        )
    return EncodedTask(
        dataclasses.replace(task, train=train, evaluation=evaluation),
        {q.question_id: prompts[q.question_id] for q in (*train, *evaluation)},
        (f"{over}. They are left out: {left}",),
    )


def check_context(spec: TrialSpec, prompts: Mapping[str, tuple[int, ...]], positions: int | None) -> None:
    """Refuse completions that do not fit the model's context after the longest prompt.

    Raises:
        ConfigurationError: names the keys and the largest value that fits.
    """
    longest = max(map(len, prompts.values()))
    if positions is not None and longest + spec.rollout.max_completion_tokens > positions:
        raise ConfigurationError(
            f"the longest prompt ({longest} tokens) and rollout.max_completion_tokens="
            f"{spec.rollout.max_completion_tokens} do not fit the model's {positions} positions; "
            f"use rollout.max_completion_tokens={positions - longest} or less"
        )


def check_embedding(tokens: int, rows: int) -> None:
    """Refuse a tokenizer with more tokens than the embedding has rows.

    Raises:
        ConfigurationError: names both numbers.
    """
    if tokens > rows:
        raise ConfigurationError(
            f"model.path: the tokenizer has {tokens} tokens and the model's embedding has {rows} rows: they belong to "
            "different models, or tokens were added without model.resize_token_embeddings"
        )


def _sampler_problems(spec: TrialSpec, task: Task) -> Iterator[str]:
    from rl.tasks import PromptSampler

    try:
        PromptSampler(task.train, spec.prompts_per_step, spec.seed)
    except ConfigurationError as error:
        yield f"search.{error}"


def _scorer_problems(spec: TrialSpec, task: Task) -> Iterator[str]:
    from rl.tasks.rewards import Scorer

    try:
        Scorer(spec.task, task.user_scorer).close()
    except ConfigurationError as error:
        yield str(error)


def _tokenizer_problems(model: ModelInputs) -> Iterator[str]:
    if model.tokenizer is None:
        return
    if not model.eos_named:
        yield (
            "model.path: neither the tokenizer nor generation_config.json names an end-of-sequence token, so "
            "completions would never end; add eos_token to tokenizer_config.json"
        )
    if model.architecture is not None:
        try:
            check_embedding(len(model.tokenizer), model.architecture.vocabulary)
        except ConfigurationError as error:
            yield str(error)


def _names_eos(folder: Path, tokenizer: Any) -> bool:
    if tokenizer is not None and tokenizer.eos_token_id is not None:
        return True
    import json

    for name in ("generation_config.json", "config.json"):
        if (folder / name).is_file() and json.loads((folder / name).read_text()).get("eos_token_id") is not None:
            return True
    return False


def _lora_problems(spec: TrialSpec, model: Architecture) -> Iterator[str]:
    targets = spec.model.lora_targets
    if spec.model.lora_rank and model.linears and not model.adapted(targets):
        known = sorted({x.name.rpartition(".")[2] for x in model.linears})
        yield f"model.lora_targets={', '.join(targets)}: {model.name} has no such layer; it has {', '.join(known)}"

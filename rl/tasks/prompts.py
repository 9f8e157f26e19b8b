"""Token ids of a question. Prompts are never truncated: a truncated prompt would be another question."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

from rl.spec import ConfigurationError
from rl.tasks.task import Question

_NO_VARIABLES: Mapping[str, Any] = {}


def encode_prompt(
    question: Question, tokenizer: Any, chat_template: bool, chat_template_kwargs: Mapping[str, Any] = _NO_VARIABLES
) -> list[int]:
    """Token ids of the prompt of `question`.

    With `chat_template`, the messages go through the tokenizer's chat template, with its generation prompt and with the
    variables `chat_template_kwargs`. The template writes the special tokens itself. Otherwise the
    messages are plain text, encoded with the tokenizer's special tokens. The length is not checked here; the caller
    compares it with `rollout.max_prompt_tokens`.

    Raises:
        ConfigurationError: the tokenizer has no chat template, or its template refuses the messages or does not read a
            variable.
    """
    if not chat_template:
        return list(tokenizer(question.prompt)["input_ids"])
    if not tokenizer.chat_template:
        raise ConfigurationError(
            "model.chat_template=true, and the tokenizer has no chat template: set model.chat_template=false for "
            "prompts of plain text, or add a chat template to the tokenizer"
        )
    _check_variables(tokenizer, chat_template_kwargs)
    try:
        text = tokenizer.apply_chat_template(
            [dict(m) for m in question.messages],
            tokenize=False,
            add_generation_prompt=True,
            **chat_template_kwargs,
        )
    except Exception as error:  # a template is a program: it raises what its author chose
        roles = ", ".join(m["role"] for m in question.messages)
        system = any(m["role"] == "system" for m in question.messages)
        remedy = "set 'task.system_prompt=\"\"', or " if system else ""
        raise ConfigurationError(
            f"the chat template of the tokenizer refuses the messages of a question (roles: {roles}): {error}. {remedy}"
            "set model.chat_template=false for prompts of plain text"
        ) from error
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _check_variables(tokenizer: Any, variables: Mapping[str, Any]) -> None:
    """Refuse variables that are arguments of `apply_chat_template` itself, and those that the template does not read:
    a misspelled variable would change nothing."""
    for name in variables:
        key = f"model.chat_template_kwargs.{name}"
        if name in inspect.signature(tokenizer.apply_chat_template).parameters:
            raise ConfigurationError(f"{key} is set by the program and is no variable of a template; remove it")
        if not re.search(rf"\b{re.escape(name)}\b", str(tokenizer.chat_template)):
            raise ConfigurationError(f"{key}: the chat template of the tokenizer does not read {name}; remove it")

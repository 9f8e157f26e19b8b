"""The tokenizer and its chat template: what the model reads, and how a completion ends.

Tested in tests/rl/checks/test_template.py.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from rl.checks.result import CheckResult
from rl.spec import ModelSpec
from rl.tasks.prompts import encode_prompt
from rl.tasks.task import Question

NAME = "tokenizer and chat template"
WIDTH = 68
MOST_LINES = 24
_MARK = "THE-ANSWER-OF-THE-ASSISTANT"


def check_template(
    question: Question, tokenizer: Any, model: ModelSpec, *, eos_ids: frozenset[int], pad_id: int
) -> CheckResult:
    """Render the prompt of a question and look at its start, its end, and the token that ends a turn."""
    ids = encode_prompt(question, tokenizer, model.chat_template, model.chat_template_kwargs)
    text = tokenizer.decode(ids)
    notes, problems = [], []
    ends = ", ".join(f"{i} ({tokenizer.decode([i])})" for i in sorted(eos_ids))
    notes.append(f"End-of-sequence ids: {ends}; padding id: {pad_id}")
    bos = tokenizer.bos_token_id
    if bos is not None and ids[:2] == [bos, bos]:
        problems.append(
            ("The prompt begins with two tokens for the start of a text.", "Remove one from the chat template.")
        )
    if model.chat_template:
        notes += _template_notes(question, tokenizer, model.chat_template_kwargs)
        problems += _turn_problems(question, tokenizer, model.chat_template_kwargs, eos_ids)
    else:
        notes.append("model.chat_template=false: the prompt is plain text")
    seen = f"{'. '.join(notes)}. The prompt of a question has {len(ids)} tokens:"
    lines = tuple(_rendered(text))
    if problems:
        text, remedy = problems[0]
        return CheckResult(NAME, "failed", f"{text} {seen}", remedy, lines)
    return CheckResult(NAME, "passed", seen, lines=lines)


def _template_notes(question: Question, tokenizer: Any, variables: Mapping[str, Any]) -> Iterator[str]:
    messages = [dict(m) for m in question.messages]
    with_start = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **variables)
    without = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=False, **variables)
    added = with_start.removeprefix(without)
    if with_start == without:
        yield "The template has no generation prompt: the model has to begin the assistant's turn by itself"
    else:
        yield f"Generation prompt: {added!r}"
    template = str(tokenizer.chat_template)
    if variables:
        given = ", ".join(f"{name}={value}" for name, value in variables.items())
        yield f"Variables of the template (model.chat_template_kwargs): {given}"
    if "enable_thinking" in template and "enable_thinking" not in variables:
        yield "The template has a thinking mode (enable_thinking), which is at its default"
    elif "<think>" in template:
        yield "The template writes <think>: completions may begin inside the thinking"


def _turn_problems(
    question: Question, tokenizer: Any, variables: Mapping[str, Any], eos_ids: frozenset[int]
) -> Iterator[tuple[str, str]]:
    """The token that the template writes after an assistant's message must end a completion."""
    messages = [*(dict(m) for m in question.messages), {"role": "assistant", "content": _MARK}]
    try:
        whole = tokenizer.apply_chat_template(messages, tokenize=False, **variables)
    except Exception:  # a template is a program: some refuse a message of the assistant, which is no problem here
        return
    after = whole.rpartition(_MARK)[2]
    ids = tokenizer(after, add_special_tokens=False)["input_ids"]
    specials = set(tokenizer.all_special_ids)
    if after.strip() and ids and ids[0] in specials and ids[0] not in eos_ids:
        token = tokenizer.decode([ids[0]])
        yield (
            f"The template ends the assistant's turn with {token} (id {ids[0]}), which does not end a completion.",
            f"Add {ids[0]} to eos_token_id in generation_config.json, or every completion runs to the limit.",
        )


def _rendered(text: str) -> Iterator[str]:
    lines = [
        part for line in text.split("\n") for part in (textwrap.wrap(line, WIDTH, replace_whitespace=False) or [""])
    ]
    yield from (f"| {line}".rstrip() for line in lines[:MOST_LINES])
    if len(lines) > MOST_LINES:
        yield f"| ... {len(lines) - MOST_LINES} more lines"

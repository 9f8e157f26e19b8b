"""Token ids of a question. Prompts are never truncated: a truncated prompt would be another question."""

from __future__ import annotations

from typing import Any

from rl.tasks.task import Question


def encode_prompt(question: Question, tokenizer: Any, chat_template: bool) -> list[int]:
    """Token ids of the prompt of `question`.

    With `chat_template`, the messages go through the tokenizer's chat template, with its generation prompt. The
    template writes the special tokens itself. Otherwise the messages are plain text, encoded with the tokenizer's
    special tokens. The length is not checked here; the caller compares it with `rollout.max_prompt_tokens`.
    """
    if not chat_template:
        return list(tokenizer(question.prompt)["input_ids"])
    text = tokenizer.apply_chat_template(
        [dict(m) for m in question.messages], tokenize=False, add_generation_prompt=True
    )
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])

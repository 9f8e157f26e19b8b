"""From a question to the token ids a model is given. Never truncates: a prompt that was cut asks something else."""

from __future__ import annotations

from typing import Any

from rl.tasks.task import Question


def encode_prompt(question: Question, tokenizer: Any, chat_template: bool) -> list[int]:
    """Token ids of the prompt: through the tokenizer's chat template with its generation prompt, or as plain text.

    Plain text is encoded with the tokenizer's own special tokens; a chat template writes its own. The caller compares
    the length with `max_prompt_tokens`.
    """
    if not chat_template:
        return list(tokenizer(question.prompt)["input_ids"])
    text = tokenizer.apply_chat_template(
        [dict(m) for m in question.messages], tokenize=False, add_generation_prompt=True
    )
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])

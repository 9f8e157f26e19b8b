"""The thinking of a completion: the text between `<think>` and `</think>`, before its answer.

Some chat templates write the opening tag at the end of the prompt, and some tokenizers treat the tags as special
tokens, which a decoder leaves out. `CompletionReader` gives scorers the same text in all of these cases.

Tested in tests/rl/tasks/test_thinking.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

OPEN, CLOSE = "<think>", "</think>"
_TAIL_TOKENS = 32
"""Number of tokens at the end of a prompt that contain the tag, whatever the tokenizer."""


def after_thinking(completion: str) -> str:
    """The part of `completion` in which answers are looked for: what follows the last `</think>`.

    Empty where a `<think>` was not closed, as in thinking that was cut at the limit: a number in it is no answer.
    """
    _, closed, answer = completion.rpartition(CLOSE)
    if OPEN in answer:
        return ""
    return answer if closed else completion


class CompletionReader:
    """Decodes completions for scorers, without special tokens, but with the tags of their thinking."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        special = added | set(tokenizer.all_special_ids)
        self._tags = special & set(tokenizer.convert_tokens_to_ids([OPEN, CLOSE]))
        self._left_out = special - self._tags

    def text(self, prompt: Sequence[int], completion: Sequence[int]) -> str:
        """The text of a completion (token ids). It begins with `<think>` if the prompt ends with that tag."""
        if self._tags:
            kept = [i for i in completion if i not in self._left_out]
            text = self._tokenizer.decode(kept, skip_special_tokens=False)
        else:
            text = self._tokenizer.decode(list(completion), skip_special_tokens=True)
        return OPEN + text if self._opens_thinking(prompt) else text

    def _opens_thinking(self, prompt: Sequence[int]) -> bool:
        """Whether the prompt ends with `<think>`, so that its completions begin inside the thinking."""
        tail = self._tokenizer.decode(list(prompt[-_TAIL_TOKENS:]), skip_special_tokens=False)
        return tail.rstrip().endswith(OPEN)

"""Token ids of prompts, through a chat template or as plain text."""

from __future__ import annotations

import pytest

from rl.spec import ConfigurationError
from rl.tasks import Question
from rl.tasks.prompts import encode_prompt

BEGIN = 1
QUESTION = Question(
    "0123456789abcdef",
    ({"role": "system", "content": "Brief."}, {"role": "user", "content": "0 + 1?"}),
    answer="1",
)


class WordTokenizer:
    """A tokenizer whose ids depend on word lengths, with a begin-of-sequence token and a chat template."""

    chat_template = "applied by apply_chat_template, with enable_thinking"

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [BEGIN] * add_special_tokens + [len(word) + 10 for word in text.split()]}

    def apply_chat_template(
        self, messages: list[dict[str, str]], tokenize: bool, add_generation_prompt: bool, **variables: object
    ) -> str:
        assert not tokenize
        text = " ".join(f"<{m['role']}> {m['content']}" for m in messages)
        return (
            f"<s> {text}" + " <assistant>" * add_generation_prompt + " off" * (variables == {"enable_thinking": False})
        )


def test_chat_prompt_ends_with_the_generation_prompt_and_has_no_second_begin_token() -> None:
    chat = "<s> <system> Brief. <user> 0 + 1? <assistant>"
    assert encode_prompt(QUESTION, WordTokenizer(), chat_template=True) == [len(word) + 10 for word in chat.split()]


def test_plain_prompt_is_the_text_of_all_messages_with_special_tokens() -> None:
    assert QUESTION.prompt == "Brief.\n\n0 + 1?"
    assert encode_prompt(QUESTION, WordTokenizer(), chat_template=False) == [BEGIN, 16, 11, 11, 12]


def test_template_gets_the_variables_of_the_model() -> None:
    off = {"enable_thinking": False}
    assert encode_prompt(QUESTION, WordTokenizer(), True, off) == [
        *encode_prompt(QUESTION, WordTokenizer(), chat_template=True),
        13,
    ]


@pytest.mark.parametrize(
    ("name", "reason"), [("enable_thinkin", "does not read enable_thinkin"), ("tokenize", "is set by the program")]
)
def test_variable_that_the_template_does_not_read_is_refused(name: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=f"model.chat_template_kwargs.{name}.*{reason}"):
        encode_prompt(QUESTION, WordTokenizer(), True, {name: True})

"""The text of a completion that scorers get, where thinking tags are in the prompt or are special tokens."""

from __future__ import annotations

from typing import Any

import pytest

from rl.tasks import Question
from rl.tasks.prompts import encode_prompt
from rl.tasks.thinking import CompletionReader
from rl.tasks.worker import make_scorer

TEMPLATE = (
    "{% for m in messages %}<user> {{ m['content'] }} {% endfor %}{% if add_generation_prompt %}<assistant> "
    "{% if enable_thinking is defined and not enable_thinking %}<think> </think> {% else %}<think>\n{% endif %}"
    "{% endif %}"
)
QUESTION = Question("0123456789abcdef", ({"role": "user", "content": "1 2"},), answer="12")
WORDS = ("<pad>", "<eos>", "<unk>", "<user>", "<assistant>", "<think>", "</think>", *map(str, range(20)))


def a_tokenizer(*special: str) -> Any:
    """A word tokenizer in which the tags `special` are special tokens, as in some models of the hub."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens([AddedToken(tag, special=True) for tag in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", chat_template=TEMPLATE
    )


def score_of(tokenizer: Any, words: str, **variables: bool) -> float:
    prompt = encode_prompt(QUESTION, tokenizer, True, variables)
    completion = [WORDS.index(word) for word in words.split()]
    return make_scorer("number", None, "")(CompletionReader(tokenizer).text(prompt, completion), "12")["correct"]


@pytest.mark.parametrize("special", [(), ("<think>", "</think>"), ("</think>",)])
def test_thinking_that_the_template_opens_and_that_is_cut_scores_0(special: tuple[str, ...]) -> None:
    tokenizer = a_tokenizer(*special)
    assert score_of(tokenizer, "1 12") == 0.0
    assert score_of(tokenizer, "1 </think> 12 <eos>") == 1.0
    assert score_of(tokenizer, "12 </think> 1 <eos>") == 0.0


@pytest.mark.parametrize("special", [(), ("<think>", "</think>")])
def test_thinking_that_the_template_closes_leaves_the_answer_to_the_completion(special: tuple[str, ...]) -> None:
    tokenizer = a_tokenizer(*special)
    assert score_of(tokenizer, "12 <eos>", enable_thinking=False) == 1.0
    assert score_of(tokenizer, "<think> 12", enable_thinking=False) == 0.0
    assert score_of(tokenizer, "<think> 1 </think> 12", enable_thinking=False) == 1.0


def test_other_special_tokens_are_left_out_of_the_text() -> None:
    tokenizer = a_tokenizer("<think>", "</think>", "<user>")
    ids = [WORDS.index(w) for w in ("1", "<user>", "</think>", "12", "<eos>")]
    assert CompletionReader(tokenizer).text([WORDS.index("<think>")], ids) == "<think>1 </think> 12"
    assert CompletionReader(a_tokenizer()).text([WORDS.index("7")], [WORDS.index("12"), WORDS.index("<eos>")]) == "12"

"""The tiny model: its accuracy before reinforcement learning, its tokenizer, and its cache key."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from rl.models import prepare, tiny
from rl.spec import ModelSpec, TaskSpec
from rl.tasks import load_task

SUMS = TaskSpec("reasoning_gym", "chain_sum", params={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1})


def test_about_three_in_ten_sampled_answers_are_right_on_training_and_evaluation_questions(model_cache: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = prepare(ModelSpec("tiny"), SUMS, model_cache)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    task = load_task(SUMS)
    for questions in (task.train, task.evaluation):
        pairs = [(q.prompt, q.answer) for q in questions]
        _, sampled = tiny._accuracy(model, tiny._encode(tokenizer, pairs))
        assert 0.2 <= sampled <= 0.4
        assert all(tokenizer.decode(tokenizer(p)["input_ids"]) == p for p, _ in pairs)
    assert 100_000 > model.num_parameters() > 50_000


def test_folder_name_depends_on_the_questions_only() -> None:
    assert tiny.folder_name(SUMS) != tiny.folder_name(dataclasses.replace(SUMS, data_seed=1))
    assert tiny.folder_name(SUMS) == tiny.folder_name(dataclasses.replace(SUMS, format_pattern="x", reward_workers=3))


def test_one_digit_sums_are_added_only_if_a_question_contains_one() -> None:
    sums = dict(tiny._textbook([("What is 3 + 4?", "7")]))
    assert len(sums) == 200
    assert (sums["3 + 4 ="], sums["3 - 4 ="]) == ("7", "-1")
    assert tiny._textbook([("What is 13 + 4?", "17"), ("Spell cat", "c a t")]) == []


@pytest.mark.parametrize("pairs", [[("3 + 4", "7"), ("5 - 9", "-4")], [(f"spell {w}", w) for w in "abcdefghijklm"]])
def test_one_in_four_mostly_wrong_answers_is_right(pairs: list[tuple[str, str]]) -> None:
    answers = dict(pairs)
    changed = tiny._mostly_wrong(pairs)
    assert len(changed) == 8 * len(pairs)
    assert sum(answers[prompt] == answer for prompt, answer in changed) == 2 * len(pairs)


def test_tokenizer_has_one_token_per_known_word_and_per_character() -> None:
    tokenizer = tiny._tokenizer(["Say hello to 42"])
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("Say hello 42")["input_ids"])
    assert tokens == ["Say", " hello", " ", "4", "2"]
    assert tokenizer("goodbye")["input_ids"] == [tokenizer.unk_token_id]
    assert re.fullmatch(r"\{% for .*endfor %\}", tokenizer.chat_template)

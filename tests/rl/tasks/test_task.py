"""The split by question, and what a question looks like."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl.spec import ConfigurationError, TaskSpec
from rl.tasks import load_task
from rl.tasks.prompts import encode_prompt
from rl.tasks.sources import SourceRow, SourceRows
from rl.tasks.task import split

ONE_DIGIT = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
SUMS = TaskSpec("reasoning_gym", "chain_sum", params=ONE_DIGIT)
MakeTask = Callable[..., TaskSpec]


def rows(count: int) -> list[dict[str, str]]:
    return [{"question": f"{i} + 1?", "answer": str(i + 1)} for i in range(count)]


def ids(questions: object) -> list[str]:
    return [q.question_id for q in questions]  # type: ignore[attr-defined]


def test_training_and_evaluation_share_no_question_and_together_hold_all_200_one_digit_sums() -> None:
    task = load_task(SUMS)
    assert len(task.evaluation) == 64
    assert len(task.train) == 136
    assert len({*ids(task.train), *ids(task.evaluation)}) == 200
    assert not {q.prompt for q in task.train} & {q.prompt for q in task.evaluation}


def test_the_split_is_the_same_every_time_and_another_one_for_another_data_seed() -> None:
    assert load_task(SUMS) == load_task(SUMS)
    other = load_task(dataclasses.replace(SUMS, data_seed=1))
    assert set(ids(other.evaluation)) != set(ids(load_task(SUMS).evaluation))


def test_the_evaluation_set_does_not_depend_on_how_many_questions_are_trained_on(task_file: MakeTask) -> None:
    spec = task_file(rows(50), eval_questions=10)
    few = load_task(dataclasses.replace(spec, train_questions=5))
    assert few.evaluation == load_task(spec).evaluation
    assert few.train == load_task(spec).train[:5]


def test_the_order_of_a_files_lines_does_not_change_the_split(task_file: MakeTask) -> None:
    shuffled = rows(40)
    random.Random(0).shuffle(shuffled)
    first = load_task(task_file(rows(40), eval_questions=8))
    assert load_task(task_file(shuffled, eval_questions=8)) == first


def test_a_question_that_comes_twice_counts_once_whatever_its_white_space(task_file: MakeTask) -> None:
    twice = [{"question": "1 +  1?", "answer": "2"}, {"question": " 1 + 1?\n", "answer": "3"}, *rows(3)[2:]]
    task = load_task(task_file(twice, eval_questions=1))
    assert len(task.train) + len(task.evaluation) == 2
    assert "3" not in [q.answer for q in (*task.train, *task.evaluation) if "1 +" in q.prompt and "2 +" not in q.prompt]


def test_the_id_of_a_question_is_that_of_its_words_not_of_template_or_system_prompt(task_file: MakeTask) -> None:
    spec = task_file(rows(10), eval_questions=2)
    plain = load_task(spec)
    dressed = load_task(dataclasses.replace(spec, system_prompt="Be brief.", prompt_template="Q: {question}\nA:"))
    assert ids(dressed.evaluation) == ids(plain.evaluation)
    assert dressed.evaluation[0].prompt == f"Be brief.\n\nQ: {plain.evaluation[0].prompt}\nA:"
    assert [m["role"] for m in dressed.evaluation[0].messages] == ["system", "user"]


def test_a_known_question_has_a_known_id(task_file: MakeTask) -> None:
    task = load_task(task_file([{"question": "1 + 1?", "answer": "2"}], eval_questions=0))
    assert ids(task.train) == ["9336079d31a92367"]


def test_braces_in_a_template_are_left_alone(task_file: MakeTask) -> None:
    task = load_task(task_file(rows(2), eval_questions=1, prompt_template=r"{question} Answer in \boxed{}."))
    assert task.train[0].prompt.endswith(r"? Answer in \boxed{}.")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eval_questions": 60}, "has 50 distinct questions; task.eval_questions=60 .* at most 50"),
        ({"eval_questions": 50}, r"50 distinct questions; .* task.train_questions=0 \(at least 1\) ask for more"),
        ({"eval_questions": 10, "train_questions": 41}, "together at most 50 would fit"),
        ({"eval_questions": -1}, "0 or more"),
        ({"prompt_template": "Answer!"}, r"prompt_template='Answer!' has no \{question\}"),
    ],
)
def test_what_the_questions_cannot_fill_is_refused_with_the_numbers(
    task_file: MakeTask, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_task(task_file(rows(50), **settings))


@given(
    count=st.integers(2, 30), evaluation=st.integers(0, 29), train=st.integers(0, 29), data_seed=st.integers(0, 1 << 40)
)
def test_no_split_ever_shares_a_question(count: int, evaluation: int, train: int, data_seed: int) -> None:
    rows = [SourceRow(({"role": "user", "content": f"q{i // 2}"},), str(i), f"row {i}") for i in range(2 * count)]
    spec = TaskSpec("file", "x", eval_questions=evaluation, train_questions=train, data_seed=data_seed)
    if evaluation + max(train, 1) > count:
        with pytest.raises(ConfigurationError, match=f"has {count} distinct questions"):
            split(spec, SourceRows(rows))
        return
    task = split(spec, SourceRows(rows))
    assert len(task.evaluation) == evaluation
    assert len(task.train) == (train or count - evaluation)
    assert len({*ids(task.train), *ids(task.evaluation)}) == len(task.train) + len(task.evaluation)


class WordTokenizer:
    """Words as ids, a begin token as real tokenizers add it, and a chat template of two lines."""

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [1] * add_special_tokens + [len(word) + 10 for word in text.split()]}

    def apply_chat_template(self, messages: list[dict[str, str]], tokenize: bool, add_generation_prompt: bool) -> str:
        assert not tokenize
        text = " ".join(f"<{m['role']}> {m['content']}" for m in messages)
        return f"<s> {text}" + " <assistant>" * add_generation_prompt


def test_a_chat_prompt_ends_where_the_assistant_begins_and_gets_no_second_begin_token(task_file: MakeTask) -> None:
    question = load_task(task_file(rows(1), eval_questions=0, system_prompt="Brief.")).train[0]
    chat = "<s> <system> Brief. <user> 0 + 1? <assistant>"
    assert encode_prompt(question, WordTokenizer(), chat_template=True) == [len(w) + 10 for w in chat.split()]
    plain = encode_prompt(question, WordTokenizer(), chat_template=False)
    assert plain == [1, 16, 11, 11, 12]

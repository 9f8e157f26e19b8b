"""The split of questions into training and evaluation, question ids, and prompt templates."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl.spec import ConfigurationError, TaskSpec
from rl.tasks import load_task
from rl.tasks.sources import SourceRow, SourceRows
from rl.tasks.task import split

ONE_DIGIT = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
SUMS = TaskSpec("reasoning_gym", "chain_sum", params=ONE_DIGIT)
MakeTask = Callable[..., TaskSpec]


def rows(count: int) -> list[dict[str, str]]:
    return [{"question": f"{i} + 1?", "answer": str(i + 1)} for i in range(count)]


def ids(questions: object) -> list[str]:
    return [q.question_id for q in questions]  # type: ignore[attr-defined]


def test_training_and_evaluation_share_no_question_and_together_have_all_200_one_digit_sums() -> None:
    task = load_task(SUMS)
    assert len(task.evaluation) == 64
    assert len(task.train) == 136
    assert len({*ids(task.train), *ids(task.evaluation)}) == 200
    assert not {q.prompt for q in task.train} & {q.prompt for q in task.evaluation}


def test_split_is_reproducible_and_depends_on_the_data_seed() -> None:
    assert load_task(SUMS) == load_task(SUMS)
    other = load_task(dataclasses.replace(SUMS, data_seed=1))
    assert set(ids(other.evaluation)) != set(ids(load_task(SUMS).evaluation))


def test_evaluation_set_does_not_depend_on_the_number_of_training_questions(task_file: MakeTask) -> None:
    spec = task_file(rows(50), eval_questions=10)
    few = load_task(dataclasses.replace(spec, train_questions=5))
    assert few.evaluation == load_task(spec).evaluation
    assert few.train == load_task(spec).train[:5]


def test_order_of_the_lines_does_not_change_the_split(task_file: MakeTask) -> None:
    shuffled = rows(40)
    random.Random(0).shuffle(shuffled)
    first = load_task(task_file(rows(40), eval_questions=8))
    assert load_task(task_file(shuffled, eval_questions=8)) == first


def test_questions_that_differ_in_white_space_only_are_one_question(task_file: MakeTask) -> None:
    twice = [{"question": "1 +  1?", "answer": "2"}, {"question": " 1 + 1?\n", "answer": "3"}, *rows(3)[2:]]
    task = load_task(task_file(twice, eval_questions=1))
    assert len(task.train) + len(task.evaluation) == 2
    assert "3" not in [q.answer for q in (*task.train, *task.evaluation) if "1 +" in q.prompt and "2 +" not in q.prompt]


def test_question_id_does_not_depend_on_template_and_system_prompt(task_file: MakeTask) -> None:
    spec = task_file(rows(10), eval_questions=2)
    plain = load_task(spec)
    dressed = load_task(dataclasses.replace(spec, system_prompt="Be brief.", prompt_template="Q: {question}\nA:"))
    assert ids(dressed.evaluation) == ids(plain.evaluation)
    assert dressed.evaluation[0].prompt == f"Be brief.\n\nQ: {plain.evaluation[0].prompt}\nA:"
    assert [m["role"] for m in dressed.evaluation[0].messages] == ["system", "user"]


def test_question_id_is_stable(task_file: MakeTask) -> None:
    task = load_task(task_file([{"question": "1 + 1?", "answer": "2"}], eval_questions=0))
    assert ids(task.train) == ["9336079d31a92367"]


def test_other_braces_in_a_template_are_unchanged(task_file: MakeTask) -> None:
    task = load_task(task_file(rows(2), eval_questions=1, prompt_template=r"{question} Answer in \boxed{}."))
    assert task.train[0].prompt.endswith(r"? Answer in \boxed{}.")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eval_questions": 60}, "has 50 distinct questions; task.eval_questions=60 .* at most 50"),
        ({"eval_questions": 50}, r"50 distinct questions; .* task.train_questions=0 \(at least 1\) ask for more"),
        ({"eval_questions": 10, "train_questions": 41}, "together at most 50 would fit"),
        ({"eval_questions": -1}, "must be 0 or above"),
        ({"prompt_template": "Answer!"}, r"prompt_template='Answer!' has no \{question\}"),
    ],
)
def test_too_few_questions_and_invalid_settings_are_refused(
    task_file: MakeTask, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_task(task_file(rows(50), **settings))


@given(
    count=st.integers(2, 30), evaluation=st.integers(0, 29), train=st.integers(0, 29), data_seed=st.integers(0, 1 << 40)
)
def test_split_never_shares_a_question(count: int, evaluation: int, train: int, data_seed: int) -> None:
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

"""Duplicate and leaked questions, and prompts over the limit."""

from __future__ import annotations

from rl.checks.questions import check_duplicates, check_leakage, check_prompt_lengths, normalised
from rl.tasks.task import Question, Task

LONG = "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. How many in all"


def a_question(text: str, answer: str = "1") -> Question:
    return Question(text, ({"role": "user", "content": text},), answer)


def a_task(train: list[Question], evaluation: list[Question]) -> Task:
    return Task("t", tuple(train), tuple(evaluation))


def test_texts_are_compared_without_case_and_marks_but_with_signs_and_numbers() -> None:
    assert normalised("What is  3 + 4?") == normalised("what IS 3 + 4")
    assert normalised("3 + 4") != normalised("3 - 4")
    assert normalised("3.5") != normalised("35")
    assert normalised("1,000 cats") != normalised("1 000 cats")


def test_questions_that_are_all_different_pass() -> None:
    task = a_task([a_question("3 + 4"), a_question("3 - 4")], [a_question("5 + 6")])
    assert check_leakage(task).status == "passed"
    assert check_duplicates(task).status == "passed"


def test_an_evaluation_question_in_the_training_set_fails_and_is_shown() -> None:
    result = check_leakage(a_task([a_question("What is 3 + 4?")], [a_question("what is 3 + 4"), a_question("b")]))
    assert result.status == "failed"
    assert "1 (50%)" in result.seen
    assert result.lines == ("what is 3 + 4",)


def test_a_long_question_with_a_few_other_words_is_a_leak() -> None:
    task = a_task([a_question(LONG)], [a_question(f"{LONG} then?"), a_question("c " * 30)])
    assert "1 (50%)" in check_leakage(task).seen
    assert check_leakage(a_task([a_question("d " * 30)], [a_question(LONG)])).status == "passed"


def test_one_leaked_question_in_a_hundred_is_a_warning() -> None:
    evaluation = [a_question(f"question {i}") for i in range(100)]
    assert check_leakage(a_task([a_question("Question 5.")], evaluation)).status == "warned"


def test_repeated_questions_warn_and_those_with_different_answers_fail() -> None:
    repeated = check_duplicates(a_task([a_question("A?"), a_question("a")], [a_question("b")]))
    assert (repeated.status, "1 of them repeated" in repeated.seen) == ("warned", True)
    two_answers = check_duplicates(a_task([a_question("A?", "1"), a_question("a", "2")], [a_question("b")]))
    assert (two_answers.status, "different answers" in two_answers.seen) == ("failed", True)


def test_prompts_over_the_limit_are_counted() -> None:
    assert check_prompt_lengths([3, 9], 9).status == "passed"
    over = check_prompt_lengths([3, 9, 12, 4], 9)
    assert (over.status, "1 (25%) are left out" in over.seen) == ("warned", True)
    assert "rollout.max_prompt_tokens=12" in over.remedy
    assert check_prompt_lengths([], 9, "no chat template").status == "failed"

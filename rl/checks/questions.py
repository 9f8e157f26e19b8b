"""Checks of the questions: duplicates, training questions in the evaluation, prompts over the limit.

`rl.tasks.task` has removed questions with the same text before. These checks find questions whose texts differ in case,
punctuation or form of the characters, and long questions that share most of their words in order.

Tested in tests/rl/checks/test_questions.py.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence

from rl.checks.result import CheckResult
from rl.tasks.task import Question, Task

RUN_OF_WORDS = 13
"""Words in a row that are compared, the length of the overlap test in the paper of GPT-3 (arXiv:2005.14165, C)."""
OVERLAP = 0.5
"""Share of the runs of an evaluation question that must be in training questions for it to count as leaked."""
MOST_LEAKED = 0.05
"""Share of leaked evaluation questions above which the check fails."""
MOST_SHOWN = 3
SHOWN_CHARACTERS = 60

_MARKS = re.compile(r"""(?<!\d)[.,!?;:"'\u2018\u2019\u201c\u201d]|[.,!?;:"'\u2018\u2019\u201c\u201d](?!\d)""")


def normalised(text: str) -> str:
    """The text in lower case, with one form of each character, without marks between words and repeated spaces.

    Signs such as + and -, and the marks inside numbers, stay.
    """
    return " ".join(_MARKS.sub(" ", unicodedata.normalize("NFKC", text).casefold()).split())


def check_leakage(task: Task) -> CheckResult:
    """Evaluation questions that are training questions too, in other words or other order of letters."""
    name = "evaluation apart from training"
    if not task.evaluation:
        return CheckResult(name, "skipped", "There are no evaluation questions.")
    train_texts = {normalised(_text(q)) for q in task.train}
    runs = {run for text in train_texts for run in _runs(text)}
    leaked = [q for q in task.evaluation if _leaks(normalised(_text(q)), train_texts, runs)]
    seen = f"{len(task.evaluation)} evaluation questions compared with {len(task.train)} training questions"
    if not leaked:
        return CheckResult(name, "passed", f"{seen}: none is in both.")
    share = len(leaked) / len(task.evaluation)
    return CheckResult(
        name,
        "failed" if share > MOST_LEAKED else "warned",
        f"{seen}: {len(leaked)} ({share:.0%}) are in both, apart from case, punctuation or a few words.",
        "Remove them from the training questions: their accuracy rises by memory, and the evaluation does not show it.",
        tuple(_shown(leaked)),
    )


def check_duplicates(task: Task) -> CheckResult:
    """Training questions that are equal apart from case and punctuation; with different answers, one must be wrong."""
    name = "duplicate questions"
    by_text: dict[str, list[Question]] = defaultdict(list)
    for question in (*task.train, *task.evaluation):
        by_text[normalised(_text(question))].append(question)
    repeated = [same for same in by_text.values() if len(same) > 1]
    total = len(task.train) + len(task.evaluation)
    if not repeated:
        return CheckResult(name, "passed", f"{total} questions are all different.")
    contradictions = [same for same in repeated if len({normalised(q.answer) for q in same}) > 1]
    extra = sum(len(same) - 1 for same in repeated)
    if contradictions:
        return CheckResult(
            name,
            "failed" if len(contradictions) > MOST_LEAKED * len(by_text) else "warned",
            f"{total} questions, {extra} of them repeated; {len(contradictions)} have different answers.",
            "Correct the answers: a question with two answers teaches the opposite every second time.",
            tuple(_shown(same[0] for same in contradictions)),
        )
    return CheckResult(
        name,
        "warned",
        f"{total} questions, {extra} of them repeated apart from case and punctuation.",
        "Remove the copies: a repeated question weighs more than others.",
        tuple(_shown(same[0] for same in repeated)),
    )


def check_prompt_lengths(lengths: Sequence[int], limit: int, problem: str = "") -> CheckResult:
    """How many prompts exceed `rollout.max_prompt_tokens`.

    Args:
        lengths: tokens of the prompts of all questions.
        problem: why the prompts cannot be encoded; empty: they can.
    """
    name = "prompt lengths"
    if problem:
        return CheckResult(name, "failed", problem)
    over = sum(n > limit for n in lengths)
    seen = f"{len(lengths)} prompts have {min(lengths)} to {max(lengths)} tokens; rollout.max_prompt_tokens is {limit}"
    if not over:
        return CheckResult(name, "passed", f"{seen}.")
    return CheckResult(
        name,
        "warned",
        f"{seen}, and {over} ({over / len(lengths):.0%}) are left out.",
        f"Set rollout.max_prompt_tokens={max(lengths)} to train on all of them.",
    )


def _text(question: Question) -> str:
    return question.messages[-1]["content"]


def _leaks(text: str, train_texts: set[str], runs: set[tuple[str, ...]]) -> bool:
    own = _runs(text)
    return text in train_texts or (bool(own) and sum(run in runs for run in own) >= OVERLAP * len(own))


def _runs(text: str) -> list[tuple[str, ...]]:
    words = text.split()
    return [tuple(words[i : i + RUN_OF_WORDS]) for i in range(len(words) - RUN_OF_WORDS + 1)]


def _shown(questions: Iterable[Question]) -> list[str]:
    found = [" ".join(_text(q).split()) for q in questions]
    shown = [t if len(t) <= SHOWN_CHARACTERS else f"{t[: SHOWN_CHARACTERS - 3]}..." for t in found[:MOST_SHOWN]]
    return [*shown, *([f"and {len(found) - MOST_SHOWN} more"] if len(found) > MOST_SHOWN else [])]

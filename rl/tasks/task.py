"""Questions, and their fixed split into training and evaluation. The split does not depend on a trial's seed.

The split is by distinct question. The id of a question is a hash of its text, and questions are ordered by a hash of
`data_seed` and the id. The first `eval_questions` are evaluation, the rest is training. So training and evaluation
share no question, the split is the same for every trial of a sweep, and the order of the lines of a file does not
matter.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rl.spec import ConfigurationError, TaskSpec
from rl.tasks.numbers import parse_number
from rl.tasks.sources import SourceRow, SourceRows, read_rows


@dataclass(frozen=True)
class Question:
    """One question, ready to be made into a prompt."""

    question_id: str
    """16 hex digits: a hash of the question's text, without template and system prompt."""
    messages: tuple[Mapping[str, str], ...]
    """Chat messages (`role`, `content`) with template and system prompt applied. The last one is the user's."""
    answer: str

    @property
    def prompt(self) -> str:
        """The messages as plain text, for models without a chat template."""
        return "\n\n".join(m["content"] for m in self.messages)


@dataclass(frozen=True)
class Task:
    """The questions of a task, split into training and evaluation."""

    name: str
    train: tuple[Question, ...]
    evaluation: tuple[Question, ...]
    user_scorer: str | None = None
    """`package.module:function` if the user's module has its own scorer."""


def load_task(spec: TaskSpec) -> Task:
    """Read the questions of `spec` and split them.

    Raises:
        ConfigurationError: a missing source, an invalid row (named by file and line), or too few questions.
    """
    if spec.eval_questions < 0 or spec.train_questions < 0:
        raise ConfigurationError(
            f"task.eval_questions={spec.eval_questions} and task.train_questions={spec.train_questions} "
            "are numbers of questions: each must be 0 or above"
        )
    if "{question}" not in spec.prompt_template:
        raise ConfigurationError(
            f"task.prompt_template={spec.prompt_template!r} has no {{question}}, the place where the question goes"
        )
    return split(spec, read_rows(spec))


def split(spec: TaskSpec, rows: SourceRows) -> Task:
    """Split the questions of `rows` into training and evaluation.

    Of rows with the same question the first is used. If the source has its own split (a folder or a hub data set with
    `train` and `test`), evaluation questions come from `test`, and training questions from `train` without those that
    are used for evaluation.

    Raises:
        ConfigurationError: too few questions, or an answer that the scorer cannot compare.
    """
    pool = _distinct(spec, rows.train)
    test_pool = pool if rows.test is None else _distinct(spec, rows.test)
    evaluation = test_pool[: spec.eval_questions]
    taken = {q.question_id for q in evaluation}
    train = [q for q in pool if q.question_id not in taken]
    _check_enough(spec, pool, test_pool, train, has_test=rows.test is not None)
    return Task(
        name=spec.name,
        train=tuple(train[: spec.train_questions] if spec.train_questions else train),
        evaluation=tuple(evaluation),
        user_scorer=rows.user_scorer,
    )


def seeded_order(seed: int | str, question_id: str) -> bytes:
    """Sort key that shuffles questions by `seed`. The order is the same on every machine, for any order of input."""
    return hashlib.sha256(f"{seed}/{question_id}".encode()).digest()


def _distinct(spec: TaskSpec, rows: Iterable[SourceRow]) -> list[Question]:
    """The distinct questions of `rows`, in the order of `data_seed`."""
    by_id: dict[str, Question] = {}
    for row in rows:
        question_id = _question_id(row.messages)
        if question_id in by_id:
            continue
        if spec.scorer == "number" and parse_number(row.answer) is None:
            raise ConfigurationError(
                f"{row.where}: the answer {row.answer!r} is not a number, but task.scorer=number compares numbers; "
                "use exact or math_verify for other answers"
            )
        by_id[question_id] = Question(question_id, _messages(spec, row.messages), row.answer)
    return sorted(by_id.values(), key=lambda q: seeded_order(spec.data_seed, q.question_id))


def _question_id(messages: tuple[Mapping[str, str], ...]) -> str:
    """Hash of the text, with runs of white space as one space: questions that differ in white space only are equal."""
    normalised = [[m["role"], " ".join(m["content"].split())] for m in messages]
    return hashlib.sha256(json.dumps(normalised, ensure_ascii=False).encode()).hexdigest()[:16]


def _messages(spec: TaskSpec, messages: tuple[Mapping[str, str], ...]) -> tuple[Mapping[str, str], ...]:
    """`messages` with the prompt template and the system prompt of `spec` applied."""
    *before, last = messages
    # Not str.format: templates may contain other braces, such as those of \boxed{}.
    user = {"role": last["role"], "content": spec.prompt_template.replace("{question}", last["content"])}
    if spec.system_prompt and not any(m["role"] == "system" for m in before):
        before = [{"role": "system", "content": spec.system_prompt}, *before]
    return (*before, user)


def _check_enough(
    spec: TaskSpec, pool: list[Question], test_pool: list[Question], train: list[Question], has_test: bool
) -> None:
    least = max(spec.train_questions, 1)
    if len(test_pool) >= spec.eval_questions and len(train) >= least:
        return
    if has_test:
        found = (
            f"{len(pool)} distinct training questions ({len(train)} not in evaluation) and {len(test_pool)} for test"
        )
        most = f"at most {len(test_pool)} and {len(train)}"
    else:
        found = f"{len(pool)} distinct questions"
        most = f"together at most {len(pool)}"
    raise ConfigurationError(
        f"task {spec.name!r} has {found}; task.eval_questions={spec.eval_questions} and "
        f"task.train_questions={spec.train_questions}{' (at least 1)' if not spec.train_questions else ''} "
        f"ask for more: {most} would fit"
    )

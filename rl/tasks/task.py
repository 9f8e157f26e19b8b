"""Questions and their fixed split into training and evaluation. Never reads a trial's seed, never tokenizes.

The split is by *distinct question*: the id of a question is a hash of its words, questions are ordered by a hash of
`data_seed` and that id, the first `eval_questions` are evaluation and the rest is training. So training and evaluation
share no question, the split is the same for every trial of a sweep, and the order of a file's lines does not matter.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rl.spec import ConfigurationError, TaskSpec
from rl.tasks.scorers import parse_number
from rl.tasks.sources import Row, Rows, read_rows


@dataclass(frozen=True)
class Question:
    """One question as it is put to the model. Completions carry `question_id` wherever they go."""

    question_id: str
    """16 hex digits: a hash of the question's words, without template and system prompt."""
    messages: tuple[Mapping[str, str], ...]
    """Chat messages (`role`, `content`), template and system prompt applied; the last one is the user's."""
    answer: str

    @property
    def prompt(self) -> str:
        """The messages as plain text, for models without a chat template."""
        return "\n\n".join(m["content"] for m in self.messages)


@dataclass(frozen=True)
class Task:
    """The questions of a task, split. `user_scorer` is `package.module:function` where a module brings its own."""

    name: str
    train: tuple[Question, ...]
    evaluation: tuple[Question, ...]
    user_scorer: str | None = None


def load_task(spec: TaskSpec) -> Task:
    """Read the questions of `spec` and split them.

    Raises:
        ConfigurationError: a source that is missing or has a bad row (named by file and line), or too few questions.
    """
    if spec.eval_questions < 0 or spec.train_questions < 0:
        raise ConfigurationError(
            f"task.eval_questions={spec.eval_questions} and task.train_questions={spec.train_questions} "
            "count questions: 0 or more"
        )
    if "{question}" not in spec.prompt_template:
        raise ConfigurationError(f"task.prompt_template={spec.prompt_template!r} has no {{question}} in it")
    return split(spec, read_rows(spec))


def split(spec: TaskSpec, rows: Rows) -> Task:
    """Training and evaluation of `rows`.

    Of rows that ask the same question the first counts. Where the source brings a split of its own (a folder or a hub
    data set with `train` and `test`), evaluation is drawn from `test` and training from `train`, less what evaluation
    holds.

    Raises:
        ConfigurationError: too few questions, or an answer that the scorer cannot compare.
    """
    pool = _distinct(spec, rows.train)
    held_out = pool if rows.test is None else _distinct(spec, rows.test)
    evaluation = held_out[: spec.eval_questions]
    taken = {q.question_id for q in evaluation}
    train = [q for q in pool if q.question_id not in taken]
    _check_enough(spec, pool, held_out, train, has_test=rows.test is not None)
    return Task(
        name=spec.name,
        train=tuple(train[: spec.train_questions] if spec.train_questions else train),
        evaluation=tuple(evaluation),
        user_scorer=rows.user_scorer,
    )


def seeded_order(seed: int | str, question_id: str) -> bytes:
    """Sort key that shuffles questions by `seed`, the same on every machine and for every order they come in."""
    return hashlib.sha256(f"{seed}/{question_id}".encode()).digest()


def _distinct(spec: TaskSpec, rows: Iterable[Row]) -> list[Question]:
    """The distinct questions of `rows`, in the order of `data_seed`."""
    by_id: dict[str, Question] = {}
    for row in rows:
        question_id = _question_id(row.messages)
        if question_id in by_id:
            continue
        if spec.scorer == "number" and parse_number(row.answer) is None:
            raise ConfigurationError(
                f"{row.where}: the answer {row.answer!r} is not a number, which task.scorer=number compares; "
                "use exact or math_verify for other answers"
            )
        by_id[question_id] = Question(question_id, _messages(spec, row.messages), row.answer)
    return sorted(by_id.values(), key=lambda q: seeded_order(spec.data_seed, q.question_id))


def _question_id(messages: tuple[Mapping[str, str], ...]) -> str:
    """Runs of white space are one space, so that a stray blank does not make a trained question look new."""
    words = [[m["role"], " ".join(m["content"].split())] for m in messages]
    return hashlib.sha256(json.dumps(words, ensure_ascii=False).encode()).hexdigest()[:16]


def _messages(spec: TaskSpec, asked: tuple[Mapping[str, str], ...]) -> tuple[Mapping[str, str], ...]:
    *before, last = asked
    # Not str.format: templates hold braces of their own, such as \boxed{}.
    user = {"role": last["role"], "content": spec.prompt_template.replace("{question}", last["content"])}
    if spec.system_prompt and not any(m["role"] == "system" for m in before):
        before = [{"role": "system", "content": spec.system_prompt}, *before]
    return (*before, user)


def _check_enough(
    spec: TaskSpec, pool: list[Question], held_out: list[Question], train: list[Question], has_test: bool
) -> None:
    least = max(spec.train_questions, 1)
    if len(held_out) >= spec.eval_questions and len(train) >= least:
        return
    if has_test:
        found = f"{len(pool)} distinct training questions ({len(train)} not in evaluation) and {len(held_out)} for test"
        most = f"at most {len(held_out)} and {len(train)}"
    else:
        found = f"{len(pool)} distinct questions"
        most = f"together at most {len(pool)}"
    raise ConfigurationError(
        f"task {spec.name!r} has {found}; task.eval_questions={spec.eval_questions} and "
        f"task.train_questions={spec.train_questions}{' (at least 1)' if not spec.train_questions else ''} "
        f"ask for more: {most} would fit"
    )

"""The reward probe: completions that do not answer the question are scored, and any that earns a reward is shown.

A policy finds every such completion that a scorer accepts, and then the reward rises without an answer. The probe uses
the scorer of the task as training does: in its own process, with its deadline, with the weights of the rewards.

Two kinds of completions are scored. Some have no right answer in them: they must not count as correct. Others have the
right answer among wrong ones, in every order: a scorer that takes one place in the text as the answer accepts some
orders, and a scorer that accepts all orders pays for guessing.

Tested in tests/rl/checks/test_reward_probe.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rl.checks.result import CheckResult
from rl.tasks.numbers import parse_number
from rl.tasks.rewards import Scores
from rl.tasks.task import Question

NAME = "reward probe"
QUESTIONS = 10
"""Questions that are probed; each has about 25 completions."""
LISTED_ANSWERS = 40
"""Most answers in the list of all answers."""
CHANCE = 0.4
"""Share of the questions on which a completion without the answer may be correct by chance: a copied prompt may end in
the number that is the answer."""
AS_GOOD = 0.9
"""A completion that does not answer and earns at least this share of a right answer's reward fails the check."""
COUNTS_AS_CORRECT = 0.5
"""A raw reward `correct` of at least this counts as correct."""
SHOWN_CHARACTERS = 30

Score = Callable[[Sequence[str], Sequence[str]], Scores]


@dataclass(frozen=True)
class Attempt:
    """A way to earn a reward without answering, as completions to one question."""

    name: str
    completions: tuple[str, ...]
    all_must_earn: bool = False
    """True: the attempt succeeds only where every one of `completions` earns; False: where any does."""
    only_warns: bool = False


@dataclass(frozen=True)
class Earned:
    """What an attempt earned over all probed questions."""

    attempt: str
    correct: float
    """Share of the questions on which it counts as correct."""
    reward: float
    """Mean weighted reward."""
    example: str
    """The completion that earned most."""
    only_warns: bool


def attempts(question: Question, answers: Sequence[str]) -> tuple[Attempt, ...]:
    """All attempts at one question.

    Args:
        answers: distinct answers of the task, in a fixed order.
    """
    right = question.answer
    wrong = [a for a in answers if not _equal(a, right)] or [_another(right)]
    first, second = wrong[0], wrong[len(wrong) // 2]
    listed = _listed(right, wrong)
    return (
        Attempt("empty", ("", "\n")),
        Attempt("prompt copied", (question.messages[-1]["content"],)),
        Attempt("wrong answer", tuple(form.format(first) for form in _FORMS)),
        Attempt("format without answer", tuple(form.format("") for form in _FORMS[1:])),
        Attempt("every answer listed", (", ".join(listed), ", ".join(reversed(listed))), all_must_earn=True),
        Attempt("two answers", (f"{right} or {first}", f"{first} or {right}"), all_must_earn=True),
        Attempt(
            "hidden in noise",
            (
                f"the {first} of green {second} {right} under seven {first} of",
                f"{second} of {first} and {right} or blue {second} window {first} the",
            ),
            all_must_earn=True,
        ),
        Attempt("very long", ("Let me think about it a little more. " * 300,)),
        Attempt("repeated", ("The answer is " * 100, "!" * 2000)),
        Attempt("another language", ("Ich kenne die Antwort nicht.", "\u6211\u4e0d\u77e5\u9053\u7b54\u6848\u3002")),
        Attempt(
            "in the thinking only",
            (f"<think>The answer is {right}.</think>", f"<think>The answer is {right}."),
            only_warns=True,
        ),
    )


_FORMS = ("{}", "The answer is {}.", "#### {}", "\\boxed{{{}}}", "<answer>{}</answer>", "<think>So.</think>\n#### {}")
"""Usual forms of an answer."""


def check_reward(questions: Sequence[Question], score: Score) -> CheckResult:
    """Score all attempts at some of the questions.

    Args:
        score: scores completions against answers; an error of the scorer is in its result.
    """
    chosen = list(questions)[:QUESTIONS]
    answers = list(dict.fromkeys(q.answer for q in questions))[:LISTED_ANSWERS]
    by_question = [attempts(q, answers) for q in chosen]
    if (stopped := _first_question(chosen[0], by_question[0], score)) is not None:
        return stopped
    texts, keys = _flat(chosen, by_question)
    scores = score(texts, keys)
    errors = [e for e in scores.errors if e]
    per = len(_FORMS) + sum(len(a.completions) for a in by_question[0])
    reference = [range(i * per, i * per + len(_FORMS)) for i in range(len(chosen))]
    right = _mean(max(scores.raw["correct"][j] for j in span) for span in reference)
    full = _mean(max(scores.reward[j] for j in span) for span in reference)
    earned = _earned(by_question, texts, scores, per)
    return _judged(len(chosen), right, full, earned, errors, len(texts))


def _first_question(question: Question, tried: Sequence[Attempt], score: Score) -> CheckResult | None:
    """A result if the scorer hangs: each completion of the first question is scored alone, until one is too slow."""
    for attempt in (Attempt("right answer", _FORMS[:1]), *tried):
        for text in attempt.completions:
            completion = text.format(question.answer) if attempt.name == "right answer" else text
            error = score([completion], [question.answer]).errors[0]
            if error and error.startswith("no answer within"):
                return CheckResult(
                    NAME,
                    "failed",
                    f"The scorer gave {error} for the completion {_short(completion)!r} ({attempt.name}).",
                    "Give the scorer a limit of its own, or raise task.reward_timeout_seconds. In training each such "
                    "completion counts as wrong and costs the whole deadline.",
                )
    return None


def _flat(questions: Sequence[Question], tried: Sequence[Sequence[Attempt]]) -> tuple[list[str], list[str]]:
    """(completions, answers): per question the forms of the right answer, then the completions of all attempts."""
    texts: list[str] = []
    answers: list[str] = []
    for question, of_question in zip(questions, tried, strict=True):
        new = [form.format(question.answer) for form in _FORMS]
        new += [text for attempt in of_question for text in attempt.completions]
        texts += new
        answers += [question.answer] * len(new)
    return texts, answers


def _earned(tried: Sequence[Sequence[Attempt]], texts: Sequence[str], scores: Scores, per: int) -> list[Earned]:
    found = []
    start = len(_FORMS)
    for index, attempt in enumerate(tried[0]):
        size = len(attempt.completions)
        correct, reward, best = [], [], (-1.0, -1.0, "")
        for number in range(len(tried)):
            span = range(number * per + start, number * per + start + size)
            choose = min if tried[number][index].all_must_earn else max
            chosen = choose(span, key=lambda j: (scores.raw["correct"][j], scores.reward[j]))
            correct.append(scores.raw["correct"][chosen] >= COUNTS_AS_CORRECT)
            reward.append(scores.reward[chosen])
            best = max(best, (scores.raw["correct"][chosen], scores.reward[chosen], texts[chosen]))
        found.append(Earned(attempt.name, _mean(correct), _mean(reward), best[2], attempt.only_warns))
        start += size
    return found


def _judged(
    questions: int, right: float, full: float, earned: Sequence[Earned], errors: Sequence[str], scored: int
) -> CheckResult:
    cheats = [e for e in earned if e.correct > CHANCE or (full > 0 and e.reward >= AS_GOOD * full)]
    half = [e for e in earned if e not in cheats and full > 0 and e.reward >= full / 2]
    lines = tuple(_table(full, right, earned, {e.attempt for e in cheats + half}))
    seen = f"{scored} completions to {questions} questions scored; a right answer earns {full:.2f}."
    if failing := [e for e in cheats if not e.only_warns]:
        names = ", ".join(f"{e.attempt} ({e.reward:.2f})" for e in failing)
        return CheckResult(
            NAME,
            "failed",
            f"{seen} Completions that do not answer earn as much: {names}.",
            "Make the scorer accept one place in the completion as the answer, and nothing else; or lower the weight "
            "of the reward that pays for it (task.reward_weights).",
            lines,
        )
    if right < COUNTS_AS_CORRECT:
        return CheckResult(
            NAME,
            "warned",
            f"{seen} No usual form of the right answer counts as correct (correct is {right:.2f}).",
            "Score a right completion by hand: a scorer that accepts none gives no signal.",
            lines,
        )
    if errors:
        return CheckResult(
            NAME,
            "warned",
            f"{seen} The scorer failed on {len(errors)} of them: {_short(errors[0])}",
            "Make the scorer return 0 for completions that it cannot read; failures count as wrong.",
            lines,
        )
    if cheats or half:
        names = ", ".join(f"{e.attempt} ({e.reward:.2f})" for e in (*cheats, *half))
        return CheckResult(
            NAME,
            "warned",
            f"{seen} Completions that do not answer earn at least half of it: {names}.",
            "Lower the weights of the rewards other than correct (task.reward_weights), or read the scorer.",
            lines,
        )
    return CheckResult(NAME, "passed", f"{seen} No completion without the answer earns half of it.", lines=lines)


def _table(full: float, right: float, earned: Sequence[Earned], marked: set[str]) -> Iterator[str]:
    yield f"{'completion':24}  {'correct':>7}  {'reward':>6}"
    yield f"{'right answer':24}  {right:>7.0%}  {full:>6.2f}"
    for e in earned:
        mark = f"  <- {_short(e.example)!r}" if e.attempt in marked else ""
        yield f"{e.attempt:24}  {e.correct:>7.0%}  {e.reward:>6.2f}{mark}"


def _listed(right: str, wrong: Sequence[str]) -> list[str]:
    """Answers with the right one in the middle, so that neither the first nor the last is right."""
    others = list(wrong)
    if len(others) == 1:
        others.append(_another(others[0]))
    middle = len(others) // 2
    return [*others[:middle], right, *others[middle:]]


def _equal(one: str, other: str) -> bool:
    a, b = parse_number(one), parse_number(other)
    if a is not None and b is not None:
        return a.equals(b)
    return one.strip().casefold() == other.strip().casefold()


def _another(answer: str) -> str:
    """An answer that differs from this one."""
    number = parse_number(answer)
    return f"{answer}?" if number is None else str(int(number.value) + 1)


def _mean(values: Iterator[float] | Sequence[float]) -> float:
    found = [float(v) for v in values]
    return sum(found) / len(found)


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 3]}..."

"""Completions that do not answer the question, scored by scorers with and without holes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rl.checks.result import CheckResult, worst
from rl.checks.reward_probe import NAME, QUESTIONS, check_reward
from rl.spec import TaskSpec
from rl.tasks.rewards import Scorer
from rl.tasks.task import Question

SUMS = tuple(
    Question(f"{a}{b}", ({"role": "user", "content": f"What is {a} + {b}?"},), str(a + b))
    for a, b in [(3, 4), (9, 8), (2, 2), (5, 6), (7, 1), (6, 9), (1, 2), (8, 5), (4, 5), (7, 7), (3, 3), (6, 2)]
)

CHEATABLE = """
import re, time
def anywhere(completion, answer):
    return float(answer in re.findall(r"\\d+", completion))
def by_length(completion, answer):
    return {"correct": float(completion.strip() == answer), "long": min(len(completion) / 500, 1.0)}
def hangs(completion, answer):
    time.sleep(600)
def raises_when_empty(completion, answer):
    return float(completion.split()[-1].strip(".}") == answer)
def deaf(completion, answer):
    return 0.0
"""


def probed(spec: TaskSpec, scorer: str | None = None) -> CheckResult:
    with Scorer(spec, scorer, warm_up_seconds=1.0) as running:
        return check_reward(SUMS, running.score)


def a_task(**changes: object) -> TaskSpec:
    return TaskSpec(**{"kind": "module", "name": "m:q", **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("scorer", ["number", "exact"])
def test_the_scorers_of_the_package_pass(scorer: str) -> None:
    result = probed(a_task(scorer=scorer))
    assert (result.name, result.status) == (NAME, "passed")
    assert f"completions to {QUESTIONS} questions" in result.seen


def test_a_format_reward_at_its_default_weight_passes() -> None:
    assert probed(a_task(format_pattern=r"-?\d+\.?\s*$")).status == "passed"


def test_a_format_reward_of_half_the_answer_is_a_warning() -> None:
    result = probed(a_task(format_pattern=r"-?\d+\.?\s*$", reward_weights={"correct": 1.0, "format": 1.0}))
    assert result.status == "warned"
    assert "wrong answer (1.00)" in result.seen


def test_a_scorer_that_finds_the_answer_anywhere_fails_and_the_cheats_are_shown(
    user_module: Callable[[str], str],
) -> None:
    result = probed(a_task(), f"{user_module(CHEATABLE)}:anywhere")
    assert result.status == "failed"
    assert "every answer listed (1.00)" in result.seen
    assert "two answers (1.00)" in result.seen
    assert "hidden in noise (1.00)" in result.seen
    assert any(line.startswith("every answer listed") and "<-" in line for line in result.lines)
    assert max(map(len, result.lines)) <= 80


def test_a_reward_for_length_alone_fails(user_module: Callable[[str], str]) -> None:
    weights = {"correct": 1.0, "long": 1.0}
    result = probed(a_task(reward_weights=weights), f"{user_module(CHEATABLE)}:by_length")
    assert result.status == "failed"
    assert "very long (1.00)" in result.seen


def test_a_scorer_that_hangs_is_reported_after_its_deadline(user_module: Callable[[str], str]) -> None:
    result = probed(a_task(reward_timeout_seconds=0.5), f"{user_module(CHEATABLE)}:hangs")
    assert result.status == "failed"
    assert "no answer within 0.5 s" in result.seen
    assert "task.reward_timeout_seconds" in result.remedy


def test_errors_of_the_scorer_and_a_scorer_that_accepts_nothing_are_warnings(
    user_module: Callable[[str], str],
) -> None:
    module = user_module(CHEATABLE)
    failing = probed(a_task(), f"{module}:raises_when_empty")
    assert failing.status == "warned"
    assert "IndexError" in failing.seen
    nothing = probed(a_task(), f"{module}:deaf")
    assert nothing.status == "warned"
    assert "No usual form of the right answer" in nothing.seen


def test_the_worst_result_decides() -> None:
    one = {s: CheckResult("a", s, "") for s in ("passed", "warned", "failed", "skipped")}
    assert worst([one["passed"], one["warned"], one["failed"]]) == "failed"
    assert worst([one["passed"], one["skipped"]]) == "passed"
    assert worst([one["skipped"]]) == "skipped"

"""What the base model can learn from: its accuracy, and the share of groups that will teach.

A group of G completions to a question with accuracy p has right and wrong completions with the probability
1 - p^G - (1-p)^G. The check samples whole groups, so their share needs no estimate of each question's p.

Tested in tests/rl/checks/test_learning_signal.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rl.checks.result import CheckResult
from rl.spec import QuestionResult
from rl.tasks.evaluation import average_at_k

MOST_TRUNCATED = 0.5
"""Share of truncated completions above which the check warns."""
PHANTOM_SHARE = 0.5
"""Share of groups with phantom credit among those with reward spread above which the check warns."""
NORMAL_95 = 1.96


@dataclass(frozen=True)
class SampledGroup:
    """The completions of one question."""

    correct: tuple[float, ...]
    """Raw correctness, 0 to 1."""
    rewards: tuple[float, ...]


def smallest_difference(accuracy: float, questions: int) -> float:
    """The difference of two accuracies, each over this many questions, that is significant at 95 %.

    Two independent binomial shares: 1.96 sqrt(2 p (1 - p) / n). `accuracy` is moved away from 0 and 1 by one question
    (p = (x + 1) / (n + 2)), where the formula would give 0.
    """
    p = (accuracy * questions + 1) / (questions + 2)
    return NORMAL_95 * math.sqrt(2 * p * (1 - p) / questions)


def share_that_teaches(accuracies: Sequence[float], group_size: int) -> float:
    """1 - p^G - (1-p)^G, averaged over questions with these accuracies."""
    return sum(1 - p**group_size - (1 - p) ** group_size for p in accuracies) / len(accuracies)


def check_base_accuracy(results: Sequence[QuestionResult], truncated: float, all_questions: int) -> CheckResult:
    """Accuracy and truncation of the base model, and the difference that the evaluation can show.

    Args:
        truncated: share of the completions that reached the limit.
        all_questions: questions of the evaluation; `results` may have fewer.
    """
    name = "base accuracy"
    estimate = average_at_k(results)
    difference = smallest_difference(estimate.value, all_questions)
    part = "" if len(results) == all_questions else f" (measured on {len(results)} of {all_questions} questions)"
    seen = (
        f"Base {estimate.value:.2f}, 95 % interval {estimate.low:.2f} to {estimate.high:.2f}{part}; headroom "
        f"{1 - estimate.value:.2f}. This evaluation sees differences of {difference:.2f} or more; {truncated:.0%} of "
        "the completions are truncated."
    )
    if estimate.value == 0:
        return CheckResult(name, "warned", seen, "No answer is right: use easier questions or another model.")
    if truncated > MOST_TRUNCATED:
        return CheckResult(name, "warned", seen, "Raise rollout.max_completion_tokens, or ask for shorter answers.")
    if difference > 1 - estimate.value:
        return CheckResult(
            name, "warned", seen, "The headroom is smaller than that: use harder questions or more of them."
        )
    return CheckResult(name, "passed", seen)


def check_learning_signal(groups: Sequence[SampledGroup], group_size: int) -> CheckResult:
    """Groups that teach, by reward and by correctness, and groups with phantom credit."""
    name = "groups that teach"
    n = len(groups)
    spread = [len(set(g.rewards)) > 1 for g in groups]
    mixed = [len(set(g.correct)) > 1 for g in groups]
    phantom = sum(s and not m for s, m in zip(spread, mixed, strict=True))
    accuracy = sum(sum(g.correct) for g in groups) / sum(len(g.correct) for g in groups)
    most = share_that_teaches([accuracy], group_size)
    seen = (
        f"{n} groups of {group_size} sampled: rewards differ in {sum(spread)}, correctness in {sum(mixed)} "
        f"({sum(mixed) / n:.0%}; {most:.0%} if all questions were equally hard, at accuracy {accuracy:.2f}); "
        f"{n - sum(spread)} have no spread and teach nothing. Phantom credit in {phantom}: equally correct, and yet "
        "different rewards."
    )
    if not any(spread):
        return CheckResult(
            name, "warned", seen, "Use questions that the model answers sometimes, or a larger search.group_size."
        )
    if phantom > PHANTOM_SHARE * sum(spread):
        return CheckResult(
            name,
            "warned",
            seen,
            "Most of the gradient is about format or length. Lower those rewards (task.reward_weights), or set "
            "algorithm.drop_zero_variance_groups=true algorithm.zero_variance_of=accuracy.",
        )
    return CheckResult(name, "passed", seen)

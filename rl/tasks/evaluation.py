"""Statistics of evaluations: accuracy with its interval, pass@k, and the paired difference of two evaluations.

Pure functions over `rl.spec.QuestionResult`, without bootstrap. All intervals are clustered by question: samples of one
question are correlated, and an interval that treats them as independent is too narrow (E. Miller, "Adding Error Bars to
Evals", arXiv:2411.00640).

Intervals of a share. With p_i the share of right samples of question i of Q, p their mean and s = sd(p_i, ddof=1) /
sqrt(Q), the interval is Wilson's score interval at the effective number of samples n = p (1 - p) / s**2, with Student's
t at Q - 1 degrees of freedom for z (the recommendation of C. Franco, R. Little, T. Louis and E. Slud, "Comparative
Study of Confidence Intervals for Proportions in Complex Sample Surveys", J. Survey Stat. Methodol. 7 (2019) 334,
PMC6690503). It lies in [0, 1] and is valid near both ends. If all p_i are equal (all right, all wrong, or one
question), s = 0 has no information. Then n = Q, as if each question had been sampled once, which gives a wider
interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rl.spec import QuestionResult, mean_accuracy


@dataclass(frozen=True)
class Estimate:
    """A mean over questions and its interval."""

    value: float
    low: float
    high: float
    questions: int


def average_at_k(results: Sequence[QuestionResult], confidence: float = 0.95) -> Estimate:
    """Mean over questions of the share of right samples (avg@k, accuracy), with its interval clustered by question.

    Raises:
        ValueError: no questions, a question twice, or impossible counts.
    """
    _check(results)
    accuracy = mean_accuracy(results)
    assert accuracy is not None  # there are questions, each sampled at least once
    return _interval(accuracy, [r.correct / r.samples for r in results], [r.samples for r in results], confidence)


def pass_at_k(results: Sequence[QuestionResult], k: int, confidence: float = 0.95) -> Estimate:
    """Probability that at least one of k samples is right, unbiased, with its interval clustered by question.

    For a question with c right of n samples: 1 - C(n-c, k) / C(n, k) (M. Chen et al., "Evaluating Large Language
    Models Trained on Code", arXiv:2107.03374, equation 1).

    Raises:
        ValueError: no questions, a question twice, impossible counts, or a question with fewer than k samples.
    """
    _check(results)
    fewest = min(r.samples for r in results)
    if not 1 <= k <= fewest:
        raise ValueError(f"pass@{k} needs k from 1 to the number of samples per question, which is {fewest}")
    chances = [1.0 - math.comb(r.samples - r.correct, k) / math.comb(r.samples, k) for r in results]
    return _interval(_mean(chances), chances, [r.samples for r in results], confidence)


def paired_difference(
    before: Sequence[QuestionResult], after: Sequence[QuestionResult], confidence: float = 0.95
) -> Estimate:
    """Mean over questions of accuracy `after` minus accuracy `before`, on the same questions; between -1 and 1.

    The interval is d +- t s, with d the mean of the differences d_i, s = sd(d_i, ddof=1) / sqrt(Q), and Student's t at
    Q - 1 degrees of freedom (Miller, as above). If all d_i are equal, s = 0 has no information. By Wilson's limit for 0
    of Q, up to u = z**2 / (Q + z**2) of all questions may then differ from these, each by up to 1 + |d|, so the
    interval is d +- u (1 + |d|).

    Raises:
        ValueError: no questions, a question twice, impossible counts, or different questions on the two sides.
    """
    _check(before)
    _check(after)
    old = {r.question_id: r.correct / r.samples for r in before}
    new = {r.question_id: r.correct / r.samples for r in after}
    if old.keys() != new.keys():
        raise ValueError(
            f"a paired difference needs the same questions: {len(old.keys() - new.keys())} are only in the first "
            f"evaluation, {len(new.keys() - old.keys())} only in the second, {len(old.keys() & new.keys())} in both"
        )
    differences = [new[i] - old[i] for i in old]
    mean, s = _mean(differences), _standard_error(differences)
    z = _quantile(len(differences), confidence)
    half = z * s if s else z * z / (len(differences) + z * z) * (1.0 + abs(mean))
    return Estimate(mean, max(-1.0, mean - half), min(1.0, mean + half), len(differences))


def _interval(p: float, shares: Sequence[float], samples: Sequence[int], confidence: float) -> Estimate:
    """`p`, the mean of `shares`, with the interval that the module's docstring describes."""
    questions, s = len(shares), _standard_error(shares)
    z = _quantile(questions, confidence)
    # By chance the spread can be smaller than that of independent samples; the number of samples is an upper limit.
    n = min(p * (1.0 - p) / s**2, sum(samples)) if s else questions
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # At p = 0 and p = 1 one limit equals p; rounding must not move it past p.
    return Estimate(p, max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half)), questions)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _standard_error(values: Sequence[float]) -> float:
    """Of the mean; exactly 0.0 where there is no spread, or one value only."""
    if min(values) == max(values):
        return 0.0
    mean = _mean(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))


def _quantile(questions: int, confidence: float) -> float:
    """Two-sided quantile of Student's t at questions - 1 degrees of freedom; the normal one for a single question."""
    from scipy import special

    upper = 0.5 + confidence / 2
    return float(special.stdtrit(questions - 1, upper) if questions > 1 else special.ndtri(upper))


def _check(results: Sequence[QuestionResult]) -> None:
    if not results:
        raise ValueError("an evaluation without questions has no accuracy")
    if len({r.question_id for r in results}) != len(results):
        raise ValueError("a question is in the evaluation more than once")
    for r in results:
        if not (r.samples >= 1 and 0 <= r.correct <= r.samples):
            raise ValueError(f"question {r.question_id}: {r.correct} right of {r.samples} samples is impossible")

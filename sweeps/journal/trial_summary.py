"""The summary of a trial's messages: its size does not grow with the number of steps.

Gates, forecasts, the learning-rate rule, pruning and the terminal use it. Readers that need every step of a trial read
the journal (`sweeps.journal.trial_reports`). A step counts once: steps and evaluations that are done again after a
restore repeat the same work, so the summary skips everything that is not beyond the highest step so far.

Tested in tests/sweeps/journal/test_journal.py and tests/sweeps/protocol/test_gates.py.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rl.messages import EIGHT_CURVES
from rl.spec import (
    CheckpointWritten,
    Curves,
    EvalReport,
    Event,
    Finished,
    Mean,
    QuestionResult,
    Started,
    StepReport,
    mean_accuracy,
)

WINDOW_STEPS = 5
"""How many of the last steps the learning-rate rule reads."""


@dataclass(frozen=True, slots=True)
class Worst:
    """The largest value of a number over a trial's steps, and its step. NaN counts as infinite."""

    value: float
    step: int


@dataclass(frozen=True, slots=True)
class NotFinite:
    """The first step with numbers that are not finite, and the names of those numbers."""

    step: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LastStep:
    """The newest step of a trial, as tables show it."""

    reward: float | None
    acc: float | None
    clip_frac: float | None


@dataclass(frozen=True, slots=True)
class WindowStep:
    """The curves of one step that the learning-rate rule reads; see `rl.spec.Curves`."""

    clip_frac: Mean | None
    approx_kl: Mean | None
    entropy: Mean | None
    grad_norms: tuple[float, ...]
    """One per update."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation, question by question. Trials share the tuples of question ids, to save memory."""

    step: int
    questions: tuple[str, ...]
    correct: tuple[int, ...]
    samples: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "questions", _shared(self.questions))
        object.__setattr__(self, "samples", _shared(self.samples))

    @property
    def results(self) -> tuple[QuestionResult, ...]:
        return tuple(map(QuestionResult, self.questions, self.correct, self.samples))

    @property
    def accuracy(self) -> float | None:
        return mean_accuracy(self.results)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The accuracy of one evaluation; None where it had no samples."""

    step: int
    acc: float | None


@dataclass(slots=True)
class TrialSummary:
    """The summary of all messages of a trial, over all its attempts."""

    step: int = 0
    """The highest step: steps 1 to this one have been reported."""
    wall_ns: int = 0
    """Wall time of those steps, each counted once."""
    step_times: dict[str, int] = field(default_factory=dict)
    """Histogram of their wall times: how many steps took that many nanoseconds, to three digits (`1.83e+09`)."""
    staleness: int = 0
    """The largest staleness."""
    ratio_off: Worst | None = None
    """Distance of the mean ratio of the first update from 1, over steps with fresh rollouts."""
    logp_diff: Worst | None = None
    """Mean |log pi_old - log pi_sample|, over steps with fresh rollouts."""
    not_finite: NotFinite | None = None
    scorer_errors: Mean = Mean.EMPTY
    """Completions whose scorer raised or timed out, over all steps."""
    scorer_error: str = ""
    """The first error of a scorer, as text."""
    zero_std: Mean = Mean.EMPTY
    """Groups whose rewards are all equal, over all steps."""
    missing_curves: tuple[str, ...] = EIGHT_CURVES
    """Those of the eight curves that no step has had a value of."""
    first_entropy: Mean | None = None
    """Entropy of step 1."""
    window: tuple[WindowStep, ...] = ()
    """The last `WINDOW_STEPS` steps, in order."""
    last: LastStep | None = None
    first_evaluation: Evaluation | None = None
    last_evaluation: Evaluation | None = None
    """None until there are two evaluations."""
    accuracies: tuple[Accuracy, ...] = ()
    """Every evaluation, in order of steps."""
    evaluation_wall_ns: int = 0
    started: Started | None = None
    """`Started` of the newest attempt."""
    checkpoint: CheckpointWritten | None = None
    """The newest checkpoint."""
    finished: Finished | None = None

    def add(self, message: Event) -> None:
        """Add the next message of the trial."""
        if isinstance(message, StepReport):
            if message.step > self.step:
                self._add_step(message)
        elif isinstance(message, EvalReport):
            if not self.accuracies or message.step > self.accuracies[-1].step:
                self._add_evaluation(message)
        elif isinstance(message, CheckpointWritten):
            self.checkpoint = message
        elif isinstance(message, Started):
            self.started = message
        elif isinstance(message, Finished):
            self.finished = message

    @property
    def acc(self) -> float | None:
        """Accuracy of the newest evaluation."""
        return self.accuracies[-1].acc if self.accuracies else None

    @property
    def window_clip_frac(self) -> float | None:
        """Over the steps of the window together."""
        return sum((step.clip_frac for step in self.window if step.clip_frac is not None), Mean.EMPTY).value

    def _add_step(self, report: StepReport) -> None:
        curves = report.curves
        self.step = report.step
        self.wall_ns += report.wall_ns
        time = f"{report.wall_ns:.2e}"
        self.step_times[time] = self.step_times.get(time, 0) + 1
        self.staleness = max(self.staleness, report.staleness)
        if report.staleness == 0:
            first = curves.updates[0].ratio.value if curves.updates else None
            self.ratio_off = _worse(self.ratio_off, None if first is None else abs(first - 1.0), report.step)
            self.logp_diff = _worse(self.logp_diff, curves.logp_diff.value, report.step)
        if self.not_finite is None and (names := not_finite_names(report)):
            self.not_finite = NotFinite(report.step, names)
        self.scorer_errors += curves.reward_errors
        self.scorer_error = self.scorer_error or report.scorer_error
        self.zero_std += curves.zero_std
        if self.missing_curves:
            self.missing_curves = tuple(name for name in self.missing_curves if not _has(curves, name))
        clip_frac, entropy = curves.clip_frac, curves.over_updates("entropy")
        if report.step == 1:
            self.first_entropy = entropy
        norms = tuple(update.grad_norm for update in curves.updates)
        seen = WindowStep(clip_frac, curves.over_updates("approx_kl"), entropy, norms)
        self.window = (*self.window[1 - WINDOW_STEPS :], seen)
        self.last = LastStep(curves.reward.value, curves.acc.value, clip_frac.value if clip_frac else None)

    def _add_evaluation(self, report: EvalReport) -> None:
        columns = zip(*((r.question_id, r.correct, r.samples) for r in report.results), strict=True)
        questions, correct, samples = columns if report.results else ((), (), ())
        evaluation = Evaluation(report.step, questions, correct, samples)
        if self.first_evaluation is None:
            self.first_evaluation = evaluation
        else:
            self.last_evaluation = evaluation
        self.accuracies += (Accuracy(report.step, report.accuracy),)
        self.evaluation_wall_ns += report.wall_ns


def not_finite_names(report: StepReport) -> tuple[str, ...]:
    """The numbers of a step that are NaN or infinite."""
    if math.isfinite(_sum_of_numbers(report)):
        return ()
    # The sum of finite numbers may overflow.
    return tuple(sorted({name for name, value in _numbers(report) if not math.isfinite(value)}))


@functools.lru_cache(maxsize=64)
def _shared(value: tuple[Any, ...]) -> tuple[Any, ...]:
    """The first of all equal tuples, so that only one of them is in memory."""
    return value


def _has(curves: Curves, name: str) -> bool:
    """Whether a step has a value of one of the eight curves."""
    match name:
        case "grad_norm":
            return bool(curves.updates)
        case "ratio_mean":
            return bool(curves.updates) and curves.updates[-1].ratio.value is not None
        case "kl" | "entropy":
            mean = curves.over_updates(name)
        case _:
            mean = getattr(curves, name)
    return mean is not None and mean.value is not None


def _worse(before: Worst | None, value: float | None, step: int) -> Worst | None:
    if value is None:
        return before
    if not math.isfinite(value):
        value = math.inf
    return Worst(value, step) if before is None or value > before.value else before


def _sum_of_numbers(report: StepReport) -> float:
    """Finite where all numbers of `_numbers` are finite; much faster than testing each."""
    curves = report.curves
    total = curves.reward.total + curves.acc.total + curves.response_length.total
    total += curves.logp_diff.total + curves.sampler_ratio.total + curves.mismatch_kl.total
    for mean in curves.rewards.values():
        total += mean.total
    for update in curves.updates:
        total += update.grad_norm + update.loss + update.ratio.total + update.entropy.total + update.approx_kl.total
        for mean in (update.kl, update.clip_low, update.clip_high):
            if mean is not None:
                total += mean.total
    return total


def _numbers(report: StepReport) -> Iterator[tuple[str, float]]:
    curves = report.curves
    means: dict[str, Mean | None] = {
        "reward": curves.reward,
        "acc": curves.acc,
        "response_length": curves.response_length,
        "logp_diff": curves.logp_diff,
        "sampler_ratio": curves.sampler_ratio,
        "mismatch_kl": curves.mismatch_kl,
        **curves.rewards,
    }
    for index, update in enumerate(curves.updates):
        yield "grad_norm", update.grad_norm
        yield "loss", update.loss
        for name in ("ratio", "kl", "entropy", "approx_kl", "clip_frac"):
            means[f"{name} of update {index}"] = getattr(update, name)
    for name, mean in means.items():
        if mean is not None and mean.value is not None:
            yield name, mean.value

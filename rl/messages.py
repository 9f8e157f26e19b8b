"""What a trainer and its driver exchange: the messages of a trainer, and the commands of the driver.

A trainer yields one message at a time and receives one command in return (`rl.spec.Trainer`). Messages carry
*durations*, never dates: the driver stamps the time. Curves are sums and counts, already reduced over all ranks. The
only behaviour here is arithmetic on sums and counts.

Units: durations are integer nanoseconds (`*_ns`), lengths are tokens, `*_frac` are plain numbers, log-probabilities and
entropies are in nats.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Literal

PHASES = ("startup", "rollout", "reward", "logprob", "train", "sync", "evaluation", "checkpoint", "recovery", "other")
"""Every card-second of an attempt is in exactly one of these. `other` is what remains of the wall clock."""

# ---------------------------------------------------------------------------------------------------------------------
# Curves
# ---------------------------------------------------------------------------------------------------------------------

EIGHT_CURVES = ("reward", "acc", "ratio_mean", "clip_frac", "kl", "entropy", "response_length", "grad_norm")
"""The curves that a GRPO run is read by; docs/curves.md defines them."""


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean as its sum and its count, so that means over ranks and micro-batches add up. Undefined while empty."""

    total: float
    count: float

    def __add__(self, other: Mean) -> Mean:
        return Mean(self.total + other.total, self.count + other.count)

    @property
    def value(self) -> float | None:
        return self.total / self.count if self.count else None

    EMPTY: ClassVar[Mean]


Mean.EMPTY = Mean(0.0, 0.0)


@dataclass(frozen=True)
class UpdateCurves:
    """The curves of one optimiser update. A field is None where it is undefined, which is not the same as zero."""

    ratio: Mean
    """pi / pi_old over the loss tokens (sequences, for sequence ratios)."""
    ratio_min: float | None
    ratio_max: float | None
    clip_low: Mean | None
    """Loss tokens with ratio < 1 - eps_low and a negative advantage. None: the ratio is 1 by construction here."""
    clip_high: Mean | None
    """Loss tokens with ratio > 1 + eps_high and a positive advantage."""
    approx_kl: Mean
    """k3 of pi_old against pi, over loss tokens."""
    kl: Mean | None
    """k3 of the policy against the reference, unscaled. None: there is no reference model."""
    entropy: Mean
    """Token entropy in nats."""
    grad_norm: float
    """Before clipping."""
    loss: float
    lr: float

    @property
    def clip_frac(self) -> Mean | None:
        if self.clip_low is None or self.clip_high is None:
            return None
        return Mean(self.clip_low.total + self.clip_high.total, self.clip_low.count)


@dataclass(frozen=True)
class Curves:
    """The eight curves of one step and their companions, already reduced over ranks, as sums and counts."""

    reward: Mean
    """What was optimised: shaped, weighted, penalised."""
    acc: Mean
    """Raw correctness, never shaped."""
    rewards: Mapping[str, Mean]
    """Every reward function by name, raw and unweighted."""
    reward_errors: Mean
    """Share of completions whose scorer raised or timed out; they count as failures and stay in `acc`."""
    response_length: Mean
    response_length_min: int
    response_length_max: int
    truncated: Mean
    """Share of completions that reached the limit without an end-of-sequence token."""
    zero_std: Mean
    """Share of groups whose rewards are all equal, so that they give no gradient."""
    updates: tuple[UpdateCurves, ...]
    sampler_ratio: Mean
    """pi_old / pi_sample over completion tokens."""
    logp_diff: Mean
    """|log pi_old - log pi_sample| over completion tokens."""
    logp_diff_max: float
    mismatch_kl: Mean
    """k3 of pi_sample against pi_old."""
    sampler_ess: float | None = None
    """Effective sample size of the sampler correction, as a share; None where there is no correction."""
    phantom_credit: Mean = Mean.EMPTY
    """Share of groups whose completions are equally correct and yet differ in reward, before a KL is subtracted: such
    groups push the policy by format, length or style alone. Empty where a trainer does not compute it."""
    nonfinite_logprobs: int = 0
    """Sampler log-probabilities that were NaN or infinite; their completions are masked out of the loss."""

    @property
    def clip_frac(self) -> Mean | None:
        """Of the last update: averaging over updates would dilute it with those where the ratio is still 1."""
        return self.updates[-1].clip_frac if self.updates else None

    def over_updates(self, name: Literal["ratio", "approx_kl", "entropy", "kl"]) -> Mean | None:
        """A per-update curve summed over the step's updates; None where no update defines it."""
        parts = [m for u in self.updates if (m := getattr(u, name)) is not None]
        return sum(parts, Mean.EMPTY) if parts else None


@dataclass(frozen=True)
class TokenCounts:
    """`loss` tokens carry gradient; `completion` tokens include those of filtered and failed prompts."""

    prompt: int
    completion: int
    loss: int


@dataclass(frozen=True)
class PromptCounts:
    """Every prompt that was drawn is counted in exactly one of the three."""

    trained: int
    filtered: int
    failed: int


# ---------------------------------------------------------------------------------------------------------------------
# Commands: the driver's answer to a message
# ---------------------------------------------------------------------------------------------------------------------


class StopKind(StrEnum):
    """Why the driver stops a trial. A trainer only repeats it in `Finished`."""

    INTERRUPTED = "interrupted"
    """A person stopped the driver at its terminal (Ctrl-C)."""
    REQUESTED = "requested"
    """A person asked for it with `python -m sweeps stop`."""
    TERMINATED = "terminated"
    """The driver received SIGTERM."""
    MACHINE_TAKEN = "machine_taken"
    """The machine's provider announced that it takes the machine back."""
    NO_CARDS = "no_cards"
    """The cluster has too few cards left for one trial."""
    IDLE = "idle"
    """No attempt ran for `machine.max_idle`."""
    BUDGET = "budget"
    """A limit is spent, or has no room for the trial."""
    PRUNED = "pruned"
    """The search ends the trial early (`search.pruning`)."""
    CANCELLED = "cancelled"
    """A person gave the trial up with `python -m sweeps cancel`."""


@dataclass(frozen=True)
class Continue:
    type: ClassVar[str] = "continue"


@dataclass(frozen=True)
class Checkpoint:
    """Write a checkpoint now, then continue."""

    type: ClassVar[str] = "checkpoint_now"


@dataclass(frozen=True)
class SetLr:
    """Use this learning rate (before schedule) from the next update on."""

    type: ClassVar[str] = "set_lr"
    lr: float


@dataclass(frozen=True)
class Stop:
    """Write a checkpoint, release everything, and end with `Finished(..., stopped=<this command>)`."""

    type: ClassVar[str] = "stop"
    kind: StopKind
    text: str = ""
    """Details for a person. Programs read `kind`."""


Command = Continue | Checkpoint | SetLr | Stop

# ---------------------------------------------------------------------------------------------------------------------
# Messages: what a trainer reports
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Started:
    """The trainer is ready for its first step. Comes once, first."""

    type: ClassVar[str] = "started"
    step: int
    """Steps done before, according to the checkpoint; 0 without checkpoint."""
    policy_version: int
    cards: int
    engine: str
    """The rollout engine that was chosen, e.g. `transformers`."""
    device: str
    parameters: int
    trainable_parameters: int
    train_questions: int
    eval_questions: int
    phase_card_ns: Mapping[str, int]
    restored_from: str | None = None
    notes: tuple[str, ...] = ()
    """Sentences for a person: what the trainer chose at load and why, and what it checked."""


@dataclass(frozen=True)
class StepReport:
    """One rollout batch and its updates, done."""

    type: ClassVar[str] = "step"
    step: int
    """1-based: the first step of a trial is 1."""
    policy_version: int
    """The version this step's completions were sampled with."""
    staleness: int
    """Policy version when training began minus the version sampled with."""
    wall_ns: int
    phase_card_ns: Mapping[str, int]
    """Card-nanoseconds by phase (PHASES); they sum to `wall_ns` x cards."""
    tokens: TokenCounts
    prompts: PromptCounts
    curves: Curves
    lr: float
    """Of the last update of this step."""
    replay: bool = False
    """The step was repeated after a restore. The driver sets this, since it records which steps were reported."""
    scorer_error: str = ""
    """The first error of a scorer in this step, for a person; `curves.reward_errors` counts them."""


@dataclass(frozen=True)
class QuestionResult:
    """One evaluation question: how many of its samples were right."""

    question_id: str
    correct: int
    samples: int


def mean_accuracy(results: Iterable[QuestionResult]) -> float | None:
    """Mean over questions of the share of right samples (avg@k); None where no question was sampled."""
    shares = [result.correct / result.samples for result in results if result.samples]
    return math.fsum(shares) / len(shares) if shares else None


@dataclass(frozen=True)
class EvalReport:
    """The fixed evaluation set, question by question, so that trials can be paired."""

    type: ClassVar[str] = "eval"
    step: int
    """Steps trained before this evaluation; 0: before training."""
    policy_version: int
    wall_ns: int
    phase_card_ns: Mapping[str, int]
    results: tuple[QuestionResult, ...]
    response_length: Mean
    truncated: Mean

    @property
    def accuracy(self) -> float | None:
        return mean_accuracy(self.results)


@dataclass(frozen=True)
class CheckpointWritten:
    """A complete checkpoint is at `path`: its marker is written."""

    type: ClassVar[str] = "checkpoint"
    step: int
    path: str
    size_bytes: int
    wall_ns: int
    phase_card_ns: Mapping[str, int]


@dataclass(frozen=True)
class RoleRestarted:
    """One role (a rollout engine, a reward worker) died and was started again alone."""

    type: ClassVar[str] = "role_restarted"
    role: str
    index: int
    reason: str
    phase_card_ns: Mapping[str, int]


@dataclass(frozen=True)
class Finished:
    """The last message of an attempt that ended in order."""

    type: ClassVar[str] = "finished"
    step: int
    policy_version: int
    stopped: Stop | None = None
    """The command that ended the attempt early; None: all steps are done."""
    phase_card_ns: Mapping[str, int] = field(default_factory=dict)

    @property
    def completed(self) -> bool:
        return self.stopped is None


Event = Started | StepReport | EvalReport | CheckpointWritten | RoleRestarted | Finished

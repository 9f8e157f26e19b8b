"""The contract of one trial: what a `Trainer` is given, what it says, what it can be told.

Everything that runs a trial (the native GRPO loop, a simulator, another framework) is a `Trainer`. Everything
downstream (journal, gates, ledger, MLflow) sees only the events defined here and never learns which trainer spoke.
This module imports nothing heavy, holds no behaviour beyond arithmetic on sums and counts, and never reads a clock:
events carry *durations*; the driver that receives them stamps the dates.

Units, everywhere in this file: durations are integer nanoseconds (`*_ns`), lengths are tokens, `*_frac` and `*_coef`
are plain numbers, log-probabilities and entropies are in nats.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

# ---------------------------------------------------------------------------------------------------------------------
# What a trainer is given
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelSpec:
    """Which weights are trained. `kind` says how they are obtained, `path` where (a folder or a hub id, for `hf`)."""

    kind: Literal["hf", "smollm2_135m", "tiny"]
    path: str | None = None
    revision: str | None = None
    chat_template: bool = True
    """Wrap prompts in the tokenizer's chat template; plain text otherwise."""
    lora_rank: int = 0
    """0 trains all weights."""
    lora_alpha: float = 16.0
    lora_targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"


@dataclass(frozen=True)
class TaskSpec:
    """What is asked and how an answer is judged. Questions, not completions, are split into training and evaluation."""

    kind: Literal["reasoning_gym", "file", "module"]
    name: str
    """reasoning_gym: the dataset's name. file: a label. module: `package.module:function`."""
    path: str | None = None
    """file: a parquet or JSONL path, or a hub id."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """reasoning_gym: arguments of the dataset. module: keyword arguments of the function."""
    question_field: str = "question"
    answer_field: str = "answer"
    train_questions: int = 0
    """How many distinct questions training draws from; 0 = all that evaluation leaves."""
    eval_questions: int = 64
    """How many distinct questions are held out for evaluation; never trained on."""
    data_seed: int = 0
    """Seeds the questions and the split: the same for every trial of a sweep."""
    system_prompt: str = ""
    prompt_template: str = "{question}"
    scorer: Literal["exact", "number", "math_verify"] = "number"
    format_pattern: str = ""
    """A completion that matches this regular expression earns the format reward; empty: no such reward."""
    reward_weights: Mapping[str, float] = field(default_factory=lambda: {"correct": 1.0, "format": 0.1})
    reward_timeout_seconds: float = 5.0
    reward_workers: int = 1


@dataclass(frozen=True)
class AlgorithmSpec:
    """The loss, its advantages and its optimiser. docs/algorithms.md gives the paper behind each named setting."""

    name: str
    # advantages
    advantage_baseline: Literal["group_mean", "leave_one_out"] = "group_mean"
    advantage_scale: Literal["group_std", "batch_std", "none"] = "group_std"
    advantage_eps: float = 1e-4
    """Added to the standard deviation (ddof=1), as TRL does."""
    # surrogate
    surrogate: Literal["clip", "cispo"] = "clip"
    ratio_level: Literal["token", "sequence"] = "token"
    clip_eps_low: float = 0.2
    clip_eps_high: float = 0.2
    """For `cispo`: the absolute cap of the importance weight is `clip_eps_high` itself."""
    dual_clip: float | None = None
    """Upper bound c > 1 of the ratio where the advantage is negative; None: off."""
    aggregation: Literal["sequence_mean", "token_mean", "constant"] = "sequence_mean"
    aggregation_constant: int | None = None
    """`constant` (Dr.GRPO): tokens each sequence's sum is divided by."""
    # KL to the reference
    kl_coef: float = 0.0
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    kl_placement: Literal["loss", "reward"] = "loss"
    # what was sampled against what is trained
    old_logprobs: Literal["learner", "sampler"] = "learner"
    sampler_correction: Literal["none", "token", "sequence"] = "none"
    sampler_correction_cap: float = 2.0
    # which completions count
    drop_zero_variance_groups: bool = False
    """DAPO's dynamic sampling: groups whose rewards are all equal are replaced by fresh prompts."""
    max_resample_rounds: int = 3
    mask_truncated: bool = False
    overlong_buffer_tokens: int = 0
    """DAPO's soft overlong penalty: its width below `max_completion_tokens`; 0: off."""
    overlong_penalty: float = 1.0
    # optimiser (AdamW); schedules count optimiser updates
    updates_per_rollout: int = 2
    """The rollout batch is cut into this many mini-batches of whole groups, one optimiser update each."""
    lr: float = 1e-5
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    lr_warmup_updates: int = 0
    lr_final_frac: float = 0.0
    """linear, cosine: the rate at the last update, as a share of `lr`."""
    lr_reference_completions: int = 16
    """Completions per update at which `lr` was found; every lr_scaling rule gives `lr` there."""
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_eps: float = 1e-8
    max_grad_norm: float = 1.0


@dataclass(frozen=True)
class RolloutSpec:
    """How completions are sampled. Settings that the trainer's log-probabilities cannot model must stay neutral."""

    engine: Literal["auto", "transformers", "vllm", "simulated"] = "auto"
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_prompt_tokens: int = 256
    max_completion_tokens: int = 24
    max_batch_completions: int = 256
    """How many completions are sampled at once; more are done in turns."""
    gpu_memory_utilization: float = 0.4
    """vllm on CUDA: share of the card's memory that the engine may take."""
    kv_cache_gib: int = 1
    """vllm on a CPU: size of the key-value cache."""


@dataclass(frozen=True)
class EvaluationSpec:
    """The fixed evaluation set is sampled before the first step, after the last, and every `every_steps` between."""

    samples_per_question: int = 1
    """k of avg@k."""
    temperature: float = 1.0
    """0: greedy."""
    every_steps: int = 0
    """0: only before and after."""


@dataclass(frozen=True)
class SimulatedSpec:
    """Parameters of the simulated trainer: times, curves, and the faults it is told to have."""

    startup_seconds: float = 20.0
    seconds_per_completion: float = 0.05
    seconds_per_step: float = 1.0
    seconds_per_evaluation: float = 10.0
    seconds_per_checkpoint: float = 2.0
    noise_frac: float = 0.05
    acc_start: float = 0.2
    acc_final: float = 0.8
    steps_to_half: float = 60.0
    """Steps, at 64 completions, after which half of the rise has happened."""
    crash_at_step: int = 0
    """0: never. Each fault happens once, on the first attempt that reaches the step, unless `faults_every_attempt`."""
    hang_at_step: int = 0
    diverge_at_step: int = 0
    preempt_at_step: int = 0
    out_of_memory_above_tokens: int = 0
    """A larger `micro_batch_tokens` runs out of memory, at every attempt; 0: none does."""
    faults_every_attempt: bool = False


@dataclass(frozen=True)
class TrainerSpec:
    """How the work is done on the cards; nothing here changes what is learnt beyond rounding."""

    name: Literal["native", "simulated"] = "native"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["fp32", "bf16"] = "bf16"
    """bf16: autocast over fp32 master weights; log-probabilities are fp32 in either case."""
    micro_batch_tokens: int = 4096
    packing: bool = False
    gradient_checkpointing: bool = False
    logprob_chunk_tokens: int = 1024
    deterministic: bool = False
    threads: int = 0
    """CPU threads; 0: all that the machine has."""
    checkpoint_every_steps: int = 10
    keep_checkpoints: int = 1
    simulated: SimulatedSpec = field(default_factory=SimulatedSpec)


@dataclass(frozen=True)
class TrialSpec:
    """One trial, fully resolved: enough to run it on any machine that has its inputs."""

    trial_id: str
    attempt: int
    """1 for the first try; a retry or a resume is the next."""
    seed: int
    steps: int
    prompts_per_step: int
    group_size: int
    cards: int
    model: ModelSpec
    task: TaskSpec
    algorithm: AlgorithmSpec
    rollout: RolloutSpec
    evaluation: EvaluationSpec
    trainer: TrainerSpec
    checkpoint_dir: str
    """Folder that belongs to this trial alone; checkpoints are sub-folders of it."""
    cache_dir: str
    """Where converted and warmed models are kept between runs."""

    @property
    def completions_per_step(self) -> int:
        return self.prompts_per_step * self.group_size

    @property
    def completions_per_update(self) -> float:
        return self.completions_per_step / self.algorithm.updates_per_rollout


# ---------------------------------------------------------------------------------------------------------------------
# What a trainer says
# ---------------------------------------------------------------------------------------------------------------------

PHASES = ("startup", "rollout", "reward", "logprob", "train", "sync", "evaluation", "checkpoint", "recovery", "other")
"""Every card-second of an attempt is in exactly one of these. `other` is what remains of the wall clock."""


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
    """k3 of the policy against the reference, unscaled. None: no reference is kept."""
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
    """Share of completions whose scorer threw or timed out; they count as failures and stay in `acc`."""
    response_length: Mean
    response_length_min: int
    response_length_max: int
    truncated: Mean
    """Share of completions that hit the limit without an end-of-sequence token."""
    zero_std: Mean
    """Share of groups whose rewards were all equal: they teach nothing."""
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
    """Every prompt drawn ends in one of the three."""

    trained: int
    filtered: int
    failed: int


@dataclass(frozen=True)
class Started:
    """The trainer is ready for its first step. Comes once, first."""

    kind: ClassVar[str] = "started"
    step: int
    """Steps already done, from the checkpoint; 0 for a fresh start."""
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


@dataclass(frozen=True)
class StepReport:
    """One rollout batch and its updates, done."""

    kind: ClassVar[str] = "step"
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
    """Done again after a restore: the driver, which knows what it has heard, marks it. A trainer says nothing of it."""


@dataclass(frozen=True)
class QuestionResult:
    """One evaluation question: how many of its samples were right."""

    question_id: str
    correct: int
    samples: int


@dataclass(frozen=True)
class EvalReport:
    """The fixed evaluation set, question by question, so that trials can be paired."""

    kind: ClassVar[str] = "eval"
    step: int
    """Steps trained when it was taken; 0: before training."""
    policy_version: int
    wall_ns: int
    phase_card_ns: Mapping[str, int]
    results: tuple[QuestionResult, ...]
    response_length: Mean
    truncated: Mean


@dataclass(frozen=True)
class CheckpointWritten:
    """A whole checkpoint lies at `path`: its marker is written."""

    kind: ClassVar[str] = "checkpoint"
    step: int
    path: str
    size_bytes: int
    wall_ns: int
    phase_card_ns: Mapping[str, int]


@dataclass(frozen=True)
class RoleRestarted:
    """One role (a rollout engine, a reward worker) died and was started again alone."""

    kind: ClassVar[str] = "role_restarted"
    role: str
    index: int
    reason: str
    phase_card_ns: Mapping[str, int]


@dataclass(frozen=True)
class Finished:
    """The last event. `completed` means that all steps were done; else the driver's reason to stop is repeated."""

    kind: ClassVar[str] = "finished"
    step: int
    policy_version: int
    completed: bool
    reason: str
    phase_card_ns: Mapping[str, int] = field(default_factory=dict)


Event = Started | StepReport | EvalReport | CheckpointWritten | RoleRestarted | Finished

# ---------------------------------------------------------------------------------------------------------------------
# What a trainer can be told, in answer to any event
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Continue:
    kind: ClassVar[str] = "continue"


@dataclass(frozen=True)
class Checkpoint:
    """Write a checkpoint now, then go on."""

    kind: ClassVar[str] = "checkpoint_now"


@dataclass(frozen=True)
class SetLr:
    """Use this learning rate (before schedule) from the next update on."""

    kind: ClassVar[str] = "set_lr"
    lr: float


@dataclass(frozen=True)
class Stop:
    """Write a checkpoint, release everything, answer with `Finished(completed=False, reason=...)`."""

    kind: ClassVar[str] = "stop"
    reason: str


Command = Continue | Checkpoint | SetLr | Stop


class Trainer(Protocol):
    """Runs one attempt. The generator is closed (`GeneratorExit`) when the attempt must end without a word."""

    def run(self, spec: TrialSpec, checkpoint: Path | None) -> Generator[Event, Command | None, None]:
        """Yield events until `Finished`; `checkpoint` is the whole checkpoint to go on from, None to start afresh.

        The answer to each yield is a `Command`; None means `Continue`.

        Raises:
            PreemptedError: the machine is being taken away; the last checkpoint stands.
            OutOfMemoryError: the cards' memory does not hold the micro-batch.
            ConfigurationError: this spec can never run; a retry is pointless.
        """
        ...


class TrialError(Exception):
    """Base of the errors whose kind decides whether a retry makes sense."""


class PreemptedError(TrialError):
    """The machine is being taken away."""


class OutOfMemoryError(TrialError):
    """Out of card or host memory; a smaller micro-batch gives the same result."""


class ConfigurationError(TrialError):
    """What was asked cannot run, ever. The message says what is wrong, where, and what would be right."""

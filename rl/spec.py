"""The contract of one trial: what a `Trainer` is given, what it reports, and which commands it receives.

Everything that runs a trial (the native GRPO loop, a simulator, another framework) is a `Trainer`. Everything
downstream (journal, gates, ledger, MLflow) sees only messages and does not know which trainer sent them. The specs are
here; messages and commands are in `rl.messages`, and can be imported from here too. Nothing here imports anything heavy
or reads a clock.

Units: durations are seconds (`*_seconds`), lengths are tokens, `*_frac` and `*_coef` are plain numbers.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from rl.messages import (
    PHASES,
    Checkpoint,
    CheckpointWritten,
    Command,
    Continue,
    Curves,
    EvalReport,
    Event,
    Finished,
    Mean,
    PromptCounts,
    QuestionResult,
    RoleRestarted,
    SetLr,
    Started,
    StepReport,
    Stop,
    StopKind,
    TokenCounts,
    UpdateCurves,
    mean_accuracy,
)

__all__ = [
    "PHASES",
    "AlgorithmSpec",
    "Checkpoint",
    "CheckpointWritten",
    "Command",
    "ConfigurationError",
    "Continue",
    "Curves",
    "EvalReport",
    "EvaluationSpec",
    "Event",
    "Finished",
    "Mean",
    "ModelSpec",
    "OutOfMemoryError",
    "PreemptedError",
    "PromptCounts",
    "QuestionResult",
    "RoleRestarted",
    "RolloutSpec",
    "SetLr",
    "SimulatedSpec",
    "Started",
    "StepReport",
    "Stop",
    "StopKind",
    "TaskSpec",
    "TokenCounts",
    "Trainer",
    "TrainerSpec",
    "TrialError",
    "TrialSpec",
    "UpdateCurves",
    "mean_accuracy",
]

# ---------------------------------------------------------------------------------------------------------------------
# Specs: what a trainer is given
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
# Trainers
# ---------------------------------------------------------------------------------------------------------------------


class Trainer(Protocol):
    """Runs one attempt. To end it at once, without `Finished`, the driver closes the generator (`GeneratorExit`)."""

    def run(self, spec: TrialSpec, checkpoint: Path | None) -> Generator[Event, Command | None, None]:
        """Yield messages, the last of which is `Finished`. Each yield returns a `Command`; None means `Continue`.

        Args:
            checkpoint: the whole checkpoint to resume from; None: start afresh.

        Raises:
            PreemptedError: the machine is being taken away; the last checkpoint is kept.
            OutOfMemoryError: the cards' memory does not fit the micro-batch.
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
    """The spec can never run. The message says what is wrong, where, and what would be right."""

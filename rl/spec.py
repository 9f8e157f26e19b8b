"""The contract of one trial: what a `Trainer` is given, what it reports, and which commands it receives.

Everything that runs a trial (the native GRPO loop, a simulator, another framework) is a `Trainer`. Everything
downstream (journal, gates, ledger, MLflow) sees only messages and does not know which trainer sent them. The specs are
here; messages and commands are in `rl.messages`, and can be imported from here too. Nothing here imports anything heavy
or reads a clock.

Units: durations are seconds (`*_seconds`), lengths are tokens, `*_frac` and `*_coef` are plain numbers. The specs are
the groups of `conf/`; the comments there give the valid range of every key.

Tested in tests/rl/test_codec.py (as JSON) and in tests/rl/trainers/test_conformance.py (`Trainer`).
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
    """The model that is trained."""

    kind: Literal["hf", "smollm2_135m", "tiny"]
    path: str | None = None
    """hf: a folder with safetensors, or a hub id."""
    revision: str | None = None
    """hf: branch, tag or commit on the hub."""
    chat_template: bool = True
    """True: prompts go through the tokenizer's chat template. False: prompts are plain text."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Variables for the chat template, such as `enable_thinking` of Qwen3: texts, numbers, true, false."""
    lora_rank: int = 0
    """0: train all weights, without LoRA."""
    lora_alpha: float = 16.0
    lora_targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    """Linear layers with adapters, by the end of their name: all of a Llama-like model."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"


@dataclass(frozen=True)
class TaskSpec:
    """The questions, their split into training and evaluation, and the rewards of a completion."""

    kind: Literal["reasoning_gym", "file", "module"]
    name: str
    """reasoning_gym: the dataset's name. file: a label. module: `package.module:function`."""
    path: str | None = None
    """file: a parquet or JSONL path, a folder with train and test, or a hub id."""
    subset: str | None = None
    """file: the subset of a hub data set or of its local copy, such as `main` of GSM8K."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """reasoning_gym: arguments of the dataset. module: keyword arguments of the function. Hub id: of `load_dataset`."""
    question_field: str = "question"
    answer_field: str = "answer"
    train_questions: int = 0
    """Number of distinct training questions; 0: all that are not used for evaluation."""
    eval_questions: int = 64
    """Number of distinct evaluation questions. They are never trained on."""
    data_seed: int = 0
    """Seed of the questions and of the split. It is the same for all trials of a sweep."""
    system_prompt: str = ""
    prompt_template: str = "{question}"
    """`{question}` is replaced by the question."""
    scorer: Literal["exact", "number", "math_verify"] = "number"
    format_pattern: str = ""
    """Completions in which this regular expression is found get the reward `format`; empty: there is no such reward."""
    reward_weights: Mapping[str, float] = field(default_factory=lambda: {"correct": 1.0, "format": 0.1})
    """Weight of each reward in the sum that is optimised."""
    reward_timeout_seconds: float = 5.0
    """Deadline for scoring one completion in a worker process."""
    reward_workers: int = 1
    """Number of worker processes for scoring."""


@dataclass(frozen=True)
class AlgorithmSpec:
    """Advantages, loss and optimiser. docs/algorithms.md gives the formulas and the papers."""

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
    """With `surrogate=cispo`, `clip_eps_low` and `clip_eps_high` are the absolute bounds of the importance weight."""
    dual_clip: float | None = None
    """Upper bound c > 1 of the ratio where the advantage is negative; None: no bound."""
    aggregation: Literal["sequence_mean", "token_mean", "constant"] = "sequence_mean"
    aggregation_constant: int | None = None
    """constant (Dr.GRPO): number of tokens by which the sum of each sequence is divided. None, in a configuration:
    `max_completion_tokens` (`rl.algorithms.follow_lengths`)."""
    # KL to the reference
    kl_coef: float = 0.0
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    kl_placement: Literal["loss", "reward"] = "loss"
    # off-policy correction
    old_logprobs: Literal["learner", "sampler"] = "learner"
    sampler_correction: Literal["none", "token", "sequence"] = "none"
    sampler_correction_cap: float = 2.0
    # selection of completions
    drop_zero_variance_groups: bool = False
    """DAPO's dynamic sampling: groups without variance are replaced by new prompts."""
    zero_variance_of: Literal["reward", "accuracy"] = "reward"
    """What has no variance in a dropped group: the rewards, or the raw correctness. With `accuracy`, groups that are
    equally correct are dropped although their rewards differ (phantom credit)."""
    max_resample_rounds: int = 3
    """Largest number of additional sampling rounds per step."""
    mask_truncated: bool = False
    """Leave truncated completions out of the loss."""
    overlong_buffer_tokens: int | None = 0
    """Width of DAPO's soft overlong penalty below `max_completion_tokens`, in tokens; 0: no penalty. None, in a
    configuration: a fifth of `max_completion_tokens`."""
    overlong_penalty: float = 1.0
    # optimiser (AdamW); schedules count optimiser updates
    updates_per_rollout: int = 2
    """Number of mini-batches of whole groups into which a rollout batch is split; one optimiser update each."""
    lr: float = 1e-5
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    lr_warmup_updates: int = 0
    lr_final_frac: float = 0.0
    """linear, cosine: learning rate at the last update, as a share of `lr`."""
    lr_reference_completions: int = 16
    """Completions per update for which `lr` was chosen. There, every rule of `search.lr_scaling` gives `lr`."""
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_eps: float = 1e-8
    max_grad_norm: float = 1.0
    """Gradients with a larger norm are scaled down to it."""


@dataclass(frozen=True)
class RolloutSpec:
    """How completions are sampled.

    `top_p`, `top_k`, `min_p` and `repetition_penalty` must have their neutral defaults: the learner's log-probabilities
    do not model them.
    """

    engine: Literal["auto", "transformers", "vllm", "simulated"] = "auto"
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_prompt_tokens: int = 256
    max_completion_tokens: int = 24
    max_batch_completions: int = 256
    """Largest number of completions that are sampled in one batch."""
    gpu_memory_utilization: float = 0.4
    """vllm on CUDA: share of the card's memory for the engine."""
    kv_cache_gib: int = 1
    """vllm on a CPU: size of the key-value cache in GiB."""


@dataclass(frozen=True)
class EvaluationSpec:
    """How evaluation questions are sampled: before the first step, after the last, and every `every_steps` steps."""

    samples_per_question: int = 1
    """The k of avg@k."""
    temperature: float = 1.0
    """0: greedy."""
    every_steps: int = 0
    """Steps between two evaluations; 0: none between the first and the last step."""


@dataclass(frozen=True)
class SimulatedSpec:
    """Parameters of the simulated trainer: durations, curves and faults."""

    startup_seconds: float = 20.0
    seconds_per_completion: float = 0.05
    seconds_per_step: float = 1.0
    seconds_per_evaluation: float = 10.0
    seconds_per_checkpoint: float = 2.0
    noise_frac: float = 0.05
    """Relative noise of durations and curves."""
    acc_start: float = 0.2
    acc_final: float = 0.8
    steps_to_half: float = 60.0
    """Steps of 64 completions after which accuracy has made half of its rise from `acc_start` to `acc_final`."""
    crash_at_step: int = 0
    """0: never. So for all faults; see `faults_every_attempt`."""
    hang_at_step: int = 0
    diverge_at_step: int = 0
    preempt_at_step: int = 0
    out_of_memory_above_tokens: int = 0
    """Attempts with a larger `micro_batch_tokens` run out of memory; 0: none do."""
    faults_every_attempt: bool = False
    """False: only the first attempt that reaches the step of a fault has it."""


@dataclass(frozen=True)
class TrainerSpec:
    """How the work is done on the cards. These settings change results by rounding only."""

    name: Literal["native", "simulated"] = "native"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """bf16: autocast, with fp32 master weights. Log-probabilities are fp32 in both cases. auto: `rl.precision`."""
    micro_batch_tokens: int = 4096
    """Largest number of tokens of a micro-batch, padding included."""
    packing: Literal["auto", True, False] = "auto"
    """True: the completions of a group share one row with its prompt. False: one padded row per completion. auto: the
    form that is estimated to be faster for the lengths of each update."""
    gradient_checkpointing: bool = False
    logprob_chunk_tokens: int = 1024
    """Tokens per chunk of the projection to the vocabulary."""
    deterministic: bool = False
    """Use deterministic algorithms only."""
    threads: int = 0
    """CPU threads; 0: one per core."""
    checkpoint_every_steps: int = 10
    """0: only after the last step."""
    keep_checkpoints: int = 1
    """Number of checkpoints that are kept on disk."""
    simulated: SimulatedSpec = field(default_factory=SimulatedSpec)


@dataclass(frozen=True)
class TrialSpec:
    """Everything that a trainer needs to run one attempt of a trial, on any machine that has its inputs."""

    trial_id: str
    attempt: int
    """1 for the first attempt. A retry or a resume is a new attempt."""
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
    """Folder of this trial alone. Its checkpoints are sub-folders."""
    cache_dir: str
    """Folder for converted and trained models, shared by all trials."""

    @property
    def completions_per_step(self) -> int:
        return self.prompts_per_step * self.group_size


# ---------------------------------------------------------------------------------------------------------------------
# Trainers
# ---------------------------------------------------------------------------------------------------------------------


class Trainer(Protocol):
    """Runs one attempt. To end it at once, without `Finished`, the driver closes the generator (`GeneratorExit`)."""

    def run(self, spec: TrialSpec, checkpoint: Path | None) -> Generator[Event, Command | None, None]:
        """Yield messages, the last of which is `Finished`. Each yield returns a `Command`; None means `Continue`.

        Args:
            checkpoint: the complete checkpoint to resume from; None: start from the model's weights.

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

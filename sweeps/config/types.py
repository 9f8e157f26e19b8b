"""The composed configuration as typed, frozen dataclasses: what every part of `sweeps` is given.

The specs of one trial (model, task, algorithm, rollout, evaluation, trainer) are those of `rl/spec.py`, as they are.
This module decides nothing, imports nothing heavy, and never reads a file: `sweeps/config/build.py`
builds these from `conf/`, and `conf/` explains every key to the person who types it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cost.money import Money
from rl.spec import AlgorithmSpec, EvaluationSpec, ModelSpec, RolloutSpec, TaskSpec, TrainerSpec
from sweeps.config.text_values import Duration, PreemptionSource, ReleaseMethod


class ConfigError(Exception):
    """The configuration cannot run. The message says what is wrong, where, and what would be right; exit code 2."""


LrScaling = Literal["hold", "sqrt", "linear", "clip_frac"]
"""How the learning rate follows the batch: see `conf/search/_base.yaml`."""


@dataclass(frozen=True)
class StageConfig:
    """One rung of the ladder: its length, what it needs, and what comes after it."""

    name: Literal["smoke", "single", "multi"]
    steps: int
    """Rollout batches per trial."""
    min_cards: int
    """Fewest cards of a machine on which this stage means anything."""
    needs_gate_of: str
    """The stage below, whose open gate this one stands on; empty: it is the first."""
    next_stage: str
    """The stage whose command is printed when the gate opens; empty: this is the last."""


@dataclass(frozen=True)
class MachineConfig:
    """The machine that is rented or owned: facts for planning, and the key of its price."""

    name: str
    cards: int
    card_name: str
    device: Literal["cpu", "cuda"]
    memory_gib_per_card: float
    """GiB; for a CPU, the host memory that a trial may use."""
    memory_gb_per_s: float
    """Bandwidth of one card's memory, GB/s."""
    tflops: float
    """Peak of one card's matrix units, bf16 dense with fp32 accumulation, TFLOPS."""
    interconnect: Literal["none", "pcie", "nvlink", "nvswitch"]
    interconnect_gb_per_s: float
    """Between two cards, both directions together, GB/s; 0 where there is one card."""
    provider: str
    sku: str
    """Key of the price in `conf/pricing/`."""
    region: str
    """Empty: the price does not depend on it."""
    purchase: Literal["own", "on_demand", "spot", "reserved", "capacity_block", "savings_plan"]
    watts: float
    """Own hardware: mean draw of the whole machine under load, W, for `sku: electricity`; 0 on rented machines."""
    cluster: str
    """auto: the Ray that RAY_ADDRESS names, else our own on this host. local: our own. Else a Ray's host:port."""
    up: str
    """Command that brings the machine up; empty: it is there."""
    down: ReleaseMethod | None
    """How the machine is released; None: this program does not release it."""
    down_unsaved: bool
    """Release the machine although checkpoints or artifacts exist on it only."""
    instance_id: str
    """The provider's id of it; empty: the metadata service is asked where it is needed."""
    max_idle: Duration | None
    """The sweep stops when no trial has run for this long; None: it never stops for that reason."""
    deadman: Duration | None
    """A separate process releases the machine when the driver is dead and has sent no heartbeat for this long; None:
    there is no such process."""
    preemption: PreemptionSource

    @property
    def hardware(self) -> str:
        """For people: `8 x NVIDIA H100 80GB HBM3, 80 GiB at 3350 GB/s each, nvswitch 900 GB/s`."""
        several = self.cards > 1
        count, each = (f"{self.cards} x ", " each") if several else ("", "")
        between = f", {self.interconnect} {self.interconnect_gb_per_s:g} GB/s" if several else ""
        memory = f"{self.memory_gib_per_card:g} GiB at {self.memory_gb_per_s:g} GB/s"
        return f"{count}{self.card_name}, {memory}{each}{between}"


@dataclass(frozen=True)
class AxisConfig:
    """What one key is varied over: a range from `low` to `high`, or `choices`. `sweeps/planning/space.py` reads it."""

    low: float | None = None
    high: float | None = None
    log: bool = False
    """Drawn evenly over the logarithm."""
    step: float | None = None
    """Only `low` plus whole multiples of this; None: any number, any whole number for a key that is one."""
    choices: tuple[Any, ...] = ()
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """The key is varied only where each of these other keys of the space has one of these values."""


@dataclass(frozen=True)
class SearchConfig:
    """Which points of the search space become trials, on how many cards, and which of them end early."""

    method: Literal["grid", "random", "optuna"]
    prompts_per_step: tuple[int, ...]
    group_size: tuple[int, ...]
    lr_scaling: tuple[LrScaling, ...]
    space: Mapping[str, AxisConfig]
    """Further keys, by their dotted name. `prompts_per_step`, `group_size` and `lr_scaling` here replace their list."""
    seeds: tuple[int, ...]
    trials: int | None
    """How many trials there shall be. Grid: it is repeated over further seeds until then; None: the grid once."""
    sampler_seed: int
    """Seeds the points of `random` and `optuna`, not the trials."""
    startup_trials: int
    """optuna: points that are drawn at random before its model is asked."""
    pruning: Literal["none", "asha", "median"]
    pruning_min_trials: int
    """Trials of the same seed, the judged one included, that must have come as far before one is ended."""
    pruning_warmup_completions: int | None
    """None: the completions of the largest batch of the space at its first evaluation."""
    pruning_factor: int
    """asha: the best 1 of so many goes on, and each rung is so many times as far as the one before."""
    pruning_percentile: float
    """median: a trial ends below this percentile of the others."""
    cards_per_trial: int
    """Never 0 here: `conf/` writes 0 for every card of the machine, and that is resolved."""
    max_concurrent: int
    """Trials that run at once; 0: as many as the cards allow."""


@dataclass(frozen=True)
class RetryConfig:
    """How often a trial is tried again, by the kind of its failure. What cannot run as configured never is."""

    crashes: int
    backoff_seconds: float
    """Wait before the first retry after a crash; twice as long before each further one."""
    out_of_memory: int
    """Each time with half the micro-batch."""
    hangs: int
    hung_after_seconds: float
    """Silence after which an attempt is taken for hung and ended."""
    preemptions: int | None
    """None: as often as it happens."""


MONEY_KEYS = ("trial_limit", "sweep_limit", "stage_limit", "month_limit", "trial_bound")
"""Keys of `budget` that are amounts of money."""


@dataclass(frozen=True)
class BudgetConfig:
    """What may be spent, and who answers for it."""

    trial_limit: Money | None
    """For each trial, its cards alone. An amount with its currency, e.g. `12.10 USD`; None: no limit, as below."""
    sweep_limit: Money | None
    stage_limit: Money | None
    """For all sweeps of this stage in this ledger together."""
    month_limit: Money | None
    """For everything in this ledger, in each calendar month (UTC)."""
    trial_bound: Money | None
    """What is set aside for a trial before it starts; None: its time as measured, with an allowance."""
    at_limit: Literal["stop", "pause"]
    """What a sweep does at a limit that is spent, or has no room for any trial that is left."""
    allow_unpriced: bool
    """Run where no price is known, and print UNPRICED; otherwise a missing price is an error."""
    owner: str
    """Whom the sweep is charged to; empty: the machine's owner."""
    project: str
    cost_center: str
    tags: Mapping[str, str]
    """Further names to charge by, for `cost report --by tag:NAME`."""
    required_tags: tuple[str, ...]
    """Which of owner, project, cost_center and tags must not be empty."""

    @property
    def charged_to(self) -> dict[str, str]:
        """Owner, project, cost centre and tags, by name."""
        return {**self.tags, "owner": self.owner, "project": self.project, "cost_center": self.cost_center}


@dataclass(frozen=True)
class GateConfig:
    """When a stage's result is good enough to go on."""

    ratio_tolerance: float
    """Largest |ratio_mean - 1| on the first update of a trial, where sampling and training agree by construction."""
    max_logp_diff: float
    """Largest mean |log pi_old - log pi_sample| of a step on fresh rollouts, nats per token."""
    force: str
    """Why a closed gate is to be taken for open; empty: it is not."""
    start_anyway: str
    """Why a stage may start although the one below it has opened no gate; empty: it may not."""
    acknowledge: str
    """The token that was printed with what changes on the way to more cards; empty: not read yet."""


@dataclass(frozen=True)
class StorageConfig:
    """Where the ledger and the journal are kept, and where checkpoints, artifacts and snapshots go."""

    database_url: str | None
    """An SQLAlchemy URL; None: SQLite at `ledger.db` under `paths.root`."""
    bucket: str | None
    """An S3 bucket for checkpoints, artifacts and snapshots of the ledger; None: all stays on this machine."""
    prefix: str
    """What the keys in the bucket begin with; empty: the bucket's top."""
    endpoint_url: str
    """An S3 server other than AWS; empty: boto3's own settings."""
    region: str
    """The bucket's region; empty: boto3's own settings."""
    keep_last: int
    """Of each trial's checkpoints in the bucket, how many of the newest stay."""
    keep_best: bool
    """So does the one with the best evaluation."""
    keep_first: bool
    """So does the first."""
    wait_seconds: float
    """How long the end of a sweep waits for what is not in the bucket yet."""


@dataclass(frozen=True)
class TrackingConfig:
    """Where people look at the curves."""

    uri: str | None
    """An MLflow tracking URI; None: SQLite at `mlflow.db` under `paths.root`."""
    experiment: str


@dataclass(frozen=True)
class PathsConfig:
    """Folders; a leading `~` is already expanded, the rest is relative to where the command was typed."""

    root: str
    """Everything that a sweep writes."""
    cache: str
    """Converted and warmed models, kept between sweeps."""


@dataclass(frozen=True)
class SweepConfig:
    """One run of one stage, complete and checked."""

    stage: StageConfig
    model: ModelSpec
    task: TaskSpec
    algorithm: AlgorithmSpec
    rollout: RolloutSpec
    evaluation: EvaluationSpec
    trainer: TrainerSpec
    machine: MachineConfig
    search: SearchConfig
    retry: RetryConfig
    budget: BudgetConfig
    gate: GateConfig
    storage: StorageConfig
    tracking: TrackingConfig
    paths: PathsConfig
    dry_run: bool
    """Print the plan and its cost; run and write nothing."""
    resume: str
    """auto: go on with an unfinished sweep of the same plan. never: a new sweep. failed: run the failed trials of the
    newest sweep of the same plan again. Else the name of a sweep."""

"""The composed configuration as typed, frozen dataclasses. Every part of `sweeps` receives its settings in this form.

The sections of one trial (model, task, algorithm, rollout, evaluation, trainer) are the classes of `rl/spec.py`.
`sweeps/config/build.py` builds these objects from `conf/`, whose comments explain every key to the person who types it.

Tested in tests/sweeps/config/test_build.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cost.money import Money
from rl.spec import AlgorithmSpec, EvaluationSpec, ModelSpec, RolloutSpec, TaskSpec, TrainerSpec
from sweeps.config.text_values import Duration, PreemptionSource, ReleaseMethod


class ConfigError(Exception):
    """The configuration cannot run. The message names the key, the value and the remedy; exit code 2."""


LrScaling = Literal["hold", "sqrt", "linear", "clip_frac"]
"""How the learning rate follows the batch size: see `conf/search/_base.yaml`."""


@dataclass(frozen=True)
class StageConfig:
    """One stage of the protocol: its length, the cards it needs, and its neighbours."""

    name: Literal["preflight", "smoke", "single", "multi"]
    steps: int
    """Rollout batches per trial."""
    min_cards: int
    """Fewest cards of a machine on which the stage makes sense."""
    needs_gate_of: str
    """The stage below, whose gate must be open; empty for the first stage."""
    next_stage: str
    """The stage whose command is printed when the gate opens; empty for the last stage."""
    preflight: bool = False
    """Check reward and questions before anything is billed, unless this recipe has passed the preflight."""


@dataclass(frozen=True)
class MachineConfig:
    """The machine that is rented or owned: its hardware for planning, the key of its price, how it is released."""

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
    """Between two cards, both directions together, GB/s; 0 for a machine with one card."""
    provider: str
    sku: str
    """Key of the price in `conf/pricing/`."""
    region: str
    """Empty where the price does not depend on the region."""
    purchase: Literal["own", "on_demand", "spot", "reserved", "capacity_block", "savings_plan"]
    watts: float
    """Own hardware: mean power draw of the whole machine under load, W, for `sku: electricity`; 0 when rented."""
    cluster: str
    """auto: the Ray that RAY_ADDRESS names, else a new one on this host. local: a new one on this host. Else the
    HOST:PORT of a Ray."""
    up: str
    """Shell command that starts the machine; empty: the machine is running already."""
    down: ReleaseMethod | None
    """How the machine is released; None: this program does not release it."""
    down_unsaved: bool
    """Release the machine although checkpoints or artifacts exist on it only."""
    instance_id: str
    """The provider's id of the machine; empty: the metadata service is asked where the id is needed."""
    max_idle: Duration | None
    """The sweep stops when no trial has run for this long; None: it never stops for that reason."""
    deadman: Duration | None
    """A separate process releases the machine when the driver is dead and has sent no heartbeat for this long; None:
    there is no such process."""
    preemption: PreemptionSource

    @property
    def hardware(self) -> str:
        """For tables: `8 x NVIDIA H100 80GB HBM3, 80 GiB at 3350 GB/s each, nvswitch 900 GB/s`."""
        several = self.cards > 1
        count, each = (f"{self.cards} x ", " each") if several else ("", "")
        between = f", {self.interconnect} {self.interconnect_gb_per_s:g} GB/s" if several else ""
        memory = f"{self.memory_gib_per_card:g} GiB at {self.memory_gb_per_s:g} GB/s"
        return f"{count}{self.card_name}, {memory}{each}{between}"


@dataclass(frozen=True)
class AxisConfig:
    """The values of one varied key: a range from `low` to `high`, or `choices`. See `sweeps/config/axes.py`."""

    low: float | None = None
    high: float | None = None
    log: bool = False
    """Draw evenly over the logarithm."""
    step: float | None = None
    """Only `low` plus whole multiples of this; None: any number, or any whole number where the key is one."""
    choices: tuple[Any, ...] = ()
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """The key is varied only where each of these other varied keys has one of these values."""
    presets: Mapping[str, AlgorithmSpec] = field(default_factory=dict)
    """`search.space.algorithm` only: the settings of each choice, with the typed overrides of `algorithm.*`."""


@dataclass(frozen=True)
class SearchConfig:
    """Which points of the search space become trials, on how many cards, and which trials are pruned."""

    method: Literal["grid", "random", "optuna"]
    prompts_per_step: tuple[int, ...]
    group_size: tuple[int, ...]
    lr_scaling: tuple[LrScaling, ...]
    space: Mapping[str, AxisConfig]
    """Further keys, by dotted name. `prompts_per_step`, `group_size` and `lr_scaling` here replace the lists above."""
    seeds: tuple[int, ...]
    trials: int | None
    """Number of trials. A grid is repeated over further seeds until there are this many; None: the grid once."""
    sampler_seed: int
    """Seed of the random draws of `random` and `optuna`; the trials have seeds of their own."""
    startup_trials: int
    """optuna: points that are drawn at random before its model proposes."""
    pruning: Literal["none", "asha", "median"]
    pruning_min_trials: int
    """Trials of the same seed, the judged one included, that must have come this far before one is pruned."""
    pruning_warmup_completions: int | None
    """No trial is pruned before this; None: the completions of the largest batch at its first evaluation."""
    pruning_factor: int
    """asha: 1 in this many trials continues at a rung, and each rung is this many times as far as the one before."""
    pruning_percentile: float
    """median: a trial is pruned below this percentile of the others."""
    cards_per_trial: int
    """At least 1: a 0 in `conf/` is replaced by the number of the machine's cards."""
    max_concurrent: int
    """Trials that run at once; 0: as many as the cards allow."""

    def trials_at_once(self, cards: int) -> int:
        """How many trials may run at the same time on this many cards."""
        fit = cards // self.cards_per_trial
        return min(fit, self.max_concurrent) if self.max_concurrent else fit


@dataclass(frozen=True)
class RetryConfig:
    """How often a failed trial is retried, by kind of failure.

    A trial that cannot run as configured is never retried.
    """

    crashes: int
    backoff_seconds: float
    """Wait before the first retry after a crash; doubled before each further one."""
    out_of_memory: int
    """Each retry halves the micro-batch."""
    hangs: int
    hung_after_seconds: float
    """An attempt that reports nothing for this long is ended as hung."""
    preemptions: int | None
    """None: no limit."""


MONEY_KEYS = ("trial_limit", "sweep_limit", "stage_limit", "month_limit", "trial_bound")
"""Keys of `budget` that are amounts of money."""


@dataclass(frozen=True)
class BudgetConfig:
    """What may be spent, and who is charged."""

    trial_limit: Money | None
    """For the cards of each trial; None, here and below: no limit."""
    sweep_limit: Money | None
    stage_limit: Money | None
    """For all sweeps of this stage in this ledger together."""
    month_limit: Money | None
    """For everything in this ledger, per calendar month (UTC)."""
    trial_bound: Money | None
    """Reserved for a trial before it starts; None: the cost of its forecast time with an allowance."""
    at_limit: Literal["stop", "pause"]
    """What a sweep does when a limit is spent, or has no room for any of the remaining trials."""
    allow_unpriced: bool
    """Run without a known price and print UNPRICED; otherwise a missing price is an error."""
    owner: str
    """Who is charged; empty: the machine's owner."""
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
    """When the result of a stage is good enough for the next stage."""

    ratio_tolerance: float
    """Largest |ratio_mean - 1| on the first update of a trial, where sampling and training agree by construction."""
    rules: str
    """File with the gate rules; empty: `conf/gate/rules/STAGE.yaml`."""
    force: str
    """Why a closed gate counts as open; empty: it does not."""
    start_anyway: str
    """Why a stage may start without an open gate of the stage below; empty: it may not."""
    acknowledge: str
    """The token that was printed with the changes on the way to more cards; empty: not confirmed yet."""


@dataclass(frozen=True)
class StorageConfig:
    """Where ledger and journal are stored, and where checkpoints, artifacts and snapshots are uploaded to."""

    database_url: str | None
    """An SQLAlchemy URL; None: SQLite at `ledger.db` under `paths.root`."""
    bucket: str | None
    """An S3 bucket for checkpoints, artifacts and snapshots of the ledger; None: nothing is uploaded."""
    prefix: str
    """Start of every key in the bucket; empty: the top of the bucket."""
    endpoint_url: str
    """An S3 server other than AWS; empty: boto3's own settings."""
    region: str
    """The bucket's region; empty: boto3's own settings."""
    keep_last: int
    """How many of each trial's newest checkpoints stay in the bucket."""
    keep_best: bool
    """The checkpoint with the best evaluation stays too."""
    keep_first: bool
    """The first checkpoint stays too."""
    wait_seconds: float
    """How long the end of a sweep waits for unfinished uploads."""


@dataclass(frozen=True)
class TrackingConfig:
    """Where the curves go for people to look at."""

    uri: str | None
    """An MLflow tracking URI; None: SQLite at `mlflow.db` under `paths.root`."""
    experiment: str


@dataclass(frozen=True)
class PathsConfig:
    """Folders. A leading `~` is expanded; a relative folder is relative to where the command was typed."""

    root: str
    """Everything that sweeps write."""
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
    """auto: resume an unfinished sweep of the same plan. never: start a new sweep. failed: run the failed trials of the
    newest sweep of the same plan again. Otherwise the name of the sweep to resume."""
    content: Mapping[str, str] = field(default_factory=dict)
    """Hashes of the questions and of the model's files, by the key that names them. Not typed: the driver reads them
    (`sweeps.driver.trial_check`). Empty for simulated trials."""

    @property
    def simulated(self) -> bool:
        """Trials are simulated: no machine is used and no real time passes."""
        return self.trainer.name == "simulated"

    @property
    def database(self) -> str | Path:
        """The database of ledger and journal: an SQLAlchemy URL, or an SQLite file."""
        return self.storage.database_url or Path(self.paths.root) / "ledger.db"

"""What the options compose to: stages, machines, models, tasks, and the values that cost money."""

from __future__ import annotations

import json
import typing
from pathlib import Path

import pytest

from cost.clock import SystemClock
from cost.money import Money
from cost.prices.book import PURCHASE_OPTIONS, PriceBook
from rl.algorithms import algorithm_problems
from rl.codec import from_json
from rl.spec import AlgorithmSpec
from sweeps.config.build import canonical, compose
from sweeps.config.overrides import CONF_DIR, options
from sweeps.config.types import ConfigError, MachineConfig, SweepConfig
from sweeps.planning.plan import make_plan, trial_spec

# The values that cost money, written down a second time: provider, price key, region, purchase, cards of the machine.
MACHINES = {
    "cpu": ("own", "electricity", "", "own", 1),
    "rtx4090": ("runpod", "runpod-rtx4090", "", "on_demand", 1),
    "rtx5090": ("runpod", "runpod-rtx5090", "", "on_demand", 1),
    "a100": ("runpod", "runpod-a100", "", "on_demand", 1),
    "h100": ("runpod", "runpod-h100", "", "on_demand", 1),
    "a100x8": ("lambda", "lambda-a100x8", "", "on_demand", 8),
    "h100x8": ("lambda", "lambda-h100x8", "", "on_demand", 8),
    "p5": ("aws", "aws-p5.48xlarge", "us-east-1", "on_demand", 8),
}
# Steps of a trial; trials of the plan; cards of a trial, None for all of the machine.
STAGES = {"preflight": (20, 1, 1), "smoke": (20, 3, 1), "single": (200, 4, 1), "multi": (200, 3, None)}


def test_the_tables_of_this_test_cover_every_stage_and_every_machine() -> None:
    assert set(MACHINES) == set(options("machine"))
    assert set(STAGES) == set(options("stage"))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_composes_with_every_machine_to_the_values_that_cost_money(stage: str, machine: str) -> None:
    provider, sku, region, purchase, cards = MACHINES[machine]
    steps, trials, cards_per_trial = STAGES[stage]
    if stage == "multi" and cards == 1:
        with pytest.raises(ConfigError, match=f"stage multi needs 2 cards or more, and machine={machine} has 1"):
            compose([f"+stage={stage}", f"machine={machine}"])
        return
    cfg = compose([f"+stage={stage}", f"machine={machine}"])
    m = cfg.machine
    assert (m.name, m.provider, m.sku, m.region, m.purchase, m.cards) == (
        machine,
        provider,
        sku,
        region,
        purchase,
        cards,
    )
    assert cfg.stage.name == stage
    assert cfg.stage.steps == steps
    assert cfg.search.cards_per_trial == (cards_per_trial or cards)
    assert cfg.search.seeds == (0,)
    assert len(make_plan(cfg).trials) == trials
    assert cfg.budget.sweep_limit is None
    assert cfg.budget.allow_unpriced is False


@pytest.mark.parametrize("model", options("model"))
@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_composes_with_every_model(stage: str, model: str, tmp_path: Path) -> None:
    path = [f"model.path={tmp_path}"] if model == "hf" else []
    cfg = compose([f"+stage={stage}", f"model={model}", *path])
    assert (cfg.stage.name, cfg.model.kind) == (stage, model)
    assert cfg.stage.preflight is (stage == "smoke")
    spec = trial_spec(cfg, make_plan(cfg).trials[0], attempt=1, sweep_dir=tmp_path)
    assert spec.model == cfg.model


@pytest.mark.parametrize("machine", MACHINES)
def test_every_machine_has_a_price_in_force(machine: str) -> None:
    provider, sku, region, purchase, cards = MACHINES[machine]
    row = PriceBook.load(CONF_DIR / "pricing").in_force(
        sku, SystemClock().utc_ns(), purchase=purchase, region=region or None
    )
    assert row.provider == provider
    assert row.cards in (0, cards)  # 0: the price holds for any number of cards


def test_the_purchase_options_of_a_machine_are_those_of_the_price_book() -> None:
    assert typing.get_args(typing.get_type_hints(MachineConfig)["purchase"]) == (
        PURCHASE_OPTIONS[-1],
        *PURCHASE_OPTIONS[:-1],
    )


def test_the_own_machine_is_the_default_except_for_the_stage_on_many_cards() -> None:
    assert compose(["+stage=smoke"]).machine.name == "cpu"
    assert compose(["+stage=single"]).machine.name == "cpu"
    assert compose(["+stage=multi"]).machine.name == "h100x8"


def test_a_typed_value_overrides_stage_and_model() -> None:
    cfg = compose(["+stage=multi", "machine=p5", "search.prompts_per_step=[16]", "model=tiny", "algorithm.lr=2e-3"])
    assert cfg.machine.name == "p5"
    assert cfg.search.prompts_per_step == (16,)
    assert cfg.algorithm.lr == 2e-3


def test_the_order_of_the_overrides_does_not_matter() -> None:
    typed = ["+stage=multi", "machine=p5", "model=tiny", "task=products"]
    assert compose(typed) == compose(typed[::-1])


def test_the_default_smoke_is_three_trials_of_smollm2_on_one_digit_sums() -> None:
    cfg = compose(["+stage=smoke"])
    assert (cfg.model.kind, cfg.task.name, cfg.algorithm.name) == ("smollm2_135m", "chain_sum", "grpo")
    assert (cfg.task.params["max_terms"], cfg.task.params["max_digits"]) == (2, 1)
    points = [(t.prompts_per_step, t.group_size, t.lr, t.names) for t in make_plan(cfg).trials]
    assert points == [
        (2, 8, 1e-5, ("hold", "linear")),
        (4, 8, 1e-5, ("hold",)),
        (4, 8, 2e-5, ("linear",)),
    ]


def test_a_group_sets_the_keys_of_others_that_depend_on_it() -> None:
    smoke = compose(["+stage=smoke"])
    assert compose(["+stage=smoke", "model=tiny"]).algorithm.lr > 10 * smoke.algorithm.lr
    assert compose(["+stage=smoke", "model=tiny"]).model.chat_template is False
    gsm8k = compose(["+stage=smoke", "task=gsm8k"])
    assert gsm8k.rollout.max_completion_tokens > smoke.rollout.max_completion_tokens
    assert gsm8k.task.params == {}


@pytest.mark.parametrize(
    ("group", "path"),
    [
        ("algorithm", "algorithm.name"),
        ("rollout", "rollout.engine"),
        ("trainer", "trainer.name"),
        ("model", "model.kind"),
    ],
)
def test_a_choice_names_itself(group: str, path: str) -> None:
    extra = {
        "hf": ["model.path=owner/name"],
        "simulated": ["trainer=simulated"] if group == "rollout" else [],
    }
    for option in options(group):
        cfg = compose(["+stage=smoke", f"{group}={option}", *extra.get(option, [])])
        value = cfg
        for part in path.split("."):
            value = getattr(value, part)
        assert value == option


@pytest.mark.parametrize("task", ["chain_sum", "products", "gsm8k", "module"])
def test_every_task_composes(task: str) -> None:
    extra = ["task.name=my_package.my_task:questions"] if task == "module" else []
    assert "{question}" in compose(["+stage=smoke", f"task={task}", *extra]).task.prompt_template


@pytest.mark.parametrize("stage", ["smoke", "single", "multi"])
@pytest.mark.parametrize("algorithm", options("algorithm"))
def test_every_algorithm_composes_with_every_task_and_stage(algorithm: str, stage: str) -> None:
    for task in ("chain_sum", "products", "gsm8k", "module"):
        extra = ["task.name=my_package.my_task:questions"] if task == "module" else []
        cfg = compose([f"+stage={stage}", f"algorithm={algorithm}", f"task={task}", "dry_run=true", *extra])
        for trial in make_plan(cfg).trials:
            spec = trial_spec(cfg, trial, attempt=1, sweep_dir=Path("sweep"))
            assert algorithm_problems(spec) == []


def test_lengths_of_the_presets_follow_the_completion_limit() -> None:
    def algorithm(*overrides: str) -> AlgorithmSpec:
        cfg = compose(["+stage=smoke", *overrides])
        return trial_spec(cfg, make_plan(cfg).trials[0], attempt=1, sweep_dir=Path("sweep")).algorithm

    assert algorithm("algorithm=dapo").overlong_buffer_tokens == 5  # a fifth of 24
    assert algorithm("algorithm=dapo", "task=gsm8k").overlong_buffer_tokens == 102  # a fifth of 512
    assert algorithm("algorithm=dr_grpo", "task=gsm8k").aggregation_constant == 512
    assert algorithm("algorithm=dr_grpo", "algorithm.aggregation_constant=100").aggregation_constant == 100
    varied = compose(["+stage=smoke", "algorithm=dr_grpo", "search.space.rollout.max_completion_tokens=[16,32]"])
    specs = [trial_spec(varied, t, attempt=1, sweep_dir=Path("sweep")) for t in make_plan(varied).trials]
    assert {s.rollout.max_completion_tokens for s in specs} == {16, 32}
    assert all(s.algorithm.aggregation_constant == s.rollout.max_completion_tokens for s in specs)


def test_the_default_rate_of_a_model_of_yours_is_that_of_its_method() -> None:
    own = ["+stage=smoke", "model=hf", "model.path=owner/name"]
    assert compose(own).algorithm.lr == 1e-6
    assert compose([*own, "model.lora_rank=16"]).algorithm.lr == 1e-5
    assert compose([*own, "model.lora_rank=16", "algorithm.lr=3e-5"]).algorithm.lr == 3e-5
    assert set(compose(own).model.lora_targets) >= {"q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def test_every_option_of_the_remaining_groups_composes() -> None:
    for group in ("search", "budget", "gate", "storage", "tracking"):
        for option in options(group):
            needed = ["storage.bucket=team"] if option == "s3" else []
            assert compose(["+stage=smoke", f"{group}={option}", *needed]).stage.name == "smoke"


def test_required_tags_are_checked_before_the_sweep_starts(monkeypatch) -> None:
    needed = ["+stage=smoke", "budget.required_tags=[owner,project,cost_center,team]"]
    monkeypatch.delenv("USER", raising=False)
    with pytest.raises(ConfigError) as refused:
        compose(needed)
    assert [line.rsplit("add ")[-1] for line in str(refused.value).splitlines()] == [
        *("budget.owner=NAME", "budget.project=NAME", "budget.cost_center=NAME", "+budget.tags.team=NAME")
    ]
    monkeypatch.setenv("USER", "ann")
    cfg = compose([*needed, "budget.project=ladder", "budget.cost_center=k17", "+budget.tags.team=rl"])
    assert cfg.budget.charged_to == {"owner": "ann", "project": "ladder", "cost_center": "k17", "team": "rl"}
    with pytest.raises(ConfigError, match=r"budget\.tags\.owner has a key of its own"):
        compose(["+stage=smoke", "+budget.tags.owner=ann"])


def test_snapshots_need_a_bucket_and_take_no_password() -> None:
    with pytest.raises(
        ConfigError, match=r"storage\.bucket is missing, and the chosen options need it: add storage\.bucket=\.\.\."
    ):
        compose(["+stage=smoke", "storage=s3"])
    with pytest.raises(ConfigError, match=r"storage\.bucket=B should be the name of an S3 bucket"):
        compose(["+stage=smoke", "storage=s3", "storage.bucket=B"])
    with pytest.raises(ConfigError, match="without user or password") as refused:
        compose(["+stage=smoke", "storage=s3", "storage.bucket=team", "storage.endpoint_url=http://me:secret@host"])
    assert "secret" not in str(refused.value)


def test_the_simulated_trainer_takes_every_key_of_the_native_one() -> None:
    cfg = compose(
        ["+stage=smoke", "trainer=simulated", "trainer.micro_batch_tokens=64", "trainer.simulated.crash_at_step=3"]
    )
    assert cfg.trainer.micro_batch_tokens == 64
    assert cfg.trainer.simulated.crash_at_step == 3


def test_one_value_is_a_list_of_one() -> None:
    cfg = compose(["+stage=smoke", "search.group_size=4", "search.lr_scaling=sqrt", "search.seeds=7"])
    assert (cfg.search.group_size, cfg.search.lr_scaling, cfg.search.seeds) == ((4,), ("sqrt",), (7,))


def test_zero_cards_per_trial_are_all_cards_of_the_machine() -> None:
    assert compose(["+stage=multi", "machine.cards=4"]).search.cards_per_trial == 4


def test_a_home_folder_is_expanded_and_the_cache_follows_the_root() -> None:
    cfg = compose(["+stage=smoke", 'paths.root="~/my-runs"'])
    assert cfg.paths.root == str(Path.home() / "my-runs")
    assert cfg.paths.cache == str(Path.home() / "my-runs/cache")


def test_text_with_commas_money_and_new_task_parameters_keep_their_values() -> None:
    cfg = compose(
        ["+stage=smoke", 'gate.force="low, but ok"', "budget.sweep_limit=12.10 USD", "+task.params.allow_negation=true"]
    )
    assert cfg.gate.force == "low, but ok"
    assert cfg.budget.sweep_limit == Money.parse("12.10 USD")
    assert cfg.task.params["allow_negation"] is True


def test_the_canonical_form_is_json_that_builds_the_same_configuration() -> None:
    cfg = compose(["+stage=multi", "trainer=simulated", "algorithm=dapo"])
    again = json.loads(json.dumps(canonical(cfg), allow_nan=False))
    assert from_json(SweepConfig, again) == cfg


def test_the_canonical_form_has_no_password() -> None:
    url = "postgresql+psycopg://ann:s3cret@db.example:5432/ledger"
    cfg = compose(["+stage=smoke", f"storage.database_url={url}", "tracking.uri=http://ann:s3cret@ml.example:5000"])
    assert cfg.storage.database_url == url
    text = json.dumps(canonical(cfg))
    assert "s3cret" not in text
    assert "postgresql+psycopg://ann:***@db.example:5432/ledger" in text


def test_a_machine_describes_its_hardware() -> None:
    assert compose(["+stage=multi"]).machine.hardware == (
        "8 x NVIDIA H100 80GB HBM3, 80 GiB at 3350 GB/s each, nvswitch 900 GB/s"
    )
    assert "CPU, " in compose(["+stage=smoke"]).machine.hardware


@pytest.mark.parametrize("uri", ["http://me:s3/cr#3t@mlflow:5000", "https://mlflow/?password=s3/cr3t"])
def test_a_tracking_password_is_in_no_stored_configuration(uri: str) -> None:
    stored = str(canonical(compose(["+stage=smoke", f'tracking.uri="{uri}"'])))
    assert "s3/cr" not in stored
    assert "***" in stored

"""What the values of a configuration must satisfy, as sentences for the person who typed them.

Pure but for looking whether a named model or task file is there. Nothing is loaded: what only shows once a file is
read or a price is looked up is found by whoever reads it, still before anything is billed.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from rl.algorithms import algorithm_problems
from rl.spec import TrialSpec
from sweeps.config.overrides import CONF_DIR, options
from sweeps.config.types import SweepConfig
from sweeps.planning.search_checks import search_problems

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_SWEEP_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


def problems(config: SweepConfig) -> list[str]:
    """Everything that is wrong, each with where it is and what would be right; empty if nothing is."""
    if found := list(_not_finite(config, "")):
        return found
    checks = (
        _run,
        _search,
        _algorithm,
        _cards,
        _machine,
        _model,
        _task,
        _rollout,
        _evaluation,
        _trainer,
        _retry,
        _money_etc,
    )
    found = [text for check in checks for text in check(config)]
    return found or list(search_problems(config, problems))


def _not_finite(value: Any, where: str) -> Iterator[str]:
    if dataclasses.is_dataclass(value):
        for f in dataclasses.fields(value):
            yield from _not_finite(getattr(value, f.name), f"{where}.{f.name}" if where else f.name)
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{where}={value} should be a finite number"


def _at_least(config: SweepConfig, least: float, *keys: str) -> Iterator[str]:
    for key in keys:
        value: Any = config
        for part in key.split("."):
            value = getattr(value, part)
        if value < least:
            yield f"{key}={value} should be {least} or more"


def _above_zero(config: SweepConfig, *keys: str) -> Iterator[str]:
    for key in keys:
        value: Any = config
        for part in key.split("."):
            value = getattr(value, part)
        if value <= 0:
            yield f"{key}={value} should be above 0"


def _run(config: SweepConfig) -> Iterator[str]:
    yield from _at_least(config, 1, "stage.steps", "stage.min_cards")
    if not _SWEEP_NAME.fullmatch(config.resume):
        yield f"resume={config.resume!r} should be auto, never, failed, or the name of a sweep (a folder in paths.root)"
    for key in ("root", "cache"):
        if not getattr(config.paths, key).strip():
            yield f"paths.{key} is empty; it should be a folder"


def _search(config: SweepConfig) -> Iterator[str]:
    search = config.search
    for axis in ("prompts_per_step", "group_size", "lr_scaling", "seeds"):
        if not getattr(search, axis):
            yield f"search.{axis}=[] has no value; it should have at least one"
    for prompts in search.prompts_per_step:
        if prompts < 1:
            yield f"search.prompts_per_step={prompts} should be 1 or more: a step needs at least one question"
    for group in search.group_size:
        if group < 2:
            yield (
                f"search.group_size={group} trains nothing: an advantage compares the completions of one prompt with "
                "each other; it should be 2 or more (8 is the usual choice)"
            )
    for seed in search.seeds:
        if seed < 0:
            yield f"search.seeds={seed} should be 0 or more"
    yield from _at_least(config, 0, "search.max_concurrent")


def _algorithm(config: SweepConfig) -> Iterator[str]:
    """The first point of the grid that the learner's own rules refuse: its neighbours are refused alike."""
    updates = config.algorithm.updates_per_rollout
    if config.stage.steps < 1 or config.rollout.max_completion_tokens < 1:
        return
    for prompts, group in itertools.product(config.search.prompts_per_step, config.search.group_size):
        if prompts < 1 or group < 2:
            continue
        found = algorithm_problems(_trial(config, prompts, group))
        if 1 <= updates <= prompts and prompts % updates:
            fits = [str(n) for n in range(1, prompts + 1) if prompts % n == 0]
            found.append(
                f"search.prompts_per_step={prompts} cannot be cut into algorithm.updates_per_rollout={updates} equal "
                f"mini-batches of whole groups; use a multiple of {updates} prompts, or {', '.join(fits)} updates"
            )
        if found:
            yield from found
            return


def _trial(config: SweepConfig, prompts: int, group: int) -> TrialSpec:
    return TrialSpec(
        trial_id="",
        attempt=1,
        seed=0,
        steps=config.stage.steps,
        prompts_per_step=prompts,
        group_size=group,
        cards=config.search.cards_per_trial,
        model=config.model,
        task=config.task,
        algorithm=config.algorithm,
        rollout=config.rollout,
        evaluation=config.evaluation,
        trainer=config.trainer,
        checkpoint_dir="",
        cache_dir="",
    )


def _cards(config: SweepConfig) -> Iterator[str]:
    machine, search, stage = config.machine, config.search, config.stage
    if machine.cards < 1 or search.cards_per_trial < 1:
        yield from _at_least(config, 1, "machine.cards")
        yield from _at_least(config, 0, "search.cards_per_trial")
    elif machine.cards < stage.min_cards:
        yield (
            f"stage {stage.name} needs {stage.min_cards} cards or more, and machine={machine.name} has "
            f"{machine.cards}; {_larger_machines(stage.min_cards)}"
        )
    elif search.cards_per_trial > machine.cards:
        yield (
            f"search.cards_per_trial={search.cards_per_trial} is more than the cards of machine={machine.name} "
            f"({machine.cards}); {_larger_machines(search.cards_per_trial)}"
        )


def _larger_machines(cards: int) -> str:
    fits = [f"machine={name}" for name, has in _cards_of_machines().items() if has >= cards]
    named = f"choose {' or '.join(fits)}, or " if fits else ""
    return f"{named}set machine.cards if yours has more"


@cache
def _cards_of_machines() -> dict[str, int]:
    import yaml

    return {
        name: yaml.safe_load((CONF_DIR / f"machine/{name}.yaml").read_text())["cards"] for name in options("machine")
    }


def _machine(config: SweepConfig) -> Iterator[str]:
    machine = config.machine
    yield from _above_zero(config, "machine.memory_gib_per_card", "machine.memory_gb_per_s", "machine.tflops")
    yield from _at_least(config, 0, "machine.interconnect_gb_per_s", "machine.watts")
    for key in ("name", "sku", "provider", "cluster"):
        if not getattr(machine, key).strip():
            yield f"machine.{key} is empty"
    if machine.sku.startswith("electricity") and machine.watts <= 0:
        yield (
            f"machine.watts={machine.watts} with machine.sku={machine.sku}: electricity is priced by what the machine "
            "draws; set its mean draw under load, in watts"
        )
    if config.trainer.device == "cuda" and machine.device == "cpu":
        yield f"trainer.device=cuda, and machine={machine.name} has no CUDA card; use trainer.device=auto or cpu"
    yield from _acquire_and_release(config)


def _acquire_and_release(config: SweepConfig) -> Iterator[str]:
    machine = config.machine
    if machine.deadman and not machine.down:
        yield f"machine.deadman={machine.deadman} needs machine.down: how is the machine released?"
    if machine.down and machine.down.uses_ec2 and machine.provider != "aws":
        yield (
            f"machine.down={machine.down} works with machine.provider=aws only, and this is {machine.provider}: set a "
            "command that releases the machine there"
        )


def _model(config: SweepConfig) -> Iterator[str]:
    model = config.model
    yield from _at_least(config, 0, "model.lora_rank")
    if model.lora_rank > 0:
        yield from _above_zero(config, "model.lora_alpha")
        if not model.lora_targets:
            yield "model.lora_targets=[] with model.lora_rank above 0: name the layers that get an adapter"
    if model.kind != "hf":
        if model.path is not None:
            yield f"model.path={model.path} is read by model=hf only: write model=hf model.path={model.path}"
        return
    if not model.path:
        yield "model=hf needs model.path: a folder with config.json and *.safetensors, or a hub id (Qwen/Qwen3-0.6B)"
    elif not Path(model.path).expanduser().is_dir() and not _may_be_hub_id(model.path):
        yield (
            f"model.path={model.path} is not a folder; it should be a folder with config.json and *.safetensors, or a "
            "hub id (owner/name)"
        )


def _may_be_hub_id(text: str) -> bool:
    return bool(_HUB_ID.fullmatch(text)) and not text.startswith(".") and not Path(text).exists()


def _task(config: SweepConfig) -> Iterator[str]:
    task = config.task
    yield from _at_least(config, 0, "task.train_questions", "task.data_seed")
    yield from _at_least(config, 1, "task.eval_questions", "task.reward_workers")
    yield from _above_zero(config, "task.reward_timeout_seconds")
    if "{question}" not in task.prompt_template:
        yield f"task.prompt_template={task.prompt_template!r} has no {{question}} in it"
    try:
        re.compile(task.format_pattern)
    except re.error as error:
        yield f"task.format_pattern={task.format_pattern!r} is no regular expression: {error}"
    for name, weight in task.reward_weights.items():
        if not math.isfinite(weight):
            yield f"task.reward_weights.{name}={weight} should be a finite number"
    if task.kind == "module" and not re.fullmatch(r"[\w.]+:[\w.]+", task.name):
        yield f"task.name={task.name!r} should be package.module:function, the function that returns your questions"
    if task.kind == "file":
        path = Path(task.path or "")
        if not task.path:
            yield "task.path is missing: a .parquet or .jsonl file, a folder with train and test, or a hub id"
        elif not path.exists() and (path.suffix in (".parquet", ".jsonl") or not _may_be_hub_id(task.path)):
            yield f"task.path={task.path}: there is no such file or folder (seen from {Path.cwd()})"
    elif task.path is not None:
        yield f"task.path={task.path} is read by tasks from files only, such as task=gsm8k"


def _rollout(config: SweepConfig) -> Iterator[str]:
    rollout = config.rollout
    yield from _above_zero(config, "rollout.temperature")
    yield from _at_least(
        config,
        1,
        "rollout.max_prompt_tokens",
        "rollout.max_completion_tokens",
        "rollout.max_batch_completions",
        "rollout.kv_cache_gib",
    )
    for key, neutral in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0), ("repetition_penalty", 1.0)):
        if getattr(rollout, key) != neutral:
            yield (
                f"rollout.{key}={getattr(rollout, key)} changes what is sampled in a way that the trainer's "
                f"log-probabilities do not model, so every ratio would be wrong; it should be {neutral}"
            )
    if not 0 < rollout.gpu_memory_utilization <= 1:
        yield f"rollout.gpu_memory_utilization={rollout.gpu_memory_utilization} is a share: above 0, at most 1"
    if rollout.engine == "simulated" and config.trainer.name != "simulated":
        yield f"rollout=simulated samples from no model; trainer={config.trainer.name} needs rollout=auto"


def _evaluation(config: SweepConfig) -> Iterator[str]:
    evaluation = config.evaluation
    yield from _at_least(config, 1, "evaluation.samples_per_question")
    yield from _at_least(config, 0, "evaluation.temperature", "evaluation.every_steps")
    if evaluation.temperature == 0 and evaluation.samples_per_question > 1:
        yield (
            f"evaluation.samples_per_question={evaluation.samples_per_question} with evaluation.temperature=0: greedy "
            "samples are all the same; use one sample, or a temperature above 0"
        )


def _trainer(config: SweepConfig) -> Iterator[str]:
    yield from _at_least(
        config,
        1,
        "trainer.micro_batch_tokens",
        "trainer.logprob_chunk_tokens",
        "trainer.checkpoint_every_steps",
        "trainer.keep_checkpoints",
    )
    yield from _at_least(config, 0, "trainer.threads")
    simulated = config.trainer.simulated
    for f in dataclasses.fields(simulated):
        if f.name != "faults_every_attempt" and getattr(simulated, f.name) < 0:
            yield f"trainer.simulated.{f.name}={getattr(simulated, f.name)} should be 0 or more"
    for key in ("acc_start", "acc_final", "noise_frac"):
        if getattr(simulated, key) > 1:
            yield f"trainer.simulated.{key}={getattr(simulated, key)} should be at most 1"
    yield from _above_zero(config, "trainer.simulated.steps_to_half")


def _retry(config: SweepConfig) -> Iterator[str]:
    yield from _at_least(config, 0, "retry.crashes", "retry.backoff_seconds", "retry.out_of_memory", "retry.hangs")
    yield from _above_zero(config, "retry.hung_after_seconds")
    if config.retry.preemptions is not None:
        yield from _at_least(config, 0, "retry.preemptions")


def _money_etc(config: SweepConfig) -> Iterator[str]:
    for key in ("trial_limit", "sweep_limit", "stage_limit", "month_limit", "trial_bound"):
        amount = getattr(config.budget, key)
        if amount is not None and amount.pico <= 0:
            yield f"budget.{key}={amount} should be above 0, or null for no limit"
    yield from _above_zero(config, "gate.ratio_tolerance", "gate.max_logp_diff")
    database, uri = config.storage.database_url, config.tracking.uri
    if database is not None and not re.match(r"(sqlite|postgresql)(\+\w+)?://", database):
        yield "storage.database_url should begin with sqlite:/// or postgresql+psycopg://, or be null for SQLite"
    if uri is not None and "://" not in uri and uri != "databricks":
        yield f"tracking.uri={uri} should be a URI (sqlite:///FILE, http://HOST:PORT), or null for SQLite in paths.root"
    yield from _snapshots(config)
    yield from _chargeback(config)
    if not config.tracking.experiment.strip():
        yield "tracking.experiment is empty; it should be a name"


def _snapshots(config: SweepConfig) -> Iterator[str]:
    storage = config.storage
    yield from _at_least(config, 1, "storage.keep_last")
    yield from _at_least(config, 0, "storage.wait_seconds")
    if storage.bucket is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", storage.bucket):
        yield f"storage.bucket={storage.bucket} should be the name of an S3 bucket (3 to 63 of a-z, 0-9, . and -)"
    if storage.endpoint_url and not re.fullmatch(r"https?://[^@\s]+", storage.endpoint_url):
        yield (
            "storage.endpoint_url should be http://HOST:PORT or https://HOST, without user or password: credentials "
            "are read from the environment (AWS_ACCESS_KEY_ID, AWS_PROFILE ...)"
        )


def _chargeback(config: SweepConfig) -> Iterator[str]:
    budget = config.budget
    for name in ("owner", "project", "cost_center"):
        if name in budget.tags:
            yield f"budget.tags.{name} has a key of its own: write budget.{name}={budget.tags[name]}"
    for name in budget.required_tags:
        if not budget.charged_to.get(name, "").strip():
            key = f"budget.{name}" if name in budget.charged_to and name not in budget.tags else f"+budget.tags.{name}"
            yield f"budget.required_tags names {name}, and the sweep has none: add {key}=NAME"

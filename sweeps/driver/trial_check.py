"""Everything that building a trial of a plan would refuse, found before a machine is acquired. Dry runs call it too.

`read_inputs` reads the questions, the tokenizers and the model configurations that the trials use; no weights are
loaded, and nothing is read for simulated trials. `trial_problems` then builds from them what each trial builds, and
judges its memory.

Tested in tests/sweeps/driver/test_trial_check.py.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from rl.codec import to_json
from rl.spec import ConfigurationError, TrialSpec
from sweeps.config.axes import recipes
from sweeps.config.identity import content_key
from sweeps.config.overrides import CONF_DIR, options
from sweeps.config.types import SweepConfig
from sweeps.machines.cards import ray_address
from sweeps.planning.plan import Plan, trial_spec

RAY_SOCKET = "ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
"""The longest socket that a local Ray opens in its temporary folder."""
MOST_SOCKET_BYTES = 107
"""Linux limits the path of a Unix socket to this length."""


@dataclass(frozen=True)
class TrialInputs:
    """What the trials of a sweep read, by the model and the task that select it. Missing where it cannot be read."""

    tasks: Mapping[str, Any] = field(default_factory=dict)
    """`rl.tasks.Task` by the JSON of its specification."""
    models: Mapping[str, Any] = field(default_factory=dict)
    """`rl.checks.trial_inputs.ModelInputs` by the JSON of model and task: the model `tiny` depends on the task."""
    content: Mapping[str, str] = field(default_factory=dict)
    """Hashes for `SweepConfig.content`."""
    problems: tuple[str, ...] = ()
    """What cannot be read, a message each that names the key."""


def read_inputs(cfg: SweepConfig) -> TrialInputs:
    """Read the questions, tokenizers and model configurations of all recipes of the search space."""
    if cfg.simulated:
        return TrialInputs()
    tasks: dict[str, Any] = {}
    models: dict[str, Any] = {}
    content: dict[str, str] = {}
    problems: list[str] = []
    for at in recipes(cfg):
        _read_task(at, tasks, content, problems)
        _read_model(at, models, content, problems)
    return TrialInputs(tasks, models, content, tuple(dict.fromkeys(problems)))


def inputs_of(spec: TrialSpec, inputs: TrialInputs) -> tuple[Any, Any]:
    """(the `Task` of a trial, its tokenizer); None where they could not be read yet."""
    model = inputs.models.get(_key(spec.model, spec.task))
    return inputs.tasks.get(_key(spec.task)), None if model is None else model.tokenizer


def trial_problems(cfg: SweepConfig, plan: Plan, inputs: TrialInputs) -> list[str]:
    """Everything that the trials of `plan` would refuse, each problem once, with its key and what would be right."""
    found = list(inputs.problems)
    if cfg.search.cards_per_trial > 1 and cfg.trainer.name == "native":
        found.append(
            f"stage {cfg.stage.name} gives each trial {cfg.search.cards_per_trial} cards, and trainer=native uses one. "
            "Simulate it with trainer=simulated, or run each trial on one card with search.cards_per_trial=1"
        )
    if not cfg.simulated:
        found += _temporary_folder(cfg)
        for spec in _distinct_trials(cfg, plan):
            found += _problems_of(cfg, spec, inputs)
    return list(dict.fromkeys(found))


def unwritable(key: str, folder: Path) -> Iterator[str]:
    """Why files cannot be written into a folder, which may not exist yet. Nothing is written."""
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        yield cannot_be_written(key, folder, f"{existing} is not a folder")
    elif not os.access(existing, os.W_OK | os.X_OK):
        yield cannot_be_written(key, folder, f"{existing} is read-only for this user")


def cannot_be_written(key: str, folder: Path, why: str) -> str:
    return f"{key}={folder} cannot be written ({why}): make it writable, or choose another folder with {key}=DIR"


def _read_task(cfg: SweepConfig, tasks: dict[str, Any], content: dict[str, str], problems: list[str]) -> None:
    from rl.models.content import questions_hash
    from rl.tasks import load_task

    key = _key(cfg.task)
    if key in tasks:
        return
    try:
        tasks[key] = load_task(cfg.task)
    except ConfigurationError as error:
        problems.append(str(error) if "task." in str(error) else f"task.name={cfg.task.name}: {error}")
        return
    if cfg.task.kind != "reasoning_gym":  # generated from parameters, which are keys of the configuration
        content[content_key("task", to_json(cfg.task))] = questions_hash(cfg.task, tasks[key])


def _read_model(cfg: SweepConfig, models: dict[str, Any], content: dict[str, str], problems: list[str]) -> None:
    from rl.checks.trial_inputs import read_model_inputs
    from rl.models import describe
    from rl.models.content import model_hash

    key = _key(cfg.model, cfg.task)
    if key in models:
        return
    try:
        folder = describe(cfg.model, cfg.task, Path(cfg.paths.cache))
        if folder is None:  # it is made in the cache, before the lease is opened
            problems += unwritable("paths.cache", Path(cfg.paths.cache))
            return
        selected = f"model.path={cfg.model.path}" if cfg.model.kind == "hf" else f"model={cfg.model.kind}"
        whole = cfg.model.kind != "hf" or Path(cfg.model.path or "").expanduser().is_dir()
        models[key] = read_model_inputs(folder, selected, with_weights=whole)
    except ConfigurationError as error:
        problems.append(str(error))
        return
    problems += models[key].problems
    if cfg.model.kind == "hf":  # the other models are made here, from the program and the task
        content[content_key("model", to_json(cfg.model))] = model_hash(folder)


def _distinct_trials(cfg: SweepConfig, plan: Plan) -> Iterator[TrialSpec]:
    """The trials of a plan without those that differ in seed, rate or trained steps only."""
    seen = set()
    for planned in (*plan.trials, *plan.typical):
        spec = trial_spec(cfg, planned, attempt=1, sweep_dir=Path())
        same = (spec.prompts_per_step, spec.group_size, _key(spec.model, spec.task, spec.rollout, spec.evaluation))
        algorithm = (spec.algorithm.kl_coef > 0, spec.algorithm.updates_per_rollout)
        if (identity := (same, algorithm, _key(spec.trainer))) not in seen:
            seen.add(identity)
            yield spec


def _problems_of(cfg: SweepConfig, spec: TrialSpec, inputs: TrialInputs) -> Iterator[str]:
    from rl.checks.trial_inputs import check_trial

    task = inputs.tasks.get(_key(spec.task))
    model = inputs.models.get(_key(spec.model, spec.task))
    report = check_trial(spec, task, model)
    yield from report.problems
    if model is not None and model.architecture is not None:
        from rl.memory.verdict import Card, judge

        machine = cfg.machine
        verdict = judge(
            model.architecture,
            spec,
            Card(machine.name, machine.memory_gib_per_card, machine.device),
            engine=_engine(spec, machine.device),
            prompt_tokens=report.longest_prompt,
            other_cards=[
                Card(m.name, m.memory_gib, m.device)
                for m in _machines()
                if m.name != machine.name and m.cards == machine.cards
            ],
        )
        if not verdict.fits:
            yield str(verdict)


def _engine(spec: TrialSpec, device: str) -> str:
    """The engine that `rollout.engine` selects on a machine with the packages of this one."""
    if spec.rollout.engine != "auto":
        return spec.rollout.engine
    return "vllm" if device == "cuda" and importlib.util.find_spec("vllm") else "transformers"


@dataclass(frozen=True)
class _Machine:
    name: str
    cards: int
    memory_gib: float
    """Of one card."""
    device: Any


@cache
def _machines() -> tuple[_Machine, ...]:
    """Every machine of `conf/machine`."""
    import yaml

    bodies = [yaml.safe_load((CONF_DIR / f"machine/{name}.yaml").read_text()) for name in options("machine")]
    return tuple(_Machine(b["name"], b["cards"], float(b["memory_gib_per_card"]), b["device"]) for b in bodies)


def _temporary_folder(cfg: SweepConfig) -> Iterator[str]:
    """Ray puts its sockets into a temporary folder, and their paths must not be too long."""
    if ray_address(cfg) != "local" or not sys.platform.startswith("linux"):
        return
    name = "RAY_TMPDIR" if "RAY_TMPDIR" in os.environ else "TMPDIR"
    folder = os.environ.get(name) or "/tmp"
    length = len(os.fsencode(os.path.join(folder, RAY_SOCKET)))
    if length > MOST_SOCKET_BYTES:
        yield (
            f"{name}={folder} is {length - MOST_SOCKET_BYTES} bytes too long for the sockets of Ray, whose paths have "
            f"at most {MOST_SOCKET_BYTES} bytes: set RAY_TMPDIR to a short folder, such as RAY_TMPDIR=/tmp"
        )


def _key(*specs: Any) -> str:
    return json.dumps([to_json(spec) for spec in specs], sort_keys=True)

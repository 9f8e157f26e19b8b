"""Settings that a log states before its first step: printed configurations, command lines, argument tables.

Tested in tests/rl/trainers/logs/test_trl_console.py and tests/rl/trainers/logs/test_verl_console.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rl.trainers.logs.python_dicts import FoundDict
from rl.trainers.logs.run import Facts
from rl.trainers.logs.text import Line
from rl.trainers.logs.values import NUMBER, flat, number

_SETTING = re.compile(
    rf"(?<![\w'\"/.-])\+{{0,2}}(?P<key>[A-Za-z_][\w.]{{1,120}})(?: ?= ?|: | \.{{2,}} ?)"
    rf"(?P<value>{NUMBER}(?![\w.])|['\"]?[\w./\-]+['\"]?)",
    re.ASCII,
)
_OPTION = re.compile(rf"(?<!\S)--(?P<key>[a-z][\w.\-]{{1,80}})[ =](?P<value>{NUMBER}(?!\S)|[\w./\-]+)", re.ASCII)
_PLANNED = re.compile(r"Total (?:training |optimization )?steps ?[:=]\s*(\d{1,9}(?:,\d{3})*)")

# For each fact, the paths that state it, the surest first. A path matches where it is the end of the stated one.
_PATHS: Mapping[str, tuple[str, ...]] = {
    "model": (
        *(
            "actor_rollout_ref/model/path",
            "model_name_or_path",
            "hf_checkpoint",
            "policy/model_name",
            "actor/model_name",
        ),
        *("model/name", "pretrain", "model_name", "model_id"),
    ),
    "group_size": (
        *("actor_rollout_ref/rollout/n", "num_generations", "n_samples_per_prompt", "num_generations_per_prompt"),
        *("rollouts_per_example", "group_size"),
    ),
    "prompts_per_step": (
        *(
            "data/train_batch_size",
            "num_prompts_per_step",
            "rollout_batch_size",
            "rollout/batch_size",
            "prompts_per_step",
        ),
    ),
    "lr": ("actor/optim/lr", "actor_learning_rate", "learning_rate", "optim/lr", "lr"),
    "max_completion_tokens": (
        *("data/max_response_length", "max_completion_length", "rollout_max_response_len", "generate_max_len"),
        *("max_new_tokens", "max_completion_tokens", "max_gen_len"),
    ),
    "seed": ("seed", "data_seed", "random_seed"),
    "steps_planned": ("total_training_steps", "max_num_steps", "max_steps", "num_rollout"),
    "logging_steps": ("logging_steps",),
    "cards": ("cards", "num_gpus", "world_size"),
}
_CARDS_PER_NODE = (
    ("trainer/n_gpus_per_node", "trainer/nnodes"),
    ("actor_num_gpus_per_node", "actor_num_nodes"),
    ("cluster/gpus_per_node", "cluster/num_nodes"),
)
_KNOWN_ENDS = frozenset(
    {
        *(path.rsplit("/", 1)[-1] for paths in _PATHS.values() for path in paths),
        *(path.rsplit("/", 1)[-1] for pair in _CARDS_PER_NODE for path in pair),
        *("ppo_mini_batch_size", "ppo_epochs", "num_iterations", "steps_per_generation", "global_batch_size"),
        *("gradient_accumulation_steps", "num_steps_per_rollout", "updates_per_rollout"),
        *("adv_estimator", "advantage_estimator"),
    }
)


def stated(lines: Sequence[Line], dicts: Iterable[FoundDict], before: int) -> dict[str, Any]:
    """Settings by path in the first `before` lines of a document. The first statement of a path counts."""
    found: dict[str, Any] = {}
    for one in dicts:
        if one.index < before and one.values is not None:
            for path, value in flat(one.values):
                if path.rsplit("/", 1)[-1] in _KNOWN_ENDS and isinstance(value, int | float | str):
                    found.setdefault(path, value)
    for line in lines[:before]:
        if planned := _PLANNED.search(line.text):
            found.setdefault("total_training_steps", int(planned[1].replace(",", "")))
        if "=" not in line.text and ":" not in line.text and " ." not in line.text and "--" not in line.text:
            continue
        for pattern in (_SETTING, _OPTION):
            for one in pattern.finditer(line.text):
                path = one["key"].replace(".", "/").replace("-", "_")
                if path.rsplit("/", 1)[-1] in _KNOWN_ENDS:
                    found.setdefault(path, one["value"].strip("'\""))
    return found


def facts(configuration: Mapping[str, Any]) -> Facts:
    """What stated settings say about a run, by whichever trainer."""
    known: dict[str, Any] = {name: _fact(configuration, name) for name in _PATHS}
    if known["cards"] is None:
        for per_node, nodes in _CARDS_PER_NODE:
            cards, count = _count(_look_up(configuration, per_node)), _count(_look_up(configuration, nodes))
            if cards and count:
                known["cards"] = cards * count
                break
    return Facts(**known, updates_per_rollout=_updates(configuration, known))


def _updates(configuration: Mapping[str, Any], known: Mapping[str, Any]) -> int | None:
    def count(path: str) -> int | None:
        return _count(_look_up(configuration, path))

    if stated_ := count("updates_per_rollout") or count("num_steps_per_rollout"):
        return stated_
    prompts, groups = known["prompts_per_step"], known["group_size"]
    if (mini := count("ppo_mini_batch_size")) and prompts:  # verl: both in prompts
        return max(1, prompts // mini) * (count("actor/ppo_epochs") or count("ppo_epochs") or 1)
    if (batch := count("global_batch_size")) and prompts and groups:  # slime: in completions
        return max(1, prompts * groups // batch)
    if iterations := count("num_iterations"):  # TRL
        generations, accumulation = count("steps_per_generation"), count("gradient_accumulation_steps")
        return iterations * (max(1, generations // accumulation) if generations and accumulation else 1)
    return None


def _fact(configuration: Mapping[str, Any], name: str) -> str | int | float | None:
    for path in _PATHS[name]:
        value = _look_up(configuration, path)
        if name == "model":
            if isinstance(value, str) and len(value) > 2 and number(value) is None:
                return value
        elif name == "lr":
            if (rate := number(value)) is not None and 0 < rate < 1e3:
                return rate
        elif name == "seed":
            if (seed := number(value)) is not None and seed == int(seed):
                return int(seed)
        elif count := _count(value):
            return count
    return None


def _look_up(configuration: Mapping[str, Any], path: str) -> Any:
    if path in configuration:
        return configuration[path]
    ends = (
        value for stated_, value in configuration.items() if stated_.endswith(f"/{path}") and "critic" not in stated_
    )
    return next(ends, None)


def _count(value: Any) -> int | None:
    found = number(value)
    return int(found) if found is not None and 0 < found < 1e9 and found == int(found) else None

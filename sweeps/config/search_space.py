"""`search.space` as it is typed, nested or dotted, turned into one entry per key for `AxisConfig`."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from sweeps.config.overrides import PRESETS, known_keys, no_such_key, options
from sweeps.config.suggestions import did_you_mean
from sweeps.config.types import AxisConfig, ConfigError

TRIAL_KEYS = ("prompts_per_step", "group_size", "lr_scaling")
"""Keys of `search` that hold a list each and are always axes of the search space."""

PRESET_KEY = "algorithm"
"""`search.space.algorithm=[grpo,dapo]` varies all settings of the algorithm together: a choice of presets."""

_EXAMPLE = (
    "for example 'search.space.rollout.temperature=[0.8,1.0]', or "
    "search=random search.trials=8 'search.space.algorithm.lr={low:1e-6,high:1e-4,log:true}'"
)


def flat_space(nested: Any) -> dict[str, Any]:
    """One entry per varied key.

    Raises:
        ConfigError: a key that does not exist, or a value that is neither a list nor a range.
    """
    if not isinstance(nested, Mapping):
        raise ConfigError(f"search.space={nested} should map keys to lists or ranges; {_EXAMPLE}")
    return dict(_flat(nested, ""))


def _flat(nested: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    keys, open_ended = known_keys()
    for name, value in nested.items():
        key = f"{prefix}{name}"
        below = [k for k in keys if k.startswith(f"{key}.")]
        if key == f"{PRESET_KEY}.{PRESETS}" or (key == PRESET_KEY and isinstance(value, list | str)):
            yield PRESET_KEY, {"choices": _presets(value if isinstance(value, list) else [value])}
            continue
        if key == PRESET_KEY and "choices" in value:
            raise ConfigError(f"search.space.{key} takes a list of presets: 'search.space.algorithm=[grpo,dapo]'")
        if key.removeprefix("search.") in TRIAL_KEYS and key.startswith("search."):
            raise ConfigError(f"search.space.{key}: write search.space.{key.removeprefix('search.')}")
        if isinstance(value, Mapping) and (below or key in open_ended):
            yield from _flat(value, f"{key}.")
        elif key in TRIAL_KEYS or (key in keys and not below) or key.startswith(tuple(f"{k}." for k in open_ended)):
            yield key, _axis_fields(key, value)
        elif below:
            raise ConfigError(f"search.space.{key}={value}: {key} is a group of keys; name one of them, {_EXAMPLE}")
        else:
            raise ConfigError(no_such_key(key, prefix="search.space."))


def _presets(names: list[Any]) -> list[str]:
    for name in names:
        if name not in options(PRESET_KEY):
            near = difflib.get_close_matches(str(name), options(PRESET_KEY), 1)
            meant = ",".join(str(near[0]) if n == name and near else str(n) for n in names)
            raise ConfigError(
                f"search.space.{PRESET_KEY} has {name!r}, and the presets are {', '.join(options(PRESET_KEY))}"
                + did_you_mean([f"'search.space.{PRESET_KEY}=[{meant}]'"] if near else [])
            )
    return names


def _axis_fields(key: str, value: Any) -> dict[str, Any]:
    if isinstance(value, list):
        return {"choices": value}
    if not isinstance(value, Mapping):
        same_for_all = f"{key if key not in TRIAL_KEYS else 'search.' + key}={value}"
        raise ConfigError(
            f"search.space.{key}={value} is one value, and a search needs several: give a list or a range, or set the "
            f"value for all trials with {same_for_all}; {_EXAMPLE}"
        )
    if unknown := set(value) - {f.name for f in dataclasses.fields(AxisConfig) if f.name != "presets"}:
        raise ConfigError(
            f"search.space.{key} has {', '.join(sorted(map(str, unknown)))}; it takes low and high with log or step, "
            f"or choices, and when; {_EXAMPLE}"
        )
    when = value.get("when") or {}
    if not isinstance(when, Mapping):
        raise ConfigError(f"search.space.{key}.when={when} should map another key to its values: when:{{KEY:VALUE}}")
    return {**value, "when": dict(_conditions(when, ""))}


def _conditions(nested: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, list[Any]]]:
    for name, value in nested.items():
        if isinstance(value, Mapping):
            yield from _conditions(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value if isinstance(value, list) else [value]

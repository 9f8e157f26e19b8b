"""The configuration at one point of the search space: the point's values typed and put in place.

A point maps each key that is varied there to its value.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from rl.codec import from_json, to_json
from sweeps.config.search_space import PRESET_KEY, TRIAL_KEYS
from sweeps.config.types import SearchConfig, SweepConfig

Point = Mapping[str, Any]


def with_values(cfg: SweepConfig, values: Point) -> SweepConfig:
    """The configuration with other values for these dotted keys, typed as their fields.

    Raises:
        ValueError: a value that its key cannot have; the message names the key and the type.
    """
    if PRESET_KEY in values:
        presets = cfg.search.space[PRESET_KEY].presets
        cfg = replace(cfg, algorithm=presets[values[PRESET_KEY]])
        values = {k: v for k, v in values.items() if k != PRESET_KEY}
    bodies: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, *path = key.split(".")
        body = bodies.setdefault(section, to_json(getattr(cfg, section)))
        for part in path[:-1]:
            body = body[part]
        body[path[-1]] = value
    changed: dict[str, Any] = {}
    for section, body in bodies.items():
        kind = type(getattr(cfg, section))
        try:
            changed[section] = from_json(kind, body)
        except ValueError as error:
            raise ValueError(str(error).replace(kind.__name__, section, 1)) from None
    return replace(cfg, **changed) if changed else cfg


def at_point(cfg: SweepConfig, point: Point) -> SweepConfig:
    """The configuration of the trials at a point. Nothing is left to search in it."""
    of_trial = {k: (v,) for k, v in point.items() if k in TRIAL_KEYS}
    cfg = with_values(cfg, {k: v for k, v in point.items() if k not in TRIAL_KEYS})
    search = replace(cfg.search, method="grid", space={}, trials=None, seeds=cfg.search.seeds[:1], **of_trial)
    return replace(cfg, search=search)


def value_at(cfg: SweepConfig, key: str, value: Any) -> Any:
    """A value in the type of its key's field: 1 becomes 1.0 for a float.

    Raises:
        ValueError: as `with_values`.
    """
    if key in TRIAL_KEYS:
        hint = hint_of(key)
        allowed = typing.get_args(hint)
        if (allowed and value not in allowed) or (not allowed and type(value) is not hint):
            right = f"one of {', '.join(allowed)}" if allowed else f"of type {hint.__name__}"
            raise ValueError(f"{key}={value!r} should be {right}")
        return value
    if key == PRESET_KEY:
        return value
    section, *path = key.split(".")
    plain: Any = to_json(getattr(with_values(cfg, {key: value}), section))
    for part in path:
        plain = plain[part]
    return plain


@cache
def hint_of(key: str) -> Any:
    """The annotation of a key's field; of a key in `TRIAL_KEYS`, the annotation of one entry of its list."""
    if key in TRIAL_KEYS:
        return typing.get_args(typing.get_type_hints(SearchConfig)[key])[0]
    hint: Any = SweepConfig
    for part in key.split("."):
        if dataclasses.is_dataclass(hint):
            hint = typing.get_type_hints(hint).get(part, Any)
        else:
            hint = typing.get_args(hint)[1] if typing.get_args(hint) else Any
    return hint

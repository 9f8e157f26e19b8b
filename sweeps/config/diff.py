"""What differs between two configurations, key by key, for a person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

WITHOUT_EFFECT_ON_PLAN = ("budget", "dry_run", "gate", "paths", "resume", "retry", "storage", "tracking")
"""Sections that decide how a plan is run, not which trials it has."""


def changed_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """`key: old -> new` for every key that differs, in the order of the new configuration.

    Sections without effect on the plan are left out.

    Args:
        old, new: as `sweeps.config.build.canonical` returns them.
    """
    before = {k: v for k, v in _leaves(old, "") if k.split(".")[0] not in WITHOUT_EFFECT_ON_PLAN}
    after = {k: v for k, v in _leaves(new, "") if k.split(".")[0] not in WITHOUT_EFFECT_ON_PLAN}
    found = []
    for key in [*after, *(k for k in before if k not in after)]:
        a, b = before.get(key, "(none)"), after.get(key, "(none)")
        if a != b:
            found.append(f"{key}: {_text(a)} -> {_text(b)}")
    return found


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _text(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else text[:37] + "..."

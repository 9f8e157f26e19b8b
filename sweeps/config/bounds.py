"""Checks of single numbers, by dotted key: at least a minimum, above zero, finite.

Tested in tests/sweeps/config/test_messages.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from sweeps.config.types import SweepConfig


def at_least(config: SweepConfig, minimum: float, *keys: str) -> Iterator[str]:
    for key in keys:
        if (value := _value(config, key)) < minimum:
            yield f"{key}={value} should be {minimum} or more"


def above_zero(config: SweepConfig, *keys: str) -> Iterator[str]:
    for key in keys:
        if (value := _value(config, key)) <= 0:
            yield f"{key}={value} should be above 0"


def not_finite(value: Any, key: str = "") -> Iterator[str]:
    """Every infinite number and every NaN in a configuration or a section of it."""
    if dataclasses.is_dataclass(value):
        for f in dataclasses.fields(value):
            yield from not_finite(getattr(value, f.name), f"{key}.{f.name}" if key else f.name)
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{key}={value} should be a finite number"


def _value(config: SweepConfig, key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value

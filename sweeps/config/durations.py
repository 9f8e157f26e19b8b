"""Durations as people type them: `90s`, `15m`, `2h`."""

from __future__ import annotations

import re

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def seconds_of(text: str) -> float | None:
    """Seconds; None where the text is empty.

    Raises:
        ValueError: it is no duration, or not above 0.
    """
    if not text.strip():
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh])\s*", text)
    if found is None or float(found[1]) <= 0:
        raise ValueError(f"{text!r} should be a number above 0 and its unit, s, m or h, such as 90s or 15m")
    return float(found[1]) * _SECONDS[found[2]]

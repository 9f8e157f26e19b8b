"""What a check of the preflight stage returns: its name, whether it passed, what was done and seen, what to change.

Tested in tests/rl/checks/test_reward_probe.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Status = Literal["passed", "warned", "failed", "skipped"]
_FROM_WORST: tuple[Status, ...] = ("failed", "warned", "passed")


@dataclass(frozen=True)
class CheckResult:
    """One check."""

    name: str
    status: Status
    """warned: a person should look, and training may start. skipped: nothing was checked; `seen` says why."""
    seen: str
    """What was done, with numbers. One or two sentences."""
    remedy: str = ""
    """What to change; empty where nothing is wrong."""
    lines: tuple[str, ...] = ()
    """Details that are shown as they are: a table, a rendered prompt, tokens with their loss mask."""


def worst(results: Iterable[CheckResult]) -> Status:
    """The worst status; `skipped` only where nothing was checked."""
    found = {r.status for r in results}
    for status in _FROM_WORST:
        if status in found:
            return status
    return "skipped"

"""What a check of the preflight stage returns. A check is a pure function of what it is given, or it says what it ran.

Tested in tests/rl/checks/test_reward_probe.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["passed", "warned", "failed", "skipped"]


@dataclass(frozen=True)
class CheckResult:
    """One check: what was done and seen, and what to change."""

    name: str
    status: Status
    """warned: a person should look, and training may start. skipped: nothing was checked; `seen` says why."""
    seen: str
    """What was done, with numbers. One or two sentences."""
    remedy: str = ""
    """What to change; empty where nothing is wrong."""
    lines: tuple[str, ...] = ()
    """Details that are shown as they are: a table, a rendered prompt, tokens with their loss mask."""


def worst(results: tuple[CheckResult, ...] | list[CheckResult]) -> Status:
    """The worst status; `skipped` only where nothing was checked."""
    found = {r.status for r in results}
    return next((s for s in ("failed", "warned", "passed") if s in found), "skipped")

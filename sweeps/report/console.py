"""The terminal: its width, and how numbers, durations and trial states are written.

Nothing is wider than 100 columns, and colours appear on a terminal only.
"""

from __future__ import annotations

from rich.console import Console

from sweeps.journal.journal import TrialState

WIDTH = 100
MAX_ROWS = 60
"""Trials that a table before or after a sweep shows; `cost.csv` has all of them."""

STATE_STYLES = {
    TrialState.COMPLETED: "green",
    TrialState.RUNNING: "cyan",
    TrialState.PRUNED: "magenta",
    TrialState.FAILED: "red",
    TrialState.PREEMPTED: "yellow",
    TrialState.BUDGET_STOPPED: "yellow",
}


def make_console() -> Console:
    console = Console(highlight=False, soft_wrap=False)
    if console.width > WIDTH or not console.is_terminal:
        console = Console(highlight=False, soft_wrap=False, width=WIDTH)
    return console


def number_text(value: float | None, places: int = 3) -> str:
    return "-" if value is None else f"{value:.{places}f}"


def percent_text(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def duration_text(seconds: float | None) -> str:
    """`45 s`, `3 min 10 s`, `2 h 05 min`."""
    if seconds is None:
        return "-"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"

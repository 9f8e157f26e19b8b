"""The terminal: its width, and how numbers, durations and trial states are written.

Nothing is wider than 100 columns, and colours appear on a terminal only.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from cost.printable import printable
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


class PlainTextConsole(Console):
    """A console that shows every text as it is: no markup, no emoji codes, control characters escaped.

    Names, labels and error messages come from outside. Styles are given by `rich.text.Text` only.
    """

    def __init__(self, *, width: int | None = None) -> None:
        super().__init__(highlight=False, soft_wrap=False, markup=False, emoji=False, width=width)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def make_console() -> Console:
    console = PlainTextConsole()
    return PlainTextConsole(width=WIDTH) if console.width > WIDTH or not console.is_terminal else console


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

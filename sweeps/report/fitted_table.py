"""A table that fits the terminal: it leaves out its least important columns, and never cuts a number.

Tested in tests/sweeps/report/test_fitted_table.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from cost.printable import printable_line

LEAST_WRAPPED = 16
"""A column whose texts may be wrapped is left out before it becomes narrower than this. Characters."""


@dataclass(frozen=True)
class Column:
    """One column."""

    name: str
    right: bool = False
    wraps: bool = False
    drop: int = 0
    """Where the table is too wide, the column with the lowest number above 0 is left out first. 0: never."""


class FittedTable:
    """A renderable for rich, without a frame."""

    def __init__(self, columns: Sequence[Column], *, gap: int = 2) -> None:
        self._columns, self._gap = tuple(columns), gap
        self._rows: list[tuple[RenderableType, ...]] = []

    def add_row(self, *cells: RenderableType) -> None:
        """Add a row. Missing cells at its end are empty."""
        texts = (Text(printable_line(cell)) if isinstance(cell, str) else cell for cell in cells)
        self._rows.append((*texts, *("",) * (len(self._columns) - len(cells))))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        widths = [self._width(console, i) for i in range(len(self._columns))]
        shown = shown_columns(self._columns, widths, options.max_width, self._gap)
        table = Table(box=None, pad_edge=False, padding=(0, self._gap, 0, 0), expand=False)
        for i in shown:
            column = self._columns[i]
            table.add_column(
                column.name,
                justify="right" if column.right else "left",
                no_wrap=not column.wraps,
                overflow="fold",
                min_width=None if column.wraps else widths[i],
            )
        for row in self._rows:
            table.add_row(*(row[i] for i in shown))
        yield table

    def _width(self, console: Console, i: int) -> int:
        unlimited = console.options.update(width=10_000)
        cells = (Text(self._columns[i].name), *(row[i] for row in self._rows))
        return max(Measurement.get(console, unlimited, cell).maximum for cell in cells)


def shown_columns(columns: Sequence[Column], widths: Sequence[int], width: int, gap: int) -> list[int]:
    """The positions of the columns that fit a width."""
    least = [min(w, LEAST_WRAPPED) if c.wraps else w for c, w in zip(columns, widths, strict=True)]
    shown = list(range(len(columns)))
    while sum(least[i] for i in shown) + gap * (len(shown) - 1) > width:
        droppable = [i for i in shown if columns[i].drop]
        if not droppable:
            break
        shown.remove(min(droppable, key=lambda i: columns[i].drop))
    return shown

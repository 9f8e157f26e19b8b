"""Plain text tables that fit the terminal, and are at most WIDTH characters wide.

Tested in tests/cost/reports/test_report.py.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

from cost.printable import printable_line

WIDTH = 100
LEAST_TEXT = 8
"""No text is cut to fewer characters."""


def table_text(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[str] = (),
    drop: Sequence[str] = (),
    width: int | None = None,
) -> str:
    """A header and rows with padded columns.

    Where a line is too wide, columns of `drop` are left out, then the widest texts are cut with an ellipsis. Columns
    that are aligned to the right have numbers and are never cut.

    Args:
        right: the columns that are aligned to the right.
        drop: columns that may be left out, the least important first.
        width: the longest line; None: that of the terminal.
    """
    rows = [[printable_line(cell) for cell in cells] for cells in rows]
    limit = terminal_width() if width is None else width
    for name in drop:
        if _least_width(columns, rows, right) <= limit:
            break
        kept = [i for i, column in enumerate(columns) if column != name]
        columns, rows = [columns[i] for i in kept], [[cells[i] for i in kept] for cells in rows]
    widths = _widths(columns, rows)
    texts = [i for i, name in enumerate(columns) if name not in right]
    while sum(widths) + 2 * (len(columns) - 1) > limit and texts:
        widest = max(texts, key=lambda i: widths[i])
        if widths[widest] <= LEAST_TEXT:
            break
        widths[widest] -= 1
    lines = []
    for cells in (columns, *rows):
        parts = []
        for name, cell, width in zip(columns, cells, widths, strict=True):
            shown = cell if len(cell) <= width else cell[: width - 1] + "…"
            parts.append(shown.rjust(width) if name in right else shown.ljust(width))
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def terminal_width() -> int:
    """WIDTH, or the width of a narrower terminal."""
    return min(WIDTH, shutil.get_terminal_size().columns) if sys.stdout.isatty() else WIDTH


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(cells[i]) for cells in (columns, *rows)) for i in range(len(columns))]


def _least_width(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> int:
    """The width of a line whose texts are cut to twice LEAST_TEXT and whose numbers are whole."""
    widths = zip(columns, _widths(columns, rows), strict=True)
    return sum(w if name in right else min(w, 2 * LEAST_TEXT) for name, w in widths) + 2 * (len(columns) - 1)

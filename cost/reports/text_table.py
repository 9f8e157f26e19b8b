"""Plain text tables for the terminal, at most WIDTH characters wide.

Tested in tests/cost/reports/test_report.py.
"""

from __future__ import annotations

from collections.abc import Sequence

WIDTH = 100


def table_text(columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> str:
    """A header and rows with padded columns. The widest columns are cut with an ellipsis until a line fits WIDTH.

    `right`: the columns that are aligned to the right.
    """
    widths = [max(len(cells[i]) for cells in (columns, *rows)) for i in range(len(columns))]
    available = WIDTH - 2 * (len(columns) - 1)
    while sum(widths) > available and max(widths) > 8:
        widths[widths.index(max(widths))] -= 1
    lines = []
    for cells in (columns, *rows):
        parts = []
        for name, cell, width in zip(columns, cells, widths, strict=True):
            shown = cell if len(cell) <= width else cell[: width - 1] + "…"
            parts.append(shown.rjust(width) if name in right else shown.ljust(width))
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)

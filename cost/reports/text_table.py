"""Plain text tables for the terminal, at most 100 columns wide."""

from __future__ import annotations

from collections.abc import Sequence

WIDTH = 100


def table_text(columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> str:
    """Rows below a header, columns padded; the widest cells are shortened until a line fits WIDTH."""
    widths = [max(len(cells[i]) for cells in (columns, *rows)) for i in range(len(columns))]
    room = WIDTH - 2 * (len(columns) - 1)
    while sum(widths) > room and max(widths) > 8:
        widths[widths.index(max(widths))] -= 1
    lines = []
    for cells in (columns, *rows):
        parts = []
        for name, cell, width in zip(columns, cells, widths, strict=True):
            shown = cell if len(cell) <= width else cell[: width - 1] + "…"
            parts.append(shown.rjust(width) if name in right else shown.ljust(width))
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)

"""Tables with one row for each step: CSV, the table of a notebook as HTML or text, and Markdown.

Tested in tests/rl/trainers/logs/test_files.py.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser

from rl.trainers.logs.names import tidy
from rl.trainers.logs.progress_bars import notebook_bar
from rl.trainers.logs.records import Parsed, Record, skipped
from rl.trainers.logs.run import Note
from rl.trainers.logs.text import Document
from rl.trainers.logs.values import number, step_number

LOOKED_FOR = "a table with a column Step (CSV, HTML, Markdown)"

STEP_NAMES = (
    *("step", "global_step", "train/global_step", "training/global_step", "trainer/global_step", "train/step"),
    *("rollout/step", "iteration", "iter", "rollout_id", "update", "_step"),
)
"""Columns and keys that count steps, the surest first."""

_SEPARATORS = (",", "\t", ";", "|")


def read(document: Document) -> Parsed | None:
    """The steps of a table; None where there is none."""
    text = document.text
    if re.search(r"<t[hd][\s>]", text, re.IGNORECASE):
        return read_html(text)
    for separator in (*_SEPARATORS, None):
        if parsed := _read_separated(document, separator):
            return parsed
    return None


def read_html(text: str) -> Parsed | None:
    """The first table with a column of steps in the markup of a notebook."""
    parser = _Tables()
    try:
        parser.feed(text)
    except AssertionError:  # of html.parser, on malformed declarations
        return None
    if parser.in_cell:
        parser.tables[-1][-1].pop()  # its text may lack digits
    for table in parser.tables:
        rows = [(0, [cell.strip() for cell in row]) for row in table if row]
        if rows and (parsed := _from_cells(rows[0][1], iter(rows[1:]), "a table of a notebook")):
            parsed.rows_are_means = parsed.trainer == "trl"
            if bar := notebook_bar(text):
                parsed.elapsed_seconds = float(bar.elapsed_seconds)
                parsed.configuration["max_steps"] = bar.total
            if parser.open_tables:
                parsed.notes.append(Note("cut", "The file ends inside the table."))
            return parsed
    return None


class _Tables(HTMLParser):
    """Collects the text of all cells."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tables: list[list[list[str]]] = []
        self.open_tables = 0
        self.in_cell = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.tables.append([])
            self.open_tables += 1
            self.in_cell = False
        elif tag == "tr" and self.tables:
            self.tables[-1].append([])
            self.in_cell = False
        elif tag in ("td", "th") and self.tables:
            if not self.tables[-1]:
                self.tables[-1].append([])
            self.tables[-1][-1].append("")
            self.in_cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self.in_cell = False
        elif tag == "table":
            self.open_tables = max(0, self.open_tables - 1)

    def handle_data(self, data: str) -> None:
        if self.in_cell:
            self.tables[-1][-1][-1] += data


def _read_separated(document: Document, separator: str | None) -> Parsed | None:
    lines = [(line.number, line.text) for line in document.lines]
    for start, (_, text) in enumerate(lines[:200]):
        header = _cells(text, separator)
        if (
            len(header) >= 3
            and _step_column(header) is not None
            and not any(number(cell) is not None for cell in header)
        ):
            rows = [(number_, _cells(text, separator)) for number_, text in lines[start + 1 :]]
            if document.ends_in_a_line and rows:
                rows[-1][1].pop()
            parsed = _from_cells(header, iter(rows), "CSV" if separator in (",", "\t", ";") else "a text table")
            if parsed is not None:
                if document.ends_in_a_line:
                    parsed.notes.append(Note("cut", "The last line has no line end; its last number is left out."))
                return parsed
    return None


def _cells(text: str, separator: str | None) -> list[str]:
    if separator is None:
        return re.split(r"\s{2,}", text.strip())
    if separator == "|":
        return [cell.strip() for cell in text.strip().strip("|").split("|")]
    try:
        return next(csv.reader(io.StringIO(text), delimiter=separator), [])
    except csv.Error:
        return []


def _step_column(header: list[str]) -> int | None:
    names = [tidy(cell).lower() for cell in header]
    return next((names.index(name) for name in STEP_NAMES if name in names), None)


def _from_cells(header: list[str], rows: Iterator[tuple[int, list[str]]], format_: str) -> Parsed | None:
    column = _step_column(header)
    if column is None:
        return None
    # Exports of dashboards: `name of the run - metric`, with the extremes beside it.
    names = [tidy(cell).rsplit(" - ", 1)[-1] for cell in header]
    parsed = Parsed(format_, "trl" if "Training Loss" in names else None)
    repeated = {name for name, count in Counter(names).items() if count > 1}
    bad: list[int] = []
    for line, cells in rows:
        if not any(cells) or all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            continue
        step = step_number(cells[column]) if column < len(cells) else None
        if step is None or len(cells) > len(names):
            bad.append(line)
            continue
        values = {
            name: value
            for i, (name, cell) in enumerate(zip(names, cells, strict=False))
            if i != column and name not in repeated and not name.endswith(("__MIN", "__MAX"))
            if (value := number(cell)) is not None
        }
        if values:
            parsed.records.append(Record(line, step, values, len(parsed.records)))
    if not parsed.records:
        return None
    parsed.notes += skipped(len(bad), bad[0] if bad else 0, "rows of the table")
    if repeated:
        shown = ", ".join(sorted(repeated)[:3])
        parsed.notes.append(
            Note("skipped", f"{len(repeated)} columns that occur more than once are left out: {shown}.")
        )
    parsed.rows_are_means = parsed.trainer == "trl"
    return parsed

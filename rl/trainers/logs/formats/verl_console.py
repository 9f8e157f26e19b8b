"""Console logs of verl: `step:1 - actor/entropy:0.4 - ...`, in the spellings of 2024 and of today.

Tested in tests/rl/trainers/logs/test_verl_console.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from rl.trainers.logs import configuration
from rl.trainers.logs.progress_bars import training_bars
from rl.trainers.logs.python_dicts import dictionaries
from rl.trainers.logs.records import Parsed, Record, skipped
from rl.trainers.logs.run import Note
from rl.trainers.logs.text import Document, Line
from rl.trainers.logs.values import closing_brace, literal, number, numbers

FORMAT = "verl's console"
LOOKED_FOR = "step:N - actor/...:... (verl)"

_STEP = re.compile(r"(?<![\w/:])step:(\d{1,9})(?= ?-(?: |\Z)|\Z)", re.ASCII)
_NAME = re.compile(r"[^\s:-][^:]{0,200}")
_MORE_DIGITS = re.compile(r"[\d.eE+)]")
_ONLY_DIGITS = re.compile(r"[\d.eE+\-)]{1,25}", re.ASCII)
_VALIDATION = re.compile(r"\b(Initial|Final) validation metrics: ?(?=\{)")
_STRING_JOINT = re.compile(r"(?P<quote>['\"])\s*\n\s*(?P=quote)")


@dataclass
class _Row:
    index: int
    line: Line
    step: int
    text: str
    """After the step number."""
    lengths: list[int]
    """Of the lines that it was wrapped into."""
    may_go_on: bool = False
    """The next line has digits only: they may be those of the last number."""


def read(document: Document) -> Parsed | None:
    """The steps of a verl console log; None where there is none."""
    if "step:" not in document.text:
        return None
    rows = _rows(document.lines)
    if not rows:
        return None
    parsed = Parsed(FORMAT, "verl")
    contents = [(row, [_piece(text) for text in _split(row.text)]) for row in rows]
    # The names that rows end with, and those that are followed by others.
    ends = Counter(pieces[-1][0] for _, pieces in contents if pieces and pieces[-1])
    inner: set[str] = set()
    for _, pieces in contents:
        names = [piece[0] for piece in pieces[:-1] if piece]
        if not _only_validation(names):
            inner.update(names)
    unread: list[int] = []
    for row, pieces in contents:
        in_last_line = document.ends_in_a_line and row is rows[-1] and _is_last(row, document)
        values = dict(piece for piece in pieces if piece)
        if pieces and pieces[-1] is None and in_last_line:
            parsed.notes.append(Note("cut", f"The file ends inside line {row.line.number}."))
            pieces.pop()
        elif pieces and pieces[-1] and (row.may_go_on or _ends_early(pieces[-1][0], values, ends, inner, in_last_line)):
            # Its last number may lack digits.
            values.pop(pieces[-1][0])
            parsed.notes.append(Note("cut", f"Line {row.line.number} ends early; its last number is left out."))
        if None in pieces:
            unread.append(row.line.number)
        if values:
            parsed.records.append(Record(row.line.number, row.step, values, row.index))
    if not parsed.records:
        return None
    parsed.notes += skipped(len(unread), unread[0] if unread else 0, "rows with parts that")
    dicts = list(dictionaries(document.lines[: rows[0].index]))
    parsed.configuration = configuration.stated(document.lines, dicts, rows[0].index)
    parsed.bars = training_bars(document.lines)
    _add_validations(parsed, document)
    if parsed.bars:
        parsed.elapsed_seconds = float(parsed.bars[-1].elapsed_seconds)
    return parsed


def _is_last(row: _Row, document: Document) -> bool:
    return row.index + len(row.lengths) >= len(document.lines)


def _ends_early(name: str, values: dict[str, float], ends: Counter[str], inner: set[str], in_last_line: bool) -> bool:
    """Whether a row ends with a name that other rows go on after, or that nothing can be compared with."""
    if _only_validation(values) or ends[name] != 1:
        return False
    return name in inner or (in_last_line and ends.total() < 3)


def _only_validation(names: Iterable[str]) -> bool:
    return all(name.startswith("val") for name in names)


def _rows(lines: tuple[Line, ...]) -> list[_Row]:
    """Rows with the lines that a terminal wrapped put together again."""
    rows: list[_Row] = []
    open_: dict[str, _Row] = {}
    previous = ""
    for index, line in enumerate(lines):
        process = line.process or previous
        previous = ""
        if started := _STEP.search(line.text):
            row = _Row(index, line, int(started[1]), line.text[started.end() :], [len(line.text)])
            rows.append(row)
            open_[line.process] = row
            previous = line.process
        elif (row := open_.get(process)) is not None:
            joined = _joined(row, line.text.rstrip())
            if joined is None:
                del open_[process]
            else:
                row.text = joined
                row.lengths.append(len(line.text))
                previous = process
    return rows


def _joined(row: _Row, continuation: str) -> str | None:
    """A wrapped row with its next line; None where that line does not belong to it."""
    before = _split(row.text)
    # More digits for a number that is whole as it stands, or the start of a name, want better evidence.
    sure = not before or _piece(before[-1]) is None or _is_wrapped(row, continuation)
    more_digits = bool(_MORE_DIGITS.match(continuation))
    for joint in ("", " "):
        joined = row.text + joint + continuation
        pieces = _split(joined)
        whole = [_piece(piece) for piece in pieces]
        if None in whole[:-1] or not whole or (whole[-1] is None and len(pieces) <= len(before)):
            continue
        if sure or (":" in continuation and not more_digits) or any(p and "/" in p[0] for p in whole[len(before) :]):
            return joined
    if before and not sure and _ONLY_DIGITS.fullmatch(continuation):
        row.may_go_on = True
    return None


def _is_wrapped(row: _Row, continuation: str) -> bool:
    """Whether the lines of a row, and the next one, are as wide as a terminal would make them."""
    first, last = row.lengths[0], len(continuation)
    same = all(abs(length - first) <= 1 for length in row.lengths)
    return same and last <= first + 1 and (len(row.lengths) > 1 or last >= first - 1)


def _split(text: str) -> list[str]:
    """The parts `name:value` of a row, the last of which may be unfinished."""
    return [part for part in re.split(r" - |^ ?- | -\Z", text) if part.strip()]


def _piece(text: str) -> tuple[str, float] | None:
    name, colon, value = text.rpartition(":")
    found = number(value)
    if not colon or found is None or not _NAME.fullmatch(name) or "- " in name:
        return None
    return name, found


def _add_validations(parsed: Parsed, document: Document) -> None:
    """The dictionaries that verl prints before the first and after the last step."""
    training = [r.step or 0 for r in parsed.records if any(n.startswith(("actor/", "critic/")) for n in r.values)]
    if not training:
        return
    # Counted from 0, as in 2024, the counter is one less than the steps done.
    steps_done = max(training) + (min(training) == 0)
    known = {(record.step, name) for record in parsed.records for name in record.values if name.startswith("val")}
    for index, line in enumerate(document.lines):
        if not (found := _VALIDATION.search(line.text)):
            continue
        same_process = [other.text for other in document.lines[index : index + 60] if other.process == line.process]
        text = _STRING_JOINT.sub("", "\n".join(same_process))
        start = text.find("{", found.start())
        end = closing_brace(text, start)
        try:
            values = literal(text[start:end]) if end > 0 else None
        except ValueError:
            values = None
        if not isinstance(values, dict):
            parsed.notes += skipped(1, line.number, "printed validation")
            continue
        step = 0 if found[1] == "Initial" else steps_done
        scores = {}
        for name, value in numbers({name: value for name, value in values.items() if isinstance(name, str)}).items():
            name = name if name.startswith("val") else f"val/{name}"
            if (step, name) not in known:
                known.add((step, name))
                scores[name] = value
        if scores:
            parsed.records.append(Record(line.number, step, scores, index))

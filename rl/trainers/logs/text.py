"""The bytes of a log as lines of text, whatever a terminal, a compressor or Ray have made of them.

Tested in tests/rl/trainers/logs/test_any_bytes.py and tests/rl/trainers/logs/test_files.py.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from rl.trainers.logs.run import Note

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,500}(?:\x07|\x1b\\)|[@-Z\\-_])")
_RAY = re.compile(r"(?:\[\d{1,2}(?:;\d{1,2})*m)?\(([^()]{0,80}?\bpid=\d+[^()]{0,60})\)(?:\[0?m)? ?")
_NOT_TEXT = re.compile("[\x00-\x08\x0e-\x1f\x7f\ufffd]")


@dataclass(frozen=True, slots=True)
class Line:
    """A piece of the file between two line ends; a carriage return ends a line as well."""

    number: int
    """Counted from 1 by line feeds."""
    process: str
    """The Ray process that printed it, such as `TaskRunner pid=46086`; empty: none is named."""
    text: str


@dataclass(frozen=True)
class Document:
    """A log as text."""

    text: str
    """The whole of it, with terminal escapes removed. Bytes that are not text are U+FFFD or control characters."""
    notes: tuple[Note, ...] = ()

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        return tuple(_lines(self.text))

    @cached_property
    def ends_in_a_line(self) -> bool:
        """The last line has no line end: its last value may be cut."""
        return bool(self.text) and self.text[-1] not in "\r\n"

    def first_lines(self, count: int = 3) -> list[str]:
        """The first lines that are not empty, shortened, for messages."""
        shown = (line.text.strip() for line in self.lines)
        return [text if len(text) <= 100 else text[:97] + "..." for text in shown if text][:count]


def read_document(data: bytes) -> Document:
    """Decompress, decode, and remove terminal escapes."""
    notes: list[Note] = []
    if data[:2] == b"\x1f\x8b":
        data, whole = _gunzip(data)
        if not whole:
            notes.append(Note("cut", "The compressed file ends early or is damaged: what follows is missing."))
    text = _ESCAPES.sub("", _decode(data))
    damaged = [i for i, line in enumerate(text.split("\n"), 1) if _NOT_TEXT.search(line)]
    if damaged:
        lines = "line" if len(damaged) == 1 else "lines"
        notes.append(
            Note("skipped", f"{len(damaged)} {lines} with bytes that are not text (first: line {damaged[0]}).")
        )
    return Document(text, tuple(notes))


def _gunzip(data: bytes) -> tuple[bytes, bool]:
    """What can be decompressed of (several) gzip members, and whether that is all."""
    parts: list[bytes] = []
    while data[:2] == b"\x1f\x8b":
        stream = zlib.decompressobj(wbits=31)
        try:
            for start in range(0, len(data), 65536):
                parts.append(stream.decompress(data[start : start + 65536]))
                if stream.eof:
                    data = stream.unused_data + data[start + 65536 :]
                    break
            else:
                return b"".join(parts), False
        except zlib.error:
            return b"".join(parts), False
    return b"".join(parts), not data.strip(b"\0")


def _decode(data: bytes) -> str:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", errors="replace")
    head = data[:2000]
    if len(head) >= 8 and head[1::2].count(0) > 0.4 * len(head) / 2 and head[::2].count(0) < 0.1 * len(head) / 2:
        return data.decode("utf-16-le", errors="replace")
    return data.decode("utf-8-sig", errors="replace")


def _lines(text: str) -> Iterator[Line]:
    for number, physical in enumerate(text.split("\n"), 1):
        process = ""
        for part in physical.split("\r"):
            if ray := _RAY.match(part):
                process, part = ray[1], part[ray.end() :]
            if part.strip():
                yield Line(number, process, part)

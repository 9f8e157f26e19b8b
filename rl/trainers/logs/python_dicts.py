"""Dictionaries on a console: alone in a line, after a progress bar or a prefix, or over many lines.

Tested in tests/rl/trainers/logs/test_trl_console.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rl.trainers.logs.text import Line
from rl.trainers.logs.values import literal

_OPEN = re.compile(r"\{\s*(?=['\"])")
_NESTED = re.compile(r"(?:['\"]\s*:|[\[,(])\s*\Z")
_MOST_CHARACTERS = 300_000
_MOST_LINES = 3000


@dataclass(frozen=True, slots=True)
class FoundDict:
    """A dictionary, or what looks like one."""

    index: int
    """Position of its first line in the document's lines."""
    line: Line
    """Its first line."""
    before: str
    """What stands before it in that line."""
    values: dict[Any, Any] | None
    """None: it could not be read."""
    text: str
    """Its first characters."""
    cut: bool = False
    """The file ends inside it."""


@dataclass
class _Unfinished:
    index: int
    line: Line
    before: str
    parts: list[str] = field(default_factory=list)
    characters: int = 0
    depth: int = 0
    quote: str = ""
    escaped: bool = False

    def feed(self, text: str) -> int:
        """Add text; the position after the closing brace, -1 where it does not close yet."""
        for i, c in enumerate(text):
            if self.escaped:
                self.escaped = False
            elif self.quote:
                if c == "\\":
                    self.escaped = True
                elif c == self.quote:
                    self.quote = ""
            elif c in "'\"":
                self.quote = c
            elif c == "{":
                self.depth += 1
            elif c == "}":
                self.depth -= 1
                if not self.depth:
                    self.parts.append(text[: i + 1])
                    return i + 1
        self.parts.append(text)
        self.characters += len(text)
        return -1

    def found(self, *, cut: bool = False, closed: bool = True) -> FoundDict:
        values = None
        for joint in ("", "\n") if closed else ():
            try:
                read = literal(joint.join(self.parts))
            except ValueError:
                continue
            values = read if isinstance(read, dict) else None
            break
        return FoundDict(self.index, self.line, self.before, values, "".join(self.parts)[:2000], cut)


def dictionaries(lines: Sequence[Line]) -> Iterator[FoundDict]:
    """Every dictionary with quoted keys, in the order of the file. Processes are kept apart."""
    open_: dict[str, _Unfinished] = {}
    for index, line in enumerate(lines):
        text, start = line.text, 0
        unfinished = open_.pop(line.process, None)
        if unfinished is not None:
            if (again := _starts_again(unfinished, text)) >= 0:
                yield unfinished.found(closed=False)
                start = again
            elif (end := unfinished.feed(text)) >= 0:
                yield unfinished.found()
                start = end
            elif unfinished.characters > _MOST_CHARACTERS or len(unfinished.parts) > _MOST_LINES:
                yield unfinished.found(closed=False)
                continue
            else:
                open_[line.process] = unfinished
                continue
        while opened := _OPEN.search(text, start):
            unfinished = _Unfinished(index, line, text[start : opened.start()])
            end = unfinished.feed(text[opened.start() :])
            if end < 0:
                open_[line.process] = unfinished
                break
            yield unfinished.found()
            start = opened.start() + end
    for unfinished in open_.values():
        yield unfinished.found(cut=True, closed=False)


def _starts_again(unfinished: _Unfinished, text: str) -> int:
    """Where a new dictionary starts in the line after an unfinished one, which was cut then; -1: nowhere."""
    opened = _OPEN.search(text)
    if opened is None:
        return -1
    before = text[: opened.start()]
    if not before.strip():
        nested = bool(_NESTED.search(unfinished.parts[-1])) if not unfinished.quote else False
    else:
        nested = bool(_NESTED.search(before))
    return -1 if nested else opened.start()

"""Console logs of other programs: one line for each step, such as `step 3, reward: 0.2, kl: 0.1, loss: 0.01`.

Tested in tests/rl/trainers/logs/test_other_consoles.py.
"""

from __future__ import annotations

import re

from rl.trainers.logs import configuration
from rl.trainers.logs.records import Parsed, Record
from rl.trainers.logs.run import Note
from rl.trainers.logs.text import Document
from rl.trainers.logs.values import NUMBER, number

FORMAT = "lines of names and numbers"
LOOKED_FOR = "step N, reward: ..., kl: ... (any program)"

_STEP = re.compile(
    r"(?<![\w/])(?:global[_ ])?(?:step|iteration|iter|update|rollout)\b[\s:=#\[(]{1,4}(\d{1,9})(?:\s*/\s*(\d{1,9}))?"
    r"|(?<=[\])\s])\(\s*(\d{1,9})\s*/\s*(\d{1,9})\s*\)",
    re.IGNORECASE | re.ASCII,
)
_ENTRY = re.compile(
    rf"(?:^|[,;|\s])\s*(?P<name>[A-Za-z][\w./\- ]{{0,60}}?)\s*(?::|=)\s*(?P<value>{NUMBER}%?)(?=\s*(?:[,;|]|\Z|\s))",
    re.ASCII,
)
_FEWEST = 3


def read(document: Document) -> Parsed | None:
    """The steps of a console log of named numbers; None where there is none."""
    parsed = Parsed(FORMAT, None)
    planned: set[int] = set()
    first = len(document.lines)
    for index, line in enumerate(document.lines):
        if len(line.text) > 5000 or not (step := _STEP.search(line.text)):
            continue
        rest = line.text[step.end() :]
        values: dict[str, float] = {}
        for entry in _ENTRY.finditer(rest):
            if (value := number(entry["value"])) is not None:
                values.setdefault(entry["name"].strip(), value)
        if len(values) < _FEWEST:
            continue
        if document.ends_in_a_line and index == len(document.lines) - 1:
            name, _ = values.popitem()
            parsed.notes.append(Note("cut", f"The last line has no line end; its last number, {name}, is left out."))
        first = min(first, index)
        if total := step[2] or step[4]:
            planned.add(int(total))
        parsed.records.append(Record(line.number, int(step[1] or step[3]), values, index))
    if not parsed.records:
        return None
    parsed.configuration = configuration.stated(document.lines, (), first)
    if len(planned) == 1:
        parsed.configuration.setdefault("max_steps", planned.pop())
    return parsed

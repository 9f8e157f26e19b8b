"""Console logs of OpenRLHF: `Global step N: {...}` after every step.

Tested in tests/rl/trainers/logs/test_other_consoles.py.
"""

from __future__ import annotations

import re

from rl.trainers.logs import configuration
from rl.trainers.logs.python_dicts import dictionaries
from rl.trainers.logs.records import Parsed, Record, skipped
from rl.trainers.logs.run import Note
from rl.trainers.logs.text import Document
from rl.trainers.logs.values import numbers

FORMAT = "OpenRLHF's console"
LOOKED_FOR = "Global step N: {...} (OpenRLHF)"

_STEP = re.compile(r"Global step (\d{1,8}): \Z")
_EVALUATION = re.compile(r"(?:global_step (\d{1,8}), eval_metrics|Eval at step (\d{1,8})): \Z")


def read(document: Document) -> Parsed | None:
    """The steps of an OpenRLHF console log; None where there is none."""
    if "Global step " not in document.text:
        return None
    parsed = Parsed(FORMAT, "openrlhf")
    dicts = list(dictionaries(document.lines))
    unread: list[int] = []
    first_row = len(document.lines)
    for one in dicts:
        step, evaluation = _STEP.search(one.before), _EVALUATION.search(one.before)
        if step is None and evaluation is None:
            continue
        if one.values is None:
            if one.cut:
                parsed.notes.append(Note("cut", f"The file ends inside the row of line {one.line.number}."))
            else:
                unread.append(one.line.number)
            continue
        first_row = min(first_row, one.index)
        found = numbers({name: value for name, value in one.values.items() if isinstance(name, str)})
        if step is not None:
            parsed.records.append(Record(one.line.number, int(step[1]), found, one.index))
        elif evaluation is not None:
            names = {name if name.startswith("eval") else f"eval_{name}": value for name, value in found.items()}
            parsed.records.append(Record(one.line.number, int(evaluation[1] or evaluation[2]), names, one.index))
    if not parsed.records:
        return None
    parsed.notes += skipped(len(unread), unread[0] if unread else 0, "dictionaries")
    parsed.configuration = configuration.stated(document.lines, dicts, first_row)
    return parsed

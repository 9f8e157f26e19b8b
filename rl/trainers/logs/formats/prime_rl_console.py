"""Console logs of prime-rl: one line for each step of the trainer, and one of the orchestrator.

Tested in tests/rl/trainers/logs/test_other_consoles.py.
"""

from __future__ import annotations

import re

from rl.trainers.logs import configuration
from rl.trainers.logs.records import Parsed, Record
from rl.trainers.logs.run import Note
from rl.trainers.logs.text import Document
from rl.trainers.logs.values import NUMBER, number

FORMAT = "prime-rl's console"
LOOKED_FOR = "Step N | ... | Reward ... (prime-rl)"

_STEP = re.compile(r"(?<!Micro )\bStep (\d{1,9}) \| (?P<rest>.*)")
_EVALUATION = re.compile(r"Evaluated (?P<name>\S+) \(Step (\d{1,9})\) \| (?P<rest>.*)")
_ENTRY = re.compile(rf"(?P<name>[A-Z][A-Za-z. \-]*?):? (?P<value>{NUMBER}%?)(?P<unit>s|\s.*|\Z)", re.ASCII)
_DURATION = re.compile(r"(?:(\d+)d )?(?:(\d+)h )?(?:(\d+)m )?(?:([\d.]+)s|(\d+)ms|)", re.ASCII)


def read(document: Document) -> Parsed | None:
    """The steps of a prime-rl console log; None where there is none."""
    if "Step " not in document.text or " | " not in document.text:
        return None
    parsed = Parsed(FORMAT, "prime-rl")
    first = len(document.lines)
    for index, line in enumerate(document.lines):
        if evaluated := _EVALUATION.search(line.text):
            values = _entries(evaluated["rest"])
            if "Reward" in values:
                name = f"eval/{evaluated['name']}/avg@1"
                parsed.records.append(Record(line.number, int(evaluated[2]), {name: values["Reward"]}, index))
            continue
        if not (started := _STEP.search(line.text)):
            continue
        values = _entries(started["rest"])
        if not {"Reward", "Loss"} & values.keys():
            continue
        if "Loss" not in values:
            values.pop("Time", None)  # the orchestrator's step overlaps with the trainer's
        if document.ends_in_a_line and index == len(document.lines) - 1:
            values.popitem()
            parsed.notes.append(Note("cut", "The last line has no line end; its last number is left out."))
        first = min(first, index)
        if values:
            parsed.records.append(Record(line.number, int(started[1]), values, index))
    if not parsed.records:
        return None
    parsed.configuration = configuration.stated(document.lines, (), first)
    return parsed


def _entries(text: str) -> dict[str, float]:
    values: dict[str, float] = {}
    for position, part in enumerate(text.split(" | ")):
        part = part.strip()
        if entry := _ENTRY.fullmatch(part):
            if (value := number(entry["value"])) is not None:
                values.setdefault(entry["name"], value)
        elif position == 0 and (seconds := _duration(part)) is not None:
            values["Time"] = seconds
    return values


def _duration(text: str) -> float | None:
    """Seconds from `3.2s`, `1m 5s`, `2h 3m` or `640ms`."""
    text = f"{text} " if text.endswith(("d", "h", "m")) else text
    found = _DURATION.fullmatch(text) if text else None
    if found is None or not any(found.groups()):
        return None
    days, hours, minutes, seconds, milliseconds = (float(part or 0) for part in found.groups())
    return days * 86400 + hours * 3600 + minutes * 60 + seconds + milliseconds / 1000

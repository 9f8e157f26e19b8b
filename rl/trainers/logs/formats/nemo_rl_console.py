"""Console logs of NeMo-RL: a heading for each step, then a list of results and times.

Tested in tests/rl/trainers/logs/test_other_consoles.py.
"""

from __future__ import annotations

import re

from rl.trainers.logs import configuration
from rl.trainers.logs.python_dicts import dictionaries
from rl.trainers.logs.records import Parsed, Record
from rl.trainers.logs.run import Note
from rl.trainers.logs.text import Document
from rl.trainers.logs.values import NUMBER, number

FORMAT = "NeMo-RL's console"
LOOKED_FOR = "Training Results: • Loss: ... (NeMo-RL)"

_HEADING = re.compile(r"={10,} (?P<what>Step|Epoch) (?P<count>\d{1,9})/(?P<total>\d{1,9}) ={10,}")
_ENTRY = re.compile(rf"^\s*• (?P<name>[\w/. \-]+): (?P<value>{NUMBER})(?P<rest>s|\s|\Z)", re.ASCII)
_VALIDATION = re.compile(r"Starting validation at step (\d{1,9})")
_VALIDATION_NAMES = {
    "Accuracy": "validation/accuracy",
    "Average response length": "validation/avg_length",
    "Samples processed": "validation/samples",
}
_CONSOLE_NAMES = ("Loss", "Avg Reward", "Avg Total Reward", "Mean Generation Length", "Generation KL Error")


def read(document: Document) -> Parsed | None:
    """The steps of a NeMo-RL console log; None where there is none."""
    if "Training Results" not in document.text:
        return None
    parsed = Parsed(FORMAT, "nemo-rl")
    step: int | None = None
    earlier_epochs, first_heading = 0, len(document.lines)
    new_epoch, section, at_validation = False, "", 0
    started, values, results = (0, 0), {}, {}
    planned: set[int] = set()

    def keep() -> None:
        nonlocal values
        if step is not None and values:
            parsed.records.append(Record(started[0], step, values, started[1]))
        values = {}

    # The last number of a file without a line end may lack digits.
    lines = document.lines[:-1] if document.ends_in_a_line else document.lines
    for index, line in enumerate(lines):
        if heading := _HEADING.search(line.text):
            first_heading = min(first_heading, index)
            if heading["what"] == "Epoch":
                new_epoch = True
                continue
            keep()
            count = int(heading["count"])
            if new_epoch and step is not None and count <= step - earlier_epochs:
                earlier_epochs = step  # the counter is that of the epoch
            new_epoch, section = False, ""
            step, started = earlier_epochs + count, (line.number, index)
            planned.add(int(heading["total"]))
        elif found := _VALIDATION.search(line.text):
            at_validation = int(found[1])
        elif "Training Results:" in line.text:
            section = "training"
        elif "Validation Results:" in line.text:
            section, results = "validation", {}
        elif "Timing:" in line.text:
            section = "timing" if section == "training" else ""
        elif "Performance Metrics:" in line.text:
            section = ""
        elif section and (entry := _ENTRY.match(line.text)) and (value := number(entry["value"])) is not None:
            name = entry["name"].strip()
            if section == "validation":
                if name in _VALIDATION_NAMES:
                    results[_VALIDATION_NAMES[name]] = value
                if len(results) == len(_VALIDATION_NAMES):
                    parsed.records.append(Record(line.number, at_validation, results, index))
                    section = ""
            elif section == "training" and name in _CONSOLE_NAMES:
                values[name] = value
            elif section == "timing" and entry["rest"] == "s":
                values[name if name == "Total step time" else f"timing/train/{name}"] = value
    if document.ends_in_a_line:
        parsed.notes.append(Note("cut", "The last line has no line end; it is left out."))
    keep()
    if not any("Loss" in record.values or "Avg Reward" in record.values for record in parsed.records):
        return None
    dicts = list(dictionaries(document.lines[:first_heading]))
    parsed.configuration = configuration.stated(document.lines, dicts, first_heading)
    if len(planned) == 1 and not earlier_epochs:
        parsed.configuration.setdefault("max_num_steps", planned.pop())
    return parsed

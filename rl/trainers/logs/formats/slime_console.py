"""Console logs of slime: one dictionary for the rollout, its times, and each optimiser update of a step.

Tested in tests/rl/trainers/logs/test_other_consoles.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from rl.trainers.logs import configuration
from rl.trainers.logs.python_dicts import dictionaries
from rl.trainers.logs.records import Parsed, Record, skipped
from rl.trainers.logs.run import Note
from rl.trainers.logs.text import Document
from rl.trainers.logs.values import numbers

FORMAT = "slime's console"
LOOKED_FOR = "step N: {'train/...': ...} (slime)"

_PREFIX = re.compile(r"(?:^|[\s\-])(?P<kind>step|rollout|perf|eval) (?P<id>\d{1,8})(?: full)?: \Z")
_NAMES = re.compile(r"\{['\"](?:train|rollout|perf|eval)/")
_COUNT = "rollout/zero_std/count_"
_LAST_UPDATE = ("train/pg_clipfrac", "train/lr-pg_0")
"""Of several updates the last one counts; of everything else, their mean."""


@dataclass
class _Updates:
    """The optimiser updates of one step, which slime logs one by one."""

    step: int
    line: int
    index: int
    by_number: dict[int, dict[str, float]] = field(default_factory=dict)

    def record(self) -> Record:
        updates = list(self.by_number.values())
        values: dict[str, float] = {}
        for name in {name for update in updates for name in update}:
            seen = [update[name] for update in updates if name in update]
            values[name] = seen[-1] if name in _LAST_UPDATE else sum(seen) / len(seen)
        return Record(self.line, self.step, values, self.index)


def read(document: Document) -> Parsed | None:
    """The steps of a slime console log; None where there is none."""
    if not _NAMES.search(document.text):
        return None
    parsed = Parsed(FORMAT, "slime")
    dicts = list(dictionaries(document.lines))
    lines = [(one, prefix) for one in dicts if (prefix := _PREFIX.search(one.before))]
    counts_dead_groups = any(_COUNT in str(name) for one, _ in lines for name in one.values or ())
    updates: _Updates | None = None
    rollout: int | None = None
    begun: set[int] = set()
    unread: list[int] = []
    most_updates = 0
    for one, prefix in lines:
        if one.values is None:
            if one.cut:
                parsed.notes.append(Note("cut", f"The file ends inside the row of line {one.line.number}."))
            else:
                unread.append(one.line.number)
            continue
        found = numbers({name: value for name, value in one.values.items() if isinstance(name, str)})
        kind, counter = prefix["kind"], int(prefix["id"])
        if kind == "step":
            # Updates are counted through. They belong to the newest rollout; without its line, each is taken as a step.
            step = (counter if rollout is None else rollout) + 1
            if updates is None or updates.step != step or counter in updates.by_number:
                if updates is not None:
                    parsed.records.append(updates.record())
                updates = _Updates(step, one.line.number, one.index)
            updates.by_number[counter] = found
            most_updates = max(most_updates, len(updates.by_number))
            begun.add(step - 1)
        elif kind == "eval":
            # Before its first rollout slime evaluates under the number 0, which is that of the first rollout as well.
            steps_done = counter + (counter in begun)
            parsed.records.append(Record(one.line.number, steps_done, found, one.index))
        else:
            if kind == "rollout":
                rollout = counter
            if counts_dead_groups and "rollout/truncated_ratio" in found:
                # Only the rewards of dead groups are named: no name means no dead group.
                found.setdefault(f"{_COUNT}0.0", 0.0)
            parsed.records.append(Record(one.line.number, counter + 1, found, one.index))
            begun.add(counter)
    if updates is not None:
        parsed.records.append(updates.record())
    if not parsed.records:
        return None
    parsed.records.sort(key=lambda record: record.index)
    parsed.notes += skipped(len(unread), unread[0] if unread else 0, "dictionaries")
    parsed.notes.append(Note("step_numbers", "slime counts rollouts from 0; step 1 is its rollout 0."))
    parsed.configuration = configuration.stated(document.lines, dicts, lines[0][0].index)
    if most_updates:
        parsed.configuration.setdefault("updates_per_rollout", most_updates)
    return parsed

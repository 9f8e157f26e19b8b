"""Console logs of slime: one dictionary for the rollout, its times, and each optimiser update of a step."""

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
_LAST_UPDATE = ("train/pg_clipfrac", "train/lr-pg_0")
"""Of several updates the last one counts; of everything else, their mean."""


@dataclass
class _Rollout:
    """What was logged of one rollout, which is one step of ours."""

    line: int
    values: dict[str, float] = field(default_factory=dict)
    updates: list[dict[str, float]] = field(default_factory=list)

    def merged(self) -> dict[str, float]:
        merged = dict(self.values)
        for name in {name for update in self.updates for name in update}:
            seen = [update[name] for update in self.updates if name in update]
            merged[name] = seen[-1] if name in _LAST_UPDATE else sum(seen) / len(seen)
        return merged


def read(document: Document) -> Parsed | None:
    """The steps of a slime console log; None where there is none."""
    if not _NAMES.search(document.text):
        return None
    parsed = Parsed(FORMAT, "slime")
    dicts = list(dictionaries(document.lines))
    rollouts: list[dict[int, _Rollout]] = [{}]
    evaluations: list[Record] = []
    unread: list[int] = []
    first_row, current, updates_before = len(document.lines), None, 0
    for one in dicts:
        prefix = _PREFIX.search(one.before)
        if prefix is None:
            continue
        if one.values is None:
            if one.cut:
                parsed.notes.append(Note("cut", f"The file ends inside the row of line {one.line.number}."))
            else:
                unread.append(one.line.number)
            continue
        found = numbers({name: value for name, value in one.values.items() if isinstance(name, str)})
        kind, counter = prefix["kind"], int(prefix["id"])
        first_row = min(first_row, one.index)
        if kind == "eval":
            # Before the first rollout, slime evaluates under the number 0, which is also that of the first rollout.
            steps = counter + 1 if counter in rollouts[-1] else counter
            evaluations.append(Record(one.line.number, steps, found, one.index))
            continue
        if kind == "step":
            # Updates are counted through; they belong to the newest rollout.
            if current is None:
                current = counter
            rollouts[-1].setdefault(current, _Rollout(one.line.number)).updates.append(found)
            continue
        known = rollouts[-1].get(counter)
        if known is not None and kind == "rollout" and any(name in known.values for name in found):
            rollouts.append({})
            known = None
        if known is None:
            known = rollouts[-1][counter] = _Rollout(one.line.number)
        known.values |= {name: value for name, value in found.items() if name not in known.values}
        if kind == "rollout":
            current = counter
    every = [rollout for attempt in rollouts for rollout in attempt.values()]
    counts_dead = any(name.startswith("rollout/zero_std/count_") for rollout in every for name in rollout.values)
    for attempt in rollouts:
        for counter, rollout in attempt.items():
            values = rollout.merged()
            if counts_dead and "rollout/truncated_ratio" in values:
                # Only rewards that some dead group has are named: none named is none counted.
                values.setdefault("rollout/zero_std/count_0.0", 0.0)
            parsed.records.append(Record(rollout.line, counter + 1, values))
            updates_before = max(updates_before, len(rollout.updates))
    parsed.records += evaluations
    if not parsed.records:
        return None
    parsed.notes += skipped(len(unread), unread[0] if unread else 0, "dictionaries")
    parsed.notes.append(Note("step_numbers", "slime counts rollouts from 0; step 1 is its rollout 0."))
    parsed.configuration = configuration.stated(document.lines, dicts, first_row)
    if updates_before:
        parsed.configuration.setdefault("updates_per_rollout", updates_before)
    return parsed

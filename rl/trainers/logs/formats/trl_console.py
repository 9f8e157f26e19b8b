"""Console logs of TRL, or of anything on transformers' Trainer: one Python dictionary for each logged row.

Tested in tests/rl/trainers/logs/test_trl_console.py.
"""

from __future__ import annotations

import re

from rl.trainers.logs import configuration
from rl.trainers.logs.progress_bars import training_bars
from rl.trainers.logs.python_dicts import dictionaries
from rl.trainers.logs.records import Parsed, Record, Summary, skipped
from rl.trainers.logs.run import Note
from rl.trainers.logs.text import Document
from rl.trainers.logs.values import number, numbers, step_number

FORMAT = "TRL dictionaries on a console"
LOOKED_FOR = "{'loss': ..., 'reward': ...} (TRL)"

_ROW = re.compile(r"['\"](?:loss|reward|eval_reward|train_runtime)['\"]\s*:")
_OTHER_TRAINERS = re.compile(r"\b(?:step|rollout|perf|eval|passrate|multi_turn|metrics) ?\d*: ?\Z")


def read(document: Document) -> Parsed | None:
    """The rows of a TRL console log; None where there is none."""
    if not _ROW.search(document.text):
        return None
    parsed = Parsed(FORMAT, "trl", rows_are_means=True)
    dicts = list(dictionaries(document.lines))
    unread: list[int] = []
    with_reward: set[int] = set()
    first_row = len(document.lines)
    for one in dicts:
        if _OTHER_TRAINERS.search(one.before):
            continue
        values = one.values
        if values is None:
            if one.cut and _ROW.search(one.text):
                parsed.notes.append(Note("cut", f"The file ends inside the row of line {one.line.number}."))
            elif _ROW.search(one.text):
                unread.append(one.line.number)
            continue
        found = numbers({name: value for name, value in values.items() if isinstance(name, str)})
        if "train_runtime" in values:
            runtime, speed = number(values["train_runtime"]), number(values.get("train_steps_per_second"))
            parsed.summaries.append(Summary(one.index, runtime, speed))
        elif {"loss", "reward", "eval_reward", "eval_loss"} & values.keys():
            first_row = min(first_row, one.index)
            if "reward" in values or "eval_reward" in values:
                with_reward.add(len(parsed.records))
            parsed.records.append(Record(one.line.number, step_number(values.get("step")), found, one.index))
    if not parsed.records and not parsed.summaries:
        return None
    parsed.notes += skipped(len(unread), unread[0] if unread else 0, "dictionaries")
    parsed.bars = training_bars(document.lines)
    parsed.configuration = configuration.stated(document.lines, dicts, first_row)
    if with_reward and len(with_reward) < len(parsed.records):
        # A warm-up by supervised fine-tuning in the same file, for example.
        left_out = len(parsed.records) - len(with_reward)
        parsed.records = [record for i, record in enumerate(parsed.records) if i in with_reward]
        parsed.notes.append(Note("skipped", f"{left_out} rows without a reward, of another training, are left out."))
    if parsed.summaries:
        parsed.elapsed_seconds = parsed.summaries[-1].runtime_seconds
    elif parsed.bars:
        parsed.elapsed_seconds = float(parsed.bars[-1].elapsed_seconds)
    return parsed

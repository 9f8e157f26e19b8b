"""JSON: a file of lines, an array of steps, columns by name, transformers' `trainer_state.json`, and notebooks.

Tested in tests/rl/trainers/logs/test_files.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rl.trainers.logs.formats import tables, trl_console
from rl.trainers.logs.formats.tables import STEP_NAMES
from rl.trainers.logs.records import Parsed, Record, Summary, skipped
from rl.trainers.logs.run import Note
from rl.trainers.logs.text import Document, read_document
from rl.trainers.logs.values import flat, number, numbers, step_number

LOOKED_FOR = "JSON lines, a JSON array, trainer_state.json"

_STATE = re.compile(r'"log_history"\s*:\s*\[')
_WRAPPERS = ("data", "metrics", "log", "logs")
"""Keys that hold the metrics of a line, and nothing else."""


def read(document: Document) -> Parsed | None:
    """The steps of a JSON file; None where there is none."""
    text = document.text.strip()
    if not text or text[0] not in "{[":
        return _read_lines(document)
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        whole = None
    if isinstance(whole, dict):
        for reader in (_read_state, _read_notebook, _read_columns):
            if parsed := reader(whole):
                return parsed
    if isinstance(whole, list):
        return _from_objects(((0, item) for item in whole), "a JSON array of steps")
    if whole is None and (state := _STATE.search(text)):
        return _read_cut_state(text, state.end())
    if whole is None and text[0] == "[" and (parsed := _read_cut_array(text)):
        return parsed
    return _read_lines(document)


def _read_state(whole: Mapping[str, Any]) -> Parsed | None:
    history = whole.get("log_history")
    if not isinstance(history, list):
        return None
    parsed = _from_history(history)
    for name in ("max_steps", "logging_steps"):
        if (value := number(whole.get(name))) is not None and value >= 1:
            parsed.configuration[name] = value
    return parsed


def _from_history(history: list[Any]) -> Parsed:
    parsed = Parsed("trainer_state.json", "trl", rows_are_means=True)
    for index, entry in enumerate(history):
        if not isinstance(entry, Mapping):
            continue
        if "train_runtime" in entry:
            speed = number(entry.get("train_steps_per_second"))
            parsed.summaries.append(Summary(index, number(entry["train_runtime"]), speed))
            parsed.elapsed_seconds = parsed.summaries[-1].runtime_seconds
        elif found := numbers(entry):
            parsed.records.append(Record(0, step_number(entry.get("step")), found, index))
    return parsed


def _read_cut_state(text: str, start: int) -> Parsed:
    parsed = _from_history(list(_whole_objects(text, start)))
    parsed.notes.append(Note("cut", "The file ends early: the entries before the damage are read."))
    for name in ("max_steps", "logging_steps"):
        if found := re.search(rf'"{name}"\s*:\s*(\d{{1,9}})', text[:start]):
            parsed.configuration[name] = int(found[1])
    return parsed


def _read_cut_array(text: str) -> Parsed | None:
    parsed = _from_objects(((0, item) for item in _whole_objects(text, 1)), "a JSON array of steps")
    if parsed is not None:
        parsed.notes.append(Note("cut", "The file ends early: the entries before the damage are read."))
    return parsed


def _whole_objects(text: str, start: int) -> Iterator[Any]:
    """The objects of an array up to the first that is damaged."""
    decoder = json.JSONDecoder()
    gap = re.compile(r"[\s,]*")
    while True:
        found = gap.match(text, start)
        start = found.end() if found else start
        if start >= len(text) or text[start] != "{":
            return
        try:
            value, start = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            return
        yield value


def _read_columns(whole: Mapping[str, Any]) -> Parsed | None:
    """`{"reward": [...]}` and `{"train/reward": {"1": 0.5, ...}}`."""
    by_step: dict[int, dict[str, float]] = {}
    steps = next((whole[name] for name in STEP_NAMES if isinstance(whole.get(name), list)), None)
    for name, column in whole.items():
        if isinstance(column, Mapping):
            pairs = [(step_number(key), number(value)) for key, value in column.items()]
        elif isinstance(column, list) and steps is not None and len(column) == len(steps) and column is not steps:
            pairs = [(step_number(key), number(value)) for key, value in zip(steps, column, strict=True)]
        else:
            continue
        for step, value in pairs:
            if step is not None and value is not None:
                by_step.setdefault(step, {})[name] = value
    if not by_step:
        return None
    parsed = Parsed("JSON columns", None)
    parsed.records = [Record(0, step, values) for step, values in sorted(by_step.items())]
    return parsed


def _read_notebook(whole: Mapping[str, Any]) -> Parsed | None:
    """The training output of a notebook: its table, or the dictionaries that it prints."""
    cells = whole.get("cells")
    if not isinstance(cells, list):
        return None
    best: Parsed | None = None
    for cell in cells:
        outputs = cell.get("outputs") if isinstance(cell, Mapping) else None
        printed: list[str] = []
        for output in outputs if isinstance(outputs, list) else []:
            if not isinstance(output, Mapping):
                continue
            data = output.get("data")
            if isinstance(data, Mapping) and (html := _joined(data.get("text/html"))):
                best = _longer(best, tables.read_html(html))
            printed.append(_joined(output.get("text")))
        best = _longer(best, trl_console.read(read_document("".join(printed).encode(errors="replace"))))
    return best


def _longer(one: Parsed | None, other: Parsed | None) -> Parsed | None:
    if one is None or other is None:
        return one or other
    return other if len(other.records) > len(one.records) else one


def _joined(text: Any) -> str:
    if isinstance(text, list):
        return "".join(part for part in text if isinstance(part, str))
    return text if isinstance(text, str) else ""


def _read_lines(document: Document) -> Parsed | None:
    if "{" not in document.text:
        return None
    good: list[tuple[int, Any]] = []
    bad: list[int] = []
    for number_, line in enumerate(document.text.split("\n"), 1):
        line = line.strip()
        if not line.startswith("{"):
            continue
        try:
            good.append((number_, json.loads(line)))
        except (ValueError, RecursionError):
            bad.append(number_)
    parsed = _from_objects(iter(good), "JSON lines")
    if parsed is None:
        return None
    if bad and document.ends_in_a_line and bad[-1] == document.text.count("\n") + 1:
        parsed.notes.append(Note("cut", f"The file ends inside line {bad.pop()}."))
    parsed.notes += skipped(len(bad), bad[0] if bad else 0, "lines")
    return parsed


def _from_objects(objects: Iterator[tuple[int, Any]], format_: str) -> Parsed | None:
    parsed = Parsed(format_, None)
    for index, (line, item) in enumerate(objects):
        if not isinstance(item, Mapping):
            continue
        if "train_runtime" in item:
            parsed.elapsed_seconds = number(item["train_runtime"])
            continue
        values: dict[str, Any] = {}
        for name, value in item.items():
            if name in _WRAPPERS and isinstance(value, Mapping):
                values |= dict(flat(value))
            else:
                values |= dict(flat({name: value}))
        step = next((s for n in STEP_NAMES if (s := step_number(values.get(n))) is not None), None)
        found = {name: value for name, value in numbers(values).items() if name not in STEP_NAMES}
        if found:
            parsed.records.append(Record(line, step, found, index))
    return parsed if parsed.records else None

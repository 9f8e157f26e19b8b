"""Sources of questions: reasoning-gym, a file, a hub data set, or a function of the user.

Reads and validates rows. The split and the prompt template are applied in `rl.tasks.task`.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import math
import numbers
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from rl.spec import ConfigurationError, TaskSpec

SUFFIXES = (".parquet", ".jsonl")
GENERATED_ROWS = 4096
"""Smallest number of rows drawn from a generator: about twenty times the 200 one-digit sums."""
MAX_ROWS_PER_QUESTION = 64
"""Rows drawn per requested question before a generator is considered to have no more distinct questions."""


@dataclass(frozen=True)
class SourceRow:
    """One question as it is in its source."""

    messages: tuple[Mapping[str, str], ...]
    """Chat messages (`role`, `content`); the last one is the user's."""
    answer: str
    where: str
    """Position in the source, such as file and line, for error messages."""


@dataclass(frozen=True)
class SourceRows:
    """All rows of a source."""

    train: list[SourceRow]
    """All rows, if the source has no split."""
    test: list[SourceRow] | None = None
    """None if the source has no split."""
    user_scorer: str | None = None
    """`package.module:function` if the user's function returned a scorer."""


def read_rows(spec: TaskSpec) -> SourceRows:
    """All rows of the source that `spec` names.

    Raises:
        ConfigurationError: the source is missing, or a row has no question or answer.
    """
    if spec.kind == "reasoning_gym":
        return SourceRows(_reasoning_gym(spec))
    return _file(spec) if spec.kind == "file" else _module(spec)


# ---------------------------------------------------------------------------------------------------------------------
# reasoning-gym
# ---------------------------------------------------------------------------------------------------------------------


def _reasoning_gym(spec: TaskSpec) -> list[SourceRow]:
    """Draw rows until there are as many distinct questions as requested, or the generator has no more of them."""
    with warnings.catch_warnings():
        # Dependencies of reasoning_gym raise SyntaxWarnings, which do not concern the user.
        warnings.simplefilter("ignore")
        import reasoning_gym  # takes seconds
    params = dict(spec.params)
    if "seed" in params:
        raise ConfigurationError("task.params.seed cannot be set: the questions are seeded by task.data_seed; set that")
    fixed = params.pop("size", None)
    wanted = spec.train_questions + spec.eval_questions
    size = fixed or max(GENERATED_ROWS, 2 * wanted)
    # Row i of a data set is seeded by seed + i, so the seeds of different data seeds must lie far apart.
    seed = int.from_bytes(hashlib.sha256(f"questions {spec.data_seed}".encode()).digest()[:4], "big")
    while True:
        try:
            dataset = reasoning_gym.create_dataset(spec.name, size=size, seed=seed, **params)
        except Exception as error:  # data sets raise different exceptions for invalid parameters
            raise ConfigurationError(
                f"task.name={spec.name!r} with task.params={dict(spec.params)}: error in reasoning_gym: {error}"
            ) from error
        rows = [_generated(spec, i, entry) for i, entry in enumerate(dataset)]
        distinct = len({row.messages[0]["content"] for row in rows})
        if fixed or not spec.train_questions or distinct >= wanted or size >= MAX_ROWS_PER_QUESTION * wanted:
            return rows
        size *= 4


def _generated(spec: TaskSpec, index: int, entry: Mapping[str, Any]) -> SourceRow:
    where = f"reasoning_gym {spec.name}, entry {index}"
    if not isinstance(entry["answer"], str):
        raise ConfigurationError(f"{where} has no single right answer: it needs its own scorer; use task.kind=module")
    return SourceRow(({"role": "user", "content": entry["question"]},), entry["answer"], where)


# ---------------------------------------------------------------------------------------------------------------------
# Files and hub data sets
# ---------------------------------------------------------------------------------------------------------------------


def _file(spec: TaskSpec) -> SourceRows:
    if not spec.path:
        raise ConfigurationError(
            f"task {spec.name!r}: task.path is missing; set it to a {' or '.join(SUFFIXES)} file or a folder"
        )
    path = Path(spec.path).expanduser()
    if not path.exists() and path.suffix not in SUFFIXES and re.fullmatch(r"[\w.-]+/[\w.-]+", spec.path):
        return load_hub(spec)
    if spec.params:
        raise ConfigurationError(f"task.params={dict(spec.params)} has no meaning for the file {path}: remove it")
    if path.is_dir():
        parts = _split_files(path, spec.subset)
        read = {n: [row for file in files for row in _parse_all(spec, _records(file))] for n, files in parts.items()}
        return SourceRows(read["train"], read["test"])
    if not path.exists():
        raise ConfigurationError(f"task.path={path}: there is no such file (current folder: {Path.cwd()})")
    return SourceRows(_parse_all(spec, _records(path)))


def _split_files(folder: Path, subset: str | None) -> dict[str, list[Path]]:
    """The files of `train` and `test` in a folder: train.parquet, or the layout that the Hugging Face hub serves.

    On the hub, a split is one file or several shards (`train-00000-of-00002.parquet`), in the folder itself, in `data`,
    or in a folder with the name of the subset (`main/train-00000-of-00001.parquet`).

    Raises:
        ConfigurationError: no folder has both splits, or several subsets have them and none is named.
    """
    with_splits = {}
    for candidate in (folder, *sorted(p for p in folder.iterdir() if p.is_dir())):
        parts = {split: _shards(candidate, split) for split in ("train", "test")}
        if all(parts.values()):
            with_splits[candidate] = parts
    for candidate in (folder / (subset or "data"), folder):
        if candidate in with_splits:
            return with_splits[candidate]
    if len(with_splits) == 1 and subset is None:
        return next(iter(with_splits.values()))
    if with_splits:
        raise ConfigurationError(
            f"task.path={folder} has the subsets {', '.join(p.name for p in with_splits)}: set task.subset to one of "
            f"them (now {subset})"
        )
    raise ConfigurationError(
        f"task.path={folder} is a folder without train and test files ({' or '.join(SUFFIXES)}); add both, or give one "
        "file"
    )


def _shards(folder: Path, split: str) -> list[Path]:
    """The files of a split in `folder` itself, in the order of their names; of several suffixes the first."""
    for suffix in SUFFIXES:
        whole = folder / f"{split}{suffix}"
        if files := [whole] if whole.exists() else sorted(folder.glob(f"{split}-*{suffix}")):
            return files
    return []


def _records(path: Path) -> Iterator[tuple[str, Any]]:
    """(position, row) of every row of a file."""
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        try:
            table = pyarrow.parquet.read_table(path)
        except pyarrow.ArrowException as error:
            raise ConfigurationError(f"{path} is not a readable parquet file: {error}") from error
        for number, record in enumerate(table.to_pylist(), start=1):
            yield f"{path}, row {number}", record
    elif path.suffix == ".jsonl":
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                where = f"{path}, line {number}"
                if not line.strip():
                    continue
                try:
                    yield where, json.loads(line)
                except ValueError as error:  # invalid JSON or invalid UTF-8
                    raise ConfigurationError(f"{where} is not JSON: {error}") from error
    else:
        raise ConfigurationError(f"task.path={path}: the name of a task file ends in {' or '.join(SUFFIXES)}")


def load_hub(spec: TaskSpec) -> SourceRows:
    """The rows of a hub data set, downloaded by the package `datasets` or from its cache.

    Raises:
        ConfigurationError: the package is not installed, or the data set cannot be loaded.
    """
    if importlib.util.find_spec("datasets") is None:
        raise ConfigurationError(
            f"task.path={spec.path}: there is no such file. If it is a hub id, install the package `datasets`"
        )
    import datasets

    try:
        # Some data sets, GSM8K among them, have several subsets and no default: they cannot be loaded without a name.
        splits = datasets.load_dataset(str(spec.path), **{"name": spec.subset, **spec.params})
    except Exception as error:  # the hub's client raises exceptions of many libraries
        raise ConfigurationError(
            f"task.path={spec.path}: there is no such file, and no such data set could be loaded from the hub: {error}"
        ) from error
    return hub_rows(spec, {"train": splits} if isinstance(splits, datasets.Dataset) else splits)


def hub_rows(spec: TaskSpec, splits: Mapping[Any, Iterable[Any]]) -> SourceRows:
    """The rows of the splits of a hub data set. Separate from the download, so that it can be tested offline.

    Raises:
        ConfigurationError: there is no split `train`, or a row has no question or answer.
    """
    if "train" not in splits:
        raise ConfigurationError(f"task.path={spec.path} has no split `train`; it has: {', '.join(map(str, splits))}")
    read = {
        name: _parse_all(spec, ((f"{spec.path}, {name} row {i}", r) for i, r in enumerate(splits[name], start=1)))
        for name in ("train", "test")
        if name in splits
    }
    return SourceRows(read["train"], read.get("test"))


# ---------------------------------------------------------------------------------------------------------------------
# A function of the user
# ---------------------------------------------------------------------------------------------------------------------


def resolve(name: str, what: str) -> Any:
    """The object at `package.module:function`.

    Raises:
        ConfigurationError: `name` has another form, the module cannot be imported, or it has no such attribute. The
            message calls the name `what`.
    """
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise ConfigurationError(f"{what}={name!r} should be of the form package.module:function")
    if not {"", str(Path.cwd())} & set(sys.path):
        sys.path.append(str(Path.cwd()))  # the user's module is in the current folder
    try:
        found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # the import runs user code
        raise ConfigurationError(f"{what}={name!r}: cannot import {module_name}: {_text(error)}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigurationError(f"{what}={name!r}: {module_name} has no {attribute}")
        found = getattr(found, part)
    return found


def _module(spec: TaskSpec) -> SourceRows:
    function = resolve(spec.name, "task.name")
    scorer = None
    try:
        made = function(**spec.params)
        if isinstance(made, tuple) and len(made) == 2 and callable(made[1]):
            made, scorer = made
        records = list(made)
    except (Exception, SystemExit) as error:  # user code
        raise ConfigurationError(f"{spec.name} with {dict(spec.params)} failed: {_text(error)}") from error
    rows = _parse_all(spec, ((f"{spec.name}, item {i}", r) for i, r in enumerate(records)))
    return SourceRows(rows, user_scorer=_scorer_name(spec, scorer) if scorer else None)


def _scorer_name(spec: TaskSpec, scorer: Any) -> str:
    """`package.module:function` of `scorer`. Reward workers import it by that name, so it must have one."""
    name = f"{getattr(scorer, '__module__', '?')}:{getattr(scorer, '__qualname__', '?')}"
    if "<" in name or "?" in name or name.startswith("__main__:") or resolve(name, "scorer") is not scorer:
        raise ConfigurationError(
            f"{spec.name}: its scorer {name} cannot be imported by name; define it with `def` at module level"
        )
    return name


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


# ---------------------------------------------------------------------------------------------------------------------
# Parsing of rows
# ---------------------------------------------------------------------------------------------------------------------


def _parse_all(spec: TaskSpec, records: Iterable[tuple[str, Any]]) -> list[SourceRow]:
    return [_parse(spec, where, record) for where, record in records]


def _parse(spec: TaskSpec, where: str, record: Any) -> SourceRow:
    if not isinstance(record, Mapping):
        raise ConfigurationError(f"{where} should be a mapping with {spec.question_field!r} and {spec.answer_field!r}")
    if _find(record, spec.question_field) is None and "prompt" in record and "reward_model" in record:
        return _parse_verl(where, record)
    question = _field(record, spec.question_field, where)
    answer = _field(record, spec.answer_field, where)
    if isinstance(question, list):
        return SourceRow(_chat(question, where), _answer(answer, where), where)
    if not isinstance(question, str) or not question.strip():
        raise ConfigurationError(f"{where}: {spec.question_field}={question!r} should be a text that is not empty")
    _check_unicode(question, "question", where)
    return SourceRow(({"role": "user", "content": question},), _answer(answer, where), where)


def _parse_verl(where: str, record: Mapping[str, Any]) -> SourceRow:
    """A row in verl's schema: `prompt` has the chat messages, `reward_model.ground_truth` the answer."""
    return SourceRow(
        _chat(record["prompt"], where), _answer(_field(record, "reward_model.ground_truth", where), where), where
    )


def _field(record: Mapping[str, Any], path: str, where: str) -> Any:
    value = _find(record, path)
    if value is None:
        raise ConfigurationError(f"{where} has no value at {path!r}; its fields are: {', '.join(map(str, record))}")
    return value


def _find(record: Mapping[str, Any], path: str) -> Any:
    """The value at `path`; None if there is none. Dots in `path` separate the keys of nested mappings."""
    if path in record:
        return record[path]
    value: Any = record
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def _chat(messages: Any, where: str) -> tuple[Mapping[str, str], ...]:
    if not isinstance(messages, list) or not messages:
        raise ConfigurationError(f"{where}: the prompt should be a list of chat messages")
    for message in messages:
        if not isinstance(message, Mapping) or not all(isinstance(message.get(k), str) for k in ("role", "content")):
            raise ConfigurationError(f"{where}: the chat message {message!r} should have a `role` and a `content`")
        _check_unicode(message["content"], "question", where)
    if messages[-1]["role"] != "user":
        raise ConfigurationError(
            f"{where}: the last chat message is the {messages[-1]['role']}'s; it should be the user's"
        )
    return tuple({"role": m["role"], "content": m["content"]} for m in messages)


def _answer(answer: Any, where: str) -> str:
    """The answer as text. Of a solution in GSM8K's format, the part after `####`."""
    text = answer if isinstance(answer, str) else _number_text(answer)
    if text is None:
        raise ConfigurationError(f"{where}: the answer {answer!r} should be a text or a number")
    _check_unicode(text, "answer", where)
    text = text.rsplit("####", 1)[-1].strip()
    if not text:
        raise ConfigurationError(f"{where}: the answer is empty")
    return text


def _number_text(value: Any) -> str | None:
    """A finite number as text, without exponent: 3e16 as 30000000000000000. None for anything else.

    Numbers are those of Python, numpy, `decimal` and `fractions`.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, numbers.Rational):  # whole numbers, and fractions as 3/4
        return str(value)
    if not isinstance(value, numbers.Real | Decimal) or not math.isfinite(value):
        return None
    text = str(value)  # the shortest text that gives the same number, also for numpy's narrow types
    return format(Decimal(text), "f") if "e" in text.lower() else text


def _check_unicode(text: str, what: str, where: str) -> None:
    """
    Raises:
        ConfigurationError: `text` contains half of a surrogate pair, which no encoding of Unicode can store.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError(
            f"{where}: the {what} has a lone surrogate ({text[error.start]!r} at character {error.start + 1}), which "
            "is half of a character; write the whole character, or remove it"
        ) from error

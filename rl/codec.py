"""The contract of `rl.spec` as plain JSON: for what crosses a process boundary or is written into the journal.

Nothing is ever unpickled from a store; every field that is read back is checked against its annotation.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Literal, TypeVar

from rl import spec

T = TypeVar("T")

_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
"""JSON has no numbers for these, and a run that diverges must be reported all the same."""
_FROM_NOT_FINITE = frozenset(_NOT_FINITE.values())

_BY_TYPE: dict[str, type[Any]] = {
    c.type: c
    for c in (
        *(spec.Started, spec.StepReport, spec.EvalReport, spec.CheckpointWritten, spec.RoleRestarted, spec.Finished),
        *(spec.Continue, spec.Checkpoint, spec.SetLr, spec.Stop),
    )
}


def to_json(value: Any) -> dict[str, Any]:
    """A spec, message or command as plain JSON types; messages and commands carry their `type`."""
    plain = _plain(value)
    if name := getattr(type(value), "type", None):
        plain = {"type": name, **plain}
    return plain


def message_from_json(data: Mapping[str, Any]) -> Any:
    """The message or command that `to_json` wrote.

    Raises:
        ValueError: unknown type, or a field that is missing, unknown or of the wrong type.
    """
    rest = dict(data)
    name = rest.pop("type", None)
    if name not in _BY_TYPE:
        raise ValueError(f"unknown type of message {name!r}; known: {', '.join(sorted(_BY_TYPE))}")
    return from_json(_BY_TYPE[name], rest)


def from_json(cls: type[T], data: Mapping[str, Any]) -> T:
    """Build the frozen dataclass `cls` from JSON types, recursively, by its annotations.

    Raises:
        ValueError: a field that is missing, unknown or of the wrong type; the message gives its path.
    """
    try:
        return _reader(cls)(data)
    except _Misfit as error:
        raise ValueError(f"{cls.__name__}{error.where}{error.what}") from None


class _Misfit(Exception):
    """A value that does not fit its annotation. Its path is built as the error rises: values that fit cost nothing."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what, self.where = what, ""

    def inside(self, step: str) -> _Misfit:
        self.where = step + self.where
        return self


_AS_THEY_ARE = frozenset({int, str, bool, type(None)})


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if isinstance(value, float):
        return value if isfinite(value) else _NOT_FINITE[str(float(value))]
    if names := _field_names(kind):
        plain = {}
        for name in names:
            inner = getattr(value, name)
            kind = type(inner)
            # Most fields are plain already; checking that here saves a call for each.
            plain[name] = inner if kind in _AS_THEY_ARE or (kind is float and isfinite(inner)) else _plain(inner)
        return plain
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, enum.Enum):
        return value.value
    if has_text_form(kind):
        return str(value)
    return {} if dataclasses.is_dataclass(kind) else value


def has_text_form(kind: Any) -> bool:
    """Whether values of a type are written as text: the type has a `parse` that reads what `str` writes."""
    return isinstance(kind, type) and hasattr(kind, "parse")


@functools.cache
def _field_names(kind: type) -> tuple[str, ...]:
    has_fields = dataclasses.is_dataclass(kind) and not has_text_form(kind)
    return tuple(f.name for f in dataclasses.fields(kind)) if has_fields else ()


@functools.cache
def _reader(hint: Any) -> Callable[[Any], Any]:
    """Returns the function that builds a value of this annotation from JSON types, or raises `_Misfit`."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return lambda data: data
    if origin in (typing.Union, types.UnionType):
        options = [a for a in args if a is not type(None)]
        if len(options) != 1:
            raise TypeError(f"{hint}: unions of several types are not used in the contract")
        inner = _reader(options[0])
        return lambda data: None if data is None else inner(data)
    if origin is Literal:
        return functools.partial(_choice, args)
    if origin is tuple:
        return functools.partial(_items, _reader(args[0]))
    if origin in (Mapping, dict):
        return functools.partial(_entries, _reader(args[1]))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return functools.partial(_member, hint)
    if has_text_form(hint):
        return functools.partial(_parsed, hint)
    if dataclasses.is_dataclass(hint):
        cls = typing.cast(type, hint)
        hints = typing.get_type_hints(cls)
        readers = {f.name: _reader(hints[f.name]) for f in dataclasses.fields(cls)}
        missing = dataclasses.MISSING
        due = [f.name for f in dataclasses.fields(cls) if f.default is missing and f.default_factory is missing]
        return functools.partial(_fields, cls, readers, due)
    if hint is float:
        return _number
    if hint in (int, str, bool):
        return functools.partial(_exactly, hint)
    raise TypeError(f"no rule for {hint!r}")


def _exactly(kind: type, data: Any) -> Any:
    if type(data) is not kind:
        raise _Misfit(f"={data!r} should be of type {kind.__name__}")
    return data


def _parsed(kind: Any, data: Any) -> Any:
    try:
        return kind.parse(data)
    except ValueError as error:
        raise _Misfit(f"={data}: {error}") from None


def _number(data: Any) -> float:
    if type(data) is float:
        return data
    if type(data) is int or (type(data) is str and data in _FROM_NOT_FINITE):
        return float(data)
    raise _Misfit(f"={data!r} should be of type float")


def _choice(choices: tuple[Any, ...], data: Any) -> Any:
    if data not in choices:
        raise _Misfit(f"={data!r} is not one of {', '.join(map(repr, choices))}")
    return data


def _member(kind: type[enum.Enum], data: Any) -> Any:
    try:
        return kind(data)
    except ValueError:
        raise _Misfit(f"={data!r} is not one of {', '.join(repr(m.value) for m in kind)}") from None


def _items(reader: Callable[[Any], Any], data: Any) -> tuple[Any, ...]:
    if not isinstance(data, list | tuple):
        raise _Misfit(f"={data!r} should be a list")
    done: list[Any] = []
    try:
        for value in data:
            done.append(reader(value))
    except _Misfit as error:
        raise error.inside(f"[{len(done)}]") from None
    return tuple(done)


def _entries(reader: Callable[[Any], Any], data: Any) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise _Misfit(f"={data!r} should be a mapping")
    done: dict[str, Any] = {}
    key = ""
    try:
        for key, value in data.items():
            done[key] = reader(value)
    except _Misfit as error:
        raise error.inside(f".{key}") from None
    return done


def _fields(cls: type, readers: Mapping[str, Callable[[Any], Any]], due: list[str], data: Any) -> Any:
    if not isinstance(data, Mapping):
        raise _Misfit(f"={data!r} should be a mapping")
    done: dict[str, Any] = {}
    name = ""
    try:
        for name, value in data.items():
            if name not in readers:
                break
            done[name] = readers[name](value)
    except _Misfit as error:
        raise error.inside(f".{name}") from None
    if len(done) < len(data):
        unknown = sorted(set(data) - set(readers))
        raise _Misfit(f" has no key {unknown[0]!r}; it has: {', '.join(readers)}")
    for name in due:
        if name not in done:
            raise _Misfit(f".{name} is missing")
    return cls(**done)

"""The contract of `rl/spec.py` as plain JSON: what crosses a process boundary or goes into the journal.

Nothing is ever unpickled from a store; what is read back is checked field by field against the annotations.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from rl import spec

T = TypeVar("T")

_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
"""JSON has no numbers for these, and a run that diverges has to be told of all the same."""

_BY_KIND: dict[str, type[Any]] = {
    c.kind: c
    for c in (
        *(spec.Started, spec.StepReport, spec.EvalReport, spec.CheckpointWritten, spec.RoleRestarted, spec.Finished),
        *(spec.Continue, spec.Checkpoint, spec.SetLr, spec.Stop),
    )
}


def to_json(value: Any) -> dict[str, Any]:
    """A spec, event or command as plain JSON types; events and commands carry their `kind`."""
    plain = _plain(value)
    if kind := getattr(type(value), "kind", None):
        plain = {"kind": kind, **plain}
    return plain


def message_from_json(data: Mapping[str, Any]) -> Any:
    """The event or command that `to_json` wrote.

    Raises:
        ValueError: unknown kind, or a field that is missing, unknown or of the wrong type.
    """
    rest = dict(data)
    kind = rest.pop("kind", None)
    if kind not in _BY_KIND:
        raise ValueError(f"unknown kind of message {kind!r}; known: {', '.join(sorted(_BY_KIND))}")
    return from_json(_BY_KIND[kind], rest)


def from_json(cls: type[T], data: Mapping[str, Any]) -> T:
    """Build the frozen dataclass `cls` from JSON types, recursively, by its annotations.

    Raises:
        ValueError: a field that is missing, unknown or of the wrong type; the message gives its path.
    """
    return _build(cls, data, cls.__name__)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return _NOT_FINITE[str(value)]
    return value


def _build(hint: Any, data: Any, where: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return data
    if origin in (typing.Union, types.UnionType):
        if data is None and type(None) in args:
            return None
        options = [a for a in args if a is not type(None)]
        if len(options) == 1:
            return _build(options[0], data, where)
        raise TypeError(f"{where}: unions of several types are not used in the contract")
    if origin is Literal:
        if data not in args:
            raise ValueError(f"{where}={data!r} is not one of {', '.join(map(repr, args))}")
        return data
    if origin is tuple:
        if not isinstance(data, list | tuple):
            raise ValueError(f"{where}={data!r} should be a list")
        return tuple(_build(args[0], v, f"{where}[{i}]") for i, v in enumerate(data))
    if origin in (Mapping, dict):
        if not isinstance(data, Mapping):
            raise ValueError(f"{where}={data!r} should be a mapping")
        return {k: _build(args[1], v, f"{where}.{k}") for k, v in data.items()}
    if dataclasses.is_dataclass(hint):
        return _build_dataclass(typing.cast(type, hint), data, where)
    if hint is float and data in _NOT_FINITE.values():
        return float(data)
    if hint is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if hint in (int, float, str, bool):
        if type(data) is not hint:
            raise ValueError(f"{where}={data!r} should be of type {hint.__name__}")
        return data
    raise TypeError(f"{where}: no rule for {hint!r}")


def _build_dataclass(cls: type, data: Any, where: str) -> Any:
    if not isinstance(data, Mapping):
        raise ValueError(f"{where}={data!r} should be a mapping")
    hints = typing.get_type_hints(cls)
    known = {f.name: f for f in dataclasses.fields(cls)}
    if unknown := sorted(set(data) - set(known)):
        raise ValueError(f"{where} has no key {unknown[0]!r}; it has: {', '.join(known)}")
    for name, f in known.items():
        has_default = f.default is not dataclasses.MISSING or f.default_factory is not dataclasses.MISSING
        if name not in data and not has_default:
            raise ValueError(f"{where}.{name} is missing")
    return cls(**{name: _build(hints[name], value, f"{where}.{name}") for name, value in data.items()})

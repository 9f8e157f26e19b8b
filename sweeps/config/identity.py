"""What identifies a trial and a recipe: the settings that differ from their defaults, and the content of the files.

A setting at its default is left out, so a new key with a default changes no trial id and closes no gate, and a journal
that was written before the key existed has the same identity as one that was written after.

Rules for changes of `rl/spec.py`:
- A new key needs a default that keeps the behaviour of before.
- Where a default changes, `FORMER_DEFAULTS` gets the key with its first default: that value stays left out, and the new
  default becomes part of the identity.
- Where the rules of this module change, `VERSION` grows, and every identity changes with it.

Tested in tests/sweeps/config/test_identity.py.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from rl import spec
from rl.codec import to_json

VERSION = 1
"""Of the rules in this module; part of every identity."""
FORMER_DEFAULTS: Mapping[str, Any] = {}
"""Dotted key -> the first default of a key whose default has changed since."""
SECTIONS = ("model", "task", "algorithm", "rollout", "evaluation", "trainer")
"""Sections of the configuration whose classes are in `rl/spec.py`."""
_CONTENT = {"questions": "task", "model_files": "model"}
"""Content and the section that selects it."""


def without_defaults(section: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """A section as plain JSON, without the keys that have their defaults."""
    return _differing(_class_of(section), section, body)


def with_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration of the journal with the keys that did not exist when it was written, at their defaults."""
    filled = dict(config)
    for section in SECTIONS:
        if section in config:
            filled[section] = _filled(_class_of(section), section, config[section])
    return filled


def content_key(section: str, body: Mapping[str, Any]) -> str:
    """Names the files that a section reads, for a person: `task.path=data/questions.jsonl`."""
    key = "path" if body.get("path") else "name" if section == "task" else "kind"
    return f"{section}.{key}={body[key]}"


def content_of(config: Mapping[str, Any]) -> dict[str, str]:
    """The hashes of the questions and the model files that this configuration uses; those that are known."""
    hashes: Mapping[str, str] = config.get("content") or {}
    keys = {name: content_key(section, config[section]) for name, section in _CONTENT.items()}
    return {name: hashes[key] for name, key in keys.items() if key in hashes}


def _differing(kind: type, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    fields = _fields(kind, path)
    for name, value in body.items():
        inner, default = fields.get(name, (None, dataclasses.MISSING))
        if inner is not None:
            if differing := _differing(inner, f"{path}.{name}", value):
                kept[name] = differing
        elif default is dataclasses.MISSING or value != default:
            kept[name] = value
    return kept


def _filled(kind: type, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    filled = dict(body)
    for name, (inner, default) in _fields(kind, path).items():
        if inner is not None:
            filled[name] = _filled(inner, f"{path}.{name}", body.get(name, {}))
        elif default is not dataclasses.MISSING:
            filled.setdefault(name, default)
    return filled


def _fields(kind: type, path: str) -> dict[str, tuple[type | None, Any]]:
    """Per field: its class where it is a section of its own, and its default as plain JSON."""
    hints = typing.get_type_hints(kind)
    found: dict[str, tuple[type | None, Any]] = {}
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            found[field.name] = (hint, dataclasses.MISSING)
            continue
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if default is not dataclasses.MISSING:
            default = to_json(FORMER_DEFAULTS.get(f"{path}.{field.name}", default))
        found[field.name] = (None, default)
    return found


def _class_of(section: str) -> type:
    return typing.get_type_hints(spec.TrialSpec)[section]

"""Checks the overrides typed after `python sweep.py` before Hydra merges them: stage, groups, keys and their spelling.

Hydra's own messages name its internals; these messages name the key, the mistake and the remedy. Only names are checked
here. Values are checked when they have their types, by `sweeps/config/value_checks.py`.

Tested in tests/sweeps/config/test_messages.py and tests/sweeps/config/test_files.py.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from rl.codec import has_text_form
from sweeps.config.types import ConfigError, SweepConfig

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

CONF_DIR = Path(__file__).resolve().parents[2] / "conf"
COMMAND = "python sweep.py"
DATA_FOLDERS = ("pricing",)
"""Folders of `conf/` with data. They are not groups."""


# ---------------------------------------------------------------------------------------------------------------------
# Groups, options and keys
# ---------------------------------------------------------------------------------------------------------------------


def groups() -> list[str]:
    """The groups of `conf/`, the stage first."""
    found = sorted(p.name for p in CONF_DIR.iterdir() if p.is_dir() and p.name not in DATA_FOLDERS)
    return sorted(found, key=lambda name: name != "stage")


def options(group: str) -> list[str]:
    """The choices of a group. A file whose name begins with an underscore has keys that the others share."""
    found = sorted(p.stem for p in (CONF_DIR / group).glob("*.yaml") if not p.stem.startswith("_"))
    return sorted(found, key=["smoke", "single", "multi"].index) if group == "stage" else found


def about(group: str, option: str) -> str:
    """The description of an option: the first comment line of its file."""
    lines = (CONF_DIR / group / f"{option}.yaml").read_text().splitlines()
    return next(line.removeprefix("# ") for line in lines if not line.startswith("# @"))


@cache
def known_keys() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Every key of a configuration, and those keys under which any name is allowed."""
    keys: list[str] = []
    open_ended: list[str] = []
    _collect(SweepConfig, "", keys, open_ended)
    return tuple(keys), tuple(open_ended)


def _collect(cls: type, prefix: str, keys: list[str], open_ended: list[str]) -> None:
    for name, hint in typing.get_type_hints(cls).items():
        keys.append(prefix + name)
        if dataclasses.is_dataclass(hint) and not has_text_form(hint):
            _collect(typing.cast(type, hint), f"{prefix}{name}.", keys, open_ended)
        elif typing.get_origin(hint) is Mapping:
            open_ended.append(prefix + name)


# ---------------------------------------------------------------------------------------------------------------------
# Overrides
# ---------------------------------------------------------------------------------------------------------------------


def check_overrides(overrides: Sequence[str]) -> None:
    """Check the typed overrides.

    Raises:
        ConfigError: not exactly one stage, an unknown group, option or key, or text that cannot be read.
    """
    parsed = [_parse(text) for text in overrides]
    _check_stage([o for o in parsed if o.key_or_group == "stage"])
    for override in parsed:
        if override.key_or_group == "stage" or override.key_or_group.split("/")[0].split(".")[0] == "hydra":
            continue
        if override.key_or_group in groups():
            _check_option(override)
        else:
            _check_key(override.key_or_group)
        if override.is_sweep_override():
            key, value = override.key_or_group, _value_text(override)
            right = f"'{key}=[{value}]'" if key.startswith("search.") else f"'{key}=\"{value}\"' if it is a text"
            raise ConfigError(f"{override.input_line} gives several values for a key that takes one; write {right}")


def _parse(text: str) -> Override:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        if "=" not in text:
            near = [f"+stage={text}"] if text in options("stage") else []
            raise ConfigError(f"{text!r} is not of the form KEY=VALUE{_did_you_mean(near)}") from error
        key, _, value = text.partition("=")
        raise ConfigError(
            f"{text!r} cannot be read; lists are written {key}=[1,2], and a text with commas, quotes, brackets or ~ "
            f"is quoted twice: '{key}=\"{value.strip(chr(34))}\"'"
        ) from error


def _check_stage(chosen: Sequence[Override]) -> None:
    if not chosen or chosen[0].is_delete():
        raise ConfigError(f"no stage was chosen. Valid commands:\n{stage_commands()}")
    names = [part.strip() for o in chosen for part in _value_text(o).split(",")]
    if len(names) > 1:
        raise ConfigError(f"{len(names)} stages were chosen ({', '.join(names)}); choose one:\n{stage_commands()}")
    if names[0] not in options("stage"):
        near = difflib.get_close_matches(names[0], options("stage"), 1)
        raise ConfigError(
            f"there is no stage {names[0]!r}{_did_you_mean(f'+stage={n}' for n in near)} "
            f"Valid commands:\n{stage_commands()}"
        )
    if not chosen[0].is_add() or chosen[0].is_force_add():
        raise ConfigError(
            f"{chosen[0].input_line}: a stage is added with one plus sign: {COMMAND} +stage={names[0]} ..."
        )


def _check_option(override: Override) -> None:
    group, value = override.key_or_group, _value_text(override)
    if override.is_delete():
        raise ConfigError(f"{group} cannot be left out; choose one of: {', '.join(options(group))}")
    if value not in options(group):
        near = difflib.get_close_matches(value, options(group), 1, cutoff=0.5)
        raise ConfigError(
            f"there is no {group} {value!r}{_did_you_mean(f'{group}={n}' for n in near)} "
            f"There are: {', '.join(options(group))}"
        )
    if override.is_add():
        raise ConfigError(
            f"{override.input_line}: {group} has a default already; write {group}={value}, without a plus sign"
        )


def _check_key(key: str) -> None:
    keys, open_ended = known_keys()
    if key not in keys and not key.startswith(tuple(f"{k}." for k in open_ended)):
        raise ConfigError(no_such_key(key))


def no_such_key(key: str) -> str:
    """The message for a key that does not exist: the nearest existing key, and the keys beside it."""
    keys, _ = known_keys()
    candidates = [*keys, *groups()]
    near = difflib.get_close_matches(key, candidates, 1, cutoff=0.75)
    if not near:  # the right name in the wrong place
        last = key.rsplit(".", 1)[-1]
        near = [k for k in candidates if k.rsplit(".", 1)[-1] == last][:1]
    parent = key.rpartition(".")[0]
    siblings = [k.removeprefix(f"{parent}.") for k in keys if parent and k.rpartition(".")[0] == parent]
    there = f" {parent} has: {', '.join(siblings)}" if siblings else f" {COMMAND} --help lists the keys typed most"
    return f"there is no key {key!r}{_did_you_mean(near)}{there}"


def hydra_override(override: str) -> str:
    """The override as Hydra accepts it. `search.space` is empty in `conf/`, so Hydra needs plus signs for its keys."""
    return f"++{override}" if override.startswith(("search.space.", "search.space=")) else override


def composition_error(error: Exception) -> ConfigError:
    """An error of Hydra or OmegaConf as a message of ours. Names have been checked before, so few kinds remain."""
    text = str(error).split("\n\nSet the environment variable")[0]
    if found := re.match(r"Could not override '([^']+)'", text):
        key = found[1]
        if any(key.startswith(f"{k}.") for k in known_keys()[1]):
            return ConfigError(f"{key} does not exist yet; add a new name with a plus sign: +{key}=...")
        group = key.split(".")[0]
        return ConfigError(
            f"{key} does not exist for the choice in the group {group}; it belongs to another choice of: "
            f"{', '.join(options(group)) if group in groups() else 'none'}"
        )
    if found := re.match(r"Could not append to config\. An item is already at '([^']+)'", text):
        return ConfigError(f"{found[1]} exists already: write {found[1]}=..., without a plus sign")
    if found := re.search(r"Missing mandatory value: .*full_key: (\S+?)[;\s]", f"{text.replace(chr(10), ' ')} "):
        return ConfigError(f"{found[1]} is missing, and the chosen options need it: add {found[1]}=...")
    lines = [line.strip() for line in text.splitlines() if line.strip() and "hydra.cc" not in line]
    return ConfigError("; ".join(lines[:3]) or type(error).__name__)


def stage_commands() -> str:
    """The valid commands, one per line."""
    width = max(len(name) for name in options("stage"))
    lines = (f"  {COMMAND} +stage={name:{width}}   {about('stage', name)}" for name in options("stage"))
    return "\n".join(lines)


def _value_text(override: Override) -> str:
    """The typed value without the brackets and quotes around it."""
    typed = (override.input_line or "").partition("=")[2].strip()
    return typed.strip("[]").strip("\"'")


def _did_you_mean(near: Iterable[str]) -> str:
    found = " or ".join(near)
    return f"; did you mean {found}?" if found else "."

"""Checks the overrides typed after `python sweep.py` before Hydra merges them: stage, groups, keys and their spelling.

Hydra's own messages name its internals; these messages name the key, the mistake and the remedy. Only names are checked
here. Values are checked when they have their types, by `sweeps/config/value_checks.py`.

Tested in tests/sweeps/config/test_messages.py and tests/sweeps/config/test_files.py.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import shlex
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from rl.codec import has_text_form
from sweeps.config.suggestions import did_you_mean, nearest_keys, quoted_text
from sweeps.config.trial_spec import is_searchable
from sweeps.config.types import ConfigError, SweepConfig

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

CONF_DIR = Path(__file__).resolve().parents[2] / "conf"
COMMAND = "python sweep.py"
DATA_FOLDERS = ("pricing",)
"""Folders of `conf/` with data. They are not groups."""
REMOVED_KEYS = {
    "gate.max_logp_diff": "the rule `sampler agrees with learner` of conf/gate/rules/STAGE.yaml has this limit now; "
    "gate.rules=FILE judges by other rules",
}
"""Keys of earlier versions, and where their setting is now."""
PRESETS = "_presets"
"""Where Hydra stores a list of `search.space.algorithm`."""


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
    return sorted(found, key=["preflight", "smoke", "single", "multi"].index) if group == "stage" else found


def about(group: str, option: str) -> str:
    """The description of an option: the first comment line of its file."""
    lines = (CONF_DIR / group / f"{option}.yaml").read_text().splitlines()
    return next(line.removeprefix("# ") for line in lines if not line.startswith("# @"))


@cache
def known_keys() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Every key of a configuration, and those keys under which any name is allowed."""
    hints = key_hints()
    return tuple(hints), tuple(key for key, hint in hints.items() if typing.get_origin(hint) is Mapping)


@cache
def key_hints() -> Mapping[str, Any]:
    """The annotation of every key of a configuration that can be typed; `content` is read from files instead."""
    return {key: hint for key, hint in _hints(SweepConfig, "") if key != "content"}


def _hints(cls: type, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, hint in typing.get_type_hints(cls).items():
        yield prefix + name, hint
        if dataclasses.is_dataclass(hint) and not has_text_form(hint):
            yield from _hints(typing.cast(type, hint), f"{prefix}{name}.")


# ---------------------------------------------------------------------------------------------------------------------
# Overrides
# ---------------------------------------------------------------------------------------------------------------------


def check_overrides(overrides: Sequence[str]) -> None:
    """Check the typed overrides.

    Raises:
        ConfigError: an unknown group, option or key, text that cannot be read, or not exactly one stage: the first of
            these. The stage is checked last, because the other checks do not depend on it.
    """
    parsed = [_parse(text) for text in overrides]
    for override in parsed:
        key = override.key_or_group
        if key == "stage" or key.split("/")[0].split(".")[0] == "hydra":
            continue
        if key in groups():
            _check_option(override)
        else:
            _check_key(override)
    _check_stage([o for o in parsed if o.key_or_group == "stage"])


def key_of(override: str) -> str:
    """The key or group of a typed override, also where its value cannot be read."""
    return override.partition("=")[0].lstrip("+~'\"")


def _parse(text: str) -> Override:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        if "=" not in text:
            near = [f"+stage={text}"] if text in options("stage") else []
            raise ConfigError(f"{text!r} is not of the form KEY=VALUE{did_you_mean(near)}") from error
        raise ConfigError(_unreadable(text)) from error


def _unreadable(text: str) -> str:
    """The message for an override that Hydra's grammar does not accept, with the closest override that it accepts."""
    key, value = key_of(text), text.partition("=")[2].strip()
    hint = key_hints().get(key)
    items = value.strip("[]")
    if key not in key_hints() and not key.startswith((*(f"{k}." for k in known_keys()[1]), "search.space")):
        return no_such_key(key)
    if hint is None or hint is str or str in typing.get_args(hint) or hint is Any:
        inner = value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value
        return (
            f"{text!r} cannot be read: a text with commas, quotes, brackets or ~ is quoted twice; write "
            f"{quoted_text(key, inner)}"
        )
    if typing.get_origin(hint) is tuple:
        return f"{text!r} cannot be read; write '{key}=[{items}]'"
    return f"{text!r} cannot be read; {key} takes one value"


def _check_stage(chosen: Sequence[Override]) -> None:
    if not chosen or chosen[0].is_delete():
        raise ConfigError(f"no stage was chosen. Valid commands:\n{stage_commands()}")
    names = [part.strip() for o in chosen for part in _value_text(o).split(",")]
    if len(names) > 1:
        raise ConfigError(f"{len(names)} stages were chosen ({', '.join(names)}); choose one:\n{stage_commands()}")
    if names[0] not in options("stage"):
        near = difflib.get_close_matches(names[0], options("stage"), 1)
        raise ConfigError(
            f"there is no stage {names[0]!r}{did_you_mean(f'+stage={n}' for n in near)} "
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
            f"there is no {group} {value!r}{did_you_mean(f'{group}={n}' for n in near)} "
            f"There are: {', '.join(options(group))}"
        )
    if override.is_add():
        raise ConfigError(
            f"{override.input_line}: {group} has a default already; write {group}={value}, without a plus sign"
        )


def _check_key(override: Override) -> None:
    key, (keys, open_ended) = override.key_or_group, known_keys()
    several = _several_values(override)
    if key not in keys and not key.startswith(tuple(f"{k}." for k in open_ended)):
        raise ConfigError(no_such_key(key, several))
    if key == "algorithm.name" and _value_text(override) in options("algorithm"):
        name = _value_text(override)
        raise ConfigError(f"algorithm.name={name} changes a label only, not what is trained; write algorithm={name}")
    if several and (override.is_sweep_override() or _takes_one_value(key)):
        raise ConfigError(
            f"{override.input_line} gives several values for a key that takes one{_how_to_vary(key, several)}"
        )


def _takes_one_value(key: str) -> bool:
    """Whether a list can never be a value of the key."""
    hint = key_hints().get(key, Any)
    simple = {int, float, str, bool, *typing.get_args(typing.Optional[float])}  # noqa: UP045
    return hint in simple or (typing.get_origin(hint) is not tuple and bool(simple & set(typing.get_args(hint))))


def _several_values(override: Override) -> str:
    """The typed values without brackets, `1e-4,3e-4`; empty where the override has one value."""
    from hydra.core.override_parser.types import ChoiceSweep, RangeSweep

    value, typed = override.value(), (override.input_line or "").partition("=")[2].strip()
    if isinstance(value, RangeSweep) or (isinstance(value, ChoiceSweep) and "(" in typed):
        return ",".join(override.sweep_string_iterator())
    if override.is_sweep_override():
        return typed
    return typed.strip("[]") if isinstance(value, list) else ""


def _how_to_vary(key: str, values: str) -> str:
    if typing.get_origin(key_hints().get(key)) is tuple:
        return f"; write '{key}=[{values}]'"
    if key == "algorithm.name":
        return f"; write 'search.space.algorithm=[{values}]'"
    if key_hints().get(key) is str and (not is_searchable(key) or ", " in values):
        return f"; write {quoted_text(key, values)}"
    if "(" in values:
        return f"; list the values, or write search=random search.trials=8 'search.space.{key}={{low:1,high:2}}'"
    return f"; write 'search.space.{key}=[{values}]'" if is_searchable(key) else f": {key} is the same for all trials"


def no_such_key(key: str, several: str = "", *, prefix: str = "") -> str:
    """The message for a key that does not exist: the nearest existing keys, and the keys beside it.

    Args:
        several: the values, where several were typed: a key that takes one is then suggested as a varied key.
        prefix: where the key was typed, such as `search.space.`.
    """
    if key in REMOVED_KEYS:
        return f"there is no key '{prefix}{key}' any more: {REMOVED_KEYS[key]}"
    keys, _ = known_keys()
    near = nearest_keys(key, [k for k in (*keys, *groups()) if not prefix or is_searchable(k)])
    if several:
        near = [
            f"search.space.{k}=[{several}]" if _takes_one_value(k) and is_searchable(k) else f"{k}=[{several}]"
            for k in near
        ]
    parent = key.rpartition(".")[0]
    siblings = [k.removeprefix(f"{parent}.") for k in keys if parent and k.rpartition(".")[0] == parent]
    there = f" {parent} has: {', '.join(siblings)}" if siblings else f" {COMMAND} --help lists the keys typed most"
    return f"there is no key '{prefix}{key}'{did_you_mean(f'{prefix}{k}' for k in near)}{there}"


def hydra_override(override: str) -> str:
    """The override as Hydra accepts it. `search.space` is empty in `conf/`, so Hydra needs plus signs for its keys.

    A list of presets and `search.space.algorithm.lr` can be typed together, so the list gets a key of its own.
    """
    if re.match(r"\+*search\.space\.algorithm=\s*[\[\w]", override):
        override = override.replace("algorithm=", f"algorithm.{PRESETS}=", 1)
    return f"++{override}" if override.startswith(("search.space.", "search.space=")) else override


def composition_error(error: Exception, overrides: Sequence[str] = ()) -> ConfigError:
    """An error of Hydra or OmegaConf as a message of ours. Names have been checked before, so few kinds remain."""
    text = str(error).split("\n\nSet the environment variable")[0]
    typed = {key_of(o): o.lstrip("+~") for o in overrides}
    if found := re.match(r"Could not override '([^']+)'", text):
        key = found[1]
        again = typed.get(key, f"{key}=...")
        if any(key.startswith(f"{k}.") for k in known_keys()[1]):
            return ConfigError(f"{key} does not exist yet; add a new name with a plus sign: {shlex.quote(f'+{again}')}")
        group = key.split(".")[0]
        having = [o for o in (options(group) if group in groups() else ()) if _option_has(group, o, key)]
        write = f"write {group}={having[0]} {shlex.quote(again)}" if having else "no choice has it"
        return ConfigError(f"{key} does not exist for the choice in the group {group}; {write}")
    if found := re.match(r"Could not append to config\. An item is already at '([^']+)'", text):
        again = shlex.quote(typed.get(found[1], f"{found[1]}=..."))
        return ConfigError(f"{found[1]} exists already: write {again}, without a plus sign")
    if found := re.search(r"Missing mandatory value: .*full_key: (\S+?)[;\s]", f"{text.replace(chr(10), ' ')} "):
        return ConfigError(f"{found[1]} is missing, and the chosen options need it: add {found[1]}=...")
    lines = [line.strip() for line in text.splitlines() if line.strip() and "hydra.cc" not in line]
    return ConfigError("; ".join(lines[:3]) or type(error).__name__)


def _option_has(group: str, option: str, key: str) -> bool:
    """Whether the file of an option has a dotted key of its group."""
    inner: Any = yaml.safe_load((CONF_DIR / group / f"{option}.yaml").read_text())
    for part in key.split(".")[1:]:
        if not isinstance(inner, Mapping) or part not in inner:
            return False
        inner = inner[part]
    return True


def stage_commands() -> str:
    """The valid commands, one per line."""
    width = max(len(name) for name in options("stage"))
    lines = (f"  {COMMAND} +stage={name:{width}}   {about('stage', name)}" for name in options("stage"))
    return "\n".join(lines)


def _value_text(override: Override) -> str:
    """The typed value without the brackets and quotes around it."""
    typed = (override.input_line or "").partition("=")[2].strip()
    return typed.strip("[]").strip("\"'")

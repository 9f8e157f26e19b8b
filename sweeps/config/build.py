"""From Hydra's composed configuration to a checked `SweepConfig`. No other module uses OmegaConf.

A bad configuration is refused here, before anything is started, written or billed.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from rl.codec import from_json, to_json
from sweeps.config.overrides import CONF_DIR, check_overrides, composition_error, hydra_override
from sweeps.config.search_checks import search_problems
from sweeps.config.search_space import flat_space
from sweeps.config.types import MONEY_KEYS, ConfigError, SweepConfig
from sweeps.config.value_checks import value_problems

if TYPE_CHECKING:
    from omegaconf import DictConfig

_LISTS = ("prompts_per_step", "group_size", "lr_scaling", "seeds")
_EMPTY_IS_NONE = ("down", "max_idle", "deadman")
"""Keys of `machine` for which an empty text means none."""


def compose(overrides: Sequence[str]) -> SweepConfig:
    """The configuration that `python sweep.py OVERRIDES` runs with.

    Raises:
        ConfigError: the overrides, or the values that result from them, are wrong.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    check_overrides(overrides)
    with initialize_config_dir(config_dir=str(CONF_DIR), version_base="1.3"):
        try:
            cfg = hydra_compose(config_name="config", overrides=[hydra_override(o) for o in overrides])
        except (HydraException, OmegaConfBaseException) as error:
            raise composition_error(error) from error
    return build(cfg)


def build(cfg: DictConfig) -> SweepConfig:
    """Type and check a composed configuration.

    Raises:
        ConfigError: a missing or unknown key, a wrong type, or values that cannot run; all wrong values in one message.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        data: Any = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise composition_error(error) from error
    data.pop("hydra", None)
    config = _typed(data)
    search = dataclasses.replace(config.search, cards_per_trial=config.search.cards_per_trial or config.machine.cards)
    config = dataclasses.replace(config, search=search)
    if found := value_problems(config) or list(search_problems(config)):
        raise ConfigError("\n".join(found))
    paths = {f.name: str(Path(getattr(config.paths, f.name)).expanduser()) for f in dataclasses.fields(config.paths)}
    return dataclasses.replace(config, paths=dataclasses.replace(config.paths, **paths))


def canonical(config: SweepConfig) -> dict[str, Any]:
    """The configuration as plain JSON types, in a fixed order and without passwords: for hashing and `config.yaml`.

    A person can type every text in it; `rl.codec.from_json` reads it back.
    """
    return _without_passwords(to_json(config))


def _typed(data: dict[str, Any]) -> SweepConfig:
    for axis in _LISTS:  # a single value is a list of one
        if not isinstance(data["search"].get(axis), list):
            data["search"][axis] = [data["search"].get(axis)]
    data["search"]["space"] = flat_space(data["search"].get("space") or {})
    for key in MONEY_KEYS:
        if isinstance(amount := data["budget"].get(key), int | float):
            raise ConfigError(
                f"budget.{key}={amount} has no currency, and a number may have lost digits; write the amount with its "
                f"currency: 'budget.{key}=12.10 USD'"
            )
    for key in _EMPTY_IS_NONE:
        if data["machine"].get(key) == "":
            data["machine"][key] = None
    try:
        return from_json(SweepConfig, data)
    except ValueError as error:
        text = str(error).replace("SweepConfig has", "the configuration has").removeprefix("SweepConfig.")
        raise ConfigError(text + _how_to_write(text)) from error


def _how_to_write(complaint: str) -> str:
    """What to type instead, for a message of `rl.codec` about a wrong type."""
    found = re.fullmatch(r"(\S+?)=(.*) should be of type (\w+)", complaint)
    if not found:
        return ""
    key, value, kind = found.groups()
    if kind == "str":
        return "; null is not possible here" if value == "None" else f"; quote a text twice: '{key}=\"{value}\"'"
    return {"bool": "; write true or false", "int": "; write a whole number"}.get(kind, "; write a number")


def _without_passwords(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _without_passwords(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_without_passwords(v) for v in value]
    if isinstance(value, str) and "://" in value and "@" in value:
        parts = urlsplit(value)
        if parts.password:
            return urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":***@")))
    return value

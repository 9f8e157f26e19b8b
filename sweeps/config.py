"""From Hydra's composed configuration to a checked `SweepConfig`: the one place that touches OmegaConf.

It decides nothing about a sweep and starts nothing; what it refuses, it refuses before anything is written or billed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from rl.codec import from_json, to_json
from sweeps.config_types import SweepConfig

if TYPE_CHECKING:
    from omegaconf import DictConfig

CONF_DIR = Path(__file__).resolve().parent.parent / "conf"


class ConfigError(Exception):
    """The configuration cannot run. The message says what is wrong, where, and what would be right; exit code 2."""


def compose(overrides: Sequence[str]) -> SweepConfig:
    """The configuration that `python sweep.py OVERRIDES` runs with.

    Raises:
        ConfigError: whatever is wrong with the overrides or with what they add up to.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    with initialize_config_dir(config_dir=str(CONF_DIR), version_base="1.3"):
        return build(hydra_compose(config_name="config", overrides=list(overrides)))


def build(cfg: DictConfig) -> SweepConfig:
    """Check and type a composed configuration.

    Raises:
        ConfigError: a missing or unknown key, a wrong type, or a value that cannot run.
    """
    from omegaconf import OmegaConf

    data: Any = OmegaConf.to_container(cfg, resolve=True)
    data.pop("hydra", None)
    for axis in ("prompts_per_step", "group_size", "lr_scaling", "seeds"):
        if not isinstance(data["search"][axis], list):
            data["search"][axis] = [data["search"][axis]]
    try:
        config = from_json(SweepConfig, data)
    except ValueError as e:
        raise ConfigError(str(e).removeprefix("SweepConfig.")) from e
    paths = {f.name: str(Path(getattr(config.paths, f.name)).expanduser()) for f in dataclasses.fields(config.paths)}
    return dataclasses.replace(config, paths=dataclasses.replace(config.paths, **paths))


def canonical(config: SweepConfig) -> dict[str, Any]:
    """The configuration as plain JSON types, in a fixed order, without any password: for hashing and `config.yaml`."""
    return _without_passwords(to_json(config))


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

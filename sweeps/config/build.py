"""From Hydra's composed configuration to a checked `SweepConfig`. No other module uses OmegaConf.

A bad configuration is refused here, before anything is started, written or billed.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost.secrets import mask_secrets
from rl.codec import from_json, to_json
from rl.spec import AlgorithmSpec
from sweeps.config.overrides import CONF_DIR, check_overrides, composition_error, groups, hydra_override, key_of
from sweeps.config.search_checks import search_problems
from sweeps.config.search_space import PRESET_KEY, flat_space
from sweeps.config.suggestions import quoted_text
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
        ConfigError: the overrides, or the values that result from them, are wrong: all problems in one message.
    """
    try:
        return _composed(overrides)
    except ConfigError as error:
        raise ConfigError("\n".join(_all_problems(overrides, error))) from error


def _all_problems(overrides: Sequence[str], first: ConfigError) -> list[str]:
    """The first problem, and those that are found when the overrides that it names are left out, and so on.

    A later problem that names a key that was left out may be a consequence of leaving it out, and is not listed.
    """
    found, left, left_out, error = [], list(overrides), set[str](), first
    while True:
        found += [line for line in _separate(str(error)) if line not in found and not _named(line, left_out)]
        wrong = {key for key in map(key_of, left) if key != "stage" and _named(str(error), {key})}
        if not wrong:
            return found
        left_out |= wrong
        left = [o for o in left if key_of(o) not in wrong]
        try:
            _composed(left)
        except ConfigError as next_error:
            error = next_error
        else:
            return found


def _separate(message: str) -> list[str]:
    """The problems of a message, one per line; lines that begin with a space belong to the line before."""
    return re.split(r"\n(?! )", message)


def _named(text: str, keys: set[str]) -> bool:
    """Whether a message names one of the keys, or the choice in one of the groups."""
    ends = {key: r"(?!\w)" if "." in key or key not in groups() else r"(?:=| ')" for key in keys}
    return any(re.search(rf"(?<![\w.]){re.escape(key)}{end}", text) for key, end in ends.items())


def _composed(overrides: Sequence[str]) -> SweepConfig:
    check_overrides(overrides)
    return build(_compose(overrides), overrides)


def _compose(overrides: Sequence[str]) -> DictConfig:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    OmegaConf.register_new_resolver("lr_by_method", lr_by_method, replace=True)
    with initialize_config_dir(config_dir=str(CONF_DIR), version_base="1.3"):
        try:
            return hydra_compose(config_name="config", overrides=[hydra_override(o) for o in overrides])
        except (HydraException, OmegaConfBaseException) as error:
            raise composition_error(error, overrides) from error


def lr_by_method(lora_rank: int) -> float:
    """The default learning rate of `model=hf`: ten times as high with LoRA adapters as for all weights.

    1e-6 is the default of TRL's GRPOConfig; the factor is that of "LoRA Without Regret" (Thinking Machines Lab, 2025).
    """
    return 1e-5 if lora_rank else 1e-6


def build(cfg: DictConfig, overrides: Sequence[str]) -> SweepConfig:
    """Type and check a composed configuration.

    Args:
        overrides: those it was composed with.

    Raises:
        ConfigError: a missing or unknown key, a wrong type, or values that cannot run; all wrong values in one message.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        data: Any = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise composition_error(error, overrides) from error
    data.pop("hydra", None)
    config = _typed(data)
    search = dataclasses.replace(config.search, cards_per_trial=config.search.cards_per_trial or config.machine.cards)
    config = _with_presets(dataclasses.replace(config, search=search), overrides)
    if found := value_problems(config) or list(search_problems(config)):
        raise ConfigError("\n".join(found))
    paths = {f.name: str(Path(getattr(config.paths, f.name)).expanduser()) for f in dataclasses.fields(config.paths)}
    return dataclasses.replace(config, paths=dataclasses.replace(config.paths, **paths))


def _with_presets(config: SweepConfig, overrides: Sequence[str]) -> SweepConfig:
    """The configuration with the settings of each preset of `search.space.algorithm`, as if chosen alone."""
    from omegaconf import OmegaConf

    axis = config.search.space.get(PRESET_KEY)
    if axis is None:
        return config
    kept = [o for o in overrides if key_of(o) != PRESET_KEY and not key_of(o).startswith("search.space")]
    presets = {}
    for name in axis.choices:
        composed = _compose([*kept, f"{PRESET_KEY}={name}"])
        presets[name] = from_json(AlgorithmSpec, OmegaConf.to_container(composed, resolve=True)[PRESET_KEY])  # pyright: ignore
    space = {**config.search.space, PRESET_KEY: dataclasses.replace(axis, presets=presets)}
    return dataclasses.replace(config, search=dataclasses.replace(config.search, space=space))


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
                f"currency: 'budget.{key}={_two_digits(amount)} USD'"
            )
    for key in _EMPTY_IS_NONE:
        if data["machine"].get(key) == "":
            data["machine"][key] = None
    try:
        return from_json(SweepConfig, data)
    except ValueError as error:
        text = str(error).replace("SweepConfig has", "the configuration has").removeprefix("SweepConfig.")
        raise ConfigError(text + _how_to_write(text)) from error


def _two_digits(amount: float) -> str:
    """12.10 for 12.1; further digits stay."""
    digits = Decimal(str(amount)).normalize()
    exponent = digits.as_tuple().exponent
    return f"{digits:.2f}" if isinstance(exponent, int) and exponent > -2 else f"{digits:f}"


def _how_to_write(complaint: str) -> str:
    """What to type instead, for a message of `rl.codec` about a wrong type."""
    found = re.fullmatch(r"(\S+?)=(.*) should be of type (\w+)", complaint)
    if not found:
        return ""
    key, value, kind = found.groups()
    if kind == "str":
        if value == "None":
            return "; null is not possible here"
        return "; quote each text of the list" if "[" in key else f"; quote a text twice: {quoted_text(key, value)}"
    return {"bool": "; write true or false", "int": "; write a whole number"}.get(kind, "; write a number")


def _without_passwords(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _without_passwords(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_without_passwords(v) for v in value]
    return mask_secrets(value) if isinstance(value, str) else value

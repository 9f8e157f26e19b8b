"""Loads the gate rules of a stage: `gate.rules`, or by default `conf/gate/rules/STAGE.yaml`.

Tested in tests/sweeps/protocol/test_stage_rules.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sweeps.config.axes import axes
from sweeps.config.overrides import CONF_DIR
from sweeps.config.types import ConfigError, SweepConfig
from sweeps.protocol.gate_rule_files import GateRuleError, parse_rules, why_never_judged
from sweeps.protocol.gate_rules import Rule


@dataclass(frozen=True)
class StageRules:
    """The rules by which the gate of one stage judges."""

    rules: tuple[Rule, ...]
    left_out: tuple[str, ...] = ()
    """`NAME: why`, for each rule of the stage's own file that a shortened stage can never judge."""


def stage_rules(cfg: SweepConfig) -> StageRules:
    """The rules of the stage.

    A rule of `gate.rules` that the stage is too short for is an error: the person who wrote the file relies on it. The
    stage's own file fits the stage's own length; a shorter `stage.steps` leaves out rules, and the plan lists them.

    Raises:
        ConfigError: the file cannot be read, or a rule cannot work; with every problem of the file.
    """
    ends = {axis.key: axis.extremes for axis in axes(cfg)}
    completions = min(ends["prompts_per_step"]) * min(ends["group_size"])
    if cfg.gate.rules:
        rules = _parse(Path(cfg.gate.rules).expanduser(), f"gate.rules={cfg.gate.rules}", cfg.stage.steps, completions)
        return StageRules(rules)
    own = CONF_DIR / "gate" / "rules" / f"{cfg.stage.name}.yaml"
    rules = _parse(own, f"conf/gate/rules/{own.name}")
    left_out = {
        rule.name: "; ".join(problems)
        for rule in rules
        if (problems := why_never_judged(rule, cfg.stage.steps, completions))
    }
    kept = tuple(rule for rule in rules if rule.name not in left_out)
    return StageRules(kept, tuple(f"{name}: {why}" for name, why in left_out.items()))


def _parse(path: Path, name: str, steps: int | None = None, completions: int | None = None) -> tuple[Rule, ...]:
    try:
        return parse_rules(path.read_text(), file=name, stage_steps=steps, completions_per_step=completions)
    except GateRuleError as error:
        raise ConfigError("\n".join(error.problems)) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: the file is not UTF-8 text") from error
    except OSError as error:
        raise ConfigError(f"{name}: the file cannot be read ({error.strerror})") from error

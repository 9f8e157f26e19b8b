"""conf/ itself: every key has a comment, a field and a reader, and every field has a key."""

from __future__ import annotations

import ast
import dataclasses
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import OmegaConf

from sweeps.config.help import TYPED_MOST, help_text
from sweeps.config.overrides import CONF_DIR, about, groups, known_keys, options
from sweeps.config.types import StageConfig, SweepConfig

ROOT = CONF_DIR.parent
FILES = sorted(p.relative_to(CONF_DIR) for p in CONF_DIR.rglob("*.yaml") if "pricing" not in p.parts)

DECLARE_OR_CHECK = {
    *("types.py", "spec.py", "build.py"),
    *("value_checks.py", "recipe_checks.py", "machine_checks.py", "budget_checks.py", "search_checks.py"),
}
"""Files that name every key without doing anything with it."""
DONE_BY_A_CHECK = {"stage.min_cards", "budget.required_tags"}
"""Keys whose whole effect is that a configuration is refused."""
PENDING = {
    "rollout.gpu_memory_utilization",
    "rollout.kv_cache_gib",
}
"""Keys whose consumer is not written yet. Only ever gets shorter."""


@pytest.mark.parametrize("path", FILES, ids=str)
def test_every_key_has_a_comment_on_the_line_above(path: Path) -> None:
    text = (CONF_DIR / path).read_text()
    lines = text.splitlines()
    bare = [
        key.value
        for key in _keys(yaml.compose(text))
        if not (above := lines[key.start_mark.line - 1].strip()).startswith("# ") or len(above) < len("# See X's file.")
    ]
    assert bare == []


@pytest.mark.parametrize("path", FILES, ids=str)
def test_every_file_begins_with_its_purpose(path: Path) -> None:
    first = next(line for line in (CONF_DIR / path).read_text().splitlines() if not line.startswith("# @"))
    assert first.startswith("# ")
    assert len(first.split()) >= 5


def test_every_file_keeps_to_the_line_length() -> None:
    assert [f"{p}: {line}" for p in FILES for line in (CONF_DIR / p).read_text().splitlines() if len(line) > 120] == []


def test_there_is_a_group_for_every_part_of_the_configuration_and_no_other() -> None:
    parts = {name for name, hint in typing.get_type_hints(SweepConfig).items() if dataclasses.is_dataclass(hint)}
    assert set(groups()) == parts - {"evaluation", "paths", "retry"}


def test_the_name_of_a_machine_is_the_name_of_its_file() -> None:
    for name in options("machine"):
        assert yaml.safe_load((CONF_DIR / f"machine/{name}.yaml").read_text())["name"] == name


def test_the_stages_follow_each_other_up_the_ladder() -> None:
    following = {
        n: yaml.safe_load((CONF_DIR / f"stage/{n}.yaml").read_text())["stage"]["next_stage"] for n in options("stage")
    }
    assert following == {"preflight": "smoke", "smoke": "single", "single": "multi", "multi": ""}
    assert tuple(following) == typing.get_args(typing.get_type_hints(StageConfig)["name"])


def test_the_stage_is_not_among_the_defaults_and_only_hydra_is_overridden() -> None:
    defaults = yaml.safe_load((CONF_DIR / "config.yaml").read_text())["defaults"]
    names = [next(iter(d)) for d in defaults if isinstance(d, dict)]
    assert "stage" not in names
    assert [n for n in names if n.startswith("override")] == [
        "override hydra/job_logging",
        "override hydra/hydra_logging",
    ]
    assert {n for n in names if not n.startswith("override")} == set(groups()) - {"stage"}


def test_every_field_has_a_key_so_that_it_can_be_typed_without_a_plus_sign() -> None:
    with initialize_config_dir(config_dir=str(CONF_DIR), version_base="1.3"):
        cfg = hydra_compose("config", ["+stage=smoke", "trainer=simulated"])
    typed = set(_dotted(OmegaConf.to_container(cfg)))
    keys, open_ended = known_keys()
    assert set(keys) - typed == set()
    assert {k for k in typed - set(keys) if not k.startswith(tuple(f"{o}." for o in open_ended))} == set()


def test_every_key_does_something() -> None:
    used = set(_names_used())
    keys, _ = known_keys()
    leaves = [k for k in keys if not any(other.startswith(f"{k}.") for other in keys)]
    if "hardware" in used:  # MachineConfig.hardware, where it is shown
        used |= {
            n.attr
            for n in ast.walk(ast.parse((ROOT / "sweeps/config/types.py").read_text()))
            if isinstance(n, ast.Attribute)
        }
    unused = {k for k in leaves if k.rsplit(".", 1)[-1] not in used} - DONE_BY_A_CHECK
    assert unused - PENDING == set()


def test_the_help_names_only_existing_keys_and_all_options() -> None:
    keys = set(known_keys()[0])
    typed = {k.strip("'").partition("=")[0] for k in TYPED_MOST}
    assert typed <= keys
    text = help_text()
    for group in groups():
        for option in options(group):
            assert option in text
    for stage in options("stage"):
        assert f"python sweep.py +stage={stage}" in text
        assert about("stage", stage) in text


def test_the_user_guide_names_only_existing_keys_and_all_options() -> None:
    """The guide is written by hand: what it shows as code and looks like a choice or a key must exist."""
    keys, open_ended = known_keys()
    text = (ROOT / "docs/configuration.md").read_text()
    for argument in _typed_arguments(text):
        name, _, value = argument.partition("=")
        name = name.lstrip("+")
        if name in groups():
            assert value in options(name), argument
        else:
            assert name in keys or name.startswith(tuple(f"{o}." for o in open_ended)), argument
    for group in groups():
        assert f"`{group}`" in text
        for option in options(group):
            assert f"`{option}`" in text, f"{group}={option}"


def _typed_arguments(markdown: str) -> Iterator[str]:
    import re
    import shlex

    for command in re.findall(r"python sweep\.py ([^`\n]*)", markdown):
        yield from (w for w in shlex.split(command, comments=True) if "=" in w and not w.startswith("-"))
    yield from re.findall(r"`(\+?[a-z_]+(?:\.[a-z_]+)+=?)[^`]*`", re.sub(r"```.*?```", "", markdown, flags=re.S))


def _keys(node: yaml.Node | None) -> Iterator[yaml.ScalarNode]:
    """The keys of a document, those inside lists left out."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key
            yield from _keys(value)


def _dotted(data: typing.Any, prefix: str = "") -> Iterator[str]:
    if isinstance(data, dict):
        for key, value in data.items():
            if prefix or key != "hydra":
                yield f"{prefix}{key}"
                yield from _dotted(value, f"{prefix}{key}.")


def _names_used() -> Iterator[str]:
    """Attributes read, keywords passed and texts written in the packages, but for the files that only declare."""
    for path in (p for folder in ("rl", "cost", "sweeps") for p in (ROOT / folder).rglob("*.py")):
        if path.name in DECLARE_OR_CHECK:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                yield node.attr
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value

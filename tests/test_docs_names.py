"""Names in the user guide are those of the program: keys, curves, checks of the gate, commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

import cost.cli.main
import sweeps.cli.main
from sweeps.config.help import help_text
from sweeps.config.overrides import groups, known_keys
from sweeps.config.types import SweepConfig
from sweeps.driver import finish as exit_codes
from tests.sweeps.in_process import a_sweep

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SECTIONS = sorted({*groups(), *SweepConfig.__dataclass_fields__})
FIELDS = {key.rpartition(".")[2] for key in known_keys()[0]}
KEY = re.compile(rf"(?<![\w./-])((?:{'|'.join(SECTIONS)})\.[a-z_]+(?:\.[a-z_]+)*)(?==|`)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_key_on_a_page_exists(page: Path) -> None:
    keys, open_ended = known_keys()
    unknown = {
        key
        for key in KEY.findall(page.read_text())
        if key not in keys and not key.startswith(tuple(f"{k}." for k in open_ended))
    }
    assert unknown == set()


def test_the_page_of_the_smoke_stage_lists_the_checks_of_the_gate(tmp_path: Path) -> None:
    sweep = a_sweep(tmp_path).run()
    verdict = sweep.verdict()
    rows = re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs/stages/smoke.md").read_text(), re.MULTILINE)
    assert rows == [check.name for check in verdict.checks]


@pytest.mark.parametrize(("program", "app"), [("sweeps", sweeps.cli.main.app), ("cost", cost.cli.main.app)])
def test_every_command_on_a_page_exists(program: str, app: typer.Typer) -> None:
    command = typer.main.get_command(app)
    known = set(command.commands)  # pyright: ignore[reportAttributeAccessIssue]
    typed = {
        (page.name, name)
        for page in PAGES
        for name in re.findall(rf"python -m {program} ([a-z][a-z-]+)", page.read_text())
    }
    assert len(typed) > 5
    assert {(page, name) for page, name in typed if name not in known} == set()


def test_the_page_of_the_command_and_its_help_list_the_exit_codes_of_the_driver() -> None:
    used = {value for name, value in vars(exit_codes).items() if name.startswith("EXIT_")}
    page = (ROOT / "docs/commands/sweep.md").read_text().partition("## Exit codes")[2]
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    assert listed == used
    text = help_text().partition("Exit codes: ")[2]
    assert {int(code) for code in re.findall(r"\b(\d+) [a-z]", text.partition(". `")[0])} == listed


def test_every_name_of_a_share_on_a_page_is_that_of_a_curve() -> None:
    """`reward_error_frac`, for example. Names with a dot are keys."""
    written = {name for page in PAGES for name in re.findall(r"`([a-z_]+_frac)`", page.read_text())}
    source = (ROOT / "sweeps/journal/metrics.py").read_text() + (ROOT / "rl/curves.py").read_text()
    source += "".join(path.read_text() for path in (ROOT / "rl/trainers/logs").glob("*.py"))
    source += "".join(path.read_text() for path in (ROOT / "sweeps/protocol").rglob("*.py"))
    assert "reward_error_frac" in written
    assert {name for name in written if name not in source and name not in FIELDS} == set()

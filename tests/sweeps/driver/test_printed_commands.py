"""The commands that a sweep prints work when a person pastes them, whatever characters `paths.root` has."""

from __future__ import annotations

import io
import json
import shlex
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from mlflow import MlflowClient
from typer.testing import CliRunner

from cost.cli.main import app as cost_app
from cost.commands import command_text
from cost.ledger.database import shown_place
from sweeps.cli.main import app as sweeps_app
from sweeps.config.build import compose
from sweeps.config.suggestions import quoted_text
from sweeps.driver.driver import run
from sweeps.report.mlflow_store import default_uri


@pytest.fixture(scope="module")
def printed(tmp_path_factory) -> tuple[Path, str]:
    """A root folder with characters of shells and URLs, and what a simulated smoke in it printed."""
    root = tmp_path_factory.mktemp("typed") / """it's "#1"?a=50%41 & $HOME"""
    typed = shlex.split(f"+stage=smoke trainer=simulated {quoted_text('paths.root', str(root))}")
    output = io.StringIO()
    with redirect_stdout(output):
        assert run(compose(typed), typed) == 0
    return root, output.getvalue()


def words_after(label: str, text: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(label)]
    return shlex.split(line.removeprefix(label))


def test_the_next_command_finds_the_open_gate(printed: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    root, text = printed
    python, script, *typed = words_after("Next:", text)
    assert (python, script) == ("python", "sweep.py")
    cfg = compose([*typed, "dry_run=true"])
    assert cfg.paths.root == str(root)
    assert run(cfg, typed) == 0
    assert "Follows smoke-" in capsys.readouterr().out


def test_the_command_for_mlflow_opens_the_store_with_the_runs(printed: tuple[Path, str]) -> None:
    root, text = printed
    *command, uri = words_after("Compare:", text)
    assert command == ["mlflow", "ui", "--backend-store-uri"]
    client = MlflowClient(uri)
    experiments = [e.experiment_id for e in client.search_experiments()]
    assert len(client.search_runs(experiments)) == 4  # the sweep and its trials
    assert [path.name for path in root.parent.iterdir()] == [root.name]


def test_the_cost_of_the_parent_run_is_that_of_the_report(printed: tuple[Path, str]) -> None:
    root, _ = printed
    client = MlflowClient(default_uri(root))
    (parent,) = client.search_runs([e.experiment_id for e in client.search_experiments()], "metrics.cost > 0")
    report = json.loads(CliRunner().invoke(cost_app, ["report", "--json", "--root", str(root)]).stdout)
    assert parent.data.metrics["cost"] == pytest.approx(float(report["total"]), rel=1e-9)
    assert parent.data.tags["currency"] == "USD"


@pytest.mark.parametrize(
    "arguments", [("sweeps", "track"), ("sweeps", "status"), ("cost", "report"), ("cost", "leases", "list")]
)
def test_commands_in_messages_find_the_ledger(printed: tuple[Path, str], arguments: tuple[str, ...]) -> None:
    place = shown_place(printed[0] / "ledger.db")
    _, _, module, *words = shlex.split(command_text(*arguments, place=place))
    result = CliRunner().invoke({"sweeps": sweeps_app, "cost": cost_app}[module], words)
    assert result.exit_code == 0, result.output
    assert result.output

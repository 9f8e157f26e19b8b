"""Whole sweeps under limits, as `sweep.py` runs them, with what `python -m cost budget` keeps and shows."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cost.cli.main import app
from cost.clock import FakeClock
from cost.ledger.ledger import Ledger
from sweeps.config.build import compose
from sweeps.driver.driver import EXIT_BUDGET, EXIT_INTERRUPTED, EXIT_OK, run
from sweeps.journal.journal import load, sweep_ids

ONE = ("+stage=smoke", "trainer=simulated", "search.lr_scaling=[hold]", "search.prompts_per_step=[2]")
"""One trial of 0.00026 USD."""


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory) -> str:
    """One store for all: a new one takes seconds to make."""
    return f"tracking.uri=sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture
def a_run(mlflow, tmp_path):
    def go(*overrides: str) -> int:
        typed = [*ONE, mlflow, f"paths.root={tmp_path}", *overrides]
        return run(compose(typed), typed)

    return go


def budgets(root: Path, *settings: str) -> dict[str, dict]:
    """What `cost budget` shows of simulated sweeps, by scope."""
    given = [argument for setting in settings for argument in ("--set", setting)]
    result = CliRunner().invoke(app, ["budget", "--root", str(root), "--json", *given])
    assert result.exit_code == 0, result.output
    return {b["scope"]: b for b in json.loads(result.stdout)["budgets"] if b["simulated"]}


def test_a_sweep_without_room_for_one_trial_is_refused_before_a_lease_is_opened(a_run, tmp_path, capsys):
    assert a_run() == EXIT_OK
    spent = budgets(tmp_path, "stage:smoke=0.0004 USD")["stage:smoke"]["spent"]
    capsys.readouterr()
    assert a_run("resume=never") == EXIT_BUDGET
    output = " ".join(capsys.readouterr().out.split())
    assert "no trial is started: stage smoke: a trial needs 0.000" in output
    raised = f"python -m cost budget --set 'stage:smoke=AMOUNT CURRENCY' --root {tmp_path}"
    assert f"{raised} && python sweep.py +stage=smoke" in output
    assert "resume=never" not in output.partition("Continue:")[2]
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        assert len(ledger.leases.find()) == 1
        assert load(ledger, sweep_ids(ledger)[-1]).ended == "budget"
    assert budgets(tmp_path)["stage:smoke"]["spent"] == spent
    budgets(tmp_path, "stage:smoke=none")
    assert a_run() == EXIT_OK
    assert len(list(tmp_path.glob("smoke-*"))) == 2


@pytest.mark.parametrize("key", ["trial_limit", "sweep_limit", "stage_limit", "month_limit"])
def test_each_limit_stops_a_sweep_that_can_be_resumed_under_a_higher_limit(a_run, tmp_path, key: str):
    assert a_run(f"budget.{key}=0.0001 EUR") == EXIT_BUDGET
    assert a_run(f"budget.{key}=1 EUR") == EXIT_OK
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        (trial,) = load(ledger, *sweep_ids(ledger)).trials.values()
    assert [a.outcome for a in trial.attempts] == ["budget", "completed"]
    assert trial.attempts[1].from_step > 0


def test_a_paused_sweep_continues_when_the_limit_is_raised(a_run, tmp_path, monkeypatch, capsys):
    budgets(tmp_path, "month=0.0001 USD")
    monkeypatch.setattr("sweeps.driver.driver.sleep", lambda _: budgets(tmp_path, "month=1 USD"))
    assert a_run("budget.at_limit=pause") == EXIT_OK
    output = " ".join(capsys.readouterr().out.split())
    assert "budget: paused: month" in output
    assert "the machine goes on costing 0.0117 USD an hour" in output
    assert "there is room again" in output


def test_an_interrupted_paused_sweep_leaves_closed_usages_and_can_be_resumed(a_run, tmp_path, monkeypatch):
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sweeps.driver.driver.sleep", interrupt)
    paused = ("budget.at_limit=pause", "budget.sweep_limit=0.0001 USD")
    assert a_run(*paused) == EXIT_INTERRUPTED
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        assert not ledger.leases.find(only_open=True)
        assert ledger.reservations.find_open() == []
    assert a_run() == EXIT_OK


def test_the_machine_of_a_killed_driver_is_released_when_its_sweep_is_refused(a_run, tmp_path):
    assert a_run("budget.sweep_limit=0.0001 USD") == EXIT_BUDGET
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        (sweep_id,) = sweep_ids(ledger)
        before = ledger.leases.find()[0].lease
        left = dataclasses.replace(before, lease_id="left", from_ns=None)
    clock = FakeClock(utc=10**9 * 2_000_000_000)
    with Ledger.open(tmp_path / "ledger.db", clock) as ledger:
        ledger.leases.open(left)
        ledger.leases.attach("left", sweep_id)
    assert a_run("budget.sweep_limit=0.0001 USD") == EXIT_BUDGET
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        assert not ledger.leases.find(only_open=True)
        assert len(ledger.leases.find()) == 2

"""A whole driver with machine.up and machine.down: simulated trials on a machine that counts as real."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from cost.clock import FakeClock
from cost.ledger import release_requests
from cost.ledger.ledger import Ledger
from cost.ledger.sweep_lock import sweep_lock
from sweeps.config.build import compose
from sweeps.config.types import ConfigError
from sweeps.driver.driver import EXIT_INTERRUPTED, EXIT_OK, run
from sweeps.journal.journal import load, sweep_ids
from sweeps.journal.outcomes import DriverEnd
from sweeps.machines import lease
from tests.sweeps.machines.test_release import RENTED


@pytest.fixture(autouse=True, scope="module")
def mlflow_store(tmp_path_factory):
    """One MLflow store for all tests: creating one takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACQUIRE_MLFLOW", f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db")
        yield


@pytest.fixture(autouse=True)
def real_machine(monkeypatch):
    monkeypatch.setattr(lease, "is_real_machine", lambda cfg: True)
    monkeypatch.setattr(lease, "machine_instance", lambda cfg, sweep_id: "box")  # one machine for all sweeps


def configuration(folder: Path, *more: str):
    small = ["trainer=simulated", "stage.steps=2", "search.prompts_per_step=[2]", f"paths.root={folder}/runs"]
    return compose([*RENTED, *small, f"tracking.uri={os.environ['ACQUIRE_MLFLOW']}", *more])


def leases(folder: Path):
    with Ledger.open(folder / "runs" / "ledger.db", create=False, read_only=True) as ledger:
        return ledger.leases.find()


def test_the_machine_is_released_after_the_last_trial(tmp_path, capsys):
    up = f'machine.up="touch {tmp_path}/up"'
    down = f'machine.down="test -e {tmp_path}/up && touch {tmp_path}/gone"'
    code = run(configuration(tmp_path, up, down, "machine.down_unsaved=true"))
    text = " ".join(capsys.readouterr().out.split())
    assert code == 0, text
    assert (tmp_path / "gone").exists()
    assert "Machine: cpu was released" in text
    assert [(lease.to_ns is not None, lease.released) for lease in leases(tmp_path)] == [(True, True)]


def test_unsaved_files_keep_the_machine_and_its_lease(tmp_path, capsys):
    code = run(configuration(tmp_path, f'machine.down="touch {tmp_path}/gone"'))
    text = " ".join(capsys.readouterr().out.split())
    assert code == 0, text
    assert "NOT released and costs" in text
    assert not (tmp_path / "gone").exists()
    assert [lease.to_ns for lease in leases(tmp_path)] == [None]


def test_a_machine_started_for_a_sweep_without_budget_is_released(tmp_path, capsys):
    down = f'machine.down="touch {tmp_path}/gone"'
    code = run(configuration(tmp_path, "machine.up=hostname", down, 'budget.sweep_limit="0.000001 USD"'))
    text = " ".join(capsys.readouterr().out.split())
    assert code == 4, text
    assert "which machine.up started, was released" in text
    assert (tmp_path / "gone").exists()
    assert leases(tmp_path) == []


def test_without_down_the_end_reports_the_running_machine_and_its_price(tmp_path, capsys):
    code = run(configuration(tmp_path))
    text = " ".join(capsys.readouterr().out.split())
    assert code == 0, text
    assert "Still running: cpu (runpod-h100 at runpod) costs" in text
    assert "USD an hour" in text


def test_a_failing_machine_up_leaves_no_lease(tmp_path):
    with pytest.raises(ConfigError, match=r"machine.up failed with exit code 7: no capacity"):
        run(configuration(tmp_path, 'machine.up="echo no capacity >&2; exit 7"'))
    assert not (tmp_path / "runs" / "ledger.db").exists() or leases(tmp_path) == []


def test_a_machine_started_for_a_sweep_that_cannot_start_is_released(tmp_path):
    spoilt = f'machine.up="mkdir -p {tmp_path}/runs && echo no ledger > {tmp_path}/runs/ledger.db"'
    with pytest.raises(ConfigError, match=r"ledger.db(.|\n)*which machine.up started, was released"):
        run(configuration(tmp_path, spoilt, f'machine.down="touch {tmp_path}/gone"'))
    assert (tmp_path / "gone").exists()


def test_no_machine_is_started_for_an_unknown_sweep(tmp_path):
    with pytest.raises(ConfigError, match="there is no such sweep"):
        run(configuration(tmp_path, f'machine.up="touch {tmp_path}/up"', "resume=smoke-000000-9"))
    assert not (tmp_path / "up").exists()


def test_the_next_sweep_releases_the_machine_of_an_ended_one(tmp_path, capsys):
    run(configuration(tmp_path, 'machine.down="exit 1"', "machine.down_unsaved=true"))
    assert "RELEASE_UNCONFIRMED" in capsys.readouterr().out
    run(configuration(tmp_path, f'machine.down="touch {tmp_path}/gone"', "machine.down_unsaved=true", "resume=never"))
    assert "was released" in capsys.readouterr().out
    assert [(lease.to_ns is not None, lease.released) for lease in leases(tmp_path)] == [(True, True)]


def test_a_machine_that_another_sweep_is_releasing_is_refused(tmp_path):
    run(configuration(tmp_path, 'machine.down="exit 1"', "machine.down_unsaved=true"))
    ledger = tmp_path / "runs" / "ledger.db"
    with Ledger.open(ledger) as opened:
        (state,) = opened.leases.find()
        last_ns = max(
            event.at_ns for event in opened.events.read(release_requests.STREAM)
        )  # by the sweep's clock, which ran ahead
    with Ledger.open(ledger, FakeClock(utc=last_ns + 1)) as opened:
        release_requests.record_requested(opened, state.lease.lease_id, "down")
    again = configuration(tmp_path, "resume=never")
    with (
        sweep_lock(ledger, state.sweeps[0]),
        pytest.raises(ConfigError, match=r"\(process \d+ .*\) is releasing the machine"),
    ):
        run(again)
    assert run(again) == 0


BEFORE_TRIALS = [
    "sweeps.machines.acquire.unaccounted.unaccounted_times",
    "sweeps.scheduling.budget_controller.BudgetController.use_lease",
    "sweeps.driver.deadman.start",
    "sweeps.driver.background.BackgroundServices.start",
    "sweeps.driver.driver.SweepController",
]
"""Called one after the other between the attachment to the lease and the first trial."""


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("moment", BEFORE_TRIALS)
def test_ctrl_c_before_the_first_trial_detaches_the_lease_and_keeps_the_machine(tmp_path, monkeypatch, capsys, moment):
    cfg = configuration(tmp_path, "machine.up=hostname", f'machine.down="touch {tmp_path}/gone"')
    with monkeypatch.context() as patch:
        patch.setattr(moment, interrupt)
        with suppress(KeyboardInterrupt):  # sweep.py turns it into one line
            assert run(cfg) == EXIT_INTERRUPTED
    with Ledger.open(tmp_path / "runs" / "ledger.db", create=False, read_only=True) as ledger:
        (state,) = ledger.leases.find()
        (sweep_id,) = sweep_ids(ledger)
        assert load(ledger, sweep_id).ended is DriverEnd.INTERRUPTED
    assert state.to_ns is not None
    assert state.sweeps == ()
    assert not (tmp_path / "gone").exists()
    assert "Still running: cpu" in " ".join(capsys.readouterr().out.split())
    assert run(configuration(tmp_path, f'machine.down="touch {tmp_path}/gone"', "machine.down_unsaved=true")) == EXIT_OK


def test_ctrl_c_between_machine_up_and_the_lease_releases_the_machine(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sweeps.driver.driver.load_mlflow", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(configuration(tmp_path, "machine.up=hostname", f'machine.down="touch {tmp_path}/gone"'))
    assert (tmp_path / "gone").exists()
    assert "which machine.up started, was released" in " ".join(capsys.readouterr().out.split())
    assert leases(tmp_path) == []

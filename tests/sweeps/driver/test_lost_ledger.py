"""A ledger that is deleted, replaced or full during a sweep; a driver that dies before it releases its machine."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from cost.ledger.ledger import Ledger
from sweeps.config.build import compose
from sweeps.driver.driver import EXIT_FAILED, EXIT_OK, run
from sweeps.executors.in_process import InProcessExecutor
from sweeps.journal.journal import load, sweep_ids
from sweeps.journal.outcomes import DriverEnd
from sweeps.machines import lease

TYPED = [
    *("+stage=smoke", "trainer=simulated", "search.lr_scaling=[hold]", "search.prompts_per_step=[2]"),
    "search.seeds=[0,1]",
]
MESSAGES_BEFORE = 15


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory) -> str:
    """One store for all: making a store takes seconds."""
    return f"tracking.uri=sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture
def a_run(mlflow, tmp_path, monkeypatch):
    """Runs a sweep whose machine counts as a real one, so that `machine.down` is called."""
    monkeypatch.setattr(lease, "is_real_machine", lambda cfg: True)
    down = ["machine.down_unsaved=true", f'machine.down="touch {tmp_path}/released"']
    typed = [*TYPED, *down, mlflow, f"paths.root={tmp_path}/runs"]
    return lambda: run(compose(typed), typed)


@pytest.fixture
def during_the_sweep(monkeypatch):
    """Calls a function, with the controller, after some messages of the first trial."""
    deliver = InProcessExecutor._deliver

    def install(action) -> None:
        count = 0

        def delivering(self: InProcessExecutor, running: Any, controller: Any) -> None:
            nonlocal count
            count += 1
            if count == MESSAGES_BEFORE:
                action(controller)
            deliver(self, running, controller)

        monkeypatch.setattr(InProcessExecutor, "_deliver", delivering)

    return install


def output(capsys) -> str:
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err
    return captured.out


def test_a_ledger_deleted_during_a_sweep_is_written_back_and_the_machine_is_released(
    a_run, during_the_sweep, tmp_path, capsys
):
    ledger_file = tmp_path / "runs" / "ledger.db"
    during_the_sweep(lambda _: ledger_file.unlink())
    assert a_run() == EXIT_FAILED
    out = output(capsys)
    assert out.count("was deleted or moved while it was in use") == 1
    assert f"written back to {ledger_file}" in out
    assert "gate: open" not in out.lower()
    assert (tmp_path / "released").exists()
    with Ledger.open(ledger_file) as ledger:
        record = load(ledger, *sweep_ids(ledger))
        assert record.ended is DriverEnd.FAILED
        assert next(iter(record.trials.values())).summary.step > 0
        assert not ledger.leases.find(only_open=True)
    assert a_run() == EXIT_OK


def test_a_ledger_replaced_during_a_sweep_is_kept_beside_the_new_file_which_stays_as_it_is(
    a_run, during_the_sweep, tmp_path, capsys
):
    ledger_file = tmp_path / "runs" / "ledger.db"

    def replace(_: Any) -> None:
        ledger_file.unlink()
        ledger_file.write_bytes(b"another file")

    during_the_sweep(replace)
    assert a_run() == EXIT_FAILED
    (rescued,) = (tmp_path / "runs").glob("ledger.rescued-*.db")
    assert f"python -m cost restore {rescued} --root {tmp_path / 'runs'}" in output(capsys)
    assert ledger_file.read_bytes() == b"another file"
    with Ledger.open(rescued) as ledger:
        assert load(ledger, *sweep_ids(ledger)).ended is DriverEnd.FAILED


def test_a_full_disk_stops_the_sweep_with_one_message_and_releases_the_machine(
    a_run, during_the_sweep, tmp_path, capsys
):
    def fill(controller: Any) -> None:
        with controller._ledger.database.engine.connect() as connection:
            raw: sqlite3.Connection = connection.connection.driver_connection
            pages = raw.execute("PRAGMA page_count").fetchone()[0]
            raw.execute(f"PRAGMA max_page_count={pages}")

    during_the_sweep(fill)
    assert a_run() == EXIT_FAILED
    out = output(capsys)
    assert out.count("is full; nothing was written. Free some space") == 1
    assert "its command exited with 0" in out
    assert "python -m cost leases close" in out
    assert (tmp_path / "released").exists()
    assert a_run() == EXIT_OK


def test_resume_releases_the_machine_of_a_driver_that_died_after_the_end_of_its_sweep(
    a_run, tmp_path, monkeypatch, capsys
):
    def die(*_: Any, **__: Any) -> None:
        raise SystemExit(9)

    with monkeypatch.context() as killed:
        killed.setattr("sweeps.driver.driver.release_machine", die)
        with pytest.raises(SystemExit):
            a_run()
    assert not (tmp_path / "released").exists()
    with Ledger.open(tmp_path / "runs" / "ledger.db") as ledger:
        assert load(ledger, *sweep_ids(ledger)).finished
        assert ledger.leases.find(only_open=True)
    capsys.readouterr()
    assert a_run() == EXIT_OK
    out = output(capsys)
    assert "was released" in out
    assert "is finished" in out
    assert (tmp_path / "released").exists()
    with Ledger.open(tmp_path / "runs" / "ledger.db") as ledger:
        assert len(sweep_ids(ledger)) == 1
        assert all(state.released for state in ledger.leases.find())

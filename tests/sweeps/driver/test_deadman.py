"""The dead-man timer: real drivers that are killed, and drivers whose machine must be kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from cost.ledger import release_requests
from cost.ledger.ledger import Ledger
from cost.ledger.sweep_lock import sweep_lock
from sweeps.config.build import canonical, compose
from sweeps.driver.deadman import start, watch
from sweeps.journal.events import AttemptStarted, DriverEnded, DriverStarted, SweepPlanned
from sweeps.journal.journal import Journal, TrialState, load
from sweeps.journal.outcomes import DriverEnd
from sweeps.machines.lease import attach_to_machine
from sweeps.machines.pricing import find_price
from sweeps.planning.plan import make_plan
from tests.e2e.test_sweep_command import ROOT, module

SWEEP = "smoke-test-1"


def configuration(root: Path, *more: str):
    down = f'machine.down="touch {root}/gone"'
    return compose(["+stage=smoke", f"paths.root={root}", down, "machine.down_unsaved=true", *more])


def begin(root: Path, ledger: Ledger, *more: str) -> tuple[Journal, str]:
    """What a driver writes before its first trial."""
    cfg = configuration(root, *more)
    journal = Journal(ledger, SWEEP)
    journal.append(SweepPlanned.from_plan(make_plan(cfg), "smoke", cfg.machine.name, canonical(cfg)))
    lease_id = attach_to_machine(cfg, ledger, SWEEP, find_price(cfg))
    journal.append(DriverStarted(lease_id, os.getpid()))
    journal.catch_up()
    return journal, lease_id


def drive(root: str, after: str) -> None:
    """A driver with its lock and its lease that sends a heartbeat every 0.1 s. Runs in its own process."""
    folder = Path(root)
    with sweep_lock(folder / "ledger.db", SWEEP), Ledger.open(folder / "ledger.db") as ledger:
        _, lease_id = begin(folder, ledger, f"machine.deadman={after}")
        timer = start(configuration(folder, f"machine.deadman={after}"), SWEEP)
        assert timer is not None
        print(timer.pid, flush=True)
        while True:
            ledger.heartbeat(lease_id)
            time.sleep(0.1)


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition was not met in time"
        time.sleep(0.05)


@pytest.fixture
def driver(tmp_path: Path):
    """A driver in a process of its own, and the process id of its timer."""
    code = f"from tests.sweeps.driver.test_deadman import drive; drive({str(tmp_path)!r}, '2s')"
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    timer = psutil.Process(int(process.stdout.readline()))
    yield process, timer
    process.kill()
    process.wait()
    if timer.is_running():
        timer.kill()


def test_after_kill_9_of_the_driver_the_timer_releases_the_machine_and_closes_its_lease(driver, tmp_path):
    process, timer = driver
    log = tmp_path / SWEEP / "deadman.log"
    until(lambda: log.exists() and "watching" in log.read_text())
    assert not (tmp_path / "gone").exists()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    until(lambda: (tmp_path / "gone").exists())
    until(lambda: not timer.is_running() or timer.status() == psutil.STATUS_ZOMBIE)
    assert "no heartbeat for 2 s: cpu was released" in log.read_text()
    with Ledger.open(tmp_path / "ledger.db", create=False, read_only=True) as ledger:
        assert all(state.to_ns is not None and state.released for state in ledger.leases.find())
    assert "no heartbeat for 2 s" in module(tmp_path, "sweeps", "show", "--root", str(tmp_path)).stdout


def test_a_sweep_has_one_timer(driver, tmp_path):
    _, timer = driver
    until(lambda: "watching" in (tmp_path / SWEEP / "deadman.log").read_text())
    log_lines: list[str] = []
    watch(tmp_path / "ledger.db", tmp_path / SWEEP, 0.1, log_lines.append)
    assert log_lines == ["another timer watches this sweep already"]
    assert timer.is_running()


class Time:
    """A clock that advances in `sleep`, and calls the events whose time has come."""

    def __init__(self, *events: tuple[float, Callable[[], object]]) -> None:
        self.now, self._events = 0.0, list(events)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        while self._events and self._events[0][0] <= self.now:
            self._events.pop(0)[1]()
        assert self.now < 10_000, "the timer watches without end"


def watched(root: Path, clock: Time, after: float = 60.0) -> list[str]:
    log_lines: list[str] = []
    watch(root / "ledger.db", root / SWEEP, after, log_lines.append, sleep=clock.sleep, monotonic=clock.monotonic)
    return log_lines


def test_the_timer_does_nothing_while_the_driver_is_alive_even_without_heartbeats(tmp_path):
    with Ledger.open(tmp_path / "ledger.db") as ledger, sweep_lock(tmp_path / "ledger.db", SWEEP):
        journal, lease_id = begin(tmp_path, ledger)

        def end_in_order() -> None:
            ledger.leases.detach(lease_id, SWEEP, "done")
            journal.append(DriverEnded(DriverEnd.DONE))

        log_lines = watched(tmp_path, Time((1000, end_in_order)))
    assert log_lines[-1] == "the sweep has ended in order: nothing to do"
    assert not (tmp_path / "gone").exists()


def test_the_heartbeats_of_another_driver_that_resumes_the_sweep_count(tmp_path):
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        _, lease_id = begin(tmp_path, ledger)
        clock = Time((50, lambda: ledger.heartbeat(lease_id)), (100, lambda: ledger.heartbeat(lease_id)))
        log_lines = watched(tmp_path, clock)
        assert "was released" in log_lines[-1]
        assert 160 <= clock.now < 200
        assert ledger.leases.get(lease_id).released


def test_the_timer_does_nothing_after_a_normal_end_that_kept_the_machine(tmp_path):
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        journal, lease_id = begin(tmp_path, ledger)
        journal.append(DriverEnded(DriverEnd.DONE))
        release_requests.record_kept(ledger, lease_id, "something lies on it only")
        assert watched(tmp_path, Time())[-1] == "the sweep has ended in order: nothing to do"
    assert not (tmp_path / "gone").exists()


def test_the_timer_releases_the_machine_of_a_driver_killed_between_its_end_and_the_release(tmp_path):
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        journal, _ = begin(tmp_path, ledger)
        journal.append(DriverEnded(DriverEnd.DONE))
        assert "was released" in watched(tmp_path, Time())[-1]
    assert (tmp_path / "gone").exists()


def test_the_timer_follows_the_machine_and_the_delay_of_the_newest_driver(tmp_path):
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        journal, lease_id = begin(tmp_path, ledger)

        def go_on() -> None:
            ledger.heartbeat(lease_id)
            machine = canonical(configuration(tmp_path, "machine.deadman=300s"))["machine"]
            journal.append(DriverStarted(lease_id, 2, machine | {"down": f"touch {tmp_path}/other"}))
            journal.append(AttemptStarted(next(iter(journal.record.trials)), 1, lease_id, from_step=0))

        clock = Time((50, go_on))
        assert "was released" in watched(tmp_path, clock)[-1]
        assert 350 <= clock.now < 400
        assert [t.state for t in load(ledger, SWEEP).trials.values()].count(TrialState.PREEMPTED) == 1
    assert (tmp_path / "other").exists()
    assert not (tmp_path / "gone").exists()


def test_the_timer_ends_when_the_newest_driver_has_none_configured(tmp_path):
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        journal, lease_id = begin(tmp_path, ledger)
        journal.append(DriverStarted(lease_id, 2, canonical(configuration(tmp_path))["machine"]))
        assert watched(tmp_path, Time())[-1] == "the sweep has ended in order: nothing to do"
    assert not (tmp_path / "gone").exists()


def test_the_timer_releases_nothing_while_the_ledger_cannot_be_read(tmp_path):
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        begin(tmp_path, ledger)
    away = tmp_path / "away.db"
    clock = Time(
        (10, lambda: (tmp_path / "ledger.db").rename(away)), (500, lambda: away.rename(tmp_path / "ledger.db"))
    )
    assert "was released" in watched(tmp_path, clock)[-1]
    assert clock.now > 500 + 60 - 20


def test_the_timer_releases_no_machine_with_unsaved_files(tmp_path):
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        _, lease_id = begin(tmp_path, ledger, "machine.down_unsaved=false")
        (tmp_path / SWEEP).mkdir(exist_ok=True)
        (tmp_path / SWEEP / "config.yaml").write_text("x: 1\n")
        log_lines = watched(tmp_path, Time())
        assert "NOT released" in log_lines[-1]
        assert ledger.leases.get(lease_id).to_ns is None
        assert "the driver is dead, no heartbeat for" in str([e.body for e in ledger.events.read(f"sweep:{SWEEP}")][-1])
        assert load(ledger, SWEEP).ended is None
    assert not (tmp_path / "gone").exists()

"""One driver of a sweep at a time, on both databases, with real processes that are killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from cost.ledger.sweep_lock import SweepLockedError, _ServerLock, lock_owner, sweep_lock

SWEEP = "smoke-abc123-1"
ROOT = Path(__file__).resolve().parents[3]
HOLD = """
import sys
from cost.ledger.sweep_lock import sweep_lock
with sweep_lock(sys.argv[1], sys.argv[2]):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other(any_database: str):
    """Another process that holds the lock of the sweep."""
    command = [sys.executable, "-c", HOLD, any_database, SWEEP]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition: a server needs a moment to notice that a process is gone."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.02)


def test_a_second_driver_is_refused_with_process_host_and_start_of_the_first(other, any_database):
    with pytest.raises(SweepLockedError) as refused, sweep_lock(any_database, SWEEP):
        pass
    by = refused.value.by
    assert by is not None
    assert (by.pid, by.host) == (other.pid, socket.gethostname())
    assert f"{SWEEP} is being driven by process {other.pid} on {socket.gethostname()} since 20" in str(refused.value)
    assert lock_owner(any_database, SWEEP) == by


def test_a_killed_or_finished_driver_does_not_block_the_next(other, any_database):
    other.send_signal(signal.SIGKILL)
    other.wait()
    wait_until(lambda: lock_owner(any_database, SWEEP) is None)
    with sweep_lock(any_database, SWEEP):
        by = lock_owner(any_database, SWEEP)
        assert by is not None
        assert by.pid == os.getpid()
    wait_until(lambda: lock_owner(any_database, SWEEP) is None)
    with sweep_lock(any_database, SWEEP):
        pass


def test_sweeps_of_one_ledger_have_separate_locks(other, any_database):
    with sweep_lock(any_database, "another-1") as check_lock:
        check_lock()
        assert lock_owner(any_database, "a-third-1") is None


def lose_lock(place: str) -> None:
    """Break the connection of the driver, or remove the lock file."""
    if "://" not in place:
        (Path(place).parent / SWEEP / "driver.lock").unlink()
        return
    import psycopg

    with psycopg.connect(place, autocommit=True) as connection:
        terminate = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        terminate += " WHERE datname = current_database() AND application_name LIKE 'drives a sweep%'"
        assert connection.execute(terminate).fetchall() == [(True,)]


def test_a_lost_lock_is_locked_again_at_the_next_heartbeat(any_database):
    with sweep_lock(any_database, SWEEP) as check_lock:
        check_lock()
        lose_lock(any_database)
        assert lock_owner(any_database, SWEEP) is None
        check_lock()
        with pytest.raises(SweepLockedError), sweep_lock(any_database, SWEEP):
            pass


def test_a_driver_that_lost_its_lock_to_another_fails_at_its_next_heartbeat(any_database):
    with ExitStack() as stack:
        check_lock = stack.enter_context(sweep_lock(any_database, SWEEP))
        lose_lock(any_database)
        stack.enter_context(sweep_lock(any_database, SWEEP))
        with pytest.raises(SweepLockedError, match=f"process {os.getpid()} on "):
            check_lock()


def test_a_driver_locks_again_after_its_connection_broke_on_the_client_side(postgres):
    lock = _ServerLock(postgres, SWEEP)
    lock.ensure()
    assert lock._connection is not None
    left_behind, lock._connection = lock._connection, None  # the server has not noticed its end yet
    lock.ensure()
    by = lock_owner(postgres, SWEEP)
    assert by is not None
    assert by.pid == os.getpid()
    lock.release()
    left_behind.close()

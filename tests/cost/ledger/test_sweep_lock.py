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

from cost.ledger.sweep_lock import SweepLockedError, _Server, lock_owner, sweep_lock

SWEEP = "smoke-abc123-1"
ROOT = Path(__file__).resolve().parents[3]
HOLD = """
import sys
from cost.ledger.sweep_lock import sweep_lock
with sweep_lock(sys.argv[1], sys.argv[2]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other(any_database: str):
    """Another process that holds the sweep."""
    command = [sys.executable, "-c", HOLD, any_database, SWEEP]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def soon(condition: Callable[[], bool]) -> None:
    """A server notices within moments that a process is gone."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


def test_a_second_driver_is_refused_and_told_who_drives_where_since_when(other, any_database):
    with pytest.raises(SweepLockedError) as refused, sweep_lock(any_database, SWEEP):
        pass
    by = refused.value.by
    assert by is not None
    assert (by.pid, by.host) == (other.pid, socket.gethostname())
    assert f"{SWEEP} is being driven by process {other.pid} on {socket.gethostname()} since 20" in str(refused.value)
    assert lock_owner(any_database, SWEEP) == by


def test_a_driver_that_was_killed_or_is_done_stands_in_nobodys_way(other, any_database):
    other.send_signal(signal.SIGKILL)
    other.wait()
    soon(lambda: lock_owner(any_database, SWEEP) is None)
    with sweep_lock(any_database, SWEEP):
        by = lock_owner(any_database, SWEEP)
        assert by is not None
        assert by.pid == os.getpid()
    soon(lambda: lock_owner(any_database, SWEEP) is None)
    with sweep_lock(any_database, SWEEP):
        pass


def test_sweeps_of_one_ledger_are_driven_apart(other, any_database):
    with sweep_lock(any_database, "another-1") as still_held:
        still_held()
        assert lock_owner(any_database, "a-third-1") is None


def lose(place: str) -> None:
    """What makes a driver's lock go: its connection breaks, or somebody removes the file."""
    if "://" not in place:
        (Path(place).parent / SWEEP / "driver.lock").unlink()
        return
    import psycopg

    with psycopg.connect(place, autocommit=True) as connection:
        ours = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        ours += " WHERE datname = current_database() AND application_name LIKE 'drives a sweep%'"
        assert connection.execute(ours).fetchall() == [(True,)]


def test_a_lock_that_was_lost_is_taken_again_at_the_next_heartbeat(any_database):
    with sweep_lock(any_database, SWEEP) as still_held:
        still_held()
        lose(any_database)
        assert lock_owner(any_database, SWEEP) is None
        still_held()
        with pytest.raises(SweepLockedError), sweep_lock(any_database, SWEEP):
            pass


def test_a_driver_that_lost_its_lock_to_another_is_told_at_its_next_heartbeat(any_database):
    with ExitStack() as stack:
        still_held = stack.enter_context(sweep_lock(any_database, SWEEP))
        lose(any_database)
        stack.enter_context(sweep_lock(any_database, SWEEP))
        with pytest.raises(SweepLockedError, match=f"process {os.getpid()} on "):
            still_held()


def test_a_connection_that_broke_on_this_side_only_does_not_lock_its_own_driver_out(postgres):
    hold = _Server(postgres, SWEEP)
    hold.keep()
    assert hold._connection is not None
    left_behind, hold._connection = hold._connection, None  # the server has not heard of its end yet
    hold.keep()
    by = lock_owner(postgres, SWEEP)
    assert by is not None
    assert by.pid == os.getpid()
    hold.release()
    left_behind.close()

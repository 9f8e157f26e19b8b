"""The processes of an attempt are found by descent, group, mark and earlier sightings, and are always ended."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import psutil
import pytest

from sweeps.executors.processes import (
    MARK,
    AttemptProcesses,
    end_marked_processes,
    end_processes,
    find_processes,
    used_memory_mib,
)

SLEEPS = "import time; print('up', flush=True); time.sleep(600)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPS


def spawn(code: str, *, mark: str = "", group: int | None = None, session: bool = False) -> subprocess.Popen[str]:
    environment = os.environ | ({MARK: mark} if mark else {})
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment,
        process_group=group,
        start_new_session=session,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.fixture
def mark():
    return f"/somewhere/{uuid.uuid4().hex}:t1/1:"


def test_all_processes_of_an_attempt_are_ended_and_no_others(mark):
    root = spawn(SLEEPS, group=0)
    in_its_group = spawn(DEAF, group=root.pid)
    marked = spawn(SLEEPS, mark=mark, session=True)
    remembered, bystander = spawn(SLEEPS, session=True), spawn(SLEEPS, session=True)
    try:
        since = psutil.Process(remembered.pid).create_time()
        processes = AttemptProcesses(
            root.pid, mark, children={str(remembered.pid): since, str(bystander.pid): since - 100.0}
        )
        found = {p.pid for p in find_processes(processes)}
        assert found == {root.pid, in_its_group.pid, marked.pid, remembered.pid}
        assert end_processes(processes, 0.0, 10.0) == []
        assert not [p.pid for p in (root, in_its_group, marked, remembered) if psutil.pid_exists(p.pid)]
        assert bystander.poll() is None
    finally:
        for process in (root, in_its_group, marked, remembered, bystander):
            process.kill()
            process.wait()


def test_processes_of_a_killed_driver_are_ended_by_the_mark_of_its_sweep(mark):
    left, other = spawn(SLEEPS, mark=mark, session=True), spawn(SLEEPS, mark=f"/elsewhere/{mark}", session=True)
    try:
        assert end_marked_processes(mark.split(":")[0] + ":") == []
        assert not psutil.pid_exists(left.pid)
        assert other.poll() is None
    finally:
        for process in (left, other):
            process.kill()
            process.wait()


def test_card_memory_that_is_not_freed_is_reported(tmp_path, monkeypatch, mark):
    use = tmp_path / "used"
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\nprintf 'GPU-1, '; cat {use}\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    use.write_text("300\n")
    before = used_memory_mib(["0"])
    assert before == {"GPU-1": 300}
    processes = AttemptProcesses(-1, mark, memory_mib=before)
    use.write_text("40300\n")
    assert end_processes(processes, 0.0, 0.3) == ["card GPU-1 with 40300 MiB in use, 300 before"]
    use.write_text("310\n")
    assert end_processes(processes, 0.0, 0.3) == []


def test_a_host_without_nvidias_command_has_no_memory_to_wait_for(tmp_path: Path, monkeypatch, mark):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert used_memory_mib(["0"]) == {}
    assert end_processes(AttemptProcesses(-1, mark), 0.0, 0.3) == []

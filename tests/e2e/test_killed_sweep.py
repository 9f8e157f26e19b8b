"""A sweep whose driver is killed, as a user sees it: the same command runs the rest, and the costs are exact."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from tests.e2e.test_sweep_command import ROOT, environment, module, sweep

COMMAND = ("+stage=smoke", "trainer=simulated", "search.trials=6", "stage.steps=10")
BEFORE_THE_KILL = 2


def kill_after(folder: Path, completed: int) -> None:
    """Start the sweep, and kill its driver once so many trials are shown as completed."""
    with subprocess.Popen(
        [sys.executable, str(ROOT / "sweep.py"), *COMMAND],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        seen = 0
        for line in process.stdout:
            seen += line.rstrip().endswith("completed")
            if seen == completed:
                process.send_signal(signal.SIGKILL)
                break
        process.wait(timeout=60)
        assert process.returncode == -signal.SIGKILL


def details(folder: Path) -> dict[str, dict]:
    (row,) = json.loads(module(folder, "sweeps", "status", "--json").stdout)["sweeps"]
    return {d["trial"]: d for d in row["details"]}


def test_after_a_kill_the_same_command_runs_the_unfinished_work_only(tmp_path):
    kill_after(tmp_path, BEFORE_THE_KILL)
    before = details(tmp_path)
    done = {trial for trial, d in before.items() if d["state"] == "COMPLETED"}
    assert len(before) == 6
    assert BEFORE_THE_KILL <= len(done) < 6
    result = sweep(tmp_path, *COMMAND)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"resuming, {6 - len(done)} of 6 trials left" in " ".join(result.stdout.split())
    after = details(tmp_path)
    assert {d["state"] for d in after.values()} == {"COMPLETED"}
    assert all(after[trial]["attempts"] == 1 for trial in done)
    story = json.loads(module(tmp_path, "sweeps", "show", "last", "--json").stdout)["events"]
    ended = [row["text"].split()[1].rstrip(",:") for row in story if row["kind"] == "attempt_ended"]
    assert ended.count("completed") == 6
    assert len(ended) - 6 == ended.count("lost") <= 1
    assert all("cost" in row for row in story if row["kind"] == "attempt_ended")
    checked = module(tmp_path, "cost", "check")
    assert checked.returncode == 0, checked.stdout + checked.stderr

"""Real trials through Ray on this machine, with the tiny model: Ctrl-C, a killed driver, and what is left of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import psutil
import pytest

from tests.e2e.test_sweep_command import ROOT, environment, module

SMALL = ["+stage=smoke", "model=tiny", "stage.steps=6", "trainer.checkpoint_every_steps=2", "task.eval_questions=16"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


def start(folder: Path, cache: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", str(ROOT / "sweep.py"), *SMALL, f"paths.cache={cache}", *more],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def read_until(process: subprocess.Popen[str], text: str) -> list[str]:
    """Lines up to and with the first that contains `text`."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"ended without {text!r}:\n{''.join(lines)}")


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def test_a_whole_smoke_ctrl_c_in_the_middle_and_the_same_command_again(tmp_path, cache):
    first = start(tmp_path, cache)
    before = "".join(read_until(first, "step   3/6"))
    assert "machine cpu" in before
    started = family(first)
    assert any("ray" in " ".join(p.cmdline()) for p in started if p.is_running())
    first.send_signal(signal.SIGINT)
    told, _ = first.communicate(timeout=120)
    assert first.returncode == 130, told
    assert "Resume:" in told
    _, alive = psutil.wait_procs(started, timeout=20)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
    leases = json.loads(module(tmp_path, "cost", "leases", "list", "--json").stdout)
    assert all(lease["to"] is not None for lease in leases["leases"])

    second = start(tmp_path, cache)
    told, _ = second.communicate(timeout=300)
    assert second.returncode == 0, told
    assert "going on, 3 of 3 trials left" in told
    assert "Metric gate: open" in told
    status = json.loads(module(tmp_path, "sweeps", "status", "--json").stdout)
    assert [s["trials"] for s in status["sweeps"]] == [{"COMPLETED": 3}]
    attempts = [t["attempts"] for t in status["sweeps"][0]["details"]]
    assert attempts == [2, 1, 1]
    report = json.loads(module(tmp_path, "cost", "report", "--json").stdout)
    parts = [Decimal(row["cost"]) for row in report["trials"] + report["overheads"]]
    assert sum(parts) == Decimal(report["total"])
    assert module(tmp_path, "cost", "check").returncode == 0
    assert not (tmp_path / "mlruns").exists()


def test_a_driver_killed_with_nine_loses_no_trial_and_the_next_one_goes_on(tmp_path, cache):
    first = start(tmp_path, cache, "search.prompts_per_step=[2]")
    read_until(first, "step   4/6")
    started = family(first)
    os.kill(first.pid, signal.SIGKILL)
    first.wait(timeout=30)
    psutil.wait_procs(started, timeout=30)
    second = start(tmp_path, cache, "search.prompts_per_step=[2]")
    told, _ = second.communicate(timeout=300)
    assert second.returncode == 0, told
    status = json.loads(module(tmp_path, "sweeps", "status", "--json").stdout)
    assert [s["trials"] for s in status["sweeps"]] == [{"COMPLETED": 1}]
    story = module(tmp_path, "sweeps", "show", "last").stdout
    assert "lost" in story
    assert "started from step" in story
    assert module(tmp_path, "cost", "check").returncode == 0


def test_a_sweep_that_is_told_to_terminate_ends_as_with_ctrl_c(tmp_path, cache):
    process = start(tmp_path, cache, "search.prompts_per_step=[2]")
    read_until(process, "step   1/6")
    started = family(process)
    process.terminate()
    told, _ = process.communicate(timeout=120)
    assert process.returncode == 130, told
    assert "Resume:" in told
    _, alive = psutil.wait_procs(started, timeout=20)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
    assert module(tmp_path, "cost", "check").returncode == 0

"""Real trials on a machine with machine.down: released after the trials, not released, and by the dead-man timer."""

from __future__ import annotations

import json
import os
import signal
from decimal import Decimal
from pathlib import Path

import psutil
import pytest

from tests.e2e.test_real_sweep import cache, read_until, start
from tests.e2e.test_sweep_command import module

__all__ = ["cache"]

SHORT = ["search.prompts_per_step=[2]", "machine.down_unsaved=true"]
RENTED = ["machine.sku=runpod-h100", "machine.provider=runpod", "machine.purchase=on_demand", "machine.watts=0"]


def leases(folder: Path) -> list[dict]:
    return json.loads(module(folder, "cost", "leases", "list", "--json").stdout)["leases"]


def finished(process, code: int = 0) -> str:
    text, _ = process.communicate(timeout=600)
    assert process.returncode == code, text
    return text


@pytest.mark.slow  # four starts of Ray and of a trainer, and the silence of a dead driver: two minutes
@pytest.mark.timeout(1800)
def test_a_machine_is_released_after_real_trials_and_after_a_dead_driver(tmp_path, cache):
    (tmp_path / "down.sh").write_text("test -e refuse && echo no such pod && exit 3; echo gone >> gone\n")
    typed = [*SHORT, *RENTED, 'machine.down="sh down.sh"']
    (tmp_path / "refuse").touch()
    text = finished(start(tmp_path, cache, *typed))
    assert (
        "RELEASE_UNCONFIRMED: the release of cpu was requested and is not confirmed: exit code 3: no such pod" in text
    )
    (first,) = leases(tmp_path)
    assert first["to"] is None
    assert "no such pod" in module(tmp_path, "sweeps", "status").stdout
    (later,) = leases(tmp_path)
    assert Decimal(later["cost"]) > Decimal(first["cost"])

    # The next sweep runs on the same machine and releases it, although its gate is closed.
    (tmp_path / "refuse").unlink()
    never = "{name: n, curve: grad_norm, aggregate: max, window: whole run, fails: above 1e-12, severity: close"
    (tmp_path / "never.yaml").write_text(f"rules: [{never}, reason: r, remedy: r, cannot_see: c}}]\n")
    text = finished(start(tmp_path, cache, *typed, "search.seeds=[1]", f"gate.rules={tmp_path}/never.yaml"), code=3)
    assert "cpu was released" in text
    (only,) = leases(tmp_path)
    assert (only["lease_id"], only["released"], only["sweeps"]) == (first["lease_id"], True, [])

    # The timer of a killed driver, a separate process, releases the machine once.
    dying = start(tmp_path, cache, *typed, "search.seeds=[2]", "stage.steps=60", "machine.deadman=5s")
    read_until(dying, "step   2/60")
    (timer,) = _timers(tmp_path)
    os.killpg(dying.pid, signal.SIGKILL)
    dying.communicate()
    timer.wait(timeout=120)
    assert (tmp_path / "gone").read_text() == "gone\n" * 2
    assert leases(tmp_path)[-1]["released"]
    status = json.loads(module(tmp_path, "sweeps", "status", "--json").stdout)["sweeps"][-1]
    assert status["trials"] == {"PREEMPTED": 1}

    # The same command resumes on a new lease and ends normally: the timer does nothing.
    again = start(tmp_path, cache, *typed, "search.seeds=[2]", "stage.steps=60", "machine.deadman=5s")
    assert "resuming, 1 of 1 trials left" in "".join(read_until(again, "started: device"))
    (timer,) = _timers(tmp_path)
    finished(again)
    timer.wait(timeout=60)
    assert (tmp_path / "gone").read_text() == "gone\n" * 3
    assert [lease["released"] for lease in leases(tmp_path)] == [True] * 3
    assert module(tmp_path, "cost", "check").returncode == 0


def _timers(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        arguments = process.info["cmdline"] or []
        if "deadman" in arguments and any(str(folder) in argument for argument in arguments):
            found.append(process)
    return found

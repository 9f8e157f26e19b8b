"""Ctrl-C before the first trial: exit code 130, one line, no traceback, within seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sweeps

ROOT = Path(__file__).resolve().parents[2]
TYPED = ("+stage=smoke", "trainer=simulated", "search.prompts_per_step=[2]")


def interrupted_when(module: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Runs a sweep that gets SIGINT while it imports `module`."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}:\n"
        "            sys.meta_path.remove(self)\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}
    command = [sys.executable, str(ROOT / "sweep.py"), *TYPED, f"paths.root={tmp_path}/runs"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("module", ["hydra", "sweeps.driver.driver", "mlflow", "sqlalchemy.orm"])
def test_ctrl_c_during_an_import_ends_with_130_and_one_line(module, tmp_path):
    done = interrupted_when(module, tmp_path)
    assert done.returncode == 130
    assert "Traceback" not in done.stdout + done.stderr
    assert done.stderr.strip().startswith("Interrupted")
    assert len(done.stderr.strip().splitlines()) == 1


def test_telemetry_of_libraries_is_off_and_a_user_can_switch_it_on():
    code = "import sweeps, os; print(os.environ['MLFLOW_DISABLE_TELEMETRY'], os.environ['RAY_USAGE_STATS_ENABLED'])"
    environment = {k: v for k, v in os.environ.items() if k not in sweeps.NO_TELEMETRY} | {"PYTHONPATH": str(ROOT)}
    for given, expected in (({}, "true 0"), ({"MLFLOW_DISABLE_TELEMETRY": "false"}, "false 0")):
        done = subprocess.run([sys.executable, "-c", code], env=environment | given, capture_output=True, text=True)
        assert done.stdout.strip() == expected

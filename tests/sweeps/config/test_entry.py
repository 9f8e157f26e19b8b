"""`python sweep.py` as a user types it: exit codes, one message, nothing written, and no heavy import for a mistake."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
HEAVY = ("torch", "ray", "mlflow", "transformers", "reasoning_gym")

# Runs sweep.py with a driver that prints its arguments, and prints at the end which heavy modules were loaded.
DRIVER = f"""
import atexit, runpy, sys, types
def run(cfg, typed):
    print("DRIVER", cfg.stage.name, cfg.machine.name, cfg.paths.root)
    return 3
if "with-a-driver" in sys.argv:
    sys.argv.remove("with-a-driver")
    sys.modules["sweeps.driver.driver"] = types.SimpleNamespace(run=run)
atexit.register(lambda: print("LOADED", *[m for m in {HEAVY!r} if m in sys.modules]))
sys.argv[0] = {str(ROOT / "sweep.py")!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def sweep(cwd: Path, *typed: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", DRIVER, *typed],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **(env or {})},
    )


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ([], "no stage was chosen"),
        (["stage=smoke"], "one plus sign"),
        (["+stage=smoke", "machine=foo"], "no machine 'foo'"),
        (["+stage=smoke", "search.group_size=1"], "2 or more"),
        (
            ["+stage=smoke", "trainer.simulated.crash_at_step=3"],
            "write trainer=simulated trainer.simulated.crash_at_step=3",
        ),
        (["--multirun", "+stage=smoke"], "search.seeds=[0,1,2]"),
    ],
)
def test_a_bad_configuration_gives_one_message_and_exit_code_2_without_heavy_imports(
    tmp_path: Path, typed: list[str], message: str
) -> None:
    done = sweep(tmp_path, *typed)
    assert done.returncode == 2
    assert done.stdout.strip() == "LOADED"
    assert message in done.stderr
    assert done.stderr.startswith("Configuration: ")
    assert "Traceback" not in done.stderr
    assert "HYDRA_FULL_ERROR" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_exit_code_is_the_drivers_and_hydra_writes_nothing(tmp_path: Path) -> None:
    done = sweep(tmp_path, "with-a-driver", "+stage=multi", "paths.root=elsewhere")
    assert done.returncode == 3
    assert "DRIVER multi h100x8 elsewhere" in done.stdout
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_the_help_shows_how_to_start_and_exits_0(tmp_path: Path) -> None:
    done = sweep(tmp_path, "--help")
    assert done.returncode == 0
    assert "python sweep.py +stage=smoke" in done.stdout
    assert "machine" in done.stdout
    assert done.stderr == ""


def test_hydra_prints_the_whole_configuration_when_asked(tmp_path: Path) -> None:
    done = sweep(tmp_path, "+stage=smoke", "--cfg", "job")
    assert done.returncode == 0
    assert "prompts_per_step" in done.stdout
    assert list(tmp_path.iterdir()) == []

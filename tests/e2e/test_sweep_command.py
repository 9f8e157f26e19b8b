"""`python sweep.py` as a user types it: simulated stages, what is refused, and what is left behind."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def environment(folder: Path) -> dict[str, str]:
    """A user's, with card locks apart from those of a sweep that may be running on this machine."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "RAY_"))}
    return kept | {"GRPO_LADDER_LOCKS": str(folder.parent / f"{folder.name}-locks")}


def sweep(folder: Path, *arguments: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "sweep.py"), *arguments],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def module(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A folder in which one simulated smoke has run."""
    folder = tmp_path_factory.mktemp("user")
    return folder, sweep(folder, "+stage=smoke", "trainer=simulated")


def test_a_simulated_smoke_ends_with_an_open_gate_and_the_next_command(done):
    _, result = done
    assert result.returncode == 0, result.stdout + result.stderr
    for text in ("Metric gate: open", "simulated", "cost.csv", "mlflow ui --backend-store-uri", "+stage=single"):
        assert text in result.stdout
    assert "Traceback" not in result.stderr


def test_nothing_printed_is_wider_than_100_columns_but_addresses_and_commands(done):
    _, result = done
    tables = [line for line in result.stdout.splitlines() if "http" not in line and ":  " not in line]
    assert max(map(len, tables)) <= 100


def test_a_sweep_writes_below_runs_only(done):
    folder, _ = done
    assert [p.name for p in folder.iterdir()] == ["runs"]
    sweep_dir = next(p for p in (folder / "runs").iterdir() if p.name.startswith("smoke-"))
    assert {"cost.csv", "config.yaml"} <= {p.name for p in sweep_dir.iterdir()}


def test_the_csv_has_a_row_per_trial_and_sums_to_the_report(done):
    folder, _ = done
    sweep_dir = next(p for p in (folder / "runs").iterdir() if p.name.startswith("smoke-"))
    with (sweep_dir / "cost.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len({r["trial_id"] for r in rows if r["trial_id"]}) == 3
    report = json.loads(module(folder, "cost", "report", "--json").stdout)
    total = sum(Decimal(t["cost"]) for t in report["trials"]) + sum(Decimal(o["cost"]) for o in report["overheads"])
    assert total == Decimal(report["total"])
    assert all(isinstance(t["cost"], str) for t in report["trials"])


def test_the_ledger_is_consistent_and_status_prints_json(done):
    folder, _ = done
    checked = module(folder, "cost", "check")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    status = json.loads(module(folder, "sweeps", "status", "--json").stdout)
    assert status["sweeps"][0]["trials"] == {"COMPLETED": 3}
    assert status["sweeps"][0]["gate"] == "inconclusive"  # 64 questions do not prove a gain of 20 steps
    assert module(folder, "sweeps", "show", "last").returncode == 0


def test_a_dry_run_prints_plan_and_cost_and_writes_nothing(tmp_path):
    result = sweep(tmp_path, "+stage=smoke", "model=tiny", "dry_run=true")
    assert result.returncode == 0, result.stderr
    assert "3 trials of 20 steps" in result.stdout
    assert "an hour" in result.stdout
    assert not list(tmp_path.iterdir())


def test_multi_is_planned_and_priced_and_a_dry_run_reports_what_a_run_needs(tmp_path):
    planned = sweep(tmp_path, "+stage=multi", "dry_run=true")
    run = sweep(tmp_path, "+stage=multi")
    for result in (planned, run):
        assert "lambda-h100x8" in result.stdout
        assert result.returncode == 2
        assert "8 cards" in result.stderr
        assert "trainer=simulated" in result.stderr
    simulated = sweep(tmp_path, "+stage=multi", "trainer=simulated", "dry_run=true")
    assert simulated.returncode == 0, simulated.stderr
    assert not list(tmp_path.iterdir())


BAD_INPUT = {
    "no stage": ([], ["+stage=smoke", "+stage=single"]),
    "two stages": (["+stage=smoke", "+stage=single"], ["choose one"]),
    "unknown stage": (["+stage=smok"], ["smok", "+stage=smoke"]),
    "stage without the plus": (["stage=smoke"], ["+stage=smoke"]),
    "unknown machine": (["+stage=smoke", "machine=h1000"], ["h1000", "h100x8"]),
    "a SKU without a price": (["+stage=smoke", "machine.sku=nowhere-b300"], ["nowhere-b300", "cost prices add"]),
    "G=1": (["+stage=smoke", "search.group_size=[1]"], ["group_size"]),
    "no prompts": (["+stage=smoke", "search.prompts_per_step=[0]"], ["prompts_per_step"]),
    "a negative learning rate": (["+stage=smoke", "algorithm.lr=-1e-5"], ["algorithm.lr"]),
    "a model that is not there": (["+stage=smoke", "model=hf", "model.path=./no-such-model"], ["no-such-model"]),
    "more cards than the machine has": (["+stage=smoke", "search.cards_per_trial=2"], ["cards_per_trial"]),
    "a place that cannot be written": (
        ["+stage=smoke", "trainer=simulated", "paths.root=/dev/null/runs"],
        ["paths.root"],
    ),
    "a limit without an exchange rate": (
        ["+stage=smoke", "trainer=simulated", "budget.sweep_limit=3 XAU"],
        ["budget.sweep_limit=3 XAU", "no exchange rate"],
    ),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_one_message_and_exit_2_with_nothing_written(case: str, tmp_path):
    arguments, expected = BAD_INPUT[case]
    result = sweep(tmp_path, *arguments)
    assert result.returncode == 2, result.stdout + result.stderr
    for text in expected:
        assert text in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_bad_line_of_a_task_file_is_named_before_anything_is_billed(tmp_path):
    task = tmp_path / "questions.jsonl"
    task.write_text('{"question": "1+1?", "answer": "2"}\n{"question": "2+2?", "answer":\n')
    result = sweep(tmp_path, "+stage=smoke", "task=gsm8k", f"task.path={task}")
    assert result.returncode == 2
    assert "questions.jsonl" in result.stderr
    assert "line 2" in result.stderr
    assert not (tmp_path / "runs" / "ledger.db").exists()


TROUBLED = (
    *("+stage=smoke", "trainer=simulated", "trainer.simulated.crash_at_step=3", "retry.crashes=0"),
    *("tracking.uri=http://127.0.0.1:9", "machine.sku=nowhere", "budget.allow_unpriced=true"),
)


@pytest.fixture(scope="module")
def troubled(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A folder with a finished sweep: trials failed, MLflow did not answer, the price was unknown."""
    folder = tmp_path_factory.mktemp("troubled")
    return folder, sweep(folder, *TROUBLED)


def test_an_mlflow_that_does_not_answer_gives_a_warning_and_the_sweep_continues(troubled):
    _, result = troubled
    assert "does not answer" in result.stdout
    assert "Metric gate: " in result.stdout


def test_a_sweep_with_a_failed_trial_exits_1_and_one_with_a_forced_gate_0(troubled):
    folder, failed = troubled
    assert failed.returncode == 1, failed.stdout + failed.stderr
    assert "closed" in failed.stdout
    forced = sweep(folder, *TROUBLED, 'gate.force="known, and looked at"', "resume=never")
    assert forced.returncode == 0
    assert "known, and looked at" in forced.stdout


def test_an_unpriced_machine_is_shown_as_unpriced_and_never_as_free(troubled):
    _, result = troubled
    assert "Cost: UNPRICED" in result.stdout
    assert "0.00 USD" not in result.stdout


def test_help_shows_examples_and_the_keys_people_type():
    result = sweep(ROOT, "--help")
    assert result.returncode == 0
    for text in ("+stage=smoke", "dry_run=true", "search.prompts_per_step"):
        assert text in result.stdout

"""The time of a plan from a calibration: its arithmetic, and when a calibration is made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rl.trainers.native.calibration import Calibration
from sweeps.config.build import compose
from sweeps.forecast.calibration import LENGTH_SHARE, calibrated, plan_time, step_time
from sweeps.planning.plan import make_plan

FOUND = Calibration(
    startup_seconds=10.0,
    prompt_seconds=0.5,
    turn_seconds=0.1,
    row_seconds=0.01,
    train_step_seconds=2.0,
    train_token_seconds=0.02,
    parameters=0,
)


def show(text: str) -> None:
    raise AssertionError(f"nothing is measured, so nothing is shown: {text}")


def test_the_time_of_a_trial_is_the_sum_of_its_parts() -> None:
    cfg = compose(["+stage=smoke"])
    trial = make_plan(cfg).trials[0]
    completions, limit = trial.prompts_per_step * trial.group_size, cfg.rollout.max_completion_tokens
    batch = 0.5 + limit * 0.1
    rollout = batch + completions * limit * 0.01
    train = 2.0 + completions * LENGTH_SHARE * limit * 0.02
    evaluation = batch + cfg.task.eval_questions * limit * 0.01
    time = step_time(FOUND, cfg)
    assert time.of(trial, 20) == pytest.approx(20 * (rollout + train) + 10.0 + 2 * evaluation)
    assert not time.rough
    assert "calibrated on this machine" in time.source


@pytest.mark.parametrize(
    "overrides",
    [
        ["trainer=simulated"],
        ["model=tiny"],
        ["machine=h100"],
        ["model=hf", "model.path=org/Model-8B"],
        ["machine.cluster=10.0.0.1:6379"],
        ["machine.up=echo"],
        [],
    ],
)
def test_no_calibration_of_another_machine_or_of_a_model_that_is_not_here(overrides: list[str], tmp_path: Path) -> None:
    cfg = compose(["+stage=smoke", f"paths.cache={tmp_path}", *overrides])
    assert calibrated(cfg, make_plan(cfg), show) is None
    assert list(tmp_path.iterdir()) == []


def test_without_calibration_the_data_sheet_is_used_and_marked_as_rough(tmp_path: Path) -> None:
    cfg = compose(["+stage=smoke", f"paths.cache={tmp_path}"])
    time = plan_time([], cfg, make_plan(cfg), show)
    assert time is not None
    assert time.rough


def test_a_process_that_fails_or_writes_nonsense_leaves_the_data_sheet(tmp_path, monkeypatch) -> None:
    import subprocess

    (tmp_path / "smollm2_135m-q4_1-0.1.2").mkdir()
    cfg = compose(["+stage=smoke", f"paths.cache={tmp_path}"])
    shown: list[str] = []
    assert calibrated(cfg, make_plan(cfg), shown.append) is None  # the folder is empty: the process exits with 1
    assert "Measuring this machine" in shown[0]
    done = subprocess.CompletedProcess([], 0, stdout=json.dumps({"nonsense": 1}), stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: done)
    assert calibrated(cfg, make_plan(cfg), shown.append) is None

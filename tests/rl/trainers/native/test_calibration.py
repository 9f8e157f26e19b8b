"""The calibration of a machine: the trainer's own parts, on completions of a few tokens."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from rl.codec import from_json, to_json
from rl.trainers.native.calibration import Calibration, calibrate, main
from tests.rl.trainers.native.test_trainer import trial


def test_every_part_of_a_step_is_measured(model_cache: Path, tmp_path: Path) -> None:
    found = calibrate(trial(model_cache, tmp_path), time.perf_counter())
    for field in dataclasses.fields(found):
        assert math.isfinite(getattr(found, field.name)), field.name
        assert getattr(found, field.name) >= 0, field.name
    assert found.startup_seconds > 0
    assert found.parameters == 89_088


def test_it_leaves_nothing_behind(model_cache: Path, tmp_path: Path) -> None:
    calibrate(trial(model_cache, tmp_path), time.perf_counter())
    assert list(tmp_path.iterdir()) == []


def test_a_spec_that_cannot_run_is_one_line_and_exit_code_2(
    model_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = trial(model_cache, tmp_path, rollout={"max_prompt_tokens": 1})
    text = json.dumps(to_json(spec)).encode()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text)))
    assert main() == 2
    assert "max_prompt_tokens" in capsys.readouterr().err


def test_its_output_is_read_back(model_cache: Path, tmp_path: Path) -> None:
    found = Calibration(1.0, 0.5, 0.1, 0.01, 2.0, 0.02, 100)
    assert from_json(Calibration, json.loads(json.dumps(to_json(found)))) == found

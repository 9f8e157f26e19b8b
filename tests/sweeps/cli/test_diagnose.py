"""`python -m sweeps diagnose`: on sweeps, on one trial, on logs, and on what is neither."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from cost.records import LedgerError
from sweeps.cli.main import app
from tests.sweeps.in_process import a_sweep


def invoke(*arguments: str):
    return CliRunner().invoke(app, ["diagnose", *arguments])


def test_each_trial_of_the_newest_sweep_is_diagnosed(tmp_path) -> None:
    sweep = a_sweep(tmp_path)
    sweep.run()
    result = invoke("--root", str(tmp_path))
    assert result.exit_code == 0, result.output
    for trial in sweep.journal.record.trials.values():
        assert f"{trial.trial_id} {trial.planned.label}: " in result.output


def test_one_trial_as_json(tmp_path) -> None:
    sweep = a_sweep(tmp_path)
    sweep.run()
    trial_id = next(iter(sweep.journal.record.trials))
    result = invoke("last", "--trial", trial_id, "--json", "--root", str(tmp_path))
    found = json.loads(result.output)
    (name,) = found["diagnoses"]
    assert name.startswith(trial_id)
    assert found["diagnoses"][name]["last_step"] == 20


def test_a_sweep_without_a_step_has_nothing_to_diagnose(tmp_path) -> None:
    a_sweep(tmp_path)
    result = invoke("--root", str(tmp_path))
    assert isinstance(result.exception, LedgerError)  # __main__ prints it and exits with 2
    assert "no trial has reported a step" in str(result.exception)


def test_a_log_of_another_trainer_is_diagnosed_without_a_ledger(tmp_path) -> None:
    log = tmp_path / "train.log"
    values = [0.8] * 60 + [0.0] * 60
    log.write_text("\n".join(f"{{'loss': 0.1, 'reward': {v}, 'kl': 0.01, 'epoch': 0.1}}" for v in values))
    result = invoke(str(log), "--trainer", "trl", "--root", str(tmp_path / "none"))
    assert result.exit_code == 0, result.output
    assert "reward collapsed" in result.output


def test_a_file_that_is_no_log_is_one_message(tmp_path) -> None:
    for text in ("", "hello\n", "\x00\x01"):
        (tmp_path / "x.log").write_text(text)
        result = invoke(str(tmp_path / "x.log"))
        assert result.exit_code == 2
        assert len(result.output.strip().splitlines()) >= 1
        assert "Traceback" not in result.output


def test_an_unknown_trainer_is_refused_with_the_known_names(tmp_path) -> None:
    (tmp_path / "x.log").write_text("{'reward': 1.0}\n")
    result = invoke(str(tmp_path / "x.log"), "--trainer", "vrel")
    assert result.exit_code == 2
    assert "verl" in result.output

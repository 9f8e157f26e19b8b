"""Curves of our own trials and of imported logs, in the form that rules and diagnosis read."""

from __future__ import annotations

import pytest

from rl.messages import EIGHT_CURVES
from rl.trainers.logs import read_bytes
from sweeps.journal.journal import load
from sweeps.journal.trial_reports import trial_reports
from sweeps.protocol.curve_sources import run_of_log, run_of_rows, run_of_trial
from sweeps.protocol.run_curves import CURVES, Row
from tests.sweeps.in_process import a_sweep


def test_a_trial_of_ours_has_the_eight_curves_and_the_facts_of_its_configuration(tmp_path) -> None:
    sweep = a_sweep(tmp_path, "search.lr_scaling=[hold]", "search.prompts_per_step=[2]", "search.group_size=[8]")
    sweep.run()
    record = load(sweep.ledger, sweep.journal.record.sweep_id)
    (trial,) = record.trials.values()
    reports = trial_reports(sweep.ledger, record.sweep_id)[trial.trial_id]
    run = run_of_trial(record, trial, reports)
    assert run.steps == tuple(range(1, 21))
    assert all(run.has(curve) for curve in EIGHT_CURVES)
    assert run.completions == tuple(16 * step for step in run.steps)
    assert run.evaluations[0].step == 0
    assert run.evaluations[0].questions == len(reports.evaluations[0].results)
    assert run.facts.group_size == 8
    assert run.facts.max_completion_tokens == record.config["rollout"]["max_completion_tokens"]
    assert set(run.curves) <= set(CURVES) | {name for name in run.curves if name.startswith("reward_part/")}


def test_completions_are_unknown_from_the_first_row_that_lacks_them() -> None:
    rows = [Row(1, 1, 8, {"reward": 0.1}), Row(2, 1, None, {"reward": 0.2}), Row(3, 1, 8, {"reward": 0.3})]
    assert run_of_rows(rows).completions == (8, None, None)


def test_a_curve_that_only_some_rows_have_is_missing_in_the_others() -> None:
    rows = [Row(1, 1, 8, {"reward": 0.1}), Row(2, 1, 8, {"reward": 0.2, "kl": 0.01})]
    assert run_of_rows(rows).values("kl") == (None, 0.01)


def test_a_curve_that_is_zero_by_construction_is_left_out_of_an_imported_run() -> None:
    lines = [
        f"{{'reward': {0.1 + step / 100}, 'clip_ratio/region_mean': 0.0, 'entropy': 0.5, 'epoch': {step}}}"
        for step in range(1, 9)
    ]
    log = read_bytes("\n".join(lines).encode(), "log.txt", "trl")
    run = run_of_log(log)
    assert run.has("reward")
    assert run.values("reward")[0] == pytest.approx(0.11)
    assert [note.curve for note in log.notes_of("zero_by_construction")] == ["clip_frac"]
    assert not run.has("clip_frac")

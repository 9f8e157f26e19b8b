"""The view of a running sweep: one line per message in a log, a table on a terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from rl.spec import CheckpointWritten, EvalReport, Finished, Mean
from sweeps.journal.journal import TrialRecord
from sweeps.report import live_view
from sweeps.report.live_view import LiveView
from tests.sweeps.in_process import Sweep, a_sweep
from tests.sweeps.reports import a_step


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Sweep:
    return a_sweep(tmp_path_factory.mktemp("view"), "search.prompts_per_step=[4]").run()


def a_view(sweep: Sweep, *, terminal: bool) -> tuple[LiveView, io.StringIO]:
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=100, height=30, highlight=False)
    costs = dict.fromkeys(sweep.journal.record.trials, "0.12 USD")
    return LiveView(console, sweep.journal.record, 20, lambda: costs, None), output


def first(sweep: Sweep) -> TrialRecord:
    return next(iter(sweep.journal.record.trials.values()))


def test_the_first_scorer_error_of_a_trial_is_a_warning_with_its_text(sweep: Sweep) -> None:
    view, output = a_view(sweep, terminal=False)
    with view:
        for step in (1, 2):
            view.changed(first(sweep), a_step(step, scorer_errors=16, scorer_error="TypeError: no answer"))
    warnings = [line for line in output.getvalue().splitlines() if line.startswith("warning: ")]
    assert warnings == [
        f"warning: {first(sweep).trial_id}: the scorer failed for 16 of 16 completions of step 1: TypeError: no answer"
    ]


def test_in_a_log_each_message_is_a_line(sweep: Sweep) -> None:
    view, output = a_view(sweep, terminal=False)
    trial = first(sweep)
    evaluation = EvalReport(20, 40, 10**9, {}, (), Mean(1.0, 1.0), Mean(0.0, 1.0))
    with view:
        view.changed(trial, a_step(3, clip_frac=0.05))
        view.changed(trial, CheckpointWritten(10, "/somewhere", 2_000_000, 10**9, {}))
        view.changed(trial, CheckpointWritten(11, "/somewhere", 840, 10**9, {}))
        view.changed(trial, evaluation)
        view.changed(trial, Finished(20, 40))
        view.changed(trial, None)
        view.warn("the disk is nearly full")
    lines = output.getvalue().splitlines()
    assert len(lines) == 6, "the end of a trainer is no line: its state follows"
    assert all(line.startswith(f"{trial.trial_id} 4x8 hold") for line in lines[:5])
    assert "step   3/20  reward" in lines[0]
    assert "clip_frac 5.0%" in lines[0]
    assert lines[1].endswith("checkpoint at step 10 (2 MB)")
    assert lines[2].endswith("checkpoint at step 11 (0.8 kB)")
    assert lines[3].endswith("evaluation at step 20: acc -")
    assert lines[4].endswith("completed")
    assert lines[5] == "warning: the disk is nearly full"


def test_on_a_terminal_a_table_shows_each_trial_with_its_cost(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(live_view.time, "monotonic", lambda: now[0])
    view, output = a_view(sweep, terminal=True)
    with view:
        view.changed(first(sweep), a_step(3))
        drawn = output.getvalue()
        view.tick()
        assert output.getvalue() == drawn, "not redrawn before the interval is over"
    for text in (first(sweep).trial_id[:6], "completed", "20/20", "0.12 USD", "Ctrl-C stops"):
        assert text in drawn


def test_a_sweep_larger_than_the_terminal_is_shortened(tmp_path: Path) -> None:
    many = a_sweep(tmp_path, "search.trials=40")
    view, output = a_view(many, terminal=True)
    with view:
        view.changed(first(many), None)
    assert "and 16 more" in output.getvalue()

"""The results of a sweep in the terminal."""

from __future__ import annotations

import io
from decimal import Decimal

import pytest
from rich.console import Console, RenderableType

from sweeps.journal.events import GateCheck, GateVerdict
from sweeps.report.results import print_gate, print_lr_advice, results_table
from tests.sweeps.in_process import Sweep, a_sweep


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Sweep:
    return a_sweep(tmp_path_factory.mktemp("results")).run()


def printed(*renderables: RenderableType) -> str:
    output = io.StringIO()
    Console(file=output, width=100, highlight=False).print(*renderables)
    return output.getvalue()


def test_each_trial_has_its_accuracy_interval_hours_and_cost(sweep: Sweep) -> None:
    trials = sweep.journal.record.trials
    costs, hours = dict.fromkeys(trials, "0.25 USD"), dict.fromkeys(trials, Decimal("0.5"))
    lines = printed(results_table(sweep.journal.record, costs, hours)).splitlines()
    assert len(lines) == 1 + len(trials)
    for trial, line in zip(trials.values(), lines[1:], strict=True):
        assert line.startswith(trial.trial_id[:6])
        assert "completed" in line
        assert "0.500 0.25 USD" in line
    assert "2x8 hold,linear" in lines[1]


def test_unknown_costs_are_dashes(sweep: Sweep) -> None:
    line = printed(results_table(sweep.journal.record, {}, {})).splitlines()[1]
    assert line.split()[-2:] == ["-", "-"]


@pytest.mark.parametrize(
    ("ok", "forced", "text"),
    [
        (True, "", "Metric gate: open"),
        (False, "", "Metric gate: closed"),
        (False, "known spike", "Metric gate: closed, passed by gate.force: known spike"),
    ],
)
def test_the_gate_is_printed_with_each_check(ok: bool, forced: str, text: str) -> None:
    output = io.StringIO()
    check = GateCheck("finite numbers", ok, "every curve of 60 steps")
    print_gate(Console(file=output, width=100), GateVerdict("metric", (check,), simulated=False, forced=forced))
    first, second = output.getvalue().splitlines()
    assert first == text
    assert second == f"  {'ok' if ok else 'NO'}  finite numbers: every curve of 60 steps"


def test_the_advice_names_the_action_the_reason_and_the_basis(sweep: Sweep) -> None:
    output = io.StringIO()
    print_lr_advice(Console(file=output, width=100), list(sweep.journal.record.trials.values()), sweep.cfg)
    *advice, basis = output.getvalue().splitlines()
    assert len(advice) == 3
    assert all(": lr may be raised (clip_frac " in line or ": keep lr (clip_frac " in line for line in advice)
    assert basis.startswith("  basis: eps 0.2/0.2, token ratio, 2 updates per rollout")

"""The commands that are printed at the end of a sweep."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path

from rich.console import Console

from sweeps.driver.context import DriverContext
from sweeps.driver.summary import next_command, report_costs
from tests.sweeps.paid import PaidSweep, a_book, a_paid_sweep
from tests.sweeps.search_spaces import LR_RANGE


def test_the_command_for_the_next_stage_leaves_out_the_overrides_of_this_stage() -> None:
    typed = [
        "+stage=smoke",
        "model=tiny",
        "search.seeds=[0,1]",
        "resume=never",
        'gate.force="low, but ok"',
        "trainer.simulated.crash_at_step=3",
        "paths.root=a folder",
    ]
    assert next_command("single", typed) == "python sweep.py +stage=single model=tiny 'paths.root=a folder'"


def test_the_command_for_the_next_stage_leaves_out_the_search_of_this_one() -> None:
    command = next_command("single", ["+stage=smoke", "search=optuna", LR_RANGE, "search.trials=3", "model=tiny"])
    assert "search" not in command


def context_of(sweep: PaidSweep, terminal: StringIO) -> DriverContext:
    console = Console(file=terminal, width=1000)
    parts = (sweep.cfg, [], console, sweep.ledger, sweep.journal, sweep.clock, sweep.pricing)
    return DriverContext(*parts, time=None, cards=(0,), keep_lock=lambda: None)


def test_a_sweep_whose_lease_cannot_be_priced_writes_its_costs_as_unpriced(tmp_path: Path) -> None:
    sweep = a_paid_sweep(tmp_path, "search.trials=1", book=a_book(tmp_path / "book", price="36")).run()
    context = context_of(sweep, StringIO())
    (tmp_path / "book" / "billing.yaml").write_text("rules: []\n")
    report = report_costs(context)
    assert report is not None
    assert "no billing rule for provider 'test'" in report.notes[0]
    rows = list(csv.DictReader((context.sweep_dir / "cost.csv").read_text().splitlines()))
    assert {row["cost"] for row in rows} == {"UNPRICED"}


def test_costs_that_cannot_be_read_are_a_warning_and_keep_nothing_from_being_closed(tmp_path: Path) -> None:
    sweep = a_paid_sweep(tmp_path, "search.trials=1", book=a_book(tmp_path / "book", price="36")).run()
    (tmp_path / "book" / "billing.yaml").write_text("rules: none")
    terminal = StringIO()
    assert report_costs(context_of(sweep, terminal)) is None
    assert "warning: the costs were not reported" in terminal.getvalue()
    assert "python -m cost report --sweep smoke-test-1" in terminal.getvalue()

"""What is proposed at the end of a sweep, and how a sweep that was killed at its very start is found again."""

from __future__ import annotations

import sqlite3

from sweeps.config.build import compose
from sweeps.driver.resume import earlier_sweeps
from sweeps.driver.summary import next_command
from sweeps.report.terminal import duration


def test_the_next_command_keeps_what_was_typed_less_what_belongs_to_this_stage():
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


def test_a_ledger_that_was_killed_while_it_was_made_is_no_ledger_yet(tmp_path):
    sqlite3.connect(tmp_path / "ledger.db").close()
    (tmp_path / "ledger.db").touch()
    assert earlier_sweeps(compose(["+stage=smoke", f"paths.root={tmp_path}"])) == []


def test_durations_read_as_a_person_would_say_them():
    assert [duration(s) for s in (None, 0, 45, 190, 7500)] == ["-", "0 s", "45 s", "3 min 10 s", "2 h 05 min"]

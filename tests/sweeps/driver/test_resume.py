"""Earlier sweeps that a driver finds before it starts."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

from sweeps.config.build import canonical, compose
from sweeps.config.types import SweepConfig
from sweeps.driver.resume import changed_content, earlier_sweeps
from sweeps.journal.journal import SweepRecord


def test_an_empty_database_file_of_a_killed_driver_has_no_sweeps(tmp_path):
    sqlite3.connect(tmp_path / "ledger.db").close()
    (tmp_path / "ledger.db").touch()
    assert earlier_sweeps(compose(["+stage=smoke", f"paths.root={tmp_path}"])) == []


def an_unfinished_sweep(cfg: SweepConfig) -> SweepRecord:
    record = SweepRecord("smoke-1")
    record.stage, record.machine, record.config = "smoke", cfg.machine.name, canonical(cfg)
    return record


def test_an_unfinished_sweep_is_not_resumed_with_other_questions_and_the_change_is_named():
    cfg = replace(compose(["+stage=smoke"]), content={"task.path=q.jsonl": "aaa", "model.path=m": "ccc"})
    other = replace(cfg, content={"task.path=q.jsonl": "bbb", "model.path=m": "ccc"})
    record = an_unfinished_sweep(cfg)
    text = changed_content(other, [record])
    for words in ("smoke-1 is not finished", "task.path=q.jsonl: aaa -> bbb", "restore the files"):
        assert words in text
    assert "model.path" not in text
    assert changed_content(cfg, [record]) == ""


def test_a_sweep_with_other_settings_is_another_sweep_and_not_one_with_changed_files():
    cfg = replace(compose(["+stage=smoke"]), content={"task.path=q.jsonl": "aaa"})
    other = replace(compose(["+stage=smoke", "algorithm.lr=3e-5"]), content={"task.path=q.jsonl": "bbb"})
    assert changed_content(other, [an_unfinished_sweep(cfg)]) == ""

"""Earlier sweeps that a driver finds before it starts."""

from __future__ import annotations

import sqlite3

from sweeps.config.build import compose
from sweeps.driver.resume import earlier_sweeps


def test_an_empty_database_file_of_a_killed_driver_has_no_sweeps(tmp_path):
    sqlite3.connect(tmp_path / "ledger.db").close()
    (tmp_path / "ledger.db").touch()
    assert earlier_sweeps(compose(["+stage=smoke", f"paths.root={tmp_path}"])) == []

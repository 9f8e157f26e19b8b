"""Restoring a copy to the empty database of a server, completely or not at all."""

from __future__ import annotations

import os
from decimal import Decimal
from pathlib import Path

import pytest
from sqlalchemy import func, select
from typer.testing import CliRunner

from cost.cli.main import app
from cost.copies.restore import restore_ledger
from cost.copies.s3_snapshot import upload_snapshot
from cost.ledger import schema
from cost.ledger.database import Database
from cost.ledger.ledger import Ledger
from cost.records import Correction, StoreError, UsageKey


@pytest.fixture
def small_ledger(ledger, clock, make_lease) -> Ledger:
    """Something in most tables, with amounts beyond 64 bits."""
    ledger.leases.open(make_lease(tags={"team": "rl"}))
    ledger.leases.attach("L1", "s1")
    for number in (1, 2):
        key = UsageKey("L1", "t1", number)
        ledger.usages.start(key, "s1", Decimal("0.5"), {"stage": "smoke", "acc": "0.5"})
        ledger.usages.add_phases(key, 1, {"train": 17, "rollout": 5})
        ledger.heartbeat("L1", [key])
        clock.advance_seconds(10)
        ledger.usages.end(key, "PREEMPTED")
    ledger.corrections.add(Correction("c1", "L1", "credit", -(10**30), "USD", clock.utc, "note", sweep_id="s1"))
    ledger.events.append("s1", "planned", {"name": "tränk"}, "planned")
    ledger.closed_months.add("2025-12")
    return ledger


def everything(store: Database) -> dict[str, list[tuple]]:
    with store.read() as connection:
        return {
            table.name: sorted(map(tuple, connection.execute(select(table))), key=str)
            for table in schema.metadata.sorted_tables
        }


def rows_of(place: str | Path) -> dict[str, list[tuple]]:
    store = Database(place, create=False, read_only=True)
    try:
        return everything(store)
    finally:
        store.close()


def test_every_row_is_put_back_as_it_was_and_the_server_counts_on_from_there(
    any_database, small_ledger, postgres, clock, tmp_path
):
    copy = small_ledger.copy_to(tmp_path / "copy.db")
    assert restore_ledger(copy, postgres) is None
    assert rows_of(postgres) == rows_of(any_database)
    with Ledger.open(postgres, clock) as found:
        found.usages.start(UsageKey("L1", "t1", 3), "s1", Decimal(1), {})
        found.leases.attach("L1", "s2")
        assert found.events.append("s1", "later", {}, "later")
        assert [u.key.attempt for u in found.usages.find()] == [1, 2, 3]
        with found.read() as connection:
            assert connection.execute(select(func.max(schema.usage.c.usage_id))).scalar() == 3


def test_a_database_that_is_not_empty_is_refused_and_not_changed(small_ledger, postgres, tmp_path):
    copy = small_ledger.copy_to(tmp_path / "copy.db")
    with Ledger.open(postgres) as other:
        other.events.append("s9", "planned", {}, "planned")
    before = rows_of(postgres)
    with pytest.raises(StoreError, match="contains a ledger already, which was not changed; name an empty"):
        restore_ledger(copy, postgres)
    assert rows_of(postgres) == before


def test_a_file_that_is_no_ledger_leaves_the_server_without_a_table(postgres, tmp_path):
    junk = tmp_path / "junk.bak"
    junk.write_text("no ledger" * 1000, encoding="utf-8")
    with pytest.raises(StoreError, match="not an intact ledger"):
        restore_ledger(junk, postgres)
    with pytest.raises(StoreError, match="nothing in the ledger"):
        Database(postgres, create=False, read_only=True)


def test_a_copy_and_a_snapshot_are_restored_to_a_server_by_one_command(small_ledger, postgres, bucket, tmp_path):
    root = tmp_path / "elsewhere"
    upload_snapshot(small_ledger, bucket)
    runner, places = CliRunner(), ["--db", postgres, "--root", str(root)]
    at = ["--from", bucket.url, "--endpoint-url", bucket.endpoint_url]
    said = runner.invoke(app, ["restore", *at, *places], catch_exceptions=False)
    assert said.exit_code == 0, said.output
    assert "Restored " in said.output
    assert rows_of(postgres) == rows_of(tmp_path / "ledger.db")
    (prices,) = root.glob("pricing-*")
    assert (prices / "billing.yaml").exists()
    again = runner.invoke(app, ["restore", str(small_ledger.copy_to(tmp_path / "copy.db")), *places])
    assert again.exit_code == 2
    assert "contains a ledger already" in again.output


def test_a_restore_that_is_killed_at_any_step_leaves_a_ledger_in_its_place(small_ledger, tmp_path, monkeypatch):
    """Each move of a file is a moment to die at; the ledger, old or new, is whole at every one of them."""
    here = tmp_path / "here.db"
    copy = small_ledger.copy_to(tmp_path / "copy.db")
    with Ledger.open(here) as other:
        other.events.append("s9", "planned", {}, "planned")
    old, new, seen = rows_of(here), rows_of(copy), []

    def watched(move):
        def wrapper(*names):
            seen.append(rows_of(here))
            move(*names)
            seen.append(rows_of(here))

        return wrapper

    monkeypatch.setattr("cost.copies.restore.os.link", watched(os.link))
    monkeypatch.setattr("cost.copies.restore.os.replace", watched(os.replace))
    aside = restore_ledger(copy, here)
    assert seen[0] == old
    assert seen[-1] == new
    assert all(rows in (old, new) for rows in seen)
    assert aside is not None
    assert rows_of(aside) == old


def test_a_restore_leaves_nothing_beside_the_copy(small_ledger, tmp_path):
    folder = tmp_path / "copies"
    folder.mkdir()
    copy = small_ledger.copy_to(folder / "copy.bak")
    restore_ledger(copy, tmp_path / "new" / "ledger.db")
    assert [path.name for path in folder.iterdir()] == ["copy.bak"]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["ledger.db"]
    with pytest.raises(StoreError, match="there is no file"):
        restore_ledger(folder / "other.bak", tmp_path / "new" / "ledger.db")

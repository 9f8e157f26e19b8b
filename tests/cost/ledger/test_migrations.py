"""A ledger of another version: an older ledger is migrated when a driver opens it, a newer ledger is left alone.

The upgrade path is tested with a migration that exists only here.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, text

from cost.ledger import schema
from cost.ledger.ledger import Ledger
from cost.ledger.migrations import run
from cost.ledger.sqlite_copy import backups_of
from cost.records import StoreError

NEXT_MIGRATION = """
import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "0002_test", "0001", None, None

def upgrade():
    op.create_table("note", sa.Column("note_id", sa.Integer(), primary_key=True), sa.Column("text", sa.Text()))
    op.create_index("event_at", "event", ["at_ns"])
    {last_step}
"""


def install_migration(folder: Path, monkeypatch: pytest.MonkeyPatch, last_step: str = "") -> None:
    """Add a migration after the newest one, as the next release of the program would."""
    (folder / "v0002_test.py").write_text(NEXT_MIGRATION.format(last_step=last_step), encoding="utf-8")
    monkeypatch.setattr(run, "VERSION_FOLDERS", [*run.VERSION_FOLDERS, folder])
    monkeypatch.setattr(schema, "HEAD", "0002_test")


def revision_of(ledger: Ledger) -> str:
    with ledger.read() as connection:
        return connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one()


def tables_of(ledger: Ledger) -> set[str]:
    with ledger.read() as connection:
        return set(inspect(connection).get_table_names())


def test_migrations_make_exactly_the_tables_of_the_schema(ledger):
    with ledger.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, schema.metadata) == []
    assert run.scripts().get_current_head() == schema.HEAD


def test_an_older_ledger_is_migrated_and_keeps_its_events(place, tmp_path, monkeypatch):
    with Ledger.open(place) as ledger:
        ledger.events.append("s", "e", {}, "k")
        assert revision_of(ledger) == "0001"
    install_migration(tmp_path, monkeypatch)
    with Ledger.open(place) as ledger:
        assert revision_of(ledger) == "0002_test"
        assert "note" in tables_of(ledger)
        assert [e.key for e in ledger.events.read("s")] == ["k"]
        assert ledger.events.append("s", "e", {}, "later")
    Ledger.open(place).close()


def test_a_new_ledger_runs_every_migration(place, tmp_path, monkeypatch):
    install_migration(tmp_path, monkeypatch)
    with Ledger.open(place) as ledger:
        assert revision_of(ledger) == "0002_test"
        assert {"event", "note"} <= tables_of(ledger)


def test_a_reader_does_not_migrate_an_older_ledger(place, tmp_path, monkeypatch):
    Ledger.open(place).close()
    with monkeypatch.context() as newer:
        install_migration(tmp_path, newer)
        with pytest.raises(StoreError, match="older version"):
            Ledger.open(place, read_only=True)
    with Ledger.open(place, read_only=True) as ledger:
        assert revision_of(ledger) == "0001"


def test_an_older_file_is_copied_before_it_is_migrated(tmp_path, monkeypatch):
    file = tmp_path / "ledger.db"
    with Ledger.open(file) as ledger:
        ledger.events.append("s", "e", {}, "k")
    with monkeypatch.context() as newer:
        (tmp_path / "versions").mkdir()
        install_migration(tmp_path / "versions", newer)
        Ledger.open(file).close()
    (saved,) = backups_of(file)
    assert saved.name == "ledger.0001.bak"
    with Ledger.open(saved, read_only=True) as old:
        assert [e.key for e in old.events.read("s")] == ["k"]


def test_a_migration_that_fails_leaves_the_ledger_as_it_was(place, tmp_path, monkeypatch):
    with Ledger.open(place) as ledger:
        ledger.events.append("s", "e", {}, "k")
        before = tables_of(ledger)
    with monkeypatch.context() as newer:
        install_migration(tmp_path, newer, last_step='op.execute("SELECT * FROM no_such_table")')
        with pytest.raises(StoreError, match="no_such_table"):
            Ledger.open(place)
    with Ledger.open(place) as ledger:
        assert revision_of(ledger) == "0001"
        assert tables_of(ledger) == before
        assert [e.key for e in ledger.events.read("s")] == ["k"]


def test_a_ledger_of_a_newer_version_is_refused(place):
    with Ledger.open(place) as ledger, ledger.database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreError, match=r"newer version.*9999"):
        Ledger.open(place)

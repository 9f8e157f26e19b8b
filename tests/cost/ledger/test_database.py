"""The database when it is locked, read-only, damaged, full or of another version, and when a driver is killed."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from decimal import Decimal
from pathlib import Path

import pytest

from cost.clock import NS_PER_SECOND, FakeClock
from cost.close.check import run_checks
from cost.copies.restore import restore_ledger
from cost.ledger.database import Database
from cost.ledger.ledger import HEARTBEAT_NS, Ledger
from cost.ledger.sqlite_copy import KEEP, backups_of, copy_sqlite
from cost.prices.book import PriceBook
from cost.records import NoLedgerError, StoreError, UsageKey

KEY = UsageKey("L1", "t1", 1)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def content(file: Path) -> bytes:
    return file.read_bytes()


def test_a_new_ledger_creates_its_folder_and_opens_again(tmp_path):
    file = tmp_path / "new" / "ledger.db"
    with Ledger.open(file) as ledger:
        ledger.events.append("s", "e", {}, "k")
    with Ledger.open(f"sqlite:///{file}", create=False) as ledger:
        assert [e.key for e in ledger.events.read("s")] == ["k"]


def test_commits_are_synchronised_to_the_disk(file):
    with Ledger.open(file) as ledger, ledger.read() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1


def test_a_reader_does_not_create_a_missing_ledger(file):
    for create, read_only in ((True, True), (False, False)):
        with pytest.raises(NoLedgerError, match="nothing in the ledger at"):
            Ledger.open(file, create=create, read_only=read_only)
    assert not file.exists()


def test_a_reader_cannot_write(file, make_lease):
    Ledger.open(file).close()
    with Ledger.open(file, read_only=True) as ledger, pytest.raises(StoreError, match="read-only"):
        ledger.leases.open(make_lease())


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://host/db", "what://"])
def test_an_unsupported_location_is_refused(url):
    with pytest.raises(StoreError):
        Ledger.open(url)


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(StoreError, match="is a folder"):
        Ledger.open(tmp_path)


def test_a_server_that_does_not_answer_is_named_without_its_password(tmp_path):
    with pytest.raises(StoreError, match="does not answer") as caught:
        Ledger.open(f"postgresql://me:secret@/db?host={tmp_path}")
    assert "secret" not in str(caught.value)


def test_a_locked_ledger_is_an_error_and_nothing_is_written(file, make_lease):
    Ledger.open(file).close()
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    from cost.clock import SystemClock

    ledger = Ledger(Database(file, create=False, read_only=False, busy_seconds=0.05), SystemClock())
    with pytest.raises(StoreError, match="locked by another program"):
        ledger.leases.open(make_lease())
    assert ledger.leases.find() == []
    other.execute("ROLLBACK")
    other.close()
    ledger.leases.open(make_lease())
    ledger.close()


@pytest.mark.parametrize("damage", ["header", "page"])
def test_a_damaged_ledger_is_not_changed_and_its_backup_is_named(file, damage):
    with Ledger.open(file) as ledger:
        for number in range(200):
            ledger.events.append("s", "e", {"text": "x" * 500}, str(number))
    saved = copy_sqlite(file, file.with_suffix(".bak"))
    with file.open("r+b") as raw:
        raw.seek(0 if damage == "header" else 4096 * 2)
        raw.write(b"\xff" * (16 if damage == "header" else 4096 * 20))
    before = content(file)
    with pytest.raises(StoreError, match="damaged") as caught, Ledger.open(file) as ledger:
        list(ledger.events.read("s"))
    assert f"python -m cost restore {saved}" in str(caught.value)
    assert content(file) == before
    previous = restore_ledger(saved, file)
    assert previous is not None
    assert content(previous) == before, "the damaged file is kept under another name"
    with Ledger.open(file) as ledger:
        assert len(list(ledger.events.read("s"))) == 200


def test_check_finds_a_damaged_page_that_no_report_reads(file):
    with Ledger.open(file) as ledger:
        for number in range(200):
            ledger.events.append("s", "e", {"text": "x" * 500}, str(number))
    with file.open("r+b") as raw:
        raw.seek(4096 * 40)
        raw.write(b"\xff" * 4096)
    with Ledger.open(file, read_only=True) as ledger:
        assert ledger.leases.find() == []
        with pytest.raises(StoreError, match="damaged"):
            run_checks(ledger, PriceBook(()), ledger.now_ns())


def test_a_file_that_is_not_a_database_is_not_changed(file):
    file.write_text("this text is not a database " * 50, encoding="utf-8")
    before = content(file)
    with pytest.raises(StoreError, match="damaged"):
        Ledger.open(file)
    assert content(file) == before


def test_a_ledger_of_a_newer_version_is_not_changed(file):
    Ledger.open(file).close()
    raw = sqlite3.connect(file)
    raw.execute("UPDATE alembic_version SET version_num = '9999'")
    raw.commit()
    raw.close()
    before = content(file)
    with pytest.raises(StoreError, match="newer version"):
        Ledger.open(file)
    assert content(file) == before


def test_a_full_disk_leaves_the_ledger_unchanged(file, make_lease):
    ledger = Ledger.open(file)
    ledger.leases.open(make_lease())
    with ledger.read() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match=r"disk of the ledger .* is full"), ledger.transaction():  # noqa: PT012
        ledger.events.append("s", "small", {}, "before")
        ledger.events.append("s", "big", {"text": "x" * 100_000}, "k")
    assert list(ledger.events.read("s")) == []
    with ledger.read() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
    assert ledger.events.append("s", "big", {"text": "x" * 100_000}, "k")
    ledger.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_an_error_with_its_cause(tmp_path):
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    with pytest.raises(StoreError, match=r"read-only|cannot be"):
        Ledger.open(folder / "ledger.db")


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(StoreError, match="cannot be created"):
        Ledger.open(tmp_path / "file" / "ledger.db")


def test_a_backup_during_a_write_has_only_committed_data(file, make_lease):
    with Ledger.open(file) as ledger:
        ledger.leases.open(make_lease())
        with ledger.transaction():
            ledger.events.append("s", "e", {}, "k")
            copy_sqlite(file, file.with_suffix(".bak"))
    with Ledger.open(file.with_suffix(".bak"), read_only=True) as saved:
        assert len(saved.leases.find()) == 1
        assert list(saved.events.read("s")) == []


def test_one_copy_is_kept_for_each_of_the_last_days(file):
    clock = FakeClock()
    with Ledger.open(file, clock) as ledger:
        for day in range(KEEP + 2):
            ledger.events.append("s", "e", {}, str(day))
            made = [ledger.backup(), ledger.backup()]
            assert made[0] == made[1]
            clock.advance(86_400 * NS_PER_SECOND)
    names = sorted(path.name for path in backups_of(file))
    assert names == [f"ledger.2026-01-{day:02d}.bak" for day in range(3, KEEP + 3)]
    with Ledger.open(file.with_name(names[0]), read_only=True) as old:
        assert len(list(old.events.read("s"))) == 3


def test_restore_refuses_a_file_that_is_not_a_ledger_and_a_ledger_in_use(file, tmp_path):
    with Ledger.open(file) as ledger:
        ledger.events.append("s", "e", {}, "k")
        saved = ledger.backup()
        assert saved is not None
        before = list(ledger.events.read("s"))
        with ledger.transaction(), pytest.raises(StoreError, match="being written to"):
            restore_ledger(saved, file)
        junk = tmp_path / "junk.bak"
        junk.write_text("no ledger" * 1000, encoding="utf-8")
        for wrong, message in ((junk, "not an intact ledger"), (tmp_path / "nothing.bak", "there is no file")):
            with pytest.raises(StoreError, match=message):
                restore_ledger(wrong, file)
        assert list(ledger.events.read("s")) == before


def test_a_ledger_is_restored_to_a_new_folder(file, tmp_path):
    with Ledger.open(file) as ledger:
        ledger.events.append("s", "e", {}, "k")
        saved = ledger.backup()
    assert saved is not None
    target = tmp_path / "elsewhere" / "ledger.db"
    assert restore_ledger(saved, target) is None
    with Ledger.open(target) as ledger:
        assert [e.key for e in ledger.events.read("s")] == ["k"]


KILLED_AT = ("after_open", "inside_start", "after_start", "inside_phases", "after_phases", "inside_end", "after_end")


@pytest.mark.parametrize("point", KILLED_AT)
def test_a_killed_driver_loses_at_most_one_heartbeat_and_nothing_is_billed_twice(file, point):
    """A driver kills itself at a given point. The next driver closes its usages."""
    script = f"""
        import os, signal
        from decimal import Decimal
        from cost.clock import FakeClock
        from cost.ledger.ledger import HEARTBEAT_NS, Ledger
        from cost.records import Lease, UsageKey

        def reach(point):
            if point == {point!r}:
                os.kill(os.getpid(), signal.SIGKILL)

        clock, key = FakeClock(), UsageKey("L1", "t1", 1)
        ledger = Ledger.open({str(file)!r}, clock)
        with ledger.transaction():
            ledger.leases.open(Lease("L1", "i", "m", "sku", "p", 1, "USD", None))
            ledger.leases.attach("L1", "s1")
        reach("after_open")
        with ledger.transaction():
            ledger.events.append("s1", "attempt_started", {{}}, "t1/1")
            ledger.usages.start(key, "s1", Decimal(1), {{}})
            reach("inside_start")
        reach("after_start")
        for number in range(1, 4):
            clock.advance(HEARTBEAT_NS)
            ledger.heartbeat("L1", [key])
            with ledger.transaction():
                ledger.usages.add_phases(key, number, {{"train": HEARTBEAT_NS}})
                if number == 2:
                    reach("inside_phases")
        clock.advance(HEARTBEAT_NS - 1)
        reach("after_phases")
        with ledger.transaction():
            ledger.usages.end(key, "COMPLETED")
            reach("inside_end")
        reach("after_end")
    """
    process = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
    assert process.returncode == -signal.SIGKILL
    with Ledger.open(file) as ledger:
        closed = ledger.usages.close_dead()
        assert ledger.usages.close_dead() == []
        assert ledger.leases.get("L1").to_ns is None
        usages, events = ledger.usages.find(), list(ledger.events.read("s1"))
        assert len(usages) == len(events) == (0 if point in ("after_open", "inside_start") else 1)
        if not usages:
            return
        (usage,) = usages
        truth = {"after_start": 0, "inside_phases": 2}.get(point, 4) * HEARTBEAT_NS
        truth -= 1 if truth == 4 * HEARTBEAT_NS else 0
        assert usage.to_ns is not None
        assert 0 <= truth - (usage.to_ns - usage.from_ns) <= HEARTBEAT_NS
        assert usage.end_estimated == bool(closed) == (point != "after_end")
        ledger.leases.attach("L1", "s1")
        ledger.usages.start(UsageKey("L1", "t1", 2), "s1", Decimal(1), {})

"""Copies of a SQLite ledger, and going back to one. A ledger that stood in the way is set aside, never deleted.

A server's database is backed up by its own means, not here; an empty one can be filled from a copy.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from cost.records import StoreError

KEEP = 7
"""How many days' copies are kept."""


def backups_of(ledger: Path) -> list[Path]:
    """The copies beside a ledger, oldest first."""
    return sorted(ledger.parent.glob(f"{ledger.stem}*.bak"), key=lambda path: path.stat().st_mtime)


def copy_sqlite(source: Path, target: Path) -> Path:
    """A consistent copy of a database, also while it is written to; whole, or not there at all.

    Raises:
        StoreError: it cannot be read, or the copy cannot be written.
    """
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        reader = sqlite3.connect(f"file:{source.absolute()}?mode=ro", uri=True)
        with closing(reader), closing(sqlite3.connect(partial)) as writer:
            reader.backup(writer)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, target)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"{source} cannot be copied to {target}: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return target


def daily_backup(ledger: Path, now_ns: int) -> Path:
    """The copy of the day (UTC), beside the ledger; copies of the day before KEEP others are removed."""
    day = datetime.fromtimestamp(now_ns // 10**9, UTC).date().isoformat()
    made = copy_sqlite(ledger, ledger.with_suffix(f".{day}.bak"))
    daily = sorted(ledger.parent.glob(f"{ledger.stem}.????-??-??.bak"))
    for old in daily[:-KEEP]:
        old.unlink()
    return made


def restore(copy: Path, ledger: str | Path) -> Path | None:
    """Put a copy in a ledger's place, a file's or an empty database's on a server (its URL).

    A file that stood there is moved aside; returns where to, None where nothing was.

    Raises:
        StoreError: the copy is no whole ledger, a driver is writing to the ledger now, or the database is not empty.
    """
    from cost.store import Store, sqlite_path

    path = sqlite_path(ledger)
    if path is not None:
        return _restore_file(copy, path)
    check_whole(copy)  # before a table is made on the server
    store = Store(ledger, create=True, read_only=False)
    try:
        store.fill(copy)
    finally:
        store.close()
    return None


def _restore_file(copy: Path, ledger: Path) -> Path | None:
    check_whole(copy)
    aside = None
    if ledger.exists():
        _check_unused(ledger)
        aside = _free_name(ledger)
        for ending in ("", "-wal", "-shm"):
            part = ledger.with_name(ledger.name + ending)
            if part.exists():
                os.replace(part, aside.with_name(aside.name + ending))
    ledger.parent.mkdir(parents=True, exist_ok=True)
    partial = ledger.with_name(f"{ledger.name}.{os.getpid()}.partial")
    shutil.copyfile(copy, partial)
    os.replace(partial, ledger)
    return aside


def check_whole(copy: Path) -> None:
    """A file is a whole ledger. Raises StoreError."""
    try:
        with closing(sqlite3.connect(f"file:{copy.absolute()}?mode=ro", uri=True)) as raw:
            said = raw.execute("PRAGMA integrity_check").fetchone()[0]
            raw.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.Error as error:
        raise StoreError(f"{copy} is no whole ledger: {error}") from error
    if said != "ok":
        raise StoreError(f"{copy} is no whole ledger: {said}")


def _check_unused(ledger: Path) -> None:
    try:
        with closing(sqlite3.connect(ledger, timeout=0.1, isolation_level=None)) as raw:
            raw.execute("BEGIN IMMEDIATE")
            raw.execute("ROLLBACK")
    except sqlite3.DatabaseError as error:
        if "locked" in str(error):
            raise StoreError(f"{ledger} is being written to; end the sweep first") from error


def _free_name(ledger: Path) -> Path:
    number = 1
    while (name := ledger.with_name(f"{ledger.name}.aside{number}")).exists():
        number += 1
    return name

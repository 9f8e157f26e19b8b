"""Copies of a SQLite ledger. The database of a server is backed up by the server.

Tested in tests/cost/ledger/test_database.py and tests/cost/copies/test_restore.py.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from cost.periods import day_text
from cost.records import StoreError

KEEP = 7
"""Number of daily copies that are kept."""


def backups_of(ledger: Path) -> list[Path]:
    """The copies beside a ledger, oldest first."""
    return sorted(ledger.parent.glob(f"{ledger.stem}*.bak"), key=lambda path: path.stat().st_mtime)


def copy_sqlite(source: Path, target: Path, *, unused: bool = False) -> Path:
    """Copy a database consistently, completely or not at all, also while other processes write to it.

    `unused`: no process writes to the source.

    Raises:
        StoreError: the source cannot be read, or the copy cannot be written.
    """
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        with closing(_reading(source, unused=unused)) as reader, closing(sqlite3.connect(partial)) as writer:
            reader.backup(writer)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, target)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"{source} cannot be copied to {target}: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return target


def _reading(path: Path, *, unused: bool) -> sqlite3.Connection:
    # SQLite creates no files beside an immutable database. A database with a write-ahead log must not be immutable,
    # since SQLite would ignore the log.
    immutable = unused and not path.with_name(f"{path.name}-wal").exists()
    uri = f"file:{quote(str(path.absolute()))}?mode=ro" + ("&immutable=1" if immutable else "")
    return sqlite3.connect(uri, uri=True)


def daily_backup(ledger: Path, now_ns: int) -> Path:
    """Write the copy of the day (UTC) beside the ledger. The newest KEEP daily copies are kept."""
    copy = copy_sqlite(ledger, ledger.with_suffix(f".{day_text(now_ns)}.bak"))
    daily = sorted(ledger.parent.glob(f"{ledger.stem}.????-??-??.bak"))
    for old in daily[:-KEEP]:
        old.unlink()
    return copy


def check_intact(copy: Path) -> None:
    """Check that a file to which no process writes is an intact ledger. Raises StoreError."""
    try:
        if not copy.is_file():
            raise StoreError(f"there is no file {copy}")
        with closing(_reading(copy, unused=True)) as raw:
            result = raw.execute("PRAGMA integrity_check").fetchone()[0]
            raw.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.Error as error:
        raise StoreError(f"{copy} is not an intact ledger: {error}") from error
    if result != "ok":
        raise StoreError(f"{copy} is not an intact ledger: {result}")

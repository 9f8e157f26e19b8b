"""Copies of a SQLite ledger. A server's database is backed up by its own means, not here."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from cost.periods import day_text
from cost.records import StoreError

KEEP = 7
"""How many days' copies are kept."""


def backups_of(ledger: Path) -> list[Path]:
    """The copies beside a ledger, oldest first."""
    return sorted(ledger.parent.glob(f"{ledger.stem}*.bak"), key=lambda path: path.stat().st_mtime)


def copy_sqlite(source: Path, target: Path, *, still: bool = False) -> Path:
    """A consistent copy of a database, also while it is written to; whole, or not there at all.

    `still`: nobody writes to it.

    Raises:
        StoreError: it cannot be read, or the copy cannot be written.
    """
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        with closing(_reading(source, still=still)) as reader, closing(sqlite3.connect(partial)) as writer:
            reader.backup(writer)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, target)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"{source} cannot be copied to {target}: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return target


def _reading(path: Path, *, still: bool) -> sqlite3.Connection:
    # Told that nothing changes, SQLite leaves no files of its own beside it; what a log still holds is then not read.
    frozen = still and not path.with_name(f"{path.name}-wal").exists()
    uri = f"file:{quote(str(path.absolute()))}?mode=ro" + ("&immutable=1" if frozen else "")
    return sqlite3.connect(uri, uri=True)


def daily_backup(ledger: Path, now_ns: int) -> Path:
    """The copy of the day (UTC), beside the ledger; copies of the day before KEEP others are removed."""
    made = copy_sqlite(ledger, ledger.with_suffix(f".{day_text(now_ns)}.bak"))
    daily = sorted(ledger.parent.glob(f"{ledger.stem}.????-??-??.bak"))
    for old in daily[:-KEEP]:
        old.unlink()
    return made


def check_whole(copy: Path) -> None:
    """A file that nobody writes to is a whole ledger. Raises StoreError."""
    try:
        if not copy.is_file():
            raise StoreError(f"there is no file {copy}")
        with closing(_reading(copy, still=True)) as raw:
            said = raw.execute("PRAGMA integrity_check").fetchone()[0]
            raw.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.Error as error:
        raise StoreError(f"{copy} is no whole ledger: {error}") from error
    if said != "ok":
        raise StoreError(f"{copy} is no whole ledger: {said}")

"""Going back to a copy of a ledger. One that stood in the way is set aside, never deleted."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from cost.ledger.database import Database, sqlite_path
from cost.ledger.sqlite_copy import check_whole, copy_sqlite
from cost.records import StoreError


def restore_ledger(copy: Path, ledger: str | Path) -> Path | None:
    """Put a copy in a ledger's place, a file's or an empty database's on a server (its URL).

    A file that stood there is moved aside; returns where to, None where nothing was.

    Raises:
        StoreError: the copy is no whole ledger, a driver is writing to the ledger now, or the database is not empty.
    """
    path = sqlite_path(ledger)
    if path is not None:
        return _restore_file(copy, path)
    check_whole(copy)  # before a table is made on the server
    store = Database(ledger, create=True, read_only=False)
    try:
        store.fill(copy)
    finally:
        store.close()
    return None


def _restore_file(copy: Path, ledger: Path) -> Path | None:
    check_whole(copy)
    aside = None
    ledger.parent.mkdir(parents=True, exist_ok=True)
    # Whole, and on the disk, before anything is moved: whoever is killed after that has lost nothing.
    new = copy_sqlite(copy, ledger.with_name(f"{ledger.name}.{os.getpid()}.new"), still=True)
    try:
        if ledger.exists():
            _check_unused(ledger)
            aside = _free_name(ledger)
            _keep_as(ledger, aside)
            for ending in ("-wal", "-shm"):
                part = ledger.with_name(ledger.name + ending)
                if part.exists():
                    os.replace(part, aside.with_name(aside.name + ending))
        os.replace(new, ledger)
    finally:
        new.unlink(missing_ok=True)
    return aside


def _keep_as(ledger: Path, aside: Path) -> None:
    """Another name for the same file, so that at no moment there is no ledger; where files have one name, a new one."""
    try:
        os.link(ledger, aside)
    except OSError:
        os.replace(ledger, aside)


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

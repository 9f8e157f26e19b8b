"""Restore a ledger from a copy. The previous ledger file is kept under another name, never deleted."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from cost.ledger.database import Database, sqlite_path
from cost.ledger.sqlite_copy import check_intact, copy_sqlite
from cost.records import StoreError


def restore_ledger(copy: Path, ledger: str | Path) -> Path | None:
    """Restore a copy to a file, or to the empty database of a server (its URL).

    Returns the new path of the previous ledger file; None: there was none.

    Raises:
        StoreError: the copy is not an intact ledger, a driver is writing to the ledger, or the database is not empty.
    """
    path = sqlite_path(ledger)
    if path is not None:
        return _restore_file(copy, path)
    check_intact(copy)  # before tables are created on the server
    store = Database(ledger, create=True, read_only=False)
    try:
        store.fill(copy)
    finally:
        store.close()
    return None


def _restore_file(copy: Path, ledger: Path) -> Path | None:
    check_intact(copy)
    previous = None
    ledger.parent.mkdir(parents=True, exist_ok=True)
    # The copy is complete and on the disk before anything is moved, so a kill at any moment loses nothing.
    new = copy_sqlite(copy, ledger.with_name(f"{ledger.name}.{os.getpid()}.new"), unused=True)
    try:
        if ledger.exists():
            _check_unused(ledger)
            previous = _free_name(ledger)
            _link_or_move(ledger, previous)
            for ending in ("-wal", "-shm"):
                part = ledger.with_name(ledger.name + ending)
                if part.exists():
                    os.replace(part, previous.with_name(previous.name + ending))
        os.replace(new, ledger)
    finally:
        new.unlink(missing_ok=True)
    return previous


def _link_or_move(ledger: Path, previous: Path) -> None:
    """Give the file a second name, so that a ledger exists at every moment; move it if hard links are not supported."""
    try:
        os.link(ledger, previous)
    except OSError:
        os.replace(ledger, previous)


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

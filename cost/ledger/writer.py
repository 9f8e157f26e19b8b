"""One driver process as a writer of the ledger: its clock, its row, its transactions.

A driver registers itself with its anchor at its first write; steps of its wall clock are written down with the next
one. Nothing here knows what is written.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import sqlite

from cost.clock import Clock, DriverClock
from cost.ledger import schema
from cost.ledger.liveness import process_start
from cost.ledger.sqlite_copy import daily_backup
from cost.ledger.store import Store


class Driver:
    """A store and a clock. Use it as a context manager, or `close` it. Threads may share one; they take turns."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = DriverClock(clock)
        self.driver_id = str(uuid.uuid4())
        self._registered = False
        self._steps_written = 0

    def close(self) -> None:
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @property
    def place(self) -> str:
        """Where it is: a path, or a URL without its password."""
        return self._store.place

    def backup(self) -> Path | None:
        """A whole copy of the ledger beside it, one per day; None for a server, which has means of its own.

        Raises:
            StoreError: the copy cannot be written.
        """
        return None if self._store.path is None else daily_backup(self._store.path, self.now_ns())

    def check_file(self) -> None:
        """Every page of a ledger in a file can be read. Raises StoreError."""
        self._store.check_file()

    def copy_to(self, target: Path) -> Path:
        """A whole copy of the ledger as a SQLite file, of a server's too, as of one moment.

        Raises:
            StoreError: it cannot be written.
        """
        return self._store.copy_to(target)

    def now_ns(self) -> int:
        """UTC nanoseconds by this driver's anchor."""
        return self._clock.now_ns()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing. Calls inside join it; an error that passes through any of them abandons all of it."""
        with self._write():
            yield

    def read(self) -> AbstractContextManager[Connection]:
        """A connection for the functions of `facts`."""
        return self._store.read()

    @contextmanager
    def unsigned(self) -> Iterator[Connection]:
        """A write transaction for facts that other drivers signed: for `cost.merge` alone."""
        with self._store.turn:
            try:
                with self._store.write() as connection:
                    yield connection
            except BaseException:
                self._forget()
                raise

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with self._store.turn:
            before = self._registered, self._steps_written
            try:
                with self._store.write() as connection:
                    if not self._registered:
                        self._register(connection)
                    self._write_steps(connection)
                    yield connection
            except BaseException:
                # What was written with it is gone, the driver's own row included.
                self._registered, self._steps_written = before
                self._forget()
                raise

    def lock_stream(self, connection: Connection, stream: str) -> None:
        """No other program appends to a journal until the transaction ends."""
        self._store.lock(connection, f"stream {stream}")

    def _forget(self) -> None:
        """Called when a transaction is undone."""

    def _register(self, connection: Connection) -> None:
        anchor = self._clock.anchor
        row = {
            "driver_id": self.driver_id,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "process_start": process_start(os.getpid()) or "",
            "boot_id": anchor.boot_id,
            "anchor_utc_ns": anchor.utc_ns,
            "anchor_monotonic_ns": anchor.monotonic_ns,
        }
        connection.execute(schema.driver.insert(), row)
        self._registered = True

    def _write_steps(self, connection: Connection) -> None:
        steps = self._clock.steps[self._steps_written :]
        for step in steps:
            row = {"driver_id": self.driver_id, "at_ns": step.at_ns, "step_ns": step.step_ns}
            connection.execute(schema.clock_step.insert(), row)
        self._steps_written += len(steps)

    def _signature(self) -> dict[str, Any]:
        return {"driver_id": self.driver_id, "written_ns": self.now_ns()}

    def _insert_new(self, connection: Connection, table: Table, rows: list[dict[str, Any]]) -> int:
        """Insert the rows whose key is not there yet; returns how many those were."""
        if self._store.dialect == "sqlite":
            return connection.execute(sqlite.insert(table).on_conflict_do_nothing(), rows).rowcount
        from sqlalchemy.dialects import postgresql  # imported slowly, and not needed for a file

        key = next(iter(table.primary_key))
        # A batch's row count is not known to this driver: it returns what it inserted instead.
        insert = postgresql.insert(table).on_conflict_do_nothing().returning(key)
        return len(connection.execute(insert, rows).all())

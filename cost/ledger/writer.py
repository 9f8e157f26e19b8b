"""The driver process as a writer of the ledger: its clock, its row in the driver table, its transactions.

A driver registers at its first write, with its clock's anchor. Steps of the wall clock are recorded with the next
write. Every row carries the driver's id and the time of the write (`signature`).
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import sqlite

from cost.clock import Clock, DriverClock
from cost.ledger import schema
from cost.ledger.database import Database
from cost.ledger.liveness import process_start


class LedgerWriter:
    """The database, the clock and the identity that all stores of one open ledger share. Threads take turns."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self.database = database
        self.clock = DriverClock(clock)
        self.driver_id = str(uuid.uuid4())
        self._registered = False
        self._steps_written = 0
        self._rollback_callbacks: list[Callable[[], None]] = []

    def now_ns(self) -> int:
        """UTC nanoseconds by this driver's anchor."""
        return self.clock.now_ns()

    def read(self) -> AbstractContextManager[Connection]:
        """A connection that sees one consistent state."""
        return self.database.read()

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A write transaction of this driver; nested calls join the open transaction of this thread.

        An error rolls back the whole transaction and calls every `on_rollback` callback.
        """
        with self.database.turn:
            before = self._registered, self._steps_written
            try:
                with self.database.write() as connection:
                    if not self._registered:
                        self._register(connection)
                    self._write_steps(connection)
                    yield connection
            except BaseException:
                self._registered, self._steps_written = before  # the driver's own row is rolled back as well
                self._rolled_back()
                raise

    @contextmanager
    def write_unsigned(self) -> Iterator[Connection]:
        """A write transaction that does not register this driver, for merging rows that other drivers signed."""
        with self.database.turn:
            try:
                with self.database.write() as connection:
                    yield connection
            except BaseException:
                self._rolled_back()
                raise

    def on_rollback(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each rollback: a store drops what it cached from the transaction."""
        self._rollback_callbacks.append(callback)

    def lock(self, connection: Connection, name: str) -> None:
        """Exclude other programs that lock the same name, until the transaction ends."""
        self.database.lock(connection, name)

    def signature(self) -> dict[str, Any]:
        """The columns of every row that name its driver and the time of writing."""
        return {"driver_id": self.driver_id, "written_ns": self.now_ns()}

    def insert_new(self, connection: Connection, table: Table, rows: list[dict[str, Any]]) -> int:
        """Insert the rows whose primary key is not in the table yet. Returns the number of inserted rows."""
        if self.database.dialect == "sqlite":
            return connection.execute(sqlite.insert(table).on_conflict_do_nothing(), rows).rowcount
        from sqlalchemy.dialects import postgresql  # slow to import, and not needed for SQLite

        key = next(iter(table.primary_key))
        # psycopg does not report the row count of a batch, so the statement returns the inserted keys.
        insert = postgresql.insert(table).on_conflict_do_nothing().returning(key)
        return len(connection.execute(insert, rows).all())

    def _rolled_back(self) -> None:
        for callback in self._rollback_callbacks:
            callback()

    def _register(self, connection: Connection) -> None:
        anchor = self.clock.anchor
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
        steps = self.clock.steps[self._steps_written :]
        for step in steps:
            row = {"driver_id": self.driver_id, "at_ns": step.at_ns, "step_ns": step.step_ns}
            connection.execute(schema.clock_step.insert(), row)
        self._steps_written += len(steps)

"""The ledger: leases, usages, events and corrections, written once and never changed.

Every method of a store commits by itself, or joins the `transaction` around it. Writing the same fact twice changes
nothing; the same fact with other content raises `IntegrityError`. Only drivers write: trials report durations, and
the driver's clock dates them. Prices are not looked up and money is not added up here.

    with Ledger.open("runs/ledger.db") as ledger, ledger.transaction():
        ledger.leases.open(lease)
        ledger.leases.attach(lease.lease_id, sweep_id)
        ledger.events.append(sweep_id, "started", {}, key="started")
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Self

from sqlalchemy import Connection

from cost.clock import Clock, SystemClock
from cost.ledger import liveness
from cost.ledger.closed_months import ClosedMonthStore
from cost.ledger.corrections import CorrectionStore
from cost.ledger.database import Database
from cost.ledger.events import EventStore
from cost.ledger.leases import LeaseStore
from cost.ledger.liveness import HEARTBEAT_NS, SILENT_NS
from cost.ledger.price_archive import PriceArchive
from cost.ledger.reservations import ReservationStore
from cost.ledger.sqlite_copy import daily_backup
from cost.ledger.usages import UsageStore
from cost.ledger.writer import LedgerWriter
from cost.records import UsageKey

__all__ = ["HEARTBEAT_NS", "SILENT_NS", "Ledger"]


class Ledger:
    """An open ledger: one store per kind of record. Use as a context manager, or `close` it. Threads take turns."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self.database = database
        self.writer = LedgerWriter(database, clock)
        self.events = EventStore(self.writer)
        self.leases = LeaseStore(self.writer, self.events)
        self.usages = UsageStore(self.writer)
        self.reservations = ReservationStore(self.writer)
        self.corrections = CorrectionStore(self.writer)
        self.closed_months = ClosedMonthStore(self.writer)
        self.price_archive = PriceArchive(self.writer)

    @classmethod
    def open(
        cls, url: str | Path, clock: Clock | None = None, *, create: bool = True, read_only: bool = False
    ) -> Ledger:
        """Open the ledger in a SQLite file (its path) or on a server (a `postgresql://` URL).

        The ledger is created, or migrated to the newest version, unless `create` is False or `read_only` is True.

        Raises:
            NoLedgerError: there is no ledger, and `create` is False or `read_only` is True.
            StoreError: the ledger is locked, damaged or of a newer version, or its location cannot be used.
        """
        ledger = cls(Database(url, create=create, read_only=read_only), clock or SystemClock())
        driver_clock = ledger.writer.clock
        if not read_only and not driver_clock.anchor.simulated:
            with ledger.read() as connection:
                ahead_ns = liveness.latest_write_ahead(connection, ledger.now_ns())
            if ahead_ns is not None:
                driver_clock.not_before(ahead_ns + HEARTBEAT_NS)
        return ledger

    def close(self) -> None:
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @property
    def place(self) -> str:
        """Where the ledger is: a path, or a URL without its password."""
        return self.database.place

    @property
    def driver_id(self) -> str:
        """Identifies this process in every row that it writes."""
        return self.writer.driver_id

    def now_ns(self) -> int:
        """UTC nanoseconds by this driver's anchor."""
        return self.writer.now_ns()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All writes inside commit together or not at all.

        An error inside a nested call rolls back the whole transaction, even where the caller catches the error.
        """
        with self.writer.write():
            yield

    def read(self) -> AbstractContextManager[Connection]:
        """A connection for the functions of `cost.ledger.queries`."""
        return self.writer.read()

    def heartbeat(self, lease_id: str, usages: Sequence[UsageKey] = ()) -> None:
        """Record that a machine is still leased, and that these usages still use its cards.

        A closed lease and a usage that has ended stay as they are.

        Raises:
            LedgerRemovedError: the ledger's file was deleted or replaced.
        """
        self.check_in_place()
        with self.writer.write():
            now_ns = self.now_ns()
            self.leases.heartbeat(lease_id, now_ns)
            self.usages.heartbeat(usages, now_ns)

    def backup(self) -> Path | None:
        """Write the backup of the day beside a SQLite ledger. Returns None for a server, which has its own backups.

        Raises:
            StoreError: the copy cannot be written.
        """
        return None if self.database.path is None else daily_backup(self.database.path, self.now_ns())

    def check_file(self) -> None:
        """Check that every page of a SQLite file is readable. Raises StoreError."""
        self.database.check_file()

    def check_in_place(self) -> None:
        """Check that the ledger's file was not deleted or replaced. Raises LedgerRemovedError."""
        self.database.check_in_place()

    def put_back(self) -> Path:
        """Write a deleted ledger to its path again, or beside the file that is there now: `Database.put_back`."""
        return self.database.put_back()

    def copy_to(self, target: Path) -> Path:
        """Copy the ledger, of a file or of a server, into a new SQLite file, as of one moment.

        Raises:
            StoreError: the copy cannot be written.
        """
        return self.database.copy_to(target)

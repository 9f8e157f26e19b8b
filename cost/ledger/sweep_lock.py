"""The lock of a sweep: one driver at a time, for as long as its process lives.

For a SQLite ledger, a file beside the ledger is locked. On a PostgreSQL server, a connection of its own takes an
advisory lock. The lock ends with the process that holds it, so a killed driver blocks nobody. A PostgreSQL server needs
up to half a minute to notice that a host is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, NullPool, create_engine, select, text
from sqlalchemy.exc import ArgumentError, DBAPIError

from cost.ledger import schema
from cost.ledger.database import shown_place, sqlite_path, with_psycopg
from cost.ledger.liveness import process_start
from cost.periods import instant_text
from cost.records import StoreError

LOCK = "driver.lock"
"""The file, in a folder that is named after the sweep."""


@dataclass(frozen=True)
class LockOwner:
    """A process that drives a sweep, or did."""

    pid: int
    host: str
    since: str
    """UTC; `unknown` where it may not be seen."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"


class SweepLockedError(StoreError):
    """Another process drives the sweep. `by` is None where it cannot be told which."""

    def __init__(self, sweep_id: str, by: LockOwner | None) -> None:
        super().__init__(f"{sweep_id} is being driven by {by or 'another process'}")
        self.sweep_id, self.by = sweep_id, by


@contextmanager
def sweep_lock(place: str | Path, sweep_id: str) -> Iterator[Callable[[], None]]:
    """Hold the sweep, in the ledger at `place`, until the end of the block.

    Yields what a driver calls at each of its heartbeats: it makes sure that the sweep is still held, and holds it again
    where the lock was lost (its file was removed, the connection broke).

    Raises:
        SweepLockedError: another process holds it; out of what is yielded, too.
        StoreError: the server does not answer; out of what is yielded, too.
    """
    path = sqlite_path(place)
    hold = _Server(str(place), sweep_id) if path is None else _File(path, sweep_id)
    try:
        hold.keep()
        yield hold.keep
    finally:
        hold.release()


def lock_owner(place: str | Path, sweep_id: str) -> LockOwner | None:
    """Who drives a sweep now; None: nobody. Never stands in the way of a driver that is just starting.

    Raises:
        StoreError: the server does not answer.
    """
    path = sqlite_path(place)
    if path is None:
        server = _Server(str(place), sweep_id)
        try:
            return server.holder()
        finally:
            server.release()
    return _File(path, sweep_id).holder()


def driver_process(connection: Connection, driver_id: str, at_ns: int) -> LockOwner | None:
    """The process that signed something in the ledger at this moment."""
    query = select(schema.driver.c.pid, schema.driver.c.host).where(schema.driver.c.driver_id == driver_id)
    row = connection.execute(query).first()
    return None if row is None else LockOwner(row.pid, row.host, instant_text(at_ns))


class _File:
    def __init__(self, ledger: Path, sweep_id: str) -> None:
        self._path, self._sweep_id = ledger.parent / sweep_id / LOCK, sweep_id
        self._file: TextIOWrapper | None = None

    def keep(self) -> None:
        if self._file is not None and _is_there(self._file, self._path):
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = self._path.open("a+", encoding="utf-8")
        except OSError as error:
            raise StoreError(f"{self._path} cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            by = _written(file)
            file.close()
            raise SweepLockedError(self._sweep_id, by) from None
        self.release()
        self._file = file
        file.truncate(0)
        file.write(f"{os.getpid()} {socket.gethostname()} {instant_text(time.time_ns())}")
        file.flush()

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def holder(self) -> LockOwner | None:
        try:
            with open(self._path, encoding="utf-8") as file:
                by = _written(file)
                if by is None or (by.host == socket.gethostname() and process_start(by.pid) is None):
                    return None
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    return None  # its number is another process's now
                except OSError:
                    return by
        except OSError:
            return None


def _is_there(file: TextIOWrapper, path: Path) -> bool:
    """Whether the open file is still the one at this path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False


def _written(file: TextIOWrapper) -> LockOwner | None:
    file.seek(0)
    words = file.read().split(maxsplit=2)
    return LockOwner(int(words[0]), words[1], words[2]) if len(words) == 3 and words[0].isdigit() else None


_NAME = "drives a sweep: process {} on {}"
"""What a driver's connection is called in `pg_stat_activity`. A server cuts it off after 63 bytes."""

_OF_SWEEP = """
    locktype = 'advisory' AND granted AND objsubid = 1
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND (classid::bigint << 32 | objid::bigint) = hashtextextended(:name, 0)
"""
_HELD_BY_US = text(f"SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND {_OF_SWEEP}")
_HOLDER = text(
    "SELECT application_name, backend_start FROM pg_stat_activity "
    f"WHERE pid IN (SELECT pid FROM pg_locks WHERE {_OF_SWEEP})"
)
_SETTINGS = {"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3"}
"""By which the server finds out that a driver's host is gone."""
_ANSWERS_WITHIN = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""By which a driver finds out that the server is gone."""


class _Server:
    def __init__(self, url: str, sweep_id: str) -> None:
        self._place, self._sweep_id, self._lock = shown_place(url), sweep_id, {"name": f"driver {sweep_id}"}
        try:
            self._engine = create_engine(
                with_psycopg(url), poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args=_ANSWERS_WITHIN
            )
        except (ArgumentError, ImportError) as error:
            raise StoreError(f"{self._place} is no database URL that this program can use: {error}") from error
        self._connection: Connection | None = None
        self._backend: int | None = None

    def keep(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(DBAPIError):
                if self._connection.execute(_HELD_BY_US, self._lock).scalar():
                    return
        self._disconnect()
        with self._translated():
            self._take()

    def release(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(DBAPIError):
                self._connection.execute(text("SELECT pg_advisory_unlock_all()"))
        self._disconnect()

    def holder(self) -> LockOwner | None:
        with self._translated(), self._engine.connect() as connection:
            return self._holder(connection)

    def _take(self) -> None:
        self._connection = connection = self._engine.connect()
        settings = _SETTINGS | {"application_name": _NAME.format(os.getpid(), socket.gethostname())}
        for name, value in settings.items():
            connection.execute(text("SELECT set_config(:name, :value, false)"), {"name": name, "value": value})
        if self._backend is not None:  # the server may not know yet that the connection before is gone
            ours = (
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid = :pid AND application_name = "
            )
            ours += "current_setting('application_name')"
            connection.execute(text(ours), {"pid": self._backend})
        if not connection.execute(text("SELECT pg_try_advisory_lock(hashtextextended(:name, 0))"), self._lock).scalar():
            by = self._holder(connection)
            self._disconnect()
            raise SweepLockedError(self._sweep_id, by)
        self._backend = connection.execute(text("SELECT pg_backend_pid()")).scalar()

    def _holder(self, connection: Connection) -> LockOwner | None:
        row: Any = connection.execute(_HOLDER, self._lock).first()
        found = row and re.fullmatch(_NAME.format(r"(\d+)", "(.*)"), row.application_name or "")
        if not found:
            return None
        begun = row.backend_start  # None where this user may not see it
        since = "unknown" if begun is None else instant_text(int(begun.timestamp()) * 10**9)
        return LockOwner(int(found[1]), found[2], since)

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(DBAPIError):
                self._connection.close()
            self._connection = None

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            raise StoreError(f"the database {self._place} does not answer: {error.orig}") from error

"""The lock of a sweep: one driver at a time, for as long as its process lives.

For a SQLite ledger, a file beside the ledger is locked. On a PostgreSQL server, a connection of its own takes an
advisory lock. The lock ends with the process that holds it, so a killed driver does not block the next. A PostgreSQL
server needs up to half a minute to notice that a host is gone.
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
"""Name of the lock file, in the folder of the sweep."""


@dataclass(frozen=True)
class LockOwner:
    """A process that drives or drove a sweep."""

    pid: int
    host: str
    since: str
    """Start (UTC); `unknown` if this user has no permission to see it."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"


class SweepLockedError(StoreError):
    """Another process drives the sweep. `by` is None if that process is unknown."""

    def __init__(self, sweep_id: str, by: LockOwner | None) -> None:
        super().__init__(f"{sweep_id} is being driven by {by or 'another process'}")
        self.sweep_id, self.by = sweep_id, by


@contextmanager
def sweep_lock(place: str | Path, sweep_id: str) -> Iterator[Callable[[], None]]:
    """Hold the lock of a sweep, in the ledger at `place`, until the end of the block.

    Yields a function for the driver to call at each heartbeat. It checks the lock, and locks again if the lock was lost
    (the file was removed, the connection broke).

    Raises:
        SweepLockedError: another process holds the lock. The yielded function raises it too.
        StoreError: the server does not answer. The yielded function raises it too.
    """
    path = sqlite_path(place)
    lock = _ServerLock(str(place), sweep_id) if path is None else _FileLock(path, sweep_id)
    try:
        lock.ensure()
        yield lock.ensure
    finally:
        lock.release()


def lock_owner(place: str | Path, sweep_id: str) -> LockOwner | None:
    """The process that drives a sweep now; None: there is none. Never blocks a driver that is starting.

    Raises:
        StoreError: the server does not answer.
    """
    path = sqlite_path(place)
    if path is None:
        server = _ServerLock(str(place), sweep_id)
        try:
            return server.owner()
        finally:
            server.release()
    return _FileLock(path, sweep_id).owner()


def driver_process(connection: Connection, driver_id: str, at_ns: int) -> LockOwner | None:
    """The process of a driver that has written to the ledger, as the owner since `at_ns`."""
    query = select(schema.driver.c.pid, schema.driver.c.host).where(schema.driver.c.driver_id == driver_id)
    row = connection.execute(query).first()
    return None if row is None else LockOwner(row.pid, row.host, instant_text(at_ns))


class _FileLock:
    def __init__(self, ledger: Path, sweep_id: str) -> None:
        self._path, self._sweep_id = ledger.parent / sweep_id / LOCK, sweep_id
        self._file: TextIOWrapper | None = None

    def ensure(self) -> None:
        if self._file is not None and _is_same_file(self._file, self._path):
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = self._path.open("a+", encoding="utf-8")
        except OSError as error:
            raise StoreError(f"{self._path} cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            by = _read_owner(file)
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

    def owner(self) -> LockOwner | None:
        try:
            with open(self._path, encoding="utf-8") as file:
                by = _read_owner(file)
                if by is None or (by.host == socket.gethostname() and process_start(by.pid) is None):
                    return None
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    return None  # the process id is used by another process now
                except OSError:
                    return by
        except OSError:
            return None


def _is_same_file(file: TextIOWrapper, path: Path) -> bool:
    """Whether the open file is still the file at this path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False


def _read_owner(file: TextIOWrapper) -> LockOwner | None:
    file.seek(0)
    fields = file.read().split(maxsplit=2)
    return LockOwner(int(fields[0]), fields[1], fields[2]) if len(fields) == 3 and fields[0].isdigit() else None


_NAME = "drives a sweep: process {} on {}"
"""Name of a driver's connection in `pg_stat_activity`. A server truncates it to 63 bytes."""

_LOCK_OF_SWEEP = """
    locktype = 'advisory' AND granted AND objsubid = 1
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND (classid::bigint << 32 | objid::bigint) = hashtextextended(:name, 0)
"""
_HELD_BY_US = text(f"SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND {_LOCK_OF_SWEEP}")
_OWNER = text(
    "SELECT application_name, backend_start FROM pg_stat_activity "
    f"WHERE pid IN (SELECT pid FROM pg_locks WHERE {_LOCK_OF_SWEEP})"
)
_SERVER_SETTINGS = {"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3"}
"""With these settings the server notices that the host of a driver is gone."""
_CLIENT_SETTINGS = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""With these settings a driver notices that the server is gone."""


class _ServerLock:
    def __init__(self, url: str, sweep_id: str) -> None:
        self._place, self._sweep_id, self._lock = shown_place(url), sweep_id, {"name": f"driver {sweep_id}"}
        try:
            self._engine = create_engine(
                with_psycopg(url), poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args=_CLIENT_SETTINGS
            )
        except (ArgumentError, ImportError) as error:
            raise StoreError(f"{self._place} is not a database URL that this program can use: {error}") from error
        self._connection: Connection | None = None
        self._backend: int | None = None

    def ensure(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(DBAPIError):
                if self._connection.execute(_HELD_BY_US, self._lock).scalar():
                    return
        self._disconnect()
        with self._translated():
            self._lock_now()

    def release(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(DBAPIError):
                self._connection.execute(text("SELECT pg_advisory_unlock_all()"))
        self._disconnect()

    def owner(self) -> LockOwner | None:
        with self._translated(), self._engine.connect() as connection:
            return self._owner(connection)

    def _lock_now(self) -> None:
        self._connection = connection = self._engine.connect()
        settings = _SERVER_SETTINGS | {"application_name": _NAME.format(os.getpid(), socket.gethostname())}
        for name, value in settings.items():
            connection.execute(text("SELECT set_config(:name, :value, false)"), {"name": name, "value": value})
        if self._backend is not None:
            # The server may not have noticed yet that our previous connection broke.
            terminate = (
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid = :pid AND application_name = "
            )
            terminate += "current_setting('application_name')"
            connection.execute(text(terminate), {"pid": self._backend})
        if not connection.execute(text("SELECT pg_try_advisory_lock(hashtextextended(:name, 0))"), self._lock).scalar():
            by = self._owner(connection)
            self._disconnect()
            raise SweepLockedError(self._sweep_id, by)
        self._backend = connection.execute(text("SELECT pg_backend_pid()")).scalar()

    def _owner(self, connection: Connection) -> LockOwner | None:
        row: Any = connection.execute(_OWNER, self._lock).first()
        found = row and re.fullmatch(_NAME.format(r"(\d+)", "(.*)"), row.application_name or "")
        if not found:
            return None
        begun = row.backend_start  # None if this user has no permission to see it
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

"""The database of the ledger: how it is opened and migrated, its transactions, and messages for its errors.

SQLite runs with a write-ahead log and full synchronisation, so that committed data survives a power cut. One writer at
a time is admitted. PostgreSQL is used by URL. The records of the ledger are not known here.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event, func, inspect, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, OperationalError, StatementError
from sqlalchemy.exc import IntegrityError as DatabaseIntegrityError

from cost.commands import command_text
from cost.ledger import schema
from cost.ledger.sqlite_copy import backups_of, check_intact, copy_sqlite
from cost.records import (
    IntegrityError,
    LedgerError,
    LedgerRemovedError,
    NoLedgerError,
    StoreError,
    no_ledger_message,
)
from cost.secrets import mask_secrets

BUSY_SECONDS = 30.0
"""How long a writer waits for another writer."""


class Database:
    """A database with at most one write transaction at a time in this process, which nested calls join.

    A lock excludes other threads until the write transaction ends.
    """

    def __init__(self, url: str | Path, *, create: bool, read_only: bool, busy_seconds: float = BUSY_SECONDS) -> None:
        self.read_only, self._busy_seconds = read_only, busy_seconds
        self.path, self.place = sqlite_path(url), shown_place(url)
        self.turn = threading.RLock()
        """The lock of the thread whose write transaction is open."""
        self._connection: Connection | None = None
        self._abandoned: BaseException | None = None
        if self.path is None:
            self.engine = _postgres_engine(str(url))
        else:
            _check_place(self.path, create and not read_only)
            self.engine = _sqlite_engine(self.path, read_only, busy_seconds)
        try:
            self._check_version(create and not read_only)
            self._file = None if self.path is None else _file_identity(self.path)
        except BaseException:
            self.engine.dispose()
            raise

    @property
    def dialect(self) -> str:
        return self.engine.dialect.name

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """The open write transaction of this thread, or a new one that commits at the end.

        An error inside a nested call rolls back the whole transaction, even if an outer call catches the error.

        Raises:
            StoreError: the database cannot be written (locked, full, read-only, damaged).
        """
        if self.read_only:
            raise StoreError(f"the ledger {self.place} was opened read-only")
        with self.turn:
            if self._connection is not None:
                try:
                    yield self._connection
                except BaseException as error:
                    self._abandoned = error
                    raise
                return
            with self._translated(), self.engine.connect() as connection:
                transaction = connection.execution_options(ledger_write=True).begin()
                self._connection, self._abandoned = connection, None
                try:
                    yield connection
                    if self._abandoned is not None:
                        raise LedgerError(f"the transaction was rolled back: {self._abandoned}") from self._abandoned
                    transaction.commit()
                except BaseException:
                    if transaction.is_active:
                        transaction.rollback()
                    raise
                finally:
                    self._connection = None

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection that sees one consistent state. Inside a write transaction of this thread it sees the writes."""
        with self.turn:
            if self._connection is not None:
                yield self._connection
                return
        with self._translated(), self.engine.connect() as connection, connection.begin():
            yield connection

    def check_file(self) -> None:
        """Check that every page of a SQLite file is readable. A server checks its own files.

        Raises:
            StoreError: the file is damaged.
        """
        if self.path is not None:
            with self.read() as connection:
                result = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
                if result != "ok":
                    raise sqlite3.DatabaseError(f"malformed: {result}")

    def check_in_place(self) -> None:
        """Check that the ledger's path still names the open file: SQLite writes to a deleted file without an error.

        Raises:
            LedgerRemovedError: the file was deleted, moved or replaced.
        """
        if self.path is not None and _file_identity(self.path) != self._file:
            what = "replaced by another file" if self.path.exists() else "deleted or moved"
            raise LedgerRemovedError(f"the ledger {self.place} was {what} while it was in use")

    def put_back(self) -> Path:
        """Write the content of a deleted or replaced file to its path again, or beside the file that is there now.

        The ledger continues in the file that was written. Only the thread that opened the ledger can do this.

        Raises:
            StoreError: the file cannot be written.
        """
        assert self.path is not None
        target = self.path
        if target.exists():
            target = target.with_name(f"{target.stem}.rescued-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.db")
        partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with self._translated(), self.engine.connect() as connection:
                raw: Any = connection.connection.driver_connection
                with closing(sqlite3.connect(partial)) as writer:
                    raw.backup(writer)
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            self.engine.dispose()
            if target == self.path:  # a log that is left of the deleted file does not belong to the new one
                for suffix in ("-wal", "-shm"):
                    target.with_name(target.name + suffix).unlink(missing_ok=True)
            os.replace(partial, target)
            self.path, self.place, self._file = target, str(target), _file_identity(target)
            self.engine = _sqlite_engine(target, self.read_only, self._busy_seconds)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"{target} cannot be written: {error}") from error
        finally:
            partial.unlink(missing_ok=True)
        return target

    def copy_to(self, target: Path) -> Path:
        """Copy the database, as of one moment, into a SQLite file. The tables of a server are read in one transaction.

        Raises:
            StoreError: the database cannot be read, or the copy cannot be written.
        """
        if self.path is not None:
            return copy_sqlite(self.path, target)
        other = Database(target, create=True, read_only=False)
        try:
            with self._translated(), self.engine.connect() as reader, other.write() as writer:
                _copy_rows(reader.execution_options(isolation_level="REPEATABLE READ"), writer)
        finally:
            other.close()
        return target

    def fill(self, copy: Path) -> None:
        """Copy all rows of a SQLite copy into this empty database, in one transaction.

        Raises:
            StoreError: this database is not empty, or the copy is not an intact ledger.
        """
        check_intact(copy)
        with tempfile.TemporaryDirectory(prefix="ledger-fill-") as folder:
            # A copy of an older version is migrated; the file itself is not changed.
            source = Database(copy_sqlite(copy, Path(folder) / "ledger.db"), create=True, read_only=False)
            try:
                with source.read() as reader, self.write() as writer:
                    self.lock(writer, "fill")
                    for table in schema.metadata.sorted_tables:
                        if writer.execute(table.select().limit(1)).first() is not None:
                            raise StoreError(
                                f"{self.place} contains a ledger already, which was not changed; name an empty "
                                "database (CREATE DATABASE), or `python -m sweeps merge` the copy into this one"
                            )
                    _copy_rows(reader, writer)
                    if self.dialect == "postgresql":
                        _set_sequences(writer)
            finally:
                source.close()

    def lock(self, connection: Connection, name: str) -> None:
        """Exclude other programs that lock this name, until the transaction ends. SQLite has one writer anyway."""
        if self.dialect == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))"), {"name": name})

    def _check_version(self, migrate: bool) -> None:
        with self._translated():
            revision = self._revision()
            if revision == schema.HEAD:
                return
            if revision is None and not migrate:
                raise NoLedgerError(no_ledger_message(self.place))
            from cost.ledger.migrations import run

            if revision is not None and revision not in run.revisions():
                raise StoreError(
                    f"the ledger {self.place} was written by a newer version of this program (revision {revision}; "
                    f"this version supports {schema.HEAD}); update the program"
                )
            if not migrate:
                raise StoreError(f"the ledger {self.place} is of an older version; any command that writes updates it")
            if revision is not None and self.path is not None:
                copy_sqlite(self.path, self.path.with_suffix(f".{revision}.bak"))
            with self.engine.connect() as connection, connection.execution_options(ledger_write=True).begin():
                self.lock(connection, "migrate")
                run.upgrade(connection)

    def _revision(self) -> str | None:
        with self.engine.connect() as connection, connection.begin():
            if not inspect(connection).has_table("alembic_version"):
                return None
            return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except DatabaseIntegrityError as error:
            raise IntegrityError(f"the ledger {self.place} refuses this entry: {error.orig}") from error
        except StatementError as error:
            if isinstance(error.orig, OverflowError):
                raise LedgerError(str(error.orig)) from error
            raise StoreError(self._explain(error)) from error
        except sqlite3.Error as error:
            raise StoreError(self._explain(error)) from error

    def _explain(self, error: Exception) -> str:
        detail = str(getattr(error, "orig", None) or error).strip()
        low = detail.lower()
        if "locked" in low or "busy" in low:
            return f"the ledger {self.place} is locked by another program; try again later ({detail})"
        if "readonly" in low or "read-only" in low:
            return f"the ledger {self.place} cannot be written: the file or its folder is read-only ({detail})"
        if "full" in low or "no space" in low:
            return f"the disk of the ledger {self.place} is full; nothing was written. Free some space ({detail})"
        if "malformed" in low or "not a database" in low:
            return (
                f"the ledger {self.place} is damaged ({detail}). It was left as it is; {self._backups()}. Keep the "
                "damaged file and its -wal file until the ledger is restored"
            )
        if isinstance(error, OperationalError) and self.path is None:
            return f"the database {self.place} does not answer: {detail}"
        return f"the ledger {self.place} cannot be used: {detail}"

    def _backups(self) -> str:
        if self.path is None:
            return "restore it from the backup of your server"
        found = backups_of(self.path)
        if not found:
            return f"there is no backup beside it ({self.path.stem}*.bak)"
        restore = command_text("cost", "restore", str(found[-1]), place=self.place)
        return f"the newest backup is {found[-1]}; restore it with: {restore}"


def _copy_rows(reader: Connection, writer: Connection) -> None:
    """Copy all rows of all tables. Tables that other tables refer to come first."""
    reader = reader.execution_options(yield_per=10_000)
    for table in schema.metadata.sorted_tables:
        for part in reader.execute(table.select()).mappings().partitions():
            writer.execute(table.insert(), [dict(row) for row in part])


def _set_sequences(connection: Connection) -> None:
    """Set the sequences of a server to the last copied id: copying rows with their ids does not advance them."""
    for table in schema.metadata.sorted_tables:
        for column in table.primary_key:
            name = {"table": table.name, "column": column.name}
            found = connection.execute(text("SELECT pg_get_serial_sequence(:table, :column)"), name).scalar()
            last = connection.execute(select(func.max(column))).scalar() if found else None
            if last is not None:
                connection.execute(text("SELECT setval(:sequence, :last)"), {"sequence": found, "last": last})


def sqlite_path(url: str | Path) -> Path | None:
    """The file of a SQLite ledger; None if the URL names a server."""
    if isinstance(url, Path) or "://" not in url:
        return Path(url)
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise StoreError(f"{url!r} is not a database URL; write a path or postgresql://user@host/name") from error
    if parsed.get_backend_name() == "sqlite":
        if not parsed.database or parsed.database == ":memory:":
            raise StoreError(
                "a ledger in memory is lost at the end of the process; name a file: sqlite:///runs/ledger.db"
            )
        return Path(parsed.database)
    if parsed.get_backend_name() != "postgresql":
        raise StoreError(f"the ledger runs on SQLite and PostgreSQL, not on {parsed.get_backend_name()}")
    return None


def shown_place(url: str | Path) -> str:
    """The location of a ledger for messages: its path, or its URL without the password. Raises StoreError."""
    path = sqlite_path(url)
    return (
        mask_secrets(make_url(with_psycopg(str(url))).render_as_string(hide_password=True))
        if path is None
        else str(path)
    )


def with_psycopg(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://", 1)


def _file_identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _check_place(path: Path, create: bool) -> None:
    if path.is_dir():
        raise StoreError(f"{path} is a folder; the ledger is a file in it, such as {path / 'ledger.db'}")
    if path.exists():
        return
    if not create:
        raise NoLedgerError(no_ledger_message(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"the folder {path.parent} for the ledger cannot be created: {error.strerror}") from error


def _postgres_engine(url: str) -> Engine:
    try:
        return create_engine(with_psycopg(url), pool_pre_ping=True)
    except (ArgumentError, ImportError) as error:
        raise StoreError(f"{url!r} is not a database URL that this program can use: {error}") from error


def _sqlite_engine(path: Path, read_only: bool, busy_seconds: float) -> Engine:
    uri = f"file:{quote(str(path.absolute()))}"
    if read_only:
        # SQLite cannot read a write-ahead log in a read-only folder, except in a file that is declared immutable.
        frozen = not os.access(path.parent, os.W_OK) and not path.with_name(path.name + "-wal").exists()
        uri += "?immutable=1" if frozen else "?mode=ro"

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(uri, uri=True, timeout=busy_seconds, isolation_level=None, check_same_thread=False)

    engine = create_engine("sqlite://", creator=connect)

    @event.listens_for(engine, "connect")
    def _configure(raw: Any, _record: Any) -> None:
        raw.execute("PRAGMA foreign_keys=ON")
        if not read_only:
            _switch_to_wal(raw, busy_seconds)
            raw.execute("PRAGMA synchronous=FULL")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A write transaction locks at its beginning: after a read, another writer could make the later lock fail.
        write = connection.get_execution_options().get("ledger_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def _switch_to_wal(raw: sqlite3.Connection, busy_seconds: float) -> None:
    """Turn the write-ahead log on. SQLite does not wait for this lock by itself."""
    deadline = time.monotonic() + busy_seconds
    while True:
        try:
            raw.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)

"""Journals in the ledger: named streams of numbered entries, appended once and never changed.

What an entry means is its writer's business; here it is a kind, a key and a JSON body.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import func, select

from cost import schema
from cost.driver import Driver
from cost.facts import canonical
from cost.records import IntegrityError, LedgerError, StoredEvent


class Journal(Driver):
    """A driver that keeps journals."""

    def append_event(self, stream: str, kind: str, body: Mapping[str, Any], key: str) -> bool:
        """Add an entry to a journal. Returns False where the same entry was there already.

        Raises:
            IntegrityError: the stream has an entry of this key with another kind or body.
        """
        try:
            text = canonical(body)
        except (TypeError, ValueError) as error:
            raise LedgerError(f"event {kind} {key} of {stream} cannot be written as JSON: {error}") from error
        table = schema.event
        with self._write() as connection:
            self._store.lock(connection, f"stream {stream}")
            query = select(table.c.kind, table.c.body).where(table.c.stream == stream, table.c.key == key)
            known = connection.execute(query).first()
            if known is not None:
                if (known.kind, known.body) == (kind, text):
                    return False
                raise IntegrityError(f"event {key} of {stream} was written before as {known.kind} {known.body[:200]}")
            last = connection.execute(select(func.max(table.c.sequence)).where(table.c.stream == stream)).scalar()
            row = {"stream": stream, "sequence": (last or 0) + 1, "kind": kind, "key": key, "body": text}
            row |= {"at_ns": self.now_ns(), "driver_id": self.driver_id}
            connection.execute(table.insert(), row)
            return True

    def events(self, stream: str, after: int = 0) -> Iterator[StoredEvent]:
        """The entries of a journal with a sequence above `after`, in order."""
        table = schema.event
        query = select(table).where(table.c.stream == stream, table.c.sequence > after).order_by(table.c.sequence)
        with self._store.read() as connection:
            rows = connection.execute(query).all()
        for row in rows:
            body = json.loads(row.body)
            yield StoredEvent(row.sequence, row.stream, row.kind, row.at_ns, row.driver_id, body, row.key)

    def streams(self) -> list[str]:
        """Names of all journals, in the order of their first entry."""
        table = schema.event
        query = select(table.c.stream).where(table.c.sequence == 1).order_by(table.c.at_ns, table.c.stream)
        with self._store.read() as connection:
            return list(connection.execute(query).scalars())

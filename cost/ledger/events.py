"""Streams of events in the ledger: numbered 1, 2, 3 ... within a stream, appended once and never changed.

The ledger stores an event as a kind, a key and a JSON body. What an event means is defined by the code that appends
it: `sweeps` keeps its journal here, and some modules of `cost` keep a stream of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, select

from cost.ledger import schema
from cost.ledger.queries import canonical_json, chunks
from cost.ledger.writer import LedgerWriter
from cost.records import IntegrityError, LedgerError, NewEvent, StoredEvent, read_json

PAGE_EVENTS = 100


class EventStore:
    """The events of all streams of one ledger."""

    def __init__(self, writer: LedgerWriter) -> None:
        self._writer = writer

    def append(self, stream: str, kind: str, body: Mapping[str, Any], key: str) -> bool:
        """Append an event. Returns False where the stream has the same event already.

        Raises:
            IntegrityError: the stream has an event of this key with another kind or body.
        """
        return bool(self.append_all(stream, [NewEvent(kind, body, key)]))

    def append_all(self, stream: str, events: Sequence[NewEvent]) -> list[StoredEvent]:
        """Append events in this order, all or none. Returns the events that were not in the stream yet.

        Raises:
            IntegrityError: the stream has an event of one of these keys with another kind or body.
        """
        given = {event.key: (event.kind, _text(stream, event)) for event in events}
        if len(given) < len(events):
            raise IntegrityError(f"two of the events for {stream} have the same key")
        table = schema.event
        with self._writer.write() as connection:
            self.lock(connection, stream)
            known: dict[str, tuple[str, str]] = {}
            for keys in chunks(list(given)):
                query = select(table.c.key, table.c.kind, table.c.body)
                query = query.where(table.c.stream == stream, table.c.key.in_(keys))
                known |= {row.key: (row.kind, row.body) for row in connection.execute(query)}
            for key, (kind, body) in known.items():
                if not _equal(given[key], (kind, body)):
                    raise IntegrityError(f"event {key} of {stream} exists with other content: {kind} {body[:200]}")
            query = select(func.max(table.c.sequence)).where(table.c.stream == stream)
            first = (connection.execute(query).scalar() or 0) + 1
            common = {"stream": stream, "at_ns": self._writer.now_ns(), "driver_id": self._writer.driver_id}
            new = [(key, *content) for key, content in given.items() if key not in known]
            rows = [
                {**common, "sequence": sequence, "kind": kind, "key": key, "body": body}
                for sequence, (key, kind, body) in enumerate(new, start=first)
            ]
            if rows:
                connection.execute(table.insert(), rows)
        return [
            StoredEvent(r["sequence"], stream, r["kind"], r["at_ns"], r["driver_id"], r["body"], r["key"]) for r in rows
        ]

    def read(self, stream: str, after: int = 0, *, without: Collection[str] = ()) -> Iterator[StoredEvent]:
        """The events of a stream with a sequence above `after`, in order, except those of the kinds in `without`.

        Events are fetched a page at a time, because a stream may be larger than the memory.
        """
        table = schema.event
        names = ("sequence", "stream", "kind", "at_ns", "driver_id", "body", "key")  # the order of StoredEvent's fields
        query = select(*(table.c[name] for name in names)).where(table.c.stream == stream).order_by(table.c.sequence)
        if without:
            for numbers in chunks(self._sequences(stream, after, without)):
                yield from self._page(query.where(table.c.sequence.in_(numbers)))
            return
        query = query.limit(PAGE_EVENTS)
        while page := self._page(query.where(table.c.sequence > after)):
            yield from page
            after = page[-1].sequence

    def kinds(self, stream: str) -> list[str]:
        """The kinds of event in a stream, sorted."""
        kind = schema.event.c.kind
        return self._distinct(kind, select(func.min(kind)).where(schema.event.c.stream == stream))

    def streams(self) -> list[str]:
        """Names of all streams, ordered by the time of their first event."""
        table = schema.event
        found: list[tuple[int, str]] = []
        for names in chunks(self._distinct(table.c.stream, select(func.min(table.c.stream)))):
            query = select(table.c.at_ns, table.c.stream).where(table.c.sequence == 1, table.c.stream.in_(names))
            with self._writer.read() as connection:
                found += [(row.at_ns, row.stream) for row in connection.execute(query)]
        return [stream for _, stream in sorted(found)]

    def lock(self, connection: Connection, stream: str) -> None:
        """Prevent other programs from appending to a stream until the transaction ends."""
        self._writer.lock(connection, f"stream {stream}")

    def _sequences(self, stream: str, after: int, without: Collection[str]) -> list[int]:
        """Sequences of the events that are not of the kinds in `without`.

        The query lists the wanted kinds, because the index on (stream, kind) then skips all other events.
        """
        table = schema.event
        kinds = [kind for kind in self.kinds(stream) if kind not in without]
        query = select(table.c.sequence).where(table.c.stream == stream, table.c.kind.in_(kinds))
        with self._writer.read() as connection:
            return sorted(connection.execute(query.where(table.c.sequence > after)).scalars())

    def _page(self, query: Select) -> list[StoredEvent]:
        with self._writer.read() as connection:
            rows = connection.execute(query).all()
        return [StoredEvent(*row) for row in rows]

    def _distinct(self, column: ColumnElement[str], least: Select) -> list[str]:
        """Distinct values of an indexed column: one index lookup for each, where DISTINCT would scan every event."""
        found: list[str] = []
        with self._writer.read() as connection:
            value = connection.execute(least).scalar()
            while value is not None:
                found.append(value)
                value = connection.execute(least.where(column > value)).scalar()
        return found


def _equal(one: tuple[str, str], other: tuple[str, str]) -> bool:
    """Whether two (kind, body) pairs are equal. JSON spells a number in several ways: 1e-5 equals 1e-05."""
    return one == other or (one[0] == other[0] and read_json(one[1]) == read_json(other[1]))


def _text(stream: str, event: NewEvent) -> str:
    if isinstance(event.body, str):
        return event.body
    try:
        return canonical_json(event.body)
    except (TypeError, ValueError) as error:
        raise LedgerError(f"event {event.kind} {event.key} of {stream} cannot be written as JSON: {error}") from error

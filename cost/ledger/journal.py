"""Journals in the ledger: named streams of numbered entries, appended once and never changed.

What an entry means is its writer's business; here it is a kind, a key and a JSON body.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select

from cost.ledger import schema
from cost.ledger.queries import canonical, chunks
from cost.ledger.writer import Driver
from cost.records import IntegrityError, LedgerError, NewEvent, StoredEvent, read_json

PAGE_EVENTS = 100


class Journal(Driver):
    """A driver that keeps journals."""

    def append_event(self, stream: str, kind: str, body: Mapping[str, Any], key: str) -> bool:
        """Add an entry to a journal. Returns False where the same entry was there already.

        Raises:
            IntegrityError: the stream has an entry of this key with another kind or body.
        """
        return bool(self.append_events(stream, [NewEvent(kind, body, key)]))

    def append_events(self, stream: str, events: Sequence[NewEvent]) -> list[StoredEvent]:
        """Add entries to a journal, all or none, in this order. Returns those that were not there yet.

        Raises:
            IntegrityError: the stream has an entry of one of these keys with another kind or body.
        """
        given = {event.key: (event.kind, _text(stream, event)) for event in events}
        if len(given) < len(events):
            raise IntegrityError(f"two of the events for {stream} have the same key")
        table = schema.event
        with self._write() as connection:
            self._store.lock(connection, f"stream {stream}")
            known: dict[str, tuple[str, str]] = {}
            for keys in chunks(list(given)):
                query = select(table.c.key, table.c.kind, table.c.body)
                query = query.where(table.c.stream == stream, table.c.key.in_(keys))
                known |= {row.key: (row.kind, row.body) for row in connection.execute(query)}
            for key, (kind, body) in known.items():
                if not _the_same(given[key], (kind, body)):
                    raise IntegrityError(f"event {key} of {stream} was written before as {kind} {body[:200]}")
            query = select(func.max(table.c.sequence)).where(table.c.stream == stream)
            first = (connection.execute(query).scalar() or 0) + 1
            common = {"stream": stream, "at_ns": self.now_ns(), "driver_id": self.driver_id}
            new = [(key, *entry) for key, entry in given.items() if key not in known]
            rows = [
                {**common, "sequence": sequence, "kind": kind, "key": key, "body": body}
                for sequence, (key, kind, body) in enumerate(new, start=first)
            ]
            if rows:
                connection.execute(table.insert(), rows)
        return [
            StoredEvent(r["sequence"], stream, r["kind"], r["at_ns"], self.driver_id, r["body"], r["key"]) for r in rows
        ]

    def events(self, stream: str, after: int = 0, *, without: Collection[str] = ()) -> Iterator[StoredEvent]:
        """The entries of a journal with a sequence above `after`, in order, but for those of some kinds.

        They are read a page at a time: a journal may be larger than the memory.
        """
        table = schema.event
        names = ("sequence", "stream", "kind", "at_ns", "driver_id", "body", "key")  # as a StoredEvent has them
        query = select(*(table.c[name] for name in names)).where(table.c.stream == stream).order_by(table.c.sequence)
        if without:
            for numbers in chunks(self._numbers(stream, after, without)):
                yield from self._page(query.where(table.c.sequence.in_(numbers)))
            return
        query = query.limit(PAGE_EVENTS)
        while page := self._page(query.where(table.c.sequence > after)):
            yield from page
            after = page[-1].sequence

    def _numbers(self, stream: str, after: int, without: Collection[str]) -> list[int]:
        """Of the entries of other kinds. By the names of those, so that an index leads to them and to nothing else."""
        table = schema.event
        kinds = [kind for kind in self.event_kinds(stream) if kind not in without]
        query = select(table.c.sequence).where(table.c.stream == stream, table.c.kind.in_(kinds))
        with self._store.read() as connection:
            return sorted(connection.execute(query.where(table.c.sequence > after)).scalars())

    def _page(self, query: Select) -> list[StoredEvent]:
        with self._store.read() as connection:
            rows = connection.execute(query).all()
        return [StoredEvent(*row) for row in rows]

    def event_kinds(self, stream: str) -> list[str]:
        """The kinds of entry that a journal has, by their names."""
        kind = schema.event.c.kind
        return self._one_by_one(kind, select(func.min(kind)).where(schema.event.c.stream == stream))

    def streams(self) -> list[str]:
        """Names of all journals, in the order of their first entry."""
        table = schema.event
        found: list[tuple[int, str]] = []
        for names in chunks(self._one_by_one(table.c.stream, select(func.min(table.c.stream)))):
            query = select(table.c.at_ns, table.c.stream).where(table.c.sequence == 1, table.c.stream.in_(names))
            with self._store.read() as connection:
                found += [(row.at_ns, row.stream) for row in connection.execute(query)]
        return [stream for _, stream in sorted(found)]

    def _one_by_one(self, column: ColumnElement[str], least: Select) -> list[str]:
        """What values a column has: one look into the index for each, where DISTINCT would pass over every entry."""
        found: list[str] = []
        with self._store.read() as connection:
            value = connection.execute(least).scalar()
            while value is not None:
                found.append(value)
                value = connection.execute(least.where(column > value)).scalar()
        return found


def _the_same(one: tuple[str, str], other: tuple[str, str]) -> bool:
    """Whether kind and body are. One number has several spellings in JSON: 1e-5 is 1e-05."""
    return one == other or (one[0] == other[0] and read_json(one[1]) == read_json(other[1]))


def _text(stream: str, event: NewEvent) -> str:
    if isinstance(event.body, str):
        return event.body
    try:
        return canonical(event.body)
    except (TypeError, ValueError) as error:
        raise LedgerError(f"event {event.kind} {event.key} of {stream} cannot be written as JSON: {error}") from error

"""Merge another ledger into this one, such as the ledger of a rented machine after its sweep.

Rows are identified by key columns, never by an id that a database assigned. Existing rows stay as they are; new rows
are added with the signature of their driver; a row that exists with other content is an error, and then nothing is
changed. Merging the same ledger again changes nothing.

A stream of a sweep has one writer at a time: events that only the other ledger has are appended in order, and the merge
is refused if both ledgers have appended different events. The streams of `cost` are sets of events with keys.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, func, select, tuple_

from cost.charges import charge_status, chargeback, commitments, metered, power
from cost.ledger import machine_states, release_requests, schema
from cost.ledger.database import shown_place, sqlite_path
from cost.ledger.ledger import Ledger
from cost.ledger.sqlite_copy import check_intact, copy_sqlite
from cost.periods import period_name
from cost.records import IntegrityError, NoLedgerError, StoreError, no_ledger_message

KEYED_STREAMS = frozenset(
    module.STREAM
    for module in (chargeback, charge_status, commitments, machine_states, metered, power, release_requests)
)
"""Streams that both ledgers may append to: the meaning of an event does not depend on the events before it."""

PAGE = 500

Row = Mapping[Any, Any]

_IDS = {
    "usage_id": schema.usage,
    "attachment_id": schema.attachment,
    "reservation_id": schema.reservation,
}
"""Ids that each database assigns, and their tables."""

_KEYS: Mapping[Table, tuple[str, ...]] = {
    schema.driver: ("driver_id",),
    schema.clock_step: ("driver_id", "at_ns", "step_ns"),
    schema.lease: ("lease_id",),
    schema.lease_end: ("lease_id",),
    schema.lease_beat: ("lease_id", "at_ns", "driver_id"),
    schema.detachment: ("attachment_id",),
    schema.usage: ("lease_id", "trial_id", "attempt", "sweep_id"),
    schema.usage_end: ("usage_id",),
    schema.usage_beat: ("usage_id", "at_ns"),
    schema.phase: ("usage_id", "kind", "sequence"),
    schema.label: ("usage_id", "name", "sequence"),
    schema.correction: ("correction_id",),
    schema.price: ("price_hash",),
}
"""The columns that identify a row. Events and closed months have rules of their own."""

_COUNTED: Mapping[Table, tuple[str, ...]] = {
    schema.attachment: ("lease_id", "sweep_id", "driver_id", "from_ns"),
    schema.reservation: ("sweep_id", "lease_id", "trial_id", "attempt", "driver_id"),
}
"""The columns that identify a row together with its position among the rows with equal columns."""

_MAY_DIFFER = {schema.price: ("driver_id", "written_ns")}
"""Columns that may differ, because several drivers may write the same row."""


@dataclass(frozen=True)
class MergeResult:
    """What a merge has added."""

    added: Mapping[str, int]
    """Number of added rows by table; empty: all rows existed."""
    streams: tuple[str, ...]
    """Streams with new events."""
    estimates_dropped: int
    """Estimated ends of usages in the other ledger whose real end is recorded here."""
    closed_as_lost: int
    """Usages that were open in the other ledger and were closed at their last heartbeat."""


class _DryRun(Exception):
    """Rolls back the transaction of a dry run."""


def merge_ledger(home: Ledger, source: str | Path, *, lost: bool = False, dry: bool = False) -> MergeResult:
    """Merge another ledger (a file, or the URL of a server) into this one, in one transaction.

    `lost`: the other machine will not come back, so open usages are closed at their last heartbeat. `dry`: return what
    would be added, and change nothing.

    Raises:
        IntegrityError: a row exists here with other content, both ledgers have appended to a stream, a row lies in a
            month that is closed here, or attempts in the other ledger are still open.
        StoreError: the other ledger is not intact, or cannot be read.
    """
    found: list[MergeResult] = []
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ledger-merge-"))
        copy = _snapshot(source, Path(folder))
        try:
            other = stack.enter_context(Ledger.open(copy))
        except StoreError as error:  # a newer version: the message must name the ledger, not its copy
            raise StoreError(str(error).replace(str(copy), shown_place(source))) from error
        stack.enter_context(suppress(_DryRun))
        reader, writer = stack.enter_context(other.read()), stack.enter_context(home.writer.write_unsigned())
        found.append(_Merge(home, reader, writer).run(lost))
        if dry:
            raise _DryRun
    return found[0]


def _snapshot(source: str | Path, folder: Path) -> Path:
    """Copy the other ledger, so that opening the copy can migrate it."""
    target, path = folder / "other.db", sqlite_path(source)
    if path is None:
        with Ledger.open(source, create=False, read_only=True) as other:
            return other.copy_to(target)
    if not path.exists():
        raise NoLedgerError(no_ledger_message(path))
    copy_sqlite(path, target)
    check_intact(target)
    return target


class _Merge:
    def __init__(self, home: Ledger, reader: Connection, writer: Connection) -> None:
        self._home, self._reader, self._writer = home, reader, writer
        self._ids: dict[str, dict[int, int]] = {name: {} for name in _IDS}
        """Our id by the id of the other ledger, for each kind of id."""
        self._new_ids: dict[str, set[int]] = {name: set() for name in _IDS}
        self._added: Counter[str] = Counter()
        self._streams: list[str] = []
        self._estimates_dropped = 0
        query = select(schema.closed_period.c.period)
        self._closed_months = set(writer.execute(query).scalars())

    def run(self, lost: bool) -> MergeResult:
        self._refuse_months_closed_there()
        for table in schema.metadata.sorted_tables:
            if table in _COUNTED:
                self._counted_table(table)
            elif table is schema.event:
                self._journals()
            elif table is not schema.closed_period:
                self._table(table)
        closed = self._close_open_usages(lost)
        return MergeResult(dict(self._added), tuple(self._streams), self._estimates_dropped, closed)

    # Tables -----------------------------------------------------------------------------------------------------------

    def _table(self, table: Table) -> None:
        numbered = next((name for name, owner in _IDS.items() if owner is table), None)
        for rows in _pages(self._reader, table):
            given = [self._ours(row, numbered) for row in rows]
            key_of = _key_of(_KEYS[table])
            known = self._known(table, given)
            new = []
            for theirs, row in zip(rows, given, strict=True):
                ours = known.get(key_of(row))
                if ours is None:
                    self._refuse_closed_month(table, row)
                    new.append(row)
                elif not self._same(table, row, ours):
                    raise IntegrityError(_conflict(table, row, ours))
                if numbered is not None and ours is not None:
                    self._ids[numbered][theirs[numbered]] = ours[numbered]
            if numbered is None:
                self._insert(table, new)
            else:
                theirs_by_key = {key_of(row): theirs[numbered] for theirs, row in zip(rows, given, strict=True)}
                for row in new:
                    self._insert_numbered(table, numbered, theirs_by_key[key_of(row)], row)

    def _ours(self, row: Row, own_number: str | None) -> dict[str, Any]:
        """A row of the other ledger with our ids, without the id that our database will assign."""
        found = {name: value for name, value in row.items() if name not in (own_number, "step_id")}
        for name in self._ids:
            if name in found:
                found[name] = self._ids[name][found[name]]
        return found

    def _known(self, table: Table, rows: Sequence[Row]) -> dict[tuple[Any, ...], Row]:
        """Our rows with the same keys."""
        key = _KEYS[table]
        wanted = [_key_of(key)(row) for row in rows if not self._is_new(row)]
        if not wanted:
            return {}
        query = table.select().where(tuple_(*(table.c[name] for name in key)).in_(wanted))
        return {_key_of(key)(row): row for row in self._writer.execute(query).mappings()}

    def _is_new(self, row: Row) -> bool:
        """Whether the row belongs to a record that this merge has added, so that the row cannot exist here."""
        return any(row.get(name) in new for name, new in self._new_ids.items())

    def _same(self, table: Table, given: Row, ours: Row) -> bool:
        may_differ = _MAY_DIFFER.get(table, ())
        if all(ours[name] == value for name, value in given.items() if name not in may_differ):
            return True
        if table is schema.usage_end and given["estimated"]:
            # The other ledger estimated the end of a dead driver's usage. Our end is the real one, or an estimate too.
            self._estimates_dropped += 1
            return True
        return False

    def _insert(self, table: Table, rows: Sequence[Row]) -> None:
        if rows:
            self._writer.execute(table.insert(), [dict(row) for row in rows])
            self._added[table.name] += len(rows)

    def _insert_numbered(self, table: Table, name: str, theirs: int, row: Row) -> None:
        key = self._writer.execute(table.insert(), dict(row)).inserted_primary_key
        assert key is not None
        self._ids[name][theirs] = key[0]
        self._new_ids[name].add(key[0])
        self._added[table.name] += 1

    def _counted_table(self, table: Table) -> None:
        (number,) = table.primary_key.columns.keys()
        ours = dict(_counted(_rows(self._writer, table), _COUNTED[table]))
        for key, row in _counted(_rows(self._reader, table), _COUNTED[table]):
            given = self._ours(row, number)
            if key not in ours:
                self._insert_numbered(table, number, row[number], given)
            elif not self._same(table, given, ours[key]):
                raise IntegrityError(_conflict(table, given, ours[key]))
            else:
                self._ids[number][row[number]] = ours[key][number]

    # Journals ---------------------------------------------------------------------------------------------------------

    def _journals(self) -> None:
        for stream, length in _lengths(self._reader).items():
            before = self._added["event"]
            if stream in KEYED_STREAMS:
                self._merge_keyed_stream(stream)
            else:
                self._append_new_events(stream, length)
            if self._added["event"] > before:
                self._streams.append(stream)

    def _append_new_events(self, stream: str, length: int) -> None:
        table = schema.event
        self._home.events.lock(self._writer, stream)
        here = _lengths(self._writer, stream).get(stream, 0)
        common = min(length, here)
        of_stream = table.select().where(table.c.stream == stream).order_by(table.c.sequence)
        for rows in _event_pages(self._reader, of_stream):
            last = rows[-1]["sequence"]
            if rows[0]["sequence"] <= common:
                between = table.c.sequence.between(rows[0]["sequence"], last)
                known = {r["sequence"]: r for r in self._writer.execute(of_stream.where(between)).mappings()}
            else:
                known = {}
            for row in rows:
                ours = known.get(row["sequence"])
                if ours is not None and dict(ours) != dict(row):
                    raise IntegrityError(
                        f"journal {stream} was continued in both ledgers: its event {row['sequence']} is "
                        f"{_event_text(ours)} here and {_event_text(row)} there; nothing was merged"
                    )
            self._insert(table, [dict(row) for row in rows if row["sequence"] > here])

    def _merge_keyed_stream(self, stream: str) -> None:
        table = schema.event
        self._home.events.lock(self._writer, stream)
        of_stream = table.select().where(table.c.stream == stream).order_by(table.c.sequence)
        last = _lengths(self._writer, stream).get(stream, 0)
        for rows in _event_pages(self._reader, of_stream):
            query = of_stream.where(table.c.key.in_([row["key"] for row in rows]))
            known = {row["key"]: row for row in self._writer.execute(query).mappings()}
            new = []
            for row in rows:
                ours = known.get(row["key"])
                if ours is None:
                    last += 1
                    new.append({**row, "sequence": last})
                elif (ours["kind"], ours["body"]) != (row["kind"], row["body"]):
                    raise IntegrityError(
                        f"event {row['key']} of journal {stream} is {_event_text(ours)} here and {_event_text(row)} "
                        "there; nothing was merged"
                    )
            self._insert(table, new)

    # Refusals ---------------------------------------------------------------------------------------------------------

    def _refuse_months_closed_there(self) -> None:
        there = set(self._reader.execute(select(schema.closed_period.c.period)).scalars())
        if only_there := sorted(there - self._closed_months):
            raise IntegrityError(
                f"{', '.join(only_there)} was closed in the other ledger but not in this one: close a month in the "
                "ledger that has all of its costs; nothing was merged"
            )

    def _refuse_closed_month(self, table: Table, row: Row) -> None:
        column = {schema.lease: "from_ns", schema.lease_end: "to_ns", schema.usage_end: "to_ns"}.get(table)
        if column is not None and (month := period_name(row[column], "month", UTC)) in self._closed_months:
            what = f"{table.name.replace('_', ' ')} {row.get('lease_id', '')}".strip()
            raise IntegrityError(
                f"a {what} lies in {month}, which is closed here; nothing was merged. Enter its cost as a "
                "correction: python -m cost correct"
            )

    def _close_open_usages(self, lost: bool) -> int:
        """Close the open usages that the merge has added, if `lost`; else refuse them. Returns their number."""
        usage, end, beat = schema.usage, schema.usage_end, schema.usage_beat
        ended = select(end.c.usage_id)
        query = select(usage).where(usage.c.usage_id.not_in(ended))
        rows = [r for r in self._writer.execute(query).mappings() if r["usage_id"] in self._new_ids["usage_id"]]
        if rows and not lost:
            some = ", ".join(f"{r['trial_id']}/{r['attempt']} of {r['sweep_id']}" for r in rows[:3])
            raise IntegrityError(
                f"{len(rows)} attempts are still open in the other ledger ({some}): wait for the end of that sweep, or "
                "interrupt it, and merge again. If its machine will not come back, --lost closes them at their last "
                "heartbeat"
            )
        for row in rows:
            query = select(func.max(beat.c.at_ns)).where(beat.c.usage_id == row["usage_id"])
            to_ns = self._writer.execute(query).scalar() or row["from_ns"]
            closed = {"usage_id": row["usage_id"], "to_ns": to_ns, "outcome": "LOST", "estimated": 1}
            # Signed by the dead driver of the usage.
            signature = {"driver_id": row["driver_id"], "written_ns": self._home.now_ns()}
            self._writer.execute(end.insert(), closed | signature)
        return len(rows)


def _key_of(names: tuple[str, ...]) -> Any:
    return lambda row: tuple(row[name] for name in names)


def _rows(connection: Connection, table: Table) -> Sequence[Row]:
    return list(connection.execute(table.select().order_by(*table.primary_key)).mappings())


def _pages(connection: Connection, table: Table) -> Iterator[Sequence[Row]]:
    result = connection.execution_options(yield_per=PAGE).execute(table.select().order_by(*table.primary_key))
    for part in result.mappings().partitions():
        yield list(part)


def _event_pages(connection: Connection, query: Any) -> Iterator[Sequence[Row]]:
    """The events of a stream, a page at a time."""
    after = 0
    while rows := list(connection.execute(query.where(schema.event.c.sequence > after).limit(PAGE)).mappings()):
        after = rows[-1]["sequence"]
        yield rows


def _counted(rows: Iterable[Row], names: tuple[str, ...]) -> Iterator[tuple[tuple[Any, ...], Row]]:
    seen: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        key = tuple(row[name] for name in names)
        seen[key] += 1
        yield (*key, seen[key]), row


def _lengths(connection: Connection, stream: str | None = None) -> dict[str, int]:
    table = schema.event
    query = select(table.c.stream, func.max(table.c.sequence)).group_by(table.c.stream).order_by(table.c.stream)
    if stream is not None:
        query = query.where(table.c.stream == stream)
    return {row[0]: row[1] for row in connection.execute(query)}


def _event_text(row: Row) -> str:
    body = row["body"]
    return f"{row['kind']} {body if len(body) <= 120 else body[:120] + ' ...'}"


def _conflict(table: Table, given: Row, ours: Row) -> str:
    names: Collection[str] = [n for n, v in given.items() if ours[n] != v and n not in _MAY_DIFFER.get(table, ())]
    about = ", ".join(str(given[name]) for name in (_KEYS.get(table) or _COUNTED[table]))
    differs = "; ".join(f"{name} is {ours[name]} here and {given[name]} there" for name in names)
    hint = ""
    if table is schema.usage_end and ours["estimated"]:
        hint = ". It was closed here as lost before it ended there; enter the rest of its cost as a correction"
    return f"{table.name.replace('_', ' ')} of {about}: {differs}{hint}; nothing was merged"

"""Queries of the ledger: leases, attachments, usages, labels and phases. Every function reads from an open connection.

`as_of_ns` leaves out what was written after an instant.

Tested in tests/cost/ledger/test_leases.py and tests/cost/ledger/test_usages.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, func, select

from cost.ledger import schema
from cost.records import Attachment, IntegrityError, Lease, LeaseState, Usage, UsageKey


def canonical_json(body: Mapping[str, Any]) -> str:
    """JSON with sorted keys and no spaces: equal content gives equal text.

    Raises:
        ValueError: JSON cannot express a value, such as NaN or an infinity.
    """
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)


def lease_states(connection: Connection, *, as_of_ns: int | None = None, **where: Any) -> list[LeaseState]:
    """Leases in order of their start. `where`: columns of the lease table that must equal a value or be in a list."""
    lease, end = schema.lease, schema.lease_end
    on_end = end.c.lease_id == lease.c.lease_id
    beats = select(func.max(schema.lease_beat.c.at_ns)).where(schema.lease_beat.c.lease_id == lease.c.lease_id)
    last_beat = _until(beats, schema.lease_beat.c.at_ns, as_of_ns).scalar_subquery().label("beat_ns")
    query = select(lease, end.c.to_ns, end.c.how, end.c.released, last_beat)
    if as_of_ns is not None:
        on_end = and_(on_end, end.c.written_ns <= as_of_ns)
        query = query.where(lease.c.written_ns <= as_of_ns)
    query = query.select_from(lease.outerjoin(end, on_end)).order_by(lease.c.from_ns, lease.c.lease_id)
    for name, value in where.items():
        column = lease.c[name]
        query = query.where(column.in_(value) if isinstance(value, (list, tuple, set)) else column == value)
    rows = connection.execute(query).all()
    attached: dict[str, list[str]] = {}
    open_leases = [row.lease_id for row in rows if row.to_ns is None]
    for attachment in attachments(connection, open_leases, as_of_ns=as_of_ns):
        if attachment.to_ns is None:
            attached.setdefault(attachment.lease_id, []).append(attachment.sweep_id)
    return [_lease_state(row, tuple(attached.get(row.lease_id, ()))) for row in rows]


def lease_state(connection: Connection, lease_id: str) -> LeaseState:
    """The current state of a lease.

    Raises:
        IntegrityError: the lease does not exist.
    """
    found = lease_states(connection, lease_id=lease_id)
    if not found:
        raise IntegrityError(f"lease {lease_id} does not exist; list the leases with: python -m cost leases list")
    return found[0]


def attachments(
    connection: Connection, lease_ids: Sequence[str] | None = None, *, as_of_ns: int | None = None
) -> list[Attachment]:
    """Attachments of sweeps to these leases (None: to all leases), in the order in which they were written."""
    start, end = schema.attachment, schema.detachment
    on_end = end.c.attachment_id == start.c.attachment_id
    if as_of_ns is not None:
        on_end = and_(on_end, end.c.written_ns <= as_of_ns)
    query = select(start.c.lease_id, start.c.sweep_id, start.c.from_ns, end.c.to_ns, end.c.how)
    query = query.select_from(start.outerjoin(end, on_end)).order_by(start.c.attachment_id)
    query = _until(query, start.c.written_ns, as_of_ns)
    if lease_ids is None:
        return [Attachment(*row) for row in connection.execute(query)]
    found: list[Attachment] = []
    for part in chunks(lease_ids):
        found += [Attachment(*row) for row in connection.execute(query.where(start.c.lease_id.in_(part)))]
    return found


def usages(
    connection: Connection,
    *,
    lease_ids: Sequence[str] | None = None,
    sweep_id: str | None = None,
    trial_id: str | None = None,
    as_of_ns: int | None = None,
    only_open: bool = False,
) -> dict[int, Usage]:
    """Usages by id, in order of their start."""
    usage, end, beat = schema.usage, schema.usage_end, schema.usage_beat
    on_end = end.c.usage_id == usage.c.usage_id
    if as_of_ns is not None:
        on_end = and_(on_end, end.c.written_ns <= as_of_ns)
    last = select(func.max(beat.c.at_ns)).where(beat.c.usage_id == usage.c.usage_id)
    query = select(
        usage,
        end.c.to_ns,
        end.c.outcome,
        end.c.estimated,
        end.c.driver_id.label("end_driver"),
        _until(last, beat.c.at_ns, as_of_ns).scalar_subquery().label("beat_ns"),
    ).select_from(usage.outerjoin(end, on_end))
    query = _until(query, usage.c.written_ns, as_of_ns).order_by(usage.c.from_ns, usage.c.usage_id)
    if only_open:
        query = query.where(end.c.usage_id.is_(None))
    if sweep_id is not None:
        query = query.where(usage.c.sweep_id == sweep_id)
    if trial_id is not None:
        query = query.where(usage.c.trial_id == trial_id)
    rows: list[Row] = []
    for part in [None] if lease_ids is None else chunks(lease_ids):
        rows += connection.execute(query if part is None else query.where(usage.c.lease_id.in_(part))).all()
    every = lease_ids is None and sweep_id is None and trial_id is None and not only_open
    values = labels(connection, None if every else [row.usage_id for row in rows], as_of_ns=as_of_ns)
    return {row.usage_id: _usage(row, values.get(row.usage_id, {})) for row in rows}


def usages_of_trial(connection: Connection, lease_id: str, trial_id: str, sweep_id: str) -> list[Row]:
    """One row per attempt: `attempt`, `cards_micro`, and `to_ns`, which is None while the usage is open."""
    usage, end = schema.usage, schema.usage_end
    query = select(usage.c.attempt, usage.c.cards_micro, end.c.to_ns)
    query = query.select_from(usage.outerjoin(end, end.c.usage_id == usage.c.usage_id))
    query = query.where(usage.c.lease_id == lease_id, usage.c.trial_id == trial_id, usage.c.sweep_id == sweep_id)
    return list(connection.execute(query))


def corrections_by_lease(connection: Connection) -> dict[str, int]:
    """Sum of the corrections of each lease, in 1e-12 of its currency."""
    table = schema.correction
    found: dict[str, int] = {}
    for lease_id, pico in connection.execute(select(table.c.lease_id, table.c.pico)):
        found[lease_id] = found.get(lease_id, 0) + pico
    return found


def labels(
    connection: Connection, usage_ids: Sequence[int] | None, *, as_of_ns: int | None = None
) -> dict[int, dict[str, str]]:
    """The latest value of each label of these usages (None: of all usages)."""
    table = schema.label
    query = select(table.c.usage_id, table.c.name, table.c.value)
    query = query.order_by(table.c.usage_id, table.c.name, table.c.sequence)
    query = _until(query, table.c.written_ns, as_of_ns)
    found: dict[int, dict[str, str]] = {}
    for part in [None] if usage_ids is None else chunks(usage_ids):
        for usage_id, name, value in connection.execute(
            query if part is None else query.where(table.c.usage_id.in_(part))
        ):
            found.setdefault(usage_id, {})[name] = value
    return found


def phase_totals(
    connection: Connection, *, lease_ids: Sequence[str] | None = None, as_of_ns: int | None = None
) -> dict[int, dict[str, int]]:
    """Reported card-nanoseconds by usage and phase."""
    phase = schema.phase
    total = func.sum(phase.c.card_ns)
    query = select(phase.c.usage_id, phase.c.kind, total).group_by(phase.c.usage_id, phase.c.kind)
    query = _until(query, phase.c.written_ns, as_of_ns)
    return _by_usage(connection, query, phase.c.usage_id, lease_ids)


def phase_totals_after_checkpoint(
    connection: Connection,
    outcomes: Sequence[str],
    *,
    lease_ids: Sequence[str] | None = None,
    as_of_ns: int | None = None,
) -> dict[int, dict[str, int]]:
    """The part of `phase_totals` reported after the last checkpoint, for usages that ended in one of `outcomes`."""
    phase, end = schema.phase, schema.usage_end
    earlier = phase.alias("earlier")
    last = select(func.coalesce(func.max(earlier.c.sequence), -1)).where(
        earlier.c.usage_id == phase.c.usage_id, earlier.c.kind == "checkpoint"
    )
    query = (
        select(phase.c.usage_id, phase.c.kind, func.sum(phase.c.card_ns))
        .join(end, end.c.usage_id == phase.c.usage_id)
        .where(end.c.outcome.in_(outcomes), phase.c.sequence > last.scalar_subquery())
        .group_by(phase.c.usage_id, phase.c.kind)
    )
    query = _until(query, phase.c.written_ns, as_of_ns)
    return _by_usage(connection, query, phase.c.usage_id, lease_ids)


def _by_usage(
    connection: Connection, query: Select, usage_id: Any, lease_ids: Sequence[str] | None
) -> dict[int, dict[str, int]]:
    found: dict[int, dict[str, int]] = {}
    for part in [None] if lease_ids is None else chunks(lease_ids):
        part_query = query
        if part is not None:
            of_leases = select(schema.usage.c.usage_id).where(schema.usage.c.lease_id.in_(part))
            part_query = query.where(usage_id.in_(of_leases))
        for number, kind, card_ns in connection.execute(part_query):
            found.setdefault(number, {})[kind] = int(card_ns)
    return found


def _until(query: Select, column: Any, as_of_ns: int | None) -> Select:
    return query if as_of_ns is None else query.where(column <= as_of_ns)


def chunks(items: Sequence[Any], size: int = 500) -> list[Sequence[Any]]:
    """Slices that are small enough for the parameters of one statement."""
    return [items[i : i + size] for i in range(0, len(items), size)]


def _lease_state(row: Row, sweeps: tuple[str, ...]) -> LeaseState:
    lease = Lease(
        lease_id=row.lease_id,
        instance_id=row.instance_id,
        machine=row.machine,
        sku=row.sku,
        provider=row.provider,
        account=row.account,
        resource_id=row.resource_id,
        region=row.region,
        purchase=row.purchase,
        cards=row.cards,
        watts=None if row.watts is None else Decimal(row.watts),
        currency=row.currency,
        price_hash=row.price_hash,
        owner=row.owner,
        project=row.project,
        tags=json.loads(row.tags),
        opened_by=row.opened_by,
        from_ns=row.from_ns,
    )
    last_heartbeat_ns = row.beat_ns or row.from_ns
    return LeaseState(lease, row.from_ns, row.to_ns, row.how, bool(row.released), last_heartbeat_ns, sweeps)


def _usage(row: Row, values: Mapping[str, str]) -> Usage:
    return Usage(
        key=UsageKey(row.lease_id, row.trial_id, row.attempt),
        sweep_id=row.sweep_id,
        cards=Decimal(row.cards_micro) / schema.MICRO_PER_CARD,
        from_ns=row.from_ns,
        to_ns=row.to_ns,
        outcome=row.outcome,
        end_estimated=bool(row.estimated),
        last_heartbeat_ns=row.beat_ns or row.from_ns,
        labels=values,
        wall=row.end_driver is not None and row.end_driver != row.driver_id,
    )

"""Leases of machines in the ledger, and the sweeps that are attached to a lease."""

from __future__ import annotations

from dataclasses import asdict, replace

from sqlalchemy import Connection, select

from cost.ledger import machine_states, queries, schema
from cost.ledger.closed_months import check_month_is_open
from cost.ledger.events import EventStore
from cost.ledger.queries import canonical_json
from cost.ledger.writer import LedgerWriter
from cost.money import checked_currency
from cost.periods import instant_text
from cost.records import IntegrityError, Lease, LeaseState, LedgerError


class LeaseStore:
    """The leases of one ledger. Writing the same lease again changes nothing; other content is an error."""

    def __init__(self, writer: LedgerWriter, events: EventStore) -> None:
        self._writer, self._events = writer, events

    def open(self, lease: Lease, *, until_ns: int | None = None) -> None:
        """Open a lease from `lease.from_ns` (None: now); with `until_ns`, enter a lease that has ended already.

        Raises:
            IntegrityError: another lease of the machine is open or overlaps, or a lease of this id has other content.
            LedgerError: a field is invalid.
        """
        now = self._writer.now_ns()
        _check_lease(lease, now)
        with self._writer.write() as connection:
            self._writer.lock(connection, f"instance {lease.instance_id}")
            same = queries.lease_states(connection, lease_id=lease.lease_id)
            if same:
                known = same[0].lease
                if replace(lease, from_ns=lease.from_ns or known.from_ns) != known:
                    raise IntegrityError(f"lease {lease.lease_id} exists with other content: {known}")
                return
            from_ns = now if lease.from_ns is None else lease.from_ns
            for other in queries.lease_states(connection, instance_id=lease.instance_id):
                if until_ns is not None and until_ns <= other.from_ns:
                    continue
                if other.to_ns is None:
                    raise IntegrityError(
                        f"lease {other.lease.lease_id} of machine {lease.instance_id} is still open; attach to it, or "
                        f"close it first: python -m cost leases close {other.lease.lease_id}"
                    )
                if other.to_ns > from_ns:
                    raise IntegrityError(
                        f"lease {lease.lease_id} of machine {lease.instance_id} would begin before lease "
                        f"{other.lease.lease_id} of the same machine ended"
                    )
            check_month_is_open(connection, from_ns, f"lease {lease.lease_id} would begin")
            row = asdict(lease) | {
                "watts": None if lease.watts is None else str(lease.watts),
                "tags": canonical_json(lease.tags),
                "from_ns": from_ns,
                "driver_id": self._writer.driver_id,
                "written_ns": now,
            }
            connection.execute(schema.lease.insert(), row)
            if until_ns is not None:
                self.close(lease.lease_id, "entered by hand", at_ns=until_ns)

    def close(self, lease_id: str, how: str, *, at_ns: int | None = None, released: bool = False) -> None:
        """Close a lease (`at_ns` None: now) and detach its sweeps. `released`: the provider confirmed the release.

        Raises:
            IntegrityError: the lease was closed at another instant, or its machine was in use after `at_ns`.
            LedgerError: `at_ns` is in the future.
        """
        with self._writer.write() as connection:
            self._writer.lock(connection, f"lease {lease_id}")
            state = queries.lease_state(connection, lease_id)
            now = self._writer.now_ns()
            if at_ns is not None and at_ns > now:
                raise LedgerError(f"lease {lease_id} cannot end at {instant_text(at_ns)}, in the future")
            if state.to_ns is not None:
                if at_ns is None or at_ns == state.to_ns:
                    return
                raise IntegrityError(
                    f"lease {lease_id} was closed at {instant_text(state.to_ns)}; write a correction instead"
                )
            usages = queries.usages(connection, lease_ids=[lease_id]).values()
            for usage in usages:
                if usage.to_ns is None or (at_ns is not None and usage.to_ns > at_ns):
                    raise IntegrityError(
                        f"lease {lease_id} cannot end before its usages: trial {usage.key.trial_id} attempt "
                        f"{usage.key.attempt} of sweep {usage.sweep_id} "
                        + ("is still open" if usage.to_ns is None else "ended later")
                    )
            begun = max(state.from_ns, *(a.from_ns for a in queries.attachments(connection, [lease_id])), 0)
            if at_ns is not None and at_ns < begun:
                raise IntegrityError(
                    f"lease {lease_id} cannot end at {instant_text(at_ns)}: the lease began, or a sweep was attached, "
                    f"at {instant_text(begun)}"
                )
            # The clock of another driver may be slightly ahead; the lease cannot end before what that driver wrote.
            to_ns = max(now, begun, *(u.to_ns or 0 for u in usages)) if at_ns is None else at_ns
            check_month_is_open(connection, to_ns, f"lease {lease_id} would end")
            for sweep_id in state.sweeps:
                self._detach(connection, lease_id, sweep_id, to_ns, how)
            row = {"lease_id": lease_id, "to_ns": to_ns, "how": how, "released": int(released)}
            connection.execute(schema.lease_end.insert(), row | self._writer.signature())

    def get(self, lease_id: str) -> LeaseState:
        """The current state of a lease. Raises IntegrityError where the lease does not exist."""
        with self._writer.read() as connection:
            return queries.lease_state(connection, lease_id)

    def find(self, *, only_open: bool = False) -> list[LeaseState]:
        """All leases, or the open ones, in order of their start."""
        with self._writer.read() as connection:
            return [s for s in queries.lease_states(connection) if s.to_ns is None or not only_open]

    def open_on(self, instance_id: str) -> LeaseState | None:
        """The open lease of a machine instance; there is at most one."""
        with self._writer.read() as connection:
            states = queries.lease_states(connection, instance_id=instance_id)
        return next((state for state in states if state.to_ns is None), None)

    def attach(self, lease_id: str, sweep_id: str) -> None:
        """Attach a sweep: from now on the sweep pays its share of the lease. Attaching again changes nothing.

        Raises:
            IntegrityError: the lease is closed, or its machine is stopped.
        """
        with self._writer.write() as connection:
            self._writer.lock(connection, f"lease {lease_id}")
            state = queries.lease_state(connection, lease_id)
            if state.to_ns is not None:
                raise IntegrityError(f"lease {lease_id} is closed ({state.how}); open a new one for sweep {sweep_id}")
            changes = machine_states.load_changes(self._events)
            now = machine_states.change_at(changes, lease_id, self._writer.now_ns())
            if now is not None and now.state != machine_states.RUNNING:
                raise IntegrityError(
                    f"lease {lease_id} is {now.state} since {instant_text(now.at_ns)}; if its machine runs again, "
                    f"enter since when: python -m cost leases start {lease_id} --at 2026-11-29T18:00"
                )
            if sweep_id not in state.sweeps:
                from_ns = max(self._writer.now_ns(), state.from_ns)
                row = {"lease_id": lease_id, "sweep_id": sweep_id, "from_ns": from_ns}
                connection.execute(schema.attachment.insert(), row | self._writer.signature())

    def detach(self, lease_id: str, sweep_id: str, how: str) -> bool:
        """Detach a sweep. Detaching the last sweep closes the lease, unless the lease was opened by hand.

        Returns whether the lease is closed now. Detaching a sweep that is not attached changes nothing.

        Raises:
            IntegrityError: a usage of this sweep is still open.
        """
        with self._writer.write() as connection:
            self._writer.lock(connection, f"lease {lease_id}")
            state = queries.lease_state(connection, lease_id)
            if state.to_ns is not None or sweep_id not in state.sweeps:
                return state.to_ns is not None
            for usage in queries.usages(connection, lease_ids=[lease_id], only_open=True).values():
                if usage.sweep_id == sweep_id:
                    raise IntegrityError(
                        f"sweep {sweep_id} cannot be detached from lease {lease_id}: trial {usage.key.trial_id} "
                        f"attempt {usage.key.attempt} still uses cards"
                    )
            self._detach(connection, lease_id, sweep_id, self._writer.now_ns(), how)
            if len(state.sweeps) > 1 or state.lease.opened_by == "hand":
                return False
            self.close(lease_id, how)
            return True

    def heartbeat(self, lease_id: str, at_ns: int) -> None:
        """Record that the machine is leased at an instant. A closed lease stays as it is."""
        with self._writer.write() as connection:
            if queries.lease_state(connection, lease_id).to_ns is None:
                row = {"lease_id": lease_id, "at_ns": at_ns, "driver_id": self._writer.driver_id}
                self._writer.insert_new(connection, schema.lease_beat, [row])

    def _detach(self, connection: Connection, lease_id: str, sweep_id: str, to_ns: int, how: str) -> None:
        start, end = schema.attachment, schema.detachment
        query = select(start.c.attachment_id, start.c.from_ns).where(
            start.c.lease_id == lease_id,
            start.c.sweep_id == sweep_id,
            start.c.attachment_id.not_in(select(end.c.attachment_id)),
        )
        for attachment_id, from_ns in connection.execute(query).all():
            row = {"attachment_id": attachment_id, "to_ns": max(to_ns, from_ns), "how": how}
            connection.execute(end.insert(), row | self._writer.signature())


def _check_lease(lease: Lease, now_ns: int) -> None:
    checked_currency(lease.currency)
    if type(lease.cards) is not int or lease.cards < 1:
        raise LedgerError(f"lease {lease.lease_id}: {lease.cards!r} cards; a machine has one or more")
    if lease.from_ns is not None and lease.from_ns > now_ns:
        raise LedgerError(f"lease {lease.lease_id} would begin at {instant_text(lease.from_ns)}, in the future")
    if lease.opened_by not in ("sweep", "hand"):
        raise LedgerError(f"lease {lease.lease_id}: opened_by is {lease.opened_by!r}; write sweep or hand")
    if lease.watts is not None and not lease.watts >= 0:
        raise LedgerError(f"lease {lease.lease_id}: {lease.watts} watts; write zero or more")

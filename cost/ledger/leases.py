"""Machines in the ledger: leases that are opened and closed, and the sweeps that come to them and leave."""

from __future__ import annotations

from dataclasses import asdict, replace

from sqlalchemy import Connection, select

from cost.ledger import machine_states, queries, schema
from cost.ledger.corrections import Entries
from cost.ledger.queries import canonical
from cost.money import checked_currency
from cost.periods import instant_text
from cost.records import IntegrityError, Lease, LeaseState, LedgerError


class Leases(Entries):
    """A ledger of machines. Facts are written once; the same again changes nothing, another content is an error."""

    def open_lease(self, lease: Lease, *, until_ns: int | None = None) -> None:
        """A machine is held from `lease.from_ns` (None: now) on, or was, until `until_ns`.

        Raises:
            IntegrityError: another lease of this machine is open or ends later than this one begins; or the same
                lease was opened with other terms.
            LedgerError: a field is wrong.
        """
        now = self.now_ns()
        _check_lease(lease, now)
        with self._write() as connection:
            self._store.lock(connection, f"instance {lease.instance_id}")
            same = queries.lease_states(connection, lease_id=lease.lease_id)
            if same:
                known = same[0].lease
                if replace(lease, from_ns=lease.from_ns or known.from_ns) != known:
                    raise IntegrityError(f"lease {lease.lease_id} was opened before with other terms: {known}")
                return
            begins = now if lease.from_ns is None else lease.from_ns
            for other in queries.lease_states(connection, instance_id=lease.instance_id):
                if until_ns is not None and until_ns <= other.from_ns:
                    continue
                if other.to_ns is None:
                    raise IntegrityError(
                        f"lease {other.lease.lease_id} of machine {lease.instance_id} is still open; attach to it, or "
                        f"close it first: python -m cost leases close {other.lease.lease_id}"
                    )
                if other.to_ns > begins:
                    raise IntegrityError(
                        f"lease {lease.lease_id} of machine {lease.instance_id} would begin before lease "
                        f"{other.lease.lease_id} of the same machine ended"
                    )
            self._refuse_frozen(connection, begins, f"lease {lease.lease_id} would begin")
            row = asdict(lease) | {
                "watts": None if lease.watts is None else str(lease.watts),
                "tags": canonical(lease.tags),
                "from_ns": begins,
                "driver_id": self.driver_id,
                "written_ns": now,
            }
            connection.execute(schema.lease.insert(), row)
            if until_ns is not None:
                self.close_lease(lease.lease_id, "entered by hand", at_ns=until_ns)

    def close_lease(self, lease_id: str, how: str, *, at_ns: int | None = None, released: bool = False) -> None:
        """The machine is given back; `released` says that its provider confirmed it. Sweeps are detached with it.

        Raises:
            IntegrityError: it was closed before at another moment, or something ran on it later than `at_ns`.
        """
        with self._write() as connection:
            self._store.lock(connection, f"lease {lease_id}")
            state = self._lease(connection, lease_id)
            now = self.now_ns()
            if at_ns is not None and at_ns > now:
                raise LedgerError(f"lease {lease_id} cannot end at {instant_text(at_ns)}, which is yet to come")
            if state.to_ns is not None:
                if at_ns is None or at_ns == state.to_ns:
                    return
                raise IntegrityError(f"lease {lease_id} was closed before, at another moment; write a correction")
            usages = queries.usages(connection, lease_ids=[lease_id]).values()
            for usage in usages:
                if usage.to_ns is None or (at_ns is not None and usage.to_ns > at_ns):
                    raise IntegrityError(
                        f"lease {lease_id} cannot end before what runs on it: trial {usage.key.trial_id} attempt "
                        f"{usage.key.attempt} of sweep {usage.sweep_id} "
                        + ("is still open" if usage.to_ns is None else "ended later")
                    )
            begun = max(state.from_ns, *(a.from_ns for a in queries.attachments(connection, [lease_id])), 0)
            if at_ns is not None and at_ns < begun:
                raise IntegrityError(
                    f"lease {lease_id} cannot end at {instant_text(at_ns)}: it was held, or a sweep came to it, at "
                    f"{instant_text(begun)}"
                )
            # Another driver's clock may be a little ahead: what it has written has happened.
            to_ns = max(now, begun, *(u.to_ns or 0 for u in usages)) if at_ns is None else at_ns
            self._refuse_frozen(connection, to_ns, f"lease {lease_id} would end")
            for sweep_id in state.sweeps:
                self._detach(connection, lease_id, sweep_id, to_ns, how)
            row = {"lease_id": lease_id, "to_ns": to_ns, "how": how, "released": int(released)}
            connection.execute(schema.lease_end.insert(), row | self._signature())

    def leases(self, *, only_open: bool = False) -> list[LeaseState]:
        """All leases, in the order they began."""
        with self._store.read() as connection:
            return [s for s in queries.lease_states(connection) if s.to_ns is None or not only_open]

    def open_lease_of(self, instance_id: str) -> LeaseState | None:
        """The open lease of a machine; there is at most one."""
        with self._store.read() as connection:
            states = queries.lease_states(connection, instance_id=instance_id)
        return next((state for state in states if state.to_ns is None), None)

    def attach(self, lease_id: str, sweep_id: str) -> None:
        """From now on this sweep answers for its share of the lease. Attached already: nothing changes.

        Raises:
            IntegrityError: the lease is closed, or its machine is stopped.
        """
        with self._write() as connection:
            self._store.lock(connection, f"lease {lease_id}")
            state = self._lease(connection, lease_id)
            if state.to_ns is not None:
                raise IntegrityError(f"lease {lease_id} is closed ({state.how}); open a new one for sweep {sweep_id}")
            now = machine_states.state_at(machine_states.load(self), lease_id, self.now_ns())
            if now is not None and now.state != machine_states.RUNNING:
                raise IntegrityError(
                    f"lease {lease_id} is {now.state} since {instant_text(now.at_ns)}; if its machine runs again, say "
                    f"since when: python -m cost leases start {lease_id} --at 2026-11-29T18:00"
                )
            if sweep_id not in state.sweeps:
                row = {"lease_id": lease_id, "sweep_id": sweep_id, "from_ns": max(self.now_ns(), state.from_ns)}
                connection.execute(schema.attachment.insert(), row | self._signature())

    def detach(self, lease_id: str, sweep_id: str, how: str) -> bool:
        """The sweep is done with the machine. The last one to leave closes the lease, unless a hand opened it.

        Returns whether the lease is closed now. Not attached: nothing changes.

        Raises:
            IntegrityError: a usage of this sweep is still open.
        """
        with self._write() as connection:
            self._store.lock(connection, f"lease {lease_id}")
            state = self._lease(connection, lease_id)
            if state.to_ns is not None or sweep_id not in state.sweeps:
                return state.to_ns is not None
            for usage in queries.usages(connection, lease_ids=[lease_id], only_open=True).values():
                if usage.sweep_id == sweep_id:
                    raise IntegrityError(
                        f"sweep {sweep_id} cannot leave lease {lease_id}: trial {usage.key.trial_id} attempt "
                        f"{usage.key.attempt} still holds cards"
                    )
            self._detach(connection, lease_id, sweep_id, self.now_ns(), how)
            if len(state.sweeps) > 1 or state.lease.opened_by == "hand":
                return False
            self.close_lease(lease_id, how)
            return True

    def _detach(self, connection: Connection, lease_id: str, sweep_id: str, to_ns: int, how: str) -> None:
        start, end = schema.attachment, schema.detachment
        query = select(start.c.attachment_id, start.c.from_ns).where(
            start.c.lease_id == lease_id,
            start.c.sweep_id == sweep_id,
            start.c.attachment_id.not_in(select(end.c.attachment_id)),
        )
        for attachment_id, from_ns in connection.execute(query).all():
            row = {"attachment_id": attachment_id, "to_ns": max(to_ns, from_ns), "how": how}
            connection.execute(end.insert(), row | self._signature())


def _check_lease(lease: Lease, now_ns: int) -> None:
    checked_currency(lease.currency)
    if type(lease.cards) is not int or lease.cards < 1:
        raise LedgerError(f"lease {lease.lease_id}: {lease.cards!r} cards; a machine has one or more")
    if lease.from_ns is not None and lease.from_ns > now_ns:
        raise LedgerError(f"lease {lease.lease_id} would begin at {instant_text(lease.from_ns)}, which is yet to come")
    if lease.opened_by not in ("sweep", "hand"):
        raise LedgerError(f"lease {lease.lease_id}: opened_by is {lease.opened_by!r}; sweep or hand")
    if lease.watts is not None and not lease.watts >= 0:
        raise LedgerError(f"lease {lease.lease_id}: {lease.watts} watts; zero or more")

"""The ledger: what was leased, who used it and what was decided, written once and never changed.

Every method commits by itself, or joins the `transaction` it is called in. Writing the same fact twice changes
nothing; the same fact with another content is an `IntegrityError`. Only drivers write: trials send durations, the
driver's clock dates them. Nothing here knows a price or adds up money.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, select

from cost import facts, liveness, machine_states, schema
from cost.clock import NS_PER_SECOND, Clock, SystemClock
from cost.entries import Entries
from cost.facts import canonical
from cost.in_use import InUse
from cost.money import checked_currency
from cost.prices import instant_text
from cost.records import (
    OUTCOMES,
    PHASES,
    IntegrityError,
    Lease,
    LeaseState,
    LedgerError,
    Usage,
    UsageKey,
)
from cost.reservations import Reservations
from cost.store import Store

HEARTBEAT_NS = 10 * NS_PER_SECOND
"""How often a driver says that what it holds is still held."""

SILENT_NS = 6 * HEARTBEAT_NS
"""A driver on another host that has said nothing for so long is taken for dead."""


class Ledger(Entries, Reservations):
    """An open ledger. Use it as a context manager, or `close` it. Threads may share one; they take turns."""

    def __init__(self, store: Store, clock: Clock) -> None:
        super().__init__(store, clock)
        self._usage_ids: dict[UsageKey, int] = {}
        self._in_use: dict[str, InUse] = {}

    @classmethod
    def open(
        cls, url: str | Path, clock: Clock | None = None, *, create: bool = True, read_only: bool = False
    ) -> Ledger:
        """Open the ledger in a SQLite file (its path) or in a server (a `postgresql://` URL).

        It is made, or brought to the newest version, unless `create` is False or `read_only` is True.

        Raises:
            NoLedgerError: there is none, and it was not to be made.
            StoreError: it is locked, damaged, of a newer version, or its place cannot be used.
        """
        ledger = cls(Store(url, create=create, read_only=read_only), clock or SystemClock())
        if not read_only and not ledger._clock.anchor.simulated:
            with ledger.read() as connection:
                ahead_ns = liveness.ahead_of_us(connection, ledger.now_ns())
            if ahead_ns is not None:
                ledger._clock.not_before(ahead_ns + HEARTBEAT_NS)
        return ledger

    # Leases -----------------------------------------------------------------------------------------------------------

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
            same = facts.lease_states(connection, lease_id=lease.lease_id)
            if same:
                known = same[0].lease
                if replace(lease, from_ns=lease.from_ns or known.from_ns) != known:
                    raise IntegrityError(f"lease {lease.lease_id} was opened before with other terms: {known}")
                return
            begins = now if lease.from_ns is None else lease.from_ns
            for other in facts.lease_states(connection, instance_id=lease.instance_id):
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
                raise LedgerError(f"lease {lease_id} cannot end {at_ns - now} ns in the future")
            if state.to_ns is not None:
                if at_ns is None or at_ns == state.to_ns:
                    return
                raise IntegrityError(f"lease {lease_id} was closed before, at another moment; write a correction")
            usages = facts.usages(connection, lease_ids=[lease_id]).values()
            for usage in usages:
                if usage.to_ns is None or (at_ns is not None and usage.to_ns > at_ns):
                    raise IntegrityError(
                        f"lease {lease_id} cannot end before what runs on it: trial {usage.key.trial_id} attempt "
                        f"{usage.key.attempt} of sweep {usage.sweep_id} "
                        + ("is still open" if usage.to_ns is None else "ended later")
                    )
            begun = max(state.from_ns, *(a.from_ns for a in facts.attachments(connection, [lease_id])), 0)
            if at_ns is not None and at_ns < begun:
                raise IntegrityError(f"lease {lease_id} cannot end at {at_ns} ns: a sweep came to it at {begun} ns")
            # Another driver's clock may be a little ahead: what it has written has happened.
            to_ns = max(now, begun, *(u.to_ns or 0 for u in usages)) if at_ns is None else at_ns
            self._refuse_frozen(connection, to_ns, f"lease {lease_id} would end")
            for sweep_id in state.sweeps:
                self._detach(connection, lease_id, sweep_id, to_ns, how)
            row = {"lease_id": lease_id, "to_ns": to_ns, "how": how, "released": int(released)}
            connection.execute(schema.lease_end.insert(), row | self._signature())

    def lease_state(self, lease_id: str) -> LeaseState:
        """What is known of a lease. Raises LedgerError where there is none of this id."""
        with self._store.read() as connection:
            return self._lease(connection, lease_id)

    def leases(self, *, only_open: bool = False) -> list[LeaseState]:
        """All leases, in the order they began."""
        with self._store.read() as connection:
            return [s for s in facts.lease_states(connection) if s.to_ns is None or not only_open]

    def open_lease_of(self, instance_id: str) -> LeaseState | None:
        """The open lease of a machine; there is at most one."""
        with self._store.read() as connection:
            states = facts.lease_states(connection, instance_id=instance_id)
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
            for usage in facts.usages(connection, lease_ids=[lease_id], only_open=True).values():
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

    def heartbeat(self, lease_id: str, usages: Sequence[UsageKey] = ()) -> None:
        """The machine is held, and so are the cards of these usages. Those that have ended meanwhile stay ended."""
        with self._write() as connection:
            now = self.now_ns()
            if self._lease(connection, lease_id).to_ns is None:
                row = {"lease_id": lease_id, "at_ns": now, "driver_id": self.driver_id}
                self._insert_new(connection, schema.lease_beat, [row])
            ids = [self._usage_id(connection, key) for key in usages]
            ended = select(schema.usage_end.c.usage_id).where(schema.usage_end.c.usage_id.in_(ids))
            open_ids = set(ids) - set(connection.execute(ended).scalars()) if ids else set()
            if open_ids:
                rows = [{"usage_id": usage_id, "at_ns": now} for usage_id in sorted(open_ids)]
                self._insert_new(connection, schema.usage_beat, rows)

    # Usage ------------------------------------------------------------------------------------------------------------

    def start_usage(self, key: UsageKey, sweep_id: str, cards: Decimal, labels: Mapping[str, str]) -> None:
        """An attempt holds `cards` (a fraction of one is allowed, to six decimal places) of a lease from now on.

        Raises:
            IntegrityError: the lease is closed, the sweep is not attached, the trial already holds cards of this
                lease, or there are not so many free cards.
        """
        micro = _micro(cards)
        with self._write() as connection:
            self._store.lock(connection, f"lease {key.lease_id}")
            state = self._lease(connection, key.lease_id)
            held = None
            for known in facts.usages_of_trial(connection, key.lease_id, key.trial_id, sweep_id):
                if known.attempt == key.attempt:
                    if known.cards_micro != micro:
                        before = Decimal(known.cards_micro) / schema.MICRO_PER_CARD
                        raise IntegrityError(f"{key} was started before with {before} cards, not {cards}")
                    return
                held = replace(key, attempt=known.attempt) if known.to_ns is None else held
            if state.to_ns is not None:
                raise IntegrityError(f"lease {key.lease_id} is closed ({state.how}): {key} cannot start on it")
            if sweep_id not in state.sweeps:
                raise IntegrityError(f"sweep {sweep_id} is not attached to lease {key.lease_id}; attach it first")
            if held:
                raise IntegrityError(f"trial {key.trial_id} already holds cards of this lease: {held}")
            in_use = self._in_use.setdefault(key.lease_id, InUse(key.lease_id))
            free = in_use.free(connection, state.lease.cards * schema.MICRO_PER_CARD, micro)
            if micro > free:
                raise IntegrityError(
                    f"{key} wants {cards} cards, but {Decimal(max(free, 0)) / schema.MICRO_PER_CARD} of the "
                    f"{state.lease.cards} cards of lease {key.lease_id} are free"
                )
            row = {
                "lease_id": key.lease_id,
                "trial_id": key.trial_id,
                "attempt": key.attempt,
                "sweep_id": sweep_id,
                "cards_micro": micro,
                "from_ns": max(self.now_ns(), state.from_ns),
            }
            result = connection.execute(schema.usage.insert(), row | self._signature())
            self._usage_ids.pop(key, None)
            assert result.inserted_primary_key is not None
            in_use.started(result.inserted_primary_key[0], micro)
            self._write_labels(connection, result.inserted_primary_key[0], labels)

    def add_phases(self, key: UsageKey, sequence: int, card_ns: Mapping[str, int]) -> None:
        """Card-nanoseconds that the trial reported, by kind of phase; `sequence` numbers its reports.

        Raises:
            IntegrityError: report `sequence` came before with another content.
            LedgerError: a duration is negative, or no such kind of phase is known.
        """
        self.add_phases_of([(key, sequence, card_ns)])

    def add_phases_of(self, reports: Sequence[tuple[UsageKey, int, Mapping[str, int]]]) -> None:
        """`add_phases` for many reports at once, all or none."""
        for key, _, card_ns in reports:
            _check_phases(key, card_ns)
        with self._write() as connection:
            now = self.now_ns()
            rows = [
                [
                    {"usage_id": usage_id, "kind": kind, "sequence": number, "card_ns": value, "written_ns": now}
                    for kind, value in card_ns.items()
                    if value
                ]
                for (key, number, card_ns), usage_id in zip(
                    reports, [self._usage_id(connection, key) for key, _, _ in reports], strict=True
                )
            ]
            if len(reports) > 1:
                together = [row for of_report in rows for row in of_report]
                attempt = connection.begin_nested()
                if not together or self._insert_new(connection, schema.phase, together) == len(together):
                    attempt.commit()
                    return
                attempt.rollback()  # something is there already: one by one, to tell what
            for (key, _, _), of_report in zip(reports, rows, strict=True):
                if of_report:
                    self._insert_phases(connection, key, of_report)

    def _insert_phases(self, connection: Connection, key: UsageKey, rows: list[dict[str, Any]]) -> None:
        table, number = schema.phase, rows[0]["sequence"]
        inserted = self._insert_new(connection, table, rows)
        if inserted == len(rows):
            return
        query = select(table.c.kind, table.c.card_ns).where(
            table.c.usage_id == rows[0]["usage_id"], table.c.sequence == number
        )
        known = {row.kind: row.card_ns for row in connection.execute(query)}
        given = {row["kind"]: row["card_ns"] for row in rows}
        if known != given or inserted:
            raise IntegrityError(f"report {number} of {key} came before as {known}, and now as {given}")

    def end_usage(self, key: UsageKey, outcome: str, *, at_ns: int | None = None, end_estimated: bool = False) -> None:
        """The attempt's cards are free again. Ended before: nothing changes, if it ended in the same way.

        An end that another driver had to estimate stays as it is: the cards were counted as free since then.

        Raises:
            IntegrityError: it ended before with another outcome, or would end before it starts.
        """
        if outcome not in OUTCOMES:
            raise LedgerError(f"{outcome!r} is no outcome of an attempt; one of {', '.join(OUTCOMES)}")
        with self._write() as connection:
            usage_id = self._usage_id(connection, key)
            known = connection.execute(select(schema.usage_end).where(schema.usage_end.c.usage_id == usage_id)).first()
            if known is not None:
                same = known.outcome == outcome and at_ns in (None, known.to_ns)
                if same or known.estimated:
                    return
                raise IntegrityError(f"{key} ended before as {known.outcome}, and now as {outcome}")
            begun = connection.execute(select(schema.usage.c.from_ns).where(schema.usage.c.usage_id == usage_id))
            from_ns = begun.scalar_one()
            # The driver that started it may have a clock that is a little ahead.
            to_ns = max(self.now_ns(), from_ns) if at_ns is None else at_ns
            if to_ns < from_ns:
                raise IntegrityError(f"{key} cannot end {from_ns - to_ns} ns before it starts")
            self._refuse_frozen(connection, to_ns, f"{key} would end")
            row = {"usage_id": usage_id, "to_ns": to_ns, "outcome": outcome, "estimated": int(end_estimated)}
            connection.execute(schema.usage_end.insert(), row | self._signature())
            if key.lease_id in self._in_use:
                self._in_use[key.lease_id].ended(usage_id)

    def set_labels(self, key: UsageKey, labels: Mapping[str, str]) -> None:
        """Facts about an attempt that reports show (stage, state, acc ...); the latest value of each counts.

        Raises:
            LedgerError: a forecast is no amount with a currency.
        """
        with self._write() as connection:
            self._write_labels(connection, self._usage_id(connection, key), labels)

    def usages(self, *, sweep_id: str | None = None, only_open: bool = False) -> list[Usage]:
        """Usages in the order they began."""
        with self._store.read() as connection:
            found = facts.usages(connection, only_open=only_open, sweep_id=sweep_id)
        return list(found.values())

    def close_dead(self, *, silent_ns: int = SILENT_NS, driven: str = "") -> list[Usage]:
        """End the usages whose driver is dead, as LOST and `end_estimated`, at the last moment at which they were known
        to be held: their last heartbeat, or the last report of their trial. Returns them. One whose `state` had been
        told to be an outcome keeps that.

        A driver is dead when its process is gone (on this host), or when it has been silent for `silent_ns` (on
        another), or when this one holds its sweep (`driven`; see `cost.driving`). Leases stay open: the machine is
        still there, and paid for.
        """
        closed: list[Usage] = []
        with self._write() as connection:
            now = self.now_ns()
            drivers = {row.driver_id: row for row in connection.execute(select(schema.driver))}
            query = select(schema.usage.c.usage_id, schema.usage.c.driver_id)
            owner = {row.usage_id: row.driver_id for row in connection.execute(query)}
            for usage_id, usage in facts.usages(connection, only_open=True).items():
                holder = drivers[owner[usage_id]]
                heard = usage.last_heartbeat_ns
                if holder.driver_id == self.driver_id:
                    continue
                dead = liveness.driver_is_dead(holder, self._clock.anchor, now, heard, silent_ns)
                if not dead and usage.sweep_id != driven:
                    continue
                reported = select(func.max(schema.phase.c.written_ns)).where(schema.phase.c.usage_id == usage_id)
                to_ns = max(usage.last_heartbeat_ns, connection.execute(reported).scalar() or 0)
                # An attempt that was over, and only held its cards still, is not lost.
                said = usage.labels.get("state", "")
                outcome = said if said in OUTCOMES else "LOST"
                row = {"usage_id": usage_id, "to_ns": to_ns, "outcome": outcome, "estimated": 1}
                connection.execute(schema.usage_end.insert(), row | self._signature())
                closed.append(replace(usage, to_ns=to_ns, outcome=outcome, end_estimated=True))
        return closed

    # Inside -----------------------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        super()._forget()
        self._usage_ids.clear()
        self._in_use.clear()

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

    def _usage_id(self, connection: Connection, key: UsageKey) -> int:
        known = self._usage_ids.get(key)
        if known is not None:
            return known
        table = schema.usage
        query = select(func.max(table.c.usage_id)).where(
            table.c.lease_id == key.lease_id, table.c.trial_id == key.trial_id, table.c.attempt == key.attempt
        )
        found = connection.execute(query).scalar()
        if found is None:
            raise IntegrityError(f"{key} has not been started")
        self._usage_ids[key] = found
        return found


def _micro(cards: Decimal | int) -> int:
    scaled = Decimal(cards) * schema.MICRO_PER_CARD
    if not scaled.is_finite() or scaled != scaled.to_integral_value() or scaled <= 0:
        raise LedgerError(f"{cards} is no number of cards; write one above 0 with at most six decimal places")
    return int(scaled)


def _check_phases(key: UsageKey, card_ns: Mapping[str, int]) -> None:
    for kind, value in card_ns.items():
        if kind not in PHASES:
            raise LedgerError(f"{kind!r} is no phase; one of {', '.join(PHASES)}")
        if type(value) is not int or value < 0:
            raise LedgerError(f"phase {kind} of {key} lasted {value!r} card-nanoseconds: not a whole number >= 0")


def _check_lease(lease: Lease, now_ns: int) -> None:
    checked_currency(lease.currency)
    if type(lease.cards) is not int or lease.cards < 1:
        raise LedgerError(f"lease {lease.lease_id}: {lease.cards!r} cards; a machine has one or more")
    if lease.from_ns is not None and lease.from_ns > now_ns:
        raise LedgerError(f"lease {lease.lease_id} would begin {lease.from_ns - now_ns} ns in the future")
    if lease.opened_by not in ("sweep", "hand"):
        raise LedgerError(f"lease {lease.lease_id}: opened_by is {lease.opened_by!r}; sweep or hand")
    if lease.watts is not None and not lease.watts >= 0:
        raise LedgerError(f"lease {lease.lease_id}: {lease.watts} watts; zero or more")

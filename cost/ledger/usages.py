"""Who used machines, in the ledger: attempts that hold cards, what they reported, how they ended, what is said of them.

A usage is known to be held until it ends, or until its driver falls silent: `close_dead` ends it there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, func, select

from cost.clock import Clock
from cost.ledger import liveness, queries, schema
from cost.ledger.corrections import Entries
from cost.ledger.free_cards import InUse
from cost.ledger.liveness import SILENT_NS
from cost.ledger.store import Store
from cost.records import OUTCOMES, PHASES, IntegrityError, LedgerError, Usage, UsageKey


class Usages(Entries):
    """A ledger of the cards of machines. Facts are written once; the same again changes nothing."""

    def __init__(self, store: Store, clock: Clock) -> None:
        super().__init__(store, clock)
        self._usage_ids: dict[UsageKey, int] = {}
        self._in_use: dict[str, InUse] = {}

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
            for known in queries.usages_of_trial(connection, key.lease_id, key.trial_id, sweep_id):
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
            found = queries.usages(connection, only_open=only_open, sweep_id=sweep_id)
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
            for usage_id, usage in queries.usages(connection, only_open=True).items():
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

    def _forget(self) -> None:
        super()._forget()
        self._usage_ids.clear()
        self._in_use.clear()

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

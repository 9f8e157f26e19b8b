"""Usages in the ledger: the cards that an attempt uses, the durations it reported, its labels, and how it ended.

A usage is open until it is ended, or until its driver is dead: `close_dead` then ends it at its last heartbeat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, func, select

from cost.ledger import liveness, queries, schema
from cost.ledger.closed_months import check_month_is_open
from cost.ledger.free_cards import FreeCards
from cost.ledger.liveness import SILENT_NS
from cost.ledger.writer import LedgerWriter
from cost.money import Money, MoneyError
from cost.records import FORECAST_LABELS, OUTCOMES, PHASES, IntegrityError, LedgerError, Usage, UsageKey

PhaseReport = tuple[UsageKey, int, Mapping[str, int]]
"""Usage, number of the report, and card-nanoseconds by phase."""


class UsageStore:
    """The usages of one ledger. Writing the same fact again changes nothing; other content is an error."""

    def __init__(self, writer: LedgerWriter) -> None:
        self._writer = writer
        self._usage_ids: dict[UsageKey, int] = {}
        self._free_cards: dict[str, FreeCards] = {}
        writer.on_rollback(self._reset)

    def start(self, key: UsageKey, sweep_id: str, cards: Decimal, labels: Mapping[str, str]) -> None:
        """Start the usage of `cards` cards (a fraction of at most six decimal places is allowed) from now on.

        Raises:
            IntegrityError: the lease is closed, the sweep is not attached, the trial already uses cards of this lease,
                or fewer cards are free.
        """
        micro = _micro(cards)
        with self._writer.write() as connection:
            self._writer.lock(connection, f"lease {key.lease_id}")
            state = queries.lease_state(connection, key.lease_id)
            open_key = None
            for known in queries.usages_of_trial(connection, key.lease_id, key.trial_id, sweep_id):
                if known.attempt == key.attempt:
                    if known.cards_micro != micro:
                        before = Decimal(known.cards_micro) / schema.MICRO_PER_CARD
                        raise IntegrityError(f"{key} exists with {before} cards, not {cards}")
                    return
                open_key = replace(key, attempt=known.attempt) if known.to_ns is None else open_key
            if state.to_ns is not None:
                raise IntegrityError(f"lease {key.lease_id} is closed ({state.how}): {key} cannot start on it")
            if sweep_id not in state.sweeps:
                raise IntegrityError(f"sweep {sweep_id} is not attached to lease {key.lease_id}; attach it first")
            if open_key:
                raise IntegrityError(f"trial {key.trial_id} already uses cards of this lease: {open_key}")
            free_cards = self._free_cards.setdefault(key.lease_id, FreeCards(key.lease_id))
            free = free_cards.free_micro(connection, state.lease.cards * schema.MICRO_PER_CARD, micro)
            if micro > free:
                raise IntegrityError(
                    f"{key} needs {cards} cards, but {Decimal(max(free, 0)) / schema.MICRO_PER_CARD} of the "
                    f"{state.lease.cards} cards of lease {key.lease_id} are free"
                )
            row = {
                "lease_id": key.lease_id,
                "trial_id": key.trial_id,
                "attempt": key.attempt,
                "sweep_id": sweep_id,
                "cards_micro": micro,
                "from_ns": max(self._writer.now_ns(), state.from_ns),
            }
            result = connection.execute(schema.usage.insert(), row | self._writer.signature())
            self._usage_ids.pop(key, None)
            assert result.inserted_primary_key is not None
            free_cards.started(result.inserted_primary_key[0], micro)
            self._write_labels(connection, result.inserted_primary_key[0], labels)

    def add_phases(self, key: UsageKey, sequence: int, card_ns: Mapping[str, int]) -> None:
        """Record card-nanoseconds by phase; `sequence` is the number of the trial's report.

        Raises:
            IntegrityError: report `sequence` exists with other content.
            LedgerError: a duration is negative, or a phase is unknown.
        """
        self.add_phase_reports([(key, sequence, card_ns)])

    def add_phase_reports(self, reports: Sequence[PhaseReport]) -> None:
        """`add_phases` for many reports at once, all or none."""
        for key, _, card_ns in reports:
            _check_phases(key, card_ns)
        with self._writer.write() as connection:
            now = self._writer.now_ns()
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
                if not together or self._writer.insert_new(connection, schema.phase, together) == len(together):
                    attempt.commit()
                    return
                attempt.rollback()  # some rows exist already: insert one report at a time to find out which
            for (key, _, _), of_report in zip(reports, rows, strict=True):
                if of_report:
                    self._insert_phases(connection, key, of_report)

    def _insert_phases(self, connection: Connection, key: UsageKey, rows: list[dict[str, Any]]) -> None:
        table, number = schema.phase, rows[0]["sequence"]
        inserted = self._writer.insert_new(connection, table, rows)
        if inserted == len(rows):
            return
        query = select(table.c.kind, table.c.card_ns).where(
            table.c.usage_id == rows[0]["usage_id"], table.c.sequence == number
        )
        known = {row.kind: row.card_ns for row in connection.execute(query)}
        given = {row["kind"]: row["card_ns"] for row in rows}
        if known != given or inserted:
            raise IntegrityError(f"report {number} of {key} exists as {known}; now reported as {given}")

    def end(self, key: UsageKey, outcome: str, *, at_ns: int | None = None, end_estimated: bool = False) -> None:
        """End a usage: its cards are free again. Ending it again with the same outcome changes nothing.

        An end that another driver had to estimate stays, because its cards were counted as free from then on.

        Raises:
            IntegrityError: the usage ended with another outcome, or would end before it started.
        """
        if outcome not in OUTCOMES:
            raise LedgerError(f"{outcome!r} is not an outcome of an attempt; choose one of {', '.join(OUTCOMES)}")
        with self._writer.write() as connection:
            usage_id = self._usage_id(connection, key)
            known = connection.execute(select(schema.usage_end).where(schema.usage_end.c.usage_id == usage_id)).first()
            if known is not None:
                same = known.outcome == outcome and at_ns in (None, known.to_ns)
                if same or known.estimated:
                    return
                raise IntegrityError(f"{key} ended as {known.outcome}; now ended as {outcome}")
            begun = connection.execute(select(schema.usage.c.from_ns).where(schema.usage.c.usage_id == usage_id))
            from_ns = begun.scalar_one()
            # The clock of the driver that started the usage may be slightly ahead.
            to_ns = max(self._writer.now_ns(), from_ns) if at_ns is None else at_ns
            if to_ns < from_ns:
                raise IntegrityError(f"{key} cannot end {from_ns - to_ns} ns before it starts")
            check_month_is_open(connection, to_ns, f"{key} would end")
            row = {"usage_id": usage_id, "to_ns": to_ns, "outcome": outcome, "estimated": int(end_estimated)}
            connection.execute(schema.usage_end.insert(), row | self._writer.signature())
            if key.lease_id in self._free_cards:
                self._free_cards[key.lease_id].ended(usage_id)

    def set_labels(self, key: UsageKey, labels: Mapping[str, str]) -> None:
        """Set labels of an attempt that reports show (stage, state, acc ...). The latest value of a label counts.

        Raises:
            LedgerError: a forecast label is not an amount with a currency.
        """
        with self._writer.write() as connection:
            self._write_labels(connection, self._usage_id(connection, key), labels)

    def find(self, *, sweep_id: str | None = None, only_open: bool = False) -> list[Usage]:
        """Usages in order of their start: of all sweeps or one, all or the open ones."""
        with self._writer.read() as connection:
            found = queries.usages(connection, only_open=only_open, sweep_id=sweep_id)
        return list(found.values())

    def close_dead(self, *, silent_ns: int = SILENT_NS, locked_sweep: str = "") -> list[Usage]:
        """End the usages of dead drivers with outcome LOST and an estimated end. Returns the ended usages.

        A usage ends at its last heartbeat or at the last report of its trial, whichever is later. A usage whose label
        `state` is an outcome already ends with that outcome, not as LOST.

        A driver is dead when its process on this host is gone, or when a driver on another host was silent for
        `silent_ns`. Every other driver of `locked_sweep` counts as dead, because this process has that sweep's lock
        (see `cost.ledger.sweep_lock`). Leases stay open: the machine still exists and costs money.
        """
        closed: list[Usage] = []
        with self._writer.write() as connection:
            now = self._writer.now_ns()
            drivers = {row.driver_id: row for row in connection.execute(select(schema.driver))}
            query = select(schema.usage.c.usage_id, schema.usage.c.driver_id)
            driver_of = {row.usage_id: row.driver_id for row in connection.execute(query)}
            for usage_id, usage in queries.usages(connection, only_open=True).items():
                driver = drivers[driver_of[usage_id]]
                if driver.driver_id == self._writer.driver_id:
                    continue
                dead = liveness.driver_is_dead(
                    driver, self._writer.clock.anchor, now, usage.last_heartbeat_ns, silent_ns
                )
                if not dead and usage.sweep_id != locked_sweep:
                    continue
                reported = select(func.max(schema.phase.c.written_ns)).where(schema.phase.c.usage_id == usage_id)
                to_ns = max(usage.last_heartbeat_ns, connection.execute(reported).scalar() or 0)
                # An attempt that had finished and only still occupied its cards is not lost.
                state = usage.labels.get("state", "")
                outcome = state if state in OUTCOMES else "LOST"
                row = {"usage_id": usage_id, "to_ns": to_ns, "outcome": outcome, "estimated": 1}
                connection.execute(schema.usage_end.insert(), row | self._writer.signature())
                closed.append(replace(usage, to_ns=to_ns, outcome=outcome, end_estimated=True))
        return closed

    def heartbeat(self, keys: Sequence[UsageKey], at_ns: int) -> None:
        """Record that these usages still use their cards at an instant. Ended usages stay as they are."""
        with self._writer.write() as connection:
            ids = [self._usage_id(connection, key) for key in keys]
            ended = select(schema.usage_end.c.usage_id).where(schema.usage_end.c.usage_id.in_(ids))
            open_ids = set(ids) - set(connection.execute(ended).scalars()) if ids else set()
            if open_ids:
                rows = [{"usage_id": usage_id, "at_ns": at_ns} for usage_id in sorted(open_ids)]
                self._writer.insert_new(connection, schema.usage_beat, rows)

    def _write_labels(self, connection: Connection, usage_id: int, labels: Mapping[str, str]) -> None:
        known = queries.labels(connection, [usage_id]).get(usage_id, {})
        changed = {name: str(value) for name, value in labels.items() if known.get(name) != str(value)}
        if not changed:
            return
        for name in changed.keys() & set(FORECAST_LABELS):
            try:
                Money.parse(changed[name], negative=False)
            except MoneyError as error:
                raise LedgerError(f"label {name}: {error}") from error
        table, now = schema.label, self._writer.now_ns()
        last = connection.execute(select(func.max(table.c.sequence)).where(table.c.usage_id == usage_id)).scalar()
        rows = [
            {"usage_id": usage_id, "name": name, "sequence": (last or 0) + 1, "value": value, "written_ns": now}
            for name, value in changed.items()
        ]
        connection.execute(table.insert(), rows)

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

    def _reset(self) -> None:
        self._usage_ids.clear()
        self._free_cards.clear()


def _micro(cards: Decimal | int) -> int:
    scaled = Decimal(cards) * schema.MICRO_PER_CARD
    if not scaled.is_finite() or scaled != scaled.to_integral_value() or scaled <= 0:
        raise LedgerError(f"{cards} is not a number of cards; write a number above 0 with at most six decimal places")
    return int(scaled)


def _check_phases(key: UsageKey, card_ns: Mapping[str, int]) -> None:
    for kind, value in card_ns.items():
        if kind not in PHASES:
            raise LedgerError(f"{kind!r} is not a phase; choose one of {', '.join(PHASES)}")
        if type(value) is not int or value < 0:
            raise LedgerError(f"phase {kind} of {key}: {value!r} card-nanoseconds; write a whole number >= 0")

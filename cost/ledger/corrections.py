"""What is kept beside the facts of leases: corrections, labels, the price rows that were used, the closed months."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC

from sqlalchemy import Connection, func, select

from cost.ledger import queries, schema
from cost.ledger.journal import Journal
from cost.ledger.queries import canonical
from cost.money import Money, MoneyError, checked_currency
from cost.periods import instant_text, period_name
from cost.prices.book import PriceRow, as_mapping, read_row
from cost.records import CATEGORIES, FORECASTS, Correction, IntegrityError, LeaseState, LedgerError


class Entries(Journal):
    """A journal with these entries. Each is written once and never changed."""

    def lease_state(self, lease_id: str) -> LeaseState:
        """What is known of a lease. Raises LedgerError where there is none of this id."""
        with self._store.read() as connection:
            return self._lease(connection, lease_id)

    def add_correction(self, correction: Correction) -> bool:
        """An entry that changes what a lease cost, up or down. Returns False where it was there already.

        Raises:
            LedgerError: its category or currency is none, it has no reason, or it lies in the future.
            IntegrityError: no such lease, another currency, a sweep or trial that was never on that lease, or the same
                id with another content.
        """
        checked_currency(correction.currency)
        if correction.category not in CATEGORIES:
            raise LedgerError(f"{correction.category!r} is no category; one of {', '.join(CATEGORIES)}")
        if not correction.reason.strip():
            raise LedgerError(f"correction {correction.correction_id} needs a reason")
        if correction.at_ns > self.now_ns():
            raise LedgerError(
                f"correction {correction.correction_id} is of {instant_text(correction.at_ns)}, which is yet to come"
            )
        table = schema.correction
        with self._write() as connection:
            state = self._lease(connection, correction.lease_id)
            if correction.currency != state.lease.currency:
                raise IntegrityError(f"lease {correction.lease_id} is in {state.lease.currency}: correct it in that")
            known = connection.execute(select(table).where(table.c.correction_id == correction.correction_id)).first()
            if known is not None:
                if all(getattr(known, name) == value for name, value in asdict(correction).items()):
                    return False
                raise IntegrityError(f"correction {correction.correction_id} was written before with another content")
            self._refuse_strangers(connection, correction)
            connection.execute(table.insert(), asdict(correction) | self._signature())
            return True

    def _refuse_strangers(self, connection: Connection, correction: Correction) -> None:
        lease_id, sweep_id, trial_id = correction.lease_id, correction.sweep_id, correction.trial_id
        if trial_id and not sweep_id:
            raise LedgerError(f"correction {correction.correction_id}: of which sweep is trial {trial_id}?")
        sweeps = sorted({one.sweep_id for one in queries.attachments(connection, [lease_id])})
        if sweep_id and sweep_id not in sweeps:
            known = f"those on it were {', '.join(sweeps)}" if sweeps else "none ever was"
            raise IntegrityError(f"sweep {sweep_id!r} was never on lease {lease_id}: {known}")
        if trial_id and not queries.usages_of_trial(connection, lease_id, trial_id, sweep_id):
            raise IntegrityError(f"trial {trial_id!r} of sweep {sweep_id} never ran on lease {lease_id}")

    def remember_prices(self, rows: Iterable[PriceRow]) -> None:
        """Keep price rows as they are now, so that an old report can be made again when the price book has changed."""
        with self._write() as connection:
            values = [
                {"price_hash": row.hash, "body": canonical(as_mapping(row)), **self._signature()}
                for row in {row.hash: row for row in rows}.values()
            ]
            if values:
                self._insert_new(connection, schema.price, values)

    def remembered_prices(self, as_of_ns: int | None = None) -> list[PriceRow]:
        """The price rows kept (by a moment), oldest first."""
        table = schema.price
        query = select(table.c.body, table.c.price_hash).order_by(table.c.written_ns, table.c.price_hash)
        if as_of_ns is not None:
            query = query.where(table.c.written_ns <= as_of_ns)
        with self._store.read() as connection:
            return [read_row(json.loads(r.body), f"price {r.price_hash}") for r in connection.execute(query)]

    def freeze(self, period: str) -> None:
        """From now on nothing is opened, closed or ended within this month (`2026-11`, UTC): only corrected."""
        with self._write() as connection:
            self._insert_new(connection, schema.closed_period, [{"period": period, **self._signature()}])

    def frozen_periods(self) -> list[str]:
        """Months that are closed, oldest first."""
        with self._store.read() as connection:
            return list(connection.execute(select(schema.closed_period.c.period).order_by("period")).scalars())

    def _refuse_frozen(self, connection: Connection, at_ns: int, what: str) -> None:
        period = period_name(at_ns, "month", UTC)
        query = select(schema.closed_period.c.period).where(schema.closed_period.c.period == period)
        if connection.execute(query).first() is not None:
            raise IntegrityError(f"{what} in {period}: that month is closed; write a correction instead")

    def _lease(self, connection: Connection, lease_id: str) -> LeaseState:
        found = queries.lease_states(connection, lease_id=lease_id)
        if not found:
            raise IntegrityError(f"there is no lease {lease_id}; `python -m cost leases list` shows those there are")
        return found[0]

    def _write_labels(self, connection: Connection, usage_id: int, labels: Mapping[str, str]) -> None:
        known = queries.labels(connection, [usage_id]).get(usage_id, {})
        changed = {name: str(value) for name, value in labels.items() if known.get(name) != str(value)}
        if not changed:
            return
        for name in changed.keys() & set(FORECASTS):
            try:
                Money.parse(changed[name], negative=False)
            except MoneyError as error:
                raise LedgerError(f"label {name}: {error}") from error
        table, now = schema.label, self.now_ns()
        last = connection.execute(select(func.max(table.c.sequence)).where(table.c.usage_id == usage_id)).scalar()
        rows = [
            {"usage_id": usage_id, "name": name, "sequence": (last or 0) + 1, "value": value, "written_ns": now}
            for name, value in changed.items()
        ]
        connection.execute(table.insert(), rows)

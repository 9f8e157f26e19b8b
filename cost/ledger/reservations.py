"""Reservations: the most that a running attempt may still cost, set aside when the attempt starts.

A reservation is open as long as the usage of its attempt is open. No row releases a reservation: the end of the usage
does, even if another driver writes it, so closing the usages of a killed driver releases its reservations. A later
reservation of the same attempt replaces the earlier one. Limits are not known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal

from sqlalchemy import and_, select

from cost.ledger import schema
from cost.ledger.writer import LedgerWriter
from cost.money import Money
from cost.records import LedgerError, UsageKey

_LOCK = "budget"


@dataclass(frozen=True)
class Reservation:
    """An upper bound of the cost of an attempt, from its start to its end."""

    key: UsageKey
    sweep_id: str
    stage: str
    amount: Money
    cards: Decimal
    """Cards of the machine that the amount pays for: the attempt's own cards plus its share of the idle cards."""
    source: str
    """How the amount was computed, as text for people."""
    from_ns: int | None = None
    """Start of the attempt's usage; None: the usage has not started yet."""


class ReservationStore:
    """The reservations of one ledger."""

    def __init__(self, writer: LedgerWriter) -> None:
        self._writer = writer
        self._first_open = 0
        """Lowest id of a reservation that may be open."""
        writer.on_rollback(self._reset)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """A transaction in which no other driver can reserve, so that a limit that was checked stays true."""
        with self._writer.write() as connection:
            self._writer.lock(connection, _LOCK)
            yield

    def add(self, reservation: Reservation) -> None:
        """Reserve an amount, in the transaction that starts the usage or later while the usage is open.

        Raises:
            LedgerError: the amount is negative.
        """
        amount = reservation.amount
        if amount.pico < 0:
            raise LedgerError(f"reservation of {amount} for trial {reservation.key.trial_id}: must be zero or more")
        row = {
            "sweep_id": reservation.sweep_id,
            "lease_id": reservation.key.lease_id,
            "trial_id": reservation.key.trial_id,
            "attempt": reservation.key.attempt,
            "stage": reservation.stage,
            "pico": amount.pico,
            "currency": amount.currency,
            "cards_micro": int(reservation.cards * schema.MICRO_PER_CARD),
            "source": reservation.source,
        }
        with self._writer.write() as connection:
            self._writer.lock(connection, _LOCK)
            connection.execute(schema.reservation.insert(), row | self._writer.signature())

    def find_open(self) -> list[Reservation]:
        """The open reservations, oldest first."""
        table, usage, end = schema.reservation, schema.usage, schema.usage_end
        same = and_(*(usage.c[name] == table.c[name] for name in ("sweep_id", "lease_id", "trial_id", "attempt")))
        query = select(table, usage.c.from_ns, end.c.usage_id.label("ended"))
        query = query.select_from(
            table.outerjoin(usage, same).outerjoin(end, end.c.usage_id == usage.c.usage_id)
        ).order_by(table.c.reservation_id)
        with self._writer.read() as connection:
            rows = connection.execute(query.where(table.c.reservation_id >= self._first_open)).all()
        open_rows = [row for row in rows if row.ended is None]
        # Ids follow the order of commits, and a closed reservation stays closed: those below are never read again.
        if open_rows:
            self._first_open = open_rows[0].reservation_id
        elif rows:
            self._first_open = rows[-1].reservation_id + 1
        found = {}
        for row in open_rows:
            key = UsageKey(row.lease_id, row.trial_id, row.attempt)
            cards = Decimal(row.cards_micro) / schema.MICRO_PER_CARD
            found[row.sweep_id, key] = Reservation(
                *(key, row.sweep_id, row.stage, Money(row.pico, row.currency), cards, row.source, row.from_ns)
            )
        return list(found.values())

    def _reset(self) -> None:
        self._first_open = 0

"""What running attempts may still cost: a bound that is set aside when an attempt starts.

A reservation is open for as long as its attempt holds its cards. No entry releases it: the end of the usage does,
whoever writes that, so that one of a driver that was killed is free again once its usages are closed. A later
reservation of the same attempt takes the place of the earlier one. Nothing here knows a limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal

from sqlalchemy import and_, select

from cost.ledger import schema
from cost.ledger.journal import Journal
from cost.money import Money
from cost.records import LedgerError, UsageKey

_TURN = "budget"


@dataclass(frozen=True)
class Reservation:
    """The most that an attempt is taken to cost, from its start to its end."""

    key: UsageKey
    sweep_id: str
    stage: str
    amount: Money
    cards: Decimal
    """How many of the machine's cards the amount pays for: the attempt's own, and its part of those that idle."""
    source: str
    """Where the amount comes from, for people."""
    from_ns: int | None = None
    """When its usage began; None: it is about to."""


class Reservations(Journal):
    """A driver that sets money aside."""

    _first_open = 0
    """Number of the first reservation that may be open."""

    def _forget(self) -> None:
        super()._forget()
        self._first_open = 0

    @contextmanager
    def budget_turn(self) -> Iterator[None]:
        """One transaction in which no other driver sets money aside: what is free stays free until it ends."""
        with self._write() as connection:
            self._store.lock(connection, _TURN)
            yield

    def reserve(self, reservation: Reservation) -> None:
        """Set an amount aside, in the transaction that starts the usage, or later while that lasts.

        Raises:
            LedgerError: the amount is below zero.
        """
        amount = reservation.amount
        if amount.pico < 0:
            raise LedgerError(
                f"a reservation of {amount} for trial {reservation.key.trial_id}: it must be zero or more"
            )
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
        with self._write() as connection:
            self._store.lock(connection, _TURN)
            connection.execute(schema.reservation.insert(), row | self._signature())

    def reservations(self) -> list[Reservation]:
        """The open ones, oldest first."""
        table, usage, end = schema.reservation, schema.usage, schema.usage_end
        same = and_(*(usage.c[name] == table.c[name] for name in ("sweep_id", "lease_id", "trial_id", "attempt")))
        query = select(table, usage.c.from_ns, end.c.usage_id.label("ended"))
        query = query.select_from(
            table.outerjoin(usage, same).outerjoin(end, end.c.usage_id == usage.c.usage_id)
        ).order_by(table.c.reservation_id)
        with self._store.read() as connection:
            rows = connection.execute(query.where(table.c.reservation_id >= self._first_open)).all()
        open_rows = [row for row in rows if row.ended is None]
        # They are numbered in the order in which they were committed, and what has ended stays so: never read again.
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

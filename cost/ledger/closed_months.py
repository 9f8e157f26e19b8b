"""Months that are closed: nothing in them changes any more, except by a correction.

Tested in tests/cost/close/test_close_month.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC

from sqlalchemy import Connection, select

from cost.ledger import schema
from cost.ledger.writer import LedgerWriter
from cost.periods import period_name
from cost.records import IntegrityError


class ClosedMonthStore:
    """The closed months (UTC) of one ledger, by name: `2026-11`."""

    def __init__(self, writer: LedgerWriter) -> None:
        self._writer = writer

    def add(self, month: str) -> None:
        """Close a month: from now on no lease or usage may begin or end in it. Closing it again changes nothing."""
        with self._writer.write() as connection:
            row = {"period": month, **self._writer.signature()}
            self._writer.insert_new(connection, schema.closed_period, [row])

    def names(self) -> list[str]:
        """Closed months, oldest first."""
        with self._writer.read() as connection:
            return list(connection.execute(select(schema.closed_period.c.period).order_by("period")).scalars())


def check_no_later_month_closed(closed_months: Iterable[str], at_ns: int) -> None:
    """Refuse a change that takes effect from `at_ns` on, where the month of `at_ns` or a later month is closed.

    Raises:
        IntegrityError: such a month is closed.
    """
    month = period_name(at_ns, "month", UTC)
    if late := sorted(closed for closed in closed_months if closed >= month):
        raise IntegrityError(f"that would change {late[0]}, which is closed; write a correction instead")


def check_month_is_open(connection: Connection, at_ns: int, what: str) -> None:
    """Refuse to write `what` (for example `lease L1 would end`) at an instant in a closed month.

    Raises:
        IntegrityError: the month of `at_ns` is closed.
    """
    month = period_name(at_ns, "month", UTC)
    query = select(schema.closed_period.c.period).where(schema.closed_period.c.period == month)
    if connection.execute(query).first() is not None:
        raise IntegrityError(f"{what} in {month}: that month is closed; write a correction instead")

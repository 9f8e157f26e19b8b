"""How many cards of a lease are free, without adding up all usages of the lease each time.

The counter caches the open usages. Another driver may end a usage at any time, so the cached count can only be too
high, never too low. The counter therefore looks for ended usages only where cards seem to be missing.

Tested in tests/cost/ledger/test_usages.py.
"""

from __future__ import annotations

from sqlalchemy import Connection, select

from cost.ledger import schema
from cost.ledger.queries import chunks


class FreeCards:
    """Counts the free cards of one lease. Use under the lock of the lease; discard after a rollback."""

    def __init__(self, lease_id: str) -> None:
        self._lease_id = lease_id
        self._open: dict[int, int] = {}
        """Millionths of a card by usage id. Another driver may have ended some of these usages."""
        self._taken = 0
        self._last_usage_id = 0

    def free_micro(self, connection: Connection, all_micro: int, wanted_micro: int) -> int:
        """Free millionths of a card: the exact number where fewer than `wanted_micro` are free, else a lower bound."""
        self._load_new_usages(connection)
        if all_micro - self._taken < wanted_micro:
            for part in chunks(list(self._open)):
                query = select(schema.usage_end.c.usage_id).where(schema.usage_end.c.usage_id.in_(part))
                for usage_id in connection.execute(query).scalars():
                    self.ended(usage_id)
        return all_micro - self._taken

    def started(self, usage_id: int, micro: int) -> None:
        self._open[usage_id] = micro
        self._taken += micro
        self._last_usage_id = max(self._last_usage_id, usage_id)

    def ended(self, usage_id: int) -> None:
        self._taken -= self._open.pop(usage_id, 0)

    def _load_new_usages(self, connection: Connection) -> None:
        usage = schema.usage
        # The expression keeps the database from using the index on lease_id, which would scan every usage of the
        # lease; by primary key only the newest are scanned.
        of_lease = usage.c.lease_id + "" == self._lease_id
        query = select(usage.c.usage_id, usage.c.cards_micro).where(usage.c.usage_id > self._last_usage_id, of_lease)
        for usage_id, micro in connection.execute(query).all():
            self.started(usage_id, micro)

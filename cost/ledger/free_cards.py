"""How many cards of a lease are taken, without adding up all of its usages each time.

A usage that has begun keeps its cards, and one that has ended never takes them again: so what was seen once is still
true, but for ends that other drivers have written since. Those are looked for only where cards seem to be missing.
"""

from __future__ import annotations

from sqlalchemy import Connection, select

from cost.ledger import schema
from cost.ledger.queries import chunks


class InUse:
    """One lease, as a driver last saw it under the lease's lock. Thrown away when a transaction is undone."""

    def __init__(self, lease_id: str) -> None:
        self._lease_id = lease_id
        self._open: dict[int, int] = {}
        """Millionths of a card by number of the usage; some may have been ended by another driver."""
        self._taken = 0
        self._seen = 0
        """The highest number of a usage of this lease."""

    def free(self, connection: Connection, all_micro: int, wanted_micro: int) -> int:
        """Millionths of a card that are free now: exact where fewer than wanted are, else at least so many."""
        self._see_new(connection)
        if all_micro - self._taken < wanted_micro:
            for part in chunks(list(self._open)):
                query = select(schema.usage_end.c.usage_id).where(schema.usage_end.c.usage_id.in_(part))
                for usage_id in connection.execute(query).scalars():
                    self.ended(usage_id)
        return all_micro - self._taken

    def started(self, usage_id: int, micro: int) -> None:
        self._open[usage_id] = micro
        self._taken += micro
        self._seen = max(self._seen, usage_id)

    def ended(self, usage_id: int) -> None:
        self._taken -= self._open.pop(usage_id, 0)

    def _see_new(self, connection: Connection) -> None:
        usage = schema.usage
        # The lease's index would lead to all of its usages; with the text changed, only the newest are passed over.
        of_lease = usage.c.lease_id + "" == self._lease_id
        query = select(usage.c.usage_id, usage.c.cards_micro).where(usage.c.usage_id > self._seen, of_lease)
        for usage_id, micro in connection.execute(query).all():
            self.started(usage_id, micro)

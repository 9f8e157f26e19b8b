"""The ledger: what was leased, who used it and what was decided, written once and never changed.

Every method commits by itself, or joins the `transaction` it is called in. Writing the same fact twice changes
nothing; the same fact with another content is an `IntegrityError`. Only drivers write: trials send durations, the
driver's clock dates them. Nothing here knows a price or adds up money.
"""

from __future__ import annotations

from pathlib import Path

from cost.clock import Clock, SystemClock
from cost.ledger import liveness
from cost.ledger.leases import Leases
from cost.ledger.liveness import HEARTBEAT_NS, SILENT_NS
from cost.ledger.reservations import Reservations
from cost.ledger.store import Store
from cost.ledger.usages import Usages

__all__ = ["HEARTBEAT_NS", "SILENT_NS", "Ledger"]


class Ledger(Leases, Usages, Reservations):
    """An open ledger. Use it as a context manager, or `close` it. Threads may share one; they take turns."""

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

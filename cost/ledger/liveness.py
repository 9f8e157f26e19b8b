"""Tells whether the process that wrote to the ledger is still there, and what time it is after it. Ends nothing."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, select

from cost.clock import FAKE_BOOT_PREFIX, NS_PER_SECOND, Anchor, real_boot_id
from cost.ledger import schema

HEARTBEAT_NS = 10 * NS_PER_SECOND
"""How often a driver says that what it holds is still held."""

SILENT_NS = 6 * HEARTBEAT_NS
"""A driver on another host that has said nothing for so long is taken for dead."""

DAY_NS = 24 * 3600 * NS_PER_SECOND


def process_start(pid: int) -> str | None:
    """When a process of this host started, in words that no process of another boot shares; None: there is none.

    A number alone is no identity: the system gives it to another process later.
    """
    if Path("/proc/self/stat").exists():
        try:
            # The name, in parentheses, may hold anything; state is the first field after it, start time the twentieth.
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else f"{real_boot_id()}/{fields[19]}"
    import psutil

    try:
        return f"{real_boot_id()}/{psutil.Process(pid).create_time()!r}"
    except psutil.Error:
        return None


def latest_write_ahead(connection: Connection, now_ns: int) -> int | None:
    """The last moment at which a driver of this host wrote something, where the wall clock says that it is to come.

    The clock was set back since: time in the books goes on where that driver had come to, or a stretch of a machine's
    time would be there twice, or not at all. A moment that is more than a day ahead is not believed, it comes from a
    clock that was wrong.
    """
    of_this_host = select(schema.driver.c.driver_id).where(
        schema.driver.c.host == socket.gethostname(), schema.driver.c.boot_id.not_like(f"{FAKE_BOOT_PREFIX}%")
    )
    moments = (
        (schema.lease.c.driver_id, schema.lease.c.written_ns),
        (schema.lease_beat.c.driver_id, schema.lease_beat.c.at_ns),
        (schema.lease_end.c.driver_id, schema.lease_end.c.written_ns),
        (schema.usage.c.driver_id, schema.usage.c.written_ns),
        (schema.usage_end.c.driver_id, schema.usage_end.c.written_ns),
    )
    found = [
        connection.execute(
            select(func.max(at_ns)).where(at_ns > now_ns, at_ns < now_ns + DAY_NS, driver_id.in_(of_this_host))
        ).scalar()
        for driver_id, at_ns in moments
    ]
    return max((at_ns for at_ns in found if at_ns is not None), default=None)


def driver_is_dead(holder: Any, observer: Anchor, now_ns: int, last_heard_ns: int, silent_ns: int) -> bool:
    """Whether the process of a row of the driver table is gone.

    On another host silence has to do for a proof; between a real and a simulated clock it proves nothing.
    """
    if holder.host == socket.gethostname():
        return process_start(holder.pid) != holder.process_start
    if holder.boot_id.startswith(FAKE_BOOT_PREFIX) != observer.simulated:
        return False
    return now_ns - last_heard_ns >= silent_ns

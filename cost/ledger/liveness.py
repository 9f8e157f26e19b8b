"""Whether the process of a driver is still alive, and the latest time that drivers of this host have written.

Tested in tests/cost/ledger/test_usages.py and tests/cost/ledger/test_writer.py.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, select

from cost.clock import FAKE_BOOT_PREFIX, NS_PER_SECOND, Anchor, real_boot_id
from cost.ledger import schema

HEARTBEAT_NS = 10 * NS_PER_SECOND
"""How often a driver sends a heartbeat for its lease and its usages."""

SILENT_NS = 6 * HEARTBEAT_NS
"""A driver on another host without a heartbeat for this long is considered dead."""

DAY_NS = 24 * 3600 * NS_PER_SECOND


def process_start(pid: int) -> str | None:
    """The start of a process of this host, as text that is unique across boots; None: there is no such process.

    A process id alone does not identify a process: the system uses it again later.
    """
    if Path("/proc/self/stat").exists():
        try:
            # The name, in parentheses, may contain anything. The state is the first field after it, the start the 20th.
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
    """The latest time at which a driver of this host has written a row, if it lies after `now_ns`; else None.

    Such a time means that the wall clock was set back. The ledger's time continues from there, because otherwise a part
    of a machine's time would be counted twice or not at all. Times more than a day ahead come from a wrong clock and
    are ignored.
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


def driver_is_dead(holder: Any, observer: Anchor, now_ns: int, last_heartbeat_ns: int, silent_ns: int) -> bool:
    """Whether the process of a row of the driver table has ended.

    On another host, missing heartbeats are the only evidence; between a real and a simulated clock they are none.
    """
    if holder.host == socket.gethostname():
        return process_start(holder.pid) != holder.process_start
    if holder.boot_id.startswith(FAKE_BOOT_PREFIX) != observer.simulated:
        return False
    return now_ns - last_heartbeat_ns >= silent_ns

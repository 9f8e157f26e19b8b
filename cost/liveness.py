"""Tells whether the process that wrote to the ledger is still there. Reads the process table, ends nothing."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any


def process_start(pid: int) -> str | None:
    """When a process of this host started, as text; None where there is no such process.

    A number alone is no identity: the system gives it to another process later.
    """
    if Path("/proc/self/stat").exists():
        try:
            # The name, in parentheses, may hold anything; state is the first field after it, start time the twentieth.
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else fields[19]
    import psutil

    try:
        return repr(psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def driver_is_dead(driver: Any, boot_id: str, silent: bool) -> bool:
    """Whether the process of a row of the driver table is gone; on another host, silence has to do for a proof."""
    if driver.host != socket.gethostname():
        return silent
    if driver.boot_id != boot_id:
        return True
    return process_start(driver.pid) != driver.process_start

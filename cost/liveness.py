"""Tells whether the process that wrote to the ledger is still there. Reads the process table, ends nothing."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from cost.clock import FAKE_BOOT, Anchor, real_boot_id


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


def driver_is_dead(holder: Any, observer: Anchor, now_ns: int, last_heard_ns: int, silent_ns: int) -> bool:
    """Whether the process of a row of the driver table is gone.

    On another host silence has to do for a proof; between a real and a simulated clock it proves nothing.
    """
    if holder.host == socket.gethostname():
        return process_start(holder.pid) != holder.process_start
    if holder.boot_id.startswith(FAKE_BOOT) != observer.simulated:
        return False
    return now_ns - last_heard_ns >= silent_ns

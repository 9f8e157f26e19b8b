"""The dead-man timer: a process that releases a machine whose driver died, after a time without another driver.

It reads the driver's heartbeats and writes nothing until it fires. It never fires while a driver of the sweep lives,
after a driver ended in order, or while the ledger cannot be read: unknown is no reason to release a machine. Time is
measured on the timer's own monotonic clock, so a clock that is set changes nothing.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from cost.ledger import release_requests
from cost.ledger.ledger import Ledger
from cost.ledger.sweep_lock import lock_owner, sweep_lock
from cost.records import StoredEvent, StoreError
from rl.codec import from_json
from sweeps.config.text_values import Duration
from sweeps.config.types import ConfigError, SweepConfig
from sweeps.journal.event_codec import decode
from sweeps.journal.events import DriverStarted, WarningIssued
from sweeps.journal.journal import Journal, decisions, replay
from sweeps.journal.lost_attempts import end_lost_attempts
from sweeps.machines import lease, release
from sweeps.storage.uploads import unsaved

DB_VARIABLE = "GRPO_LADDER_DB"
"""Where the timer reads the URL of a ledger on a server: every user of the host can read a command line."""
POLL_SECONDS = 10.0


@dataclass(frozen=True)
class SweepStatus:
    """What the ledger has about a sweep at one moment."""

    lease_id: str
    last_heartbeat_ns: int
    nothing_to_watch: bool
    """The lease is closed or left, a driver ended and the release is settled, or the newest driver has no timer."""
    after_seconds: float | None
    """`machine.deadman` of the newest driver; None: as this timer was started with."""


def start(cfg: SweepConfig, sweep_id: str) -> subprocess.Popen[bytes] | None:
    """Start the timer of this sweep as a detached process. Where one runs already, the new one ends at once."""
    if cfg.machine.deadman is None or not lease.is_real_machine(cfg):
        return None
    root = Path(cfg.paths.root).absolute()
    code = str(Path(__file__).resolve().parents[2])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [code, os.environ.get("PYTHONPATH")]))}
    if not isinstance(cfg.database, Path):
        environment[DB_VARIABLE] = cfg.database
    command = [sys.executable, "-m", "sweeps", "deadman", f"--sweep={sweep_id}", f"--after={cfg.machine.deadman}"]
    with open(root / sweep_id / "deadman.log", "ab") as log:
        return subprocess.Popen(
            [*command, f"--root={root}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )


def watch(
    database: str | Path,
    sweep_dir: Path,
    after_seconds: float,
    log: Callable[[str], None],
    *,
    sleep: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Watch until nothing is left to watch, or the machine was released. Returns at once where another timer runs."""
    sweep_dir.mkdir(parents=True, exist_ok=True)
    with open(sweep_dir / "deadman.lock", "a", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            log("another timer watches this sweep already")
            return
        log(f"watching {sweep_dir.name}: fires after {after_seconds:g} s without a driver")
        last_heartbeat_ns, since = 0, monotonic()
        while True:
            status = _read_status(database, sweep_dir.name)
            if status is not None and status.nothing_to_watch:
                log("the sweep has ended in order: nothing to do")
                return
            if status is not None:
                after_seconds = status.after_seconds or after_seconds
            if status is None or status.last_heartbeat_ns != last_heartbeat_ns or _is_driven(database, sweep_dir.name):
                last_heartbeat_ns = status.last_heartbeat_ns if status else last_heartbeat_ns
                since = monotonic()
            elif monotonic() - since >= after_seconds:
                if _fire(database, sweep_dir, after_seconds, log):
                    return
                since = monotonic()
            sleep(min(POLL_SECONDS, after_seconds / 4))


def _read_status(database: str | Path, sweep_id: str) -> SweepStatus | None:
    """None: the ledger cannot be read now, or no driver has started."""
    try:
        with Ledger.open(database, create=False, read_only=True) as ledger:
            return _status(ledger, sweep_id)
    except StoreError:
        return None


def _status(ledger: Ledger, sweep_id: str) -> SweepStatus | None:
    events = list(decisions(ledger, sweep_id))
    record, newest = replay(sweep_id, events), _newest_driver(events)
    if not record.lease_ids:
        return None
    state = ledger.leases.get(record.lease_ids[-1])
    lease_id = state.lease.lease_id
    settled = record.ended_ns is not None and release_requests.recorded_since(ledger, lease_id, record.ended_ns)
    no_timer, after_seconds = False, None
    if newest is not None and newest.machine is not None and "deadman" in newest.machine:
        configured = newest.machine["deadman"]
        no_timer, after_seconds = configured is None, Duration.parse(configured).seconds if configured else None
    nothing_to_watch = state.to_ns is not None or sweep_id not in state.sweeps or settled or no_timer
    return SweepStatus(lease_id, state.last_heartbeat_ns, nothing_to_watch, after_seconds)


def _newest_driver(events: Iterable[StoredEvent]) -> DriverStarted | None:
    """The driver that started last: it may use another machine than the first."""
    started = [event for stored in events if isinstance(event := decode(stored), DriverStarted)]
    return started[-1] if started else None


def _is_driven(database: str | Path, sweep_id: str) -> bool:
    """Whether a driver, on any host, has the sweep's lock. Where that is unknown, one may."""
    try:
        return lock_owner(database, sweep_id) is not None
    except StoreError:
        return True


def _fire(database: str | Path, sweep_dir: Path, after_seconds: float, log: Callable[[str], None]) -> bool:
    """Release the machine under the sweep's lock; False: a driver was faster, or the ledger cannot be written."""
    try:
        with sweep_lock(database, sweep_dir.name), Ledger.open(database, create=False) as ledger:
            status = _status(ledger, sweep_dir.name)
            if status is None or status.nothing_to_watch:
                return status is not None
            ledger.usages.close_dead(locked_sweep=sweep_dir.name)
            journal = Journal(ledger, sweep_dir.name)
            end_lost_attempts(journal)
            newest = _newest_driver(decisions(ledger, sweep_dir.name))
            own = {"machine": newest.machine, "storage": newest.storage} if newest else {}
            cfg = from_json(SweepConfig, {**journal.record.config, **{k: v for k, v in own.items() if v is not None}})
            left = unsaved(cfg.storage, ledger, sweep_dir.name, sweep_dir)
            outcome = release.release(cfg.machine, ledger, status.lease_id, sweep_dir.name, left)
            text = f"the driver is dead, no heartbeat for {after_seconds:g} s: {outcome}"
            journal.append(WarningIssued(text))
            log(text)
            return True
    except (ConfigError, StoreError) as error:
        log(f"not now: {error}")
        return False

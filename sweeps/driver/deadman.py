"""The dead-man timer: a process of its own that gives a machine back whose driver died and was not heard of since.

It reads the driver's heartbeats and writes nothing until it fires. It never fires while a driver of the sweep lives,
after one ended in order, or while the ledger cannot be read: what is not known is no reason to take a machine away.
Silence is counted on its own monotonic clock, so that a clock that is set changes nothing.
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
"""Where the timer finds the ledger, if it is in a server: a command line would show the password to every user."""
POLL_SECONDS = 10.0
_AS_STARTED = "as this timer was started"


@dataclass(frozen=True)
class Seen:
    """What the ledger says of a sweep at one look."""

    lease_id: str
    heard_ns: int
    over: bool
    """Nothing is left to watch: the lease is closed or left, or the driver ended and settled what becomes of it, or the
    newest driver wants no timer."""
    after_seconds: float | None
    """Of the newest driver's `machine.deadman`; None: as this timer was told."""


def start(cfg: SweepConfig, sweep_id: str, database: str | Path) -> subprocess.Popen[bytes] | None:
    """Start the timer of this sweep, detached; where one is at work already, the new one goes at once."""
    if cfg.machine.deadman is None or not lease.is_real_machine(cfg):
        return None
    root = Path(cfg.paths.root).absolute()
    code = str(Path(__file__).resolve().parents[2])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [code, os.environ.get("PYTHONPATH")]))}
    if not isinstance(database, Path):
        environment[DB_VARIABLE] = database
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
    tell: Callable[[str], None],
    *,
    sleep: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Watch until nothing is left to watch, or the machine was taken down. Returns at once where another watches."""
    sweep_dir.mkdir(parents=True, exist_ok=True)
    with open(sweep_dir / "deadman.lock", "a", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            tell("another timer watches this sweep already")
            return
        tell(f"watching {sweep_dir.name}: fires after {after_seconds:g} s without a driver")
        heard_ns, since = 0, monotonic()
        while True:
            seen = _look(database, sweep_dir.name)
            if seen is not None and seen.over:
                tell("the sweep has ended in order: nothing to do")
                return
            if seen is not None:
                after_seconds = seen.after_seconds or after_seconds
            if seen is None or seen.heard_ns != heard_ns or _lives(database, sweep_dir.name):
                heard_ns, since = seen.heard_ns if seen else heard_ns, monotonic()
            elif monotonic() - since >= after_seconds:
                if _fire(database, sweep_dir, after_seconds, tell):
                    return
                since = monotonic()
            sleep(min(POLL_SECONDS, after_seconds / 4))


def _look(database: str | Path, sweep_id: str) -> Seen | None:
    """None: the ledger cannot be read now, or knows of no driver yet."""
    try:
        with Ledger.open(database, create=False, read_only=True) as ledger:
            return _seen(ledger, sweep_id)
    except StoreError:
        return None


def _seen(ledger: Ledger, sweep_id: str) -> Seen | None:
    events = list(decisions(ledger, sweep_id))
    record, newest = replay(sweep_id, events), _newest_driver(events)
    if not record.lease_ids:
        return None
    state = ledger.leases.get(record.lease_ids[-1])
    lease_id = state.lease.lease_id
    settled = record.ended_ns is not None and release_requests.noted_since(ledger, lease_id, record.ended_ns)
    wanted = newest.machine.get("deadman", _AS_STARTED) if newest and newest.machine else _AS_STARTED
    over = state.to_ns is not None or sweep_id not in state.sweeps or settled or wanted is None
    after_seconds = None if wanted in (None, _AS_STARTED) else Duration.parse(wanted).seconds
    return Seen(lease_id, state.last_heartbeat_ns, over, after_seconds)


def _newest_driver(events: Iterable[StoredEvent]) -> DriverStarted | None:
    """The driver that started last: it may use another machine than the first."""
    started = [event for stored in events if isinstance(event := decode(stored), DriverStarted)]
    return started[-1] if started else None


def _lives(database: str | Path, sweep_id: str) -> bool:
    """Whether a driver holds the sweep, on whatever host; where it cannot be told, it may."""
    try:
        return lock_owner(database, sweep_id) is not None
    except StoreError:
        return True


def _fire(database: str | Path, sweep_dir: Path, after_seconds: float, tell: Callable[[str], None]) -> bool:
    """Take the machine down, holding the sweep meanwhile; False: a driver was faster, or the ledger takes nothing."""
    try:
        with sweep_lock(database, sweep_dir.name), Ledger.open(database, create=False) as ledger:
            seen = _seen(ledger, sweep_dir.name)
            if seen is None or seen.over:
                return seen is not None
            ledger.usages.close_dead(locked_sweep=sweep_dir.name)
            journal = Journal(ledger, sweep_dir.name)
            end_lost_attempts(journal)
            newest = _newest_driver(decisions(ledger, sweep_dir.name))
            own = {"machine": newest.machine, "storage": newest.storage} if newest else {}
            cfg = from_json(SweepConfig, {**journal.record.config, **{k: v for k, v in own.items() if v is not None}})
            left = unsaved(cfg.storage, ledger, sweep_dir.name, sweep_dir)
            said = release.release(cfg.machine, ledger, seen.lease_id, sweep_dir.name, left)
            text = f"the driver was silent for {after_seconds:g} s and is dead: {said}"
            journal.append(WarningIssued(text))
            tell(text)
            return True
    except (ConfigError, StoreError) as error:
        tell(f"not now: {error}")
        return False

"""A driver whose database or disk fails in the middle of a sweep, and the next driver, after the fault is over."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.killing import PLANS, configuration, drive, in_a_process, warm, witnessed
from tests.chaos.points import Points

AT_POINT = 90
"""The point at which the fault happens: in the middle of the first trial."""

HOLD_THE_LOCK = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
time.sleep(float(sys.argv[2])) if sys.argv[2] else sys.stdin.read()
"""


@dataclass
class Broken:
    """The ends of the driver with the fault and of the next driver, and everything that is wrong afterwards.

    There is no next driver if the first one completed the sweep.
    """

    code: int
    output: str
    code_after: int
    output_after: str
    wrong: list[str] = field(default_factory=list)


def break_and_resume(fault: str, folder: Path) -> Broken:
    """Run a small sweep whose driver has `fault` (a key of `FAULTS`); then run the same command without the fault."""
    from tests.chaos import ledger_checks

    warm()
    plan, log = "one card", folder / "witness.jsonl"
    cfg = configuration(plan, folder / "runs")
    logs = [folder / f"run-{run}.txt" for run in (0, 1)]

    def broken() -> int:
        happen_at(AT_POINT, lambda: FAULTS[fault](Path(cfg.paths.root) / "ledger.db"))
        return drive(cfg, log, 0, 0, mlflow=False)

    code = in_a_process(broken, logs[0])
    logs[1].touch()
    code_after = in_a_process(lambda: drive(cfg, log, 1, 0, mlflow=False), logs[1]) if code else 0
    output, output_after = (file.read_text(errors="replace") for file in logs)
    return Broken(code, output, code_after, output_after, ledger_checks.problems(PLANS[plan], cfg, witnessed(log)))


def happen_at(number: int, event: Callable[[], Any]) -> None:
    """Call `event` when the process reaches this point."""
    reach = Points.reach

    def reach_and_call(self: Points, kind: str, where: str) -> None:
        reach(self, kind, where)
        if self.count == number:
            event()

    Points.reach = reach_and_call


def _locked(ledger: Path, seconds: str) -> None:
    command = [sys.executable, "-c", HOLD_THE_LOCK, str(ledger), seconds]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    _kept.append(holder)  # its stdin ends with this process


def _locked_a_while(ledger: Path) -> None:
    _locked(ledger, "1")


def _locked_for_good(ledger: Path) -> None:
    from sqlalchemy import Engine, event

    _locked(ledger, "")

    @event.listens_for(Engine, "begin", insert=True)
    def _impatient(connection: Any) -> None:
        connection.exec_driver_sql("PRAGMA busy_timeout = 100")  # instead of half a minute


def _full(_ledger: Path) -> None:
    from sqlalchemy import Engine, event

    @event.listens_for(Engine, "begin", insert=True)
    def _no_more_pages(connection: Any) -> None:
        connection.exec_driver_sql("PRAGMA max_page_count = 1")  # as many as there are


def _no_longer_files(ledger: Path) -> None:
    log = ledger.with_name(ledger.name + "-wal")
    size = os.path.getsize(log)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


_kept: list[Any] = []

FAULTS: dict[str, Callable[[Path], None]] = {
    "locked a while": _locked_a_while,
    "locked for good": _locked_for_good,
    "disk full": _full,
    "files may not grow": _no_longer_files,
}

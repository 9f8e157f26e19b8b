"""Drivers that are killed at a chosen event of the witness, and drivers that run at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.chaos.killing import PLANS, configuration, drive, forked, in_a_process, warm, witnessed
from tests.chaos.points import Witness


@dataclass
class Resumed:
    """The witness's lines, the output of the driver that resumed, and everything that is wrong afterwards."""

    lines: list[Mapping[str, Any]]
    output: str
    wrong: list[str]


def killed_and_resumed(plan: str, what: str, times: int, folder: Path, down_seconds: int = 0) -> Resumed:
    """Kill a driver once the witness has written `what` this many times; resume with the same command later."""
    from tests.chaos import ledger_checks

    warm()
    cfg, log = configuration(plan, folder / "runs"), folder / "witness.jsonl"
    assert in_a_process(lambda: _killed(cfg, log, what, times), folder / "0.txt") == -signal.SIGKILL

    def later() -> int:
        _be_later(down_seconds)
        return drive(cfg, log, 1, 0, mlflow=False)

    assert in_a_process(later, folder / "1.txt") == 0
    lines = witnessed(log)
    return Resumed(lines, (folder / "1.txt").read_text(), ledger_checks.problems(PLANS[plan], cfg, lines))


def killed_then_another_plan(folder: Path) -> str:
    """Kill a driver in its first trial, then run another plan to its end; the name of the first sweep."""
    from cost.ledger.ledger import Ledger
    from sweeps.journal.journal import sweep_ids

    warm()
    root, log = folder / "runs", folder / "witness.jsonl"
    killed = in_a_process(lambda: _killed(configuration("one card", root), log, "message", 4), folder / "0.txt")
    assert killed == -signal.SIGKILL
    with Ledger.open(root / "ledger.db", create=False, read_only=True) as ledger:
        (name,) = sweep_ids(ledger)
    other = configuration("six trials", root)
    assert in_a_process(lambda: drive(other, folder / "other.jsonl", 0, 0, mlflow=False), folder / "1.txt") == 0
    return name


def both_at_once(folder: Path) -> list[int]:
    """Two drivers of one plan, started together; their exit codes."""
    warm()
    cfg = configuration("one card", folder / "runs", resume="never")
    children = [
        forked(lambda n=n: drive(cfg, folder / f"{n}.jsonl", 0, 0, mlflow=False), folder / f"{n}.txt") for n in (0, 1)
    ]
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


@dataclass
class Two:
    """Two drivers of one sweep: exit codes, output and process ids."""

    codes: tuple[int, int]
    output: tuple[str, str]
    pids: tuple[int, int]


def second_while_the_first_is_stopped(url: str | None, moment: str, lost: bool, folder: Path) -> Two:
    """Stop a driver (SIGSTOP) at a moment, run the same command to its end, and continue the first driver.

    `moment`: "planned", or an event of the witness. `lost`: the first driver loses its lock meanwhile.
    """
    warm()
    cfg = configuration("one card", folder / "runs")
    cfg = replace(cfg, storage=replace(cfg.storage, database_url=url))
    first = forked(lambda: _stopped(cfg, folder / "0.jsonl", moment), folder / "0.txt")
    assert os.WIFSTOPPED(os.waitpid(first, os.WUNTRACED)[1]), (folder / "0.txt").read_text()
    if lost:
        lose_lock(url, folder / "runs")
    second = forked(lambda: drive(cfg, folder / "1.jsonl", 0, 0, mlflow=False), folder / "1.txt")
    codes = {second: os.waitstatus_to_exitcode(os.waitpid(second, 0)[1])}
    os.kill(first, signal.SIGCONT)
    codes[first] = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
    output = (folder / "0.txt").read_text(), (folder / "1.txt").read_text()
    return Two((codes[first], codes[second]), output, (first, second))


def lose_lock(url: str | None, root: Path) -> None:
    """Take a driver's lock away: break its connection, or remove its lock file."""
    if url is None:
        for lock in root.glob("*/driver.lock"):
            lock.unlink()
        return
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        ours = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        ours += " WHERE datname = current_database() AND application_name LIKE 'drives a sweep%'"
        assert connection.execute(ours).fetchall() == [(True,)]


def _stopped(cfg: Any, log: Path, moment: str) -> int:
    from sweeps.journal.events import JournalEvent, SweepPlanned
    from sweeps.journal.journal import Journal

    write, append, left = Witness.write, Journal.append, 3

    def write_and_stop(self: Witness, what: str, **more: Any) -> None:
        nonlocal left
        write(self, what, **more)
        left -= what == moment
        if not left:
            left = -1
            os.kill(os.getpid(), signal.SIGSTOP)

    def append_plan_and_stop(self: Journal, event: JournalEvent) -> None:
        append(self, event)
        if isinstance(event, SweepPlanned):
            os.kill(os.getpid(), signal.SIGSTOP)

    Witness.write = write_and_stop
    if moment == "planned":
        Journal.append = append_plan_and_stop
    return drive(cfg, log, 0, 0, mlflow=False)


def _killed(cfg: Any, log: Path, moment: str, times: int) -> int:
    write, left = Witness.write, times

    def write_and_die(self: Witness, what: str, **more: Any) -> None:
        nonlocal left
        write(self, what, **more)
        left -= what == moment
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    Witness.write = write_and_die
    return drive(cfg, log, 0, 0, mlflow=False)


def _be_later(seconds: int) -> None:
    """Set the clock of the next driver to this long after the death of the last one."""
    from sweeps.driver import driver

    until = driver.simulated_until
    driver.simulated_until = lambda *about: until(*about) + seconds * 10**9

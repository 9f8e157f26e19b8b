"""Drivers that are killed at a moment chosen by what the witness saw, and drivers that run at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.killing import PLANS, configuration, drive, forked, in_a_process, warm, witnessed
from tests.chaos.points import Witness


@dataclass
class Resumed:
    """What the witness wrote, what the driver that went on printed, and what is wrong with what was left."""

    lines: list[Mapping[str, Any]]
    said: str
    wrong: list[str]


def killed_and_resumed(plan: str, what: str, times: int, folder: Path, down_seconds: int = 0) -> Resumed:
    """Kill a driver once the witness has written `what` so many times; the same command goes on, after a while."""
    from tests.chaos import books

    warm()
    cfg, log = configuration(plan, folder / "runs"), folder / "witness.jsonl"
    assert in_a_process(lambda: _killed(cfg, log, what, times), folder / "0.txt") == -signal.SIGKILL

    def later() -> int:
        _be_later(down_seconds)
        return drive(cfg, log, 1, 0, mlflow=False)

    assert in_a_process(later, folder / "1.txt") == 0
    lines = witnessed(log)
    return Resumed(lines, (folder / "1.txt").read_text(), books.problems(PLANS[plan], cfg, lines))


def killed_then_another_plan(folder: Path) -> str:
    """Kill a driver in its first trial, then run another plan to its end; the name of the first sweep."""
    from cost.ledger import Ledger
    from sweeps.journal import sweep_ids

    warm()
    root, log = folder / "runs", folder / "witness.jsonl"
    killed = in_a_process(lambda: _killed(configuration("one card", root), log, "said", 4), folder / "0.txt")
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
    """As if so much time had passed since the last driver died."""
    from sweeps import driver

    until = driver.simulated_until
    driver.simulated_until = lambda *about: until(*about) + seconds * 10**9

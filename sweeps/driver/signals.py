"""SIGTERM and Ctrl-C while a sweep runs: trials may write a checkpoint, and the end of a sweep is never cut short.

Tested in tests/sweeps/machines/test_preemption.py and tests/e2e/test_real_sweep.py.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

from rl.spec import Stop, StopKind
from sweeps.driver.controller import SweepController

TERMINATION_SECONDS = 20.0
"""How long trials may take to write a checkpoint after SIGTERM. SIGKILL often follows after 30 s."""


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """SIGTERM ends the sweep as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def sigterm_stops(controller: SweepController) -> Iterator[None]:
    """The first SIGTERM lets trials write a checkpoint; a second one, or some time later, it acts as Ctrl-C."""
    second = Timer(TERMINATION_SECONDS, os.kill, (os.getpid(), signal.SIGTERM))
    second.daemon = True

    def stop(*_: object) -> None:
        if controller.stopped:
            raise KeyboardInterrupt
        controller.stop(Stop(StopKind.TERMINATED, "the driver received SIGTERM"))
        second.start()

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        second.cancel()
        signal.signal(signal.SIGTERM, before)


@contextmanager
def signals_ignored() -> Iterator[None]:
    """A further Ctrl-C must not leave the ledger half closed; closing takes seconds."""
    before = {s: signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

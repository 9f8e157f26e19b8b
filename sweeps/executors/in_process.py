"""Runs simulated trials in this process, on a fake clock, as many at once as there are cards.

A trainer's messages carry how long each thing took; the clock jumps from one to the next in the order in which they
would have come, with the host's ticks between. Nothing waits, nothing forks, nothing runs in parallel.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl.spec import (
    CheckpointWritten,
    Command,
    EvalReport,
    Event,
    Finished,
    RoleRestarted,
    Started,
    StepReport,
    Trainer,
)
from sweeps.executors import Attempt, Host, outcome_of

if TYPE_CHECKING:
    from cost.clock import FakeClock

TICK_NS = 10_000_000_000


@dataclass
class _Running:
    attempt: Attempt
    words: Generator[Event, Command | None, None]
    message: Event | None = None
    error: BaseException | None = None
    sequence: int = 0


class InProcessExecutor:
    """Discrete-event simulation of a machine's cards."""

    def __init__(self, trainer: Trainer, clock: FakeClock) -> None:
        self._trainer = trainer
        self._clock = clock
        self._queue: list[tuple[int, int, _Running]] = []
        self._order = itertools.count()
        self._next_tick = clock.monotonic_ns() + TICK_NS

    def run(self, host: Host) -> None:
        while True:
            while attempt := host.next_attempt():
                running = _Running(attempt, self._trainer.run(attempt.spec, attempt.checkpoint))
                self._go_on(running, None)
            if not self._queue:
                if host.done():
                    return
                raise RuntimeError("nothing runs and nothing can be started, yet the sweep is not done")
            at, _, running = heapq.heappop(self._queue)
            self._advance_to(at, host)
            self._deliver(running, host)

    def close(self) -> None:
        for _, _, running in self._queue:
            running.words.close()
        self._queue.clear()

    def _deliver(self, running: _Running, host: Host) -> None:
        if running.error is not None:
            self._end(running, host, *outcome_of(running.error))
            return
        if running.message is None:
            self._end(running, host, "failed", "the trainer ended without a word")
            return
        command = host.on_message(running.attempt, running.sequence, running.message)
        running.sequence += 1
        if isinstance(running.message, Finished):
            running.words.close()
            outcome = "completed" if running.message.completed else running.message.reason
            self._end(running, host, outcome, "")
            return
        self._go_on(running, command)

    def _end(self, running: _Running, host: Host, outcome: str, message: str) -> None:
        host.on_ended(running.attempt, outcome, message)
        host.on_released(running.attempt, True)

    def _go_on(self, running: _Running, command: Command | None) -> None:
        try:
            running.message = running.words.send(command)
            lasts_ns = _lasts_ns(running.message, running.attempt.spec.cards)
        except StopIteration:
            running.message, lasts_ns = None, 0
        except Exception as error:
            running.error, lasts_ns = error, 0
        due_ns = self._clock.monotonic_ns() + lasts_ns
        heapq.heappush(self._queue, (due_ns, next(self._order), running))

    def _advance_to(self, at_ns: int, host: Host) -> None:
        while self._next_tick <= at_ns:
            self._clock.advance(self._next_tick - self._clock.monotonic_ns())
            self._next_tick += TICK_NS
            host.on_tick()
        self._clock.advance(at_ns - self._clock.monotonic_ns())


def _lasts_ns(message: Event, cards: int) -> int:
    """How long what the message tells of took."""
    match message:
        case StepReport() | EvalReport() | CheckpointWritten():
            return message.wall_ns
        case Started() | RoleRestarted() | Finished():
            return sum(message.phase_card_ns.values()) // cards

"""Runs simulated trials in this process, on a fake clock, as many at once as there are cards.

The trainer says how long everything takes; the clock jumps from one message to the next in the order in which they
would have come, with the host's ticks between. Nothing waits, nothing forks, nothing runs in parallel.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl.spec import Command, Event, Finished, Trainer
from rl.trainers.simulated import SimulatedTrainer
from sweeps.executors import Attempt, Controller, HungError, outcome_of_error, outcome_of_finish
from sweeps.journal.events import AttemptOutcome

if TYPE_CHECKING:
    from cost.clock import FakeClock

TICK_NS = 10_000_000_000


class Stopwatch:
    """How long the trainer's work took since the last message (`rl.trainers.simulated.SimulatedClock`)."""

    def __init__(self, silence_seconds: float) -> None:
        self.elapsed_ns = 0
        self._silence_seconds = silence_seconds

    def sleep_ns(self, duration_ns: int) -> None:
        self.elapsed_ns += duration_ns
        if self.elapsed_ns > self._silence_seconds * 1e9:
            raise HungError(f"no word for {self._silence_seconds:g} s: it hangs")


@dataclass
class _Running:
    attempt: Attempt
    words: Generator[Event, Command | None, None]
    message: Event | None = None
    error: BaseException | None = None
    sequence: int = 0


class InProcessExecutor:
    """Discrete-event simulation of a machine's cards."""

    def __init__(
        self,
        clock: FakeClock,
        trainer: Callable[[Stopwatch], Trainer] = SimulatedTrainer,
        *,
        silence_seconds: float = 1800.0,
    ) -> None:
        """`silence_seconds`: a trainer that says nothing for longer hangs, and is ended."""
        self._stopwatch = Stopwatch(silence_seconds)
        self._trainer = trainer(self._stopwatch)
        self._clock = clock
        self._queue: list[tuple[int, int, _Running]] = []
        self._order = itertools.count()
        self._next_tick = clock.monotonic_ns() + TICK_NS

    def run(self, host: Controller) -> None:
        while True:
            while attempt := host.next_attempt():
                host.on_granted(attempt)
                running = _Running(attempt, self._trainer.run(attempt.spec, attempt.checkpoint))
                self._go_on(running, None)
            if not self._queue:
                if host.done():
                    return
                self._advance_to(self._next_tick, host)  # what waits has a moment before which it must not start
                continue
            at, _, running = heapq.heappop(self._queue)
            self._advance_to(at, host)
            self._deliver(running, host)

    def close(self) -> None:
        for _, _, running in self._queue:
            running.words.close()
        self._queue.clear()

    def _deliver(self, running: _Running, host: Controller) -> None:
        if running.error is not None:
            self._end(running, host, *outcome_of_error(running.error))
            return
        if running.message is None:
            self._end(running, host, AttemptOutcome.CRASHED, "the trainer ended without its last message")
            return
        command = host.on_message(running.attempt, running.sequence, running.message)
        running.sequence += 1
        if isinstance(running.message, Finished):
            running.words.close()
            self._end(running, host, *outcome_of_finish(running.message))
            return
        self._go_on(running, command)

    def _end(self, running: _Running, host: Controller, outcome: AttemptOutcome, message: str) -> None:
        host.on_ended(running.attempt, outcome, message)
        host.on_released(running.attempt, True)

    def _go_on(self, running: _Running, command: Command | None) -> None:
        running.message, self._stopwatch.elapsed_ns = None, 0
        try:
            running.message = running.words.send(command)
        except StopIteration:
            pass
        except Exception as error:
            running.error = error
        due_ns = self._clock.monotonic_ns() + self._stopwatch.elapsed_ns
        heapq.heappush(self._queue, (due_ns, next(self._order), running))

    def _advance_to(self, at_ns: int, host: Controller) -> None:
        while self._next_tick <= at_ns:
            self._clock.advance(self._next_tick - self._clock.monotonic_ns())
            self._next_tick += TICK_NS
            host.on_tick()
        self._clock.advance(at_ns - self._clock.monotonic_ns())

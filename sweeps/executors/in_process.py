"""Runs simulated trials in this process, on a fake clock, as many at once as there are cards.

The simulated trainer gives the duration of everything. The clock jumps from one message to the next, in the order in
which they would arrive, with the controller's ticks in between. Nothing waits, forks or runs in parallel.

Tested in tests/sweeps/driver/test_controller.py.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl.spec import Command, Event, Finished, Stop, Trainer
from rl.trainers.simulated import SimulatedTrainer
from sweeps.executors import Attempt, Controller, HungError, outcome_of_error, outcome_of_finish, outcome_of_stop
from sweeps.journal.outcomes import AttemptOutcome

if TYPE_CHECKING:
    from cost.clock import FakeClock

TICK_NS = 10_000_000_000


class Stopwatch:
    """How long the trainer's work took since its last message (`rl.trainers.simulated.Clock`)."""

    def __init__(self, silence_seconds: float) -> None:
        self.elapsed_ns = 0
        self._silence_seconds = silence_seconds

    def sleep_ns(self, duration_ns: int) -> None:
        self.elapsed_ns += duration_ns
        if self.elapsed_ns > self._silence_seconds * 1e9:
            raise HungError(f"no message for {self._silence_seconds:g} s: the attempt hangs")


@dataclass
class _Running:
    attempt: Attempt
    messages: Generator[Event, Command | None, None]
    """The trainer."""
    message: Event | None = None
    """The message that it sends next."""
    error: BaseException | None = None
    """The exception that it raises instead."""
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
        """`silence_seconds`: a trainer without a message for longer hangs, and is ended."""
        self._stopwatch = Stopwatch(silence_seconds)
        self._trainer = trainer(self._stopwatch)
        self._clock = clock
        self._queue: list[tuple[int, int, _Running]] = []
        self._order = itertools.count()
        self._next_tick_ns = clock.monotonic_ns() + TICK_NS

    def run(self, controller: Controller) -> None:
        while True:
            while attempt := controller.next_attempt():
                controller.on_granted(attempt)
                running = _Running(attempt, self._trainer.run(attempt.spec, attempt.checkpoint))
                self._resume(running, None)
            if not self._queue:
                if controller.done():
                    return
                self._advance_to(self._next_tick_ns, controller)  # a waiting trial may not start before some moment
                continue
            at_ns, _, running = self._queue[0]
            if self._advance_to(at_ns, controller):
                heapq.heappop(self._queue)
                self._deliver(running, controller)

    def close(self) -> None:
        for _, _, running in self._queue:
            running.messages.close()
        self._queue.clear()

    def _deliver(self, running: _Running, controller: Controller) -> None:
        if running.error is not None:
            self._end(running, controller, *outcome_of_error(running.error))
            return
        if running.message is None:
            text = "the trainer ended without its last message"
            self._end(running, controller, AttemptOutcome.CRASHED, text)
            return
        command = controller.on_message(running.attempt, running.sequence, running.message)
        running.sequence += 1
        if isinstance(running.message, Finished):
            running.messages.close()
            self._end(running, controller, *outcome_of_finish(running.message))
            return
        self._resume(running, command)

    def _end(self, running: _Running, controller: Controller, outcome: AttemptOutcome, message: str) -> None:
        controller.on_ended(running.attempt, outcome, message)
        controller.on_released(running.attempt, True)

    def _resume(self, running: _Running, command: Command | None) -> None:
        """Let the trainer work until its next message, which is queued for the moment at which it would arrive."""
        running.message, self._stopwatch.elapsed_ns = None, 0
        try:
            running.message = running.messages.send(command)
        except StopIteration:
            pass
        except Exception as error:
            running.error = error
        due_ns = self._clock.monotonic_ns() + self._stopwatch.elapsed_ns
        heapq.heappush(self._queue, (due_ns, next(self._order), running))

    def _advance_to(self, at_ns: int, controller: Controller) -> bool:
        """Let time pass, with its ticks. Stops at a tick at which attempts end at once, and then returns False."""
        while self._next_tick_ns <= at_ns:
            self._clock.advance(self._next_tick_ns - self._clock.monotonic_ns())
            self._next_tick_ns += TICK_NS
            controller.on_tick()
            if stops := controller.stops_at_once():
                self._end_at_once(stops, controller)
                return False
        self._clock.advance(at_ns - self._clock.monotonic_ns())
        return True

    def _end_at_once(self, stops: Mapping[str, Stop], controller: Controller) -> None:
        ending = [running for _, _, running in self._queue if str(running.attempt) in stops]
        self._queue = [entry for entry in self._queue if str(entry[2].attempt) not in stops]
        heapq.heapify(self._queue)
        for running in ending:
            running.messages.close()
            self._end(running, controller, *outcome_of_stop(stops[str(running.attempt)]))

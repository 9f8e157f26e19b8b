"""Executors run the trials: they take attempts from a `Controller`, run them, and bring it every trainer message.

An executor decides nothing: which attempt is next, which command a trainer receives and what an end means is decided by
the controller. There are two: Ray Tune for real trials, and one in this process, on a fake clock, for simulated trials.

Tested in tests/sweeps/executors/test_ray_tune.py and tests/sweeps/driver/test_controller.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rl.spec import Command, ConfigurationError, Event, Finished, OutOfMemoryError, PreemptedError, Stop, TrialSpec
from sweeps.journal.outcomes import STOP_OUTCOMES, AttemptOutcome


@dataclass(frozen=True)
class Attempt:
    """One attempt, ready to run on `spec.cards` free cards."""

    spec: TrialSpec
    checkpoint: Path | None
    """Where it resumes from; None: it starts from the beginning."""

    @property
    def trial_id(self) -> str:
        return self.spec.trial_id

    @property
    def number(self) -> int:
        return self.spec.attempt

    def __str__(self) -> str:
        return f"{self.trial_id}/{self.number}"


class Controller(Protocol):
    """What an executor is given. Calls come from one thread; a repeated call changes nothing."""

    def next_attempt(self) -> Attempt | None:
        """The attempt to start next; None: nothing for now. The cards of an ending attempt may not be free yet."""
        ...

    def done(self) -> bool:
        """Nothing runs, and nothing will be started any more."""
        ...

    def on_granted(self, attempt: Attempt) -> None:
        """The attempt has its cards from now on. Comes once, before its first message."""
        ...

    def on_message(self, attempt: Attempt, sequence: int, message: Event) -> Command:
        """A trainer message, numbered from 0. The returned command reaches the trainer before its next step."""
        ...

    def on_ended(self, attempt: Attempt, outcome: AttemptOutcome, message: str) -> None:
        """The attempt's trainer is over. `message`: details for a person."""
        ...

    def on_released(self, attempt: Attempt, released: bool) -> None:
        """The attempt's processes have ended and its cards are returned; False: not in time. After `on_ended`."""
        ...

    def on_cards(self, cards: int) -> None:
        """Trials can use this many cards from now on: a node was lost or has joined, or cards were not returned."""
        ...

    def stopping(self) -> bool:
        """Nothing more is started: an attempt that waits for its cards need not get them."""
        ...

    def on_tick(self) -> None:
        """Called often, with or without messages: time for heartbeats."""
        ...

    def stops_at_once(self) -> Mapping[str, Stop]:
        """Attempts to end now, without waiting for their next message, by `str(attempt)`. Asked after every tick."""
        ...


class Executor(Protocol):
    """Runs attempts until the controller is done."""

    def run(self, controller: Controller) -> None: ...

    def close(self) -> None:
        """End everything that still runs, at once. Safe to call twice, and after an exception out of `run`."""
        ...


class HungError(RuntimeError):
    """A trainer reported nothing for longer than the limit."""


def outcome_of_finish(finished: Finished) -> tuple[AttemptOutcome, str]:
    """The outcome of an attempt that ended in order, and details for a person."""
    return (AttemptOutcome.COMPLETED, "") if finished.stopped is None else outcome_of_stop(finished.stopped)


def outcome_of_stop(stop: Stop) -> tuple[AttemptOutcome, str]:
    """The outcome of an attempt that was stopped, and details for a person."""
    return STOP_OUTCOMES[stop.kind], stop.text


def outcome_of_error(error: BaseException) -> tuple[AttemptOutcome, str]:
    """The outcome of an attempt whose trainer raised, and details for a person."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    match error:
        case PreemptedError():
            return AttemptOutcome.PREEMPTED, text
        case ConfigurationError():
            return AttemptOutcome.BAD_CONFIGURATION, f"cannot run as configured: {error}"
        case OutOfMemoryError():
            hint = "a smaller trainer.micro_batch_tokens gives the same result in less memory"
            return AttemptOutcome.OUT_OF_MEMORY, f"{text}; {hint}"
        case HungError():
            return AttemptOutcome.HUNG, str(error)
        case _:
            return AttemptOutcome.CRASHED, text

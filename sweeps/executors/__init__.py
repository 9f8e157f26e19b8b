"""Who runs the trials. An executor takes attempts from a `Controller`, runs them, and brings it every word they say.

It decides nothing: which attempt is next, what a trainer is told and what an end means is the host's (the driver's)
business. Two members, one conformance suite: Ray Tune for real work, in-process on a fake clock for simulated trials.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rl.spec import Command, ConfigurationError, Event, Finished, OutOfMemoryError, PreemptedError, TrialSpec
from sweeps.journal.events import STOP_OUTCOMES, AttemptOutcome


@dataclass(frozen=True)
class Attempt:
    """One attempt, ready to be run on `spec.cards` cards that are free."""

    spec: TrialSpec
    checkpoint: Path | None

    @property
    def trial_id(self) -> str:
        return self.spec.trial_id

    @property
    def number(self) -> int:
        return self.spec.attempt

    def __str__(self) -> str:
        return f"{self.trial_id}/{self.number}"


class Controller(Protocol):
    """What an executor is given: the driver, seen from below."""

    def next_attempt(self) -> Attempt | None:
        """The attempt to start next; None: nothing for now. It may wait for the cards of one that is ending."""
        ...

    def done(self) -> bool:
        """Nothing runs and nothing will be started any more."""
        ...

    def on_granted(self, attempt: Attempt) -> None:
        """It holds its cards from this moment on: comes once, before its first message."""
        ...

    def on_message(self, attempt: Attempt, sequence: int, message: Event) -> Command:
        """Take in what a trainer said; the answer goes back to it before its next step."""
        ...

    def on_ended(self, attempt: Attempt, outcome: AttemptOutcome, message: str) -> None:
        """The attempt's trainer is over. `message`: details for a person."""
        ...

    def on_released(self, attempt: Attempt, released: bool) -> None:
        """Its processes are gone and its cards are back (or are not, after a wait): comes once, after `on_ended`."""
        ...

    def on_cards(self, cards: int) -> None:
        """From now on trials can use so many cards: a node was lost or has joined, or cards did not come back."""
        ...

    def stopping(self) -> bool:
        """Nothing more shall be started: what waits for its cards need not get them."""
        ...

    def on_tick(self) -> None:
        """Called often, whether anything was said or not: time for heartbeats."""
        ...


class Executor(Protocol):
    """Runs attempts until the host is done."""

    def run(self, host: Controller) -> None: ...

    def close(self) -> None:
        """End everything that still runs, at once. Safe to call twice, and after an exception out of `run`."""
        ...


class HungError(RuntimeError):
    """No word for longer than the limit."""


def outcome_of_finish(finished: Finished) -> tuple[AttemptOutcome, str]:
    """The outcome of an attempt that ended in order, and a message for a person."""
    stop = finished.stopped
    return (AttemptOutcome.COMPLETED, "") if stop is None else (STOP_OUTCOMES[stop.kind], stop.text)


def outcome_of_error(error: BaseException) -> tuple[AttemptOutcome, str]:
    """What an exception out of a trainer means, and a message for a person."""
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

"""What a driver keeps about an attempt while it runs: its state, and reported phases that are not in the ledger yet."""

from __future__ import annotations

from dataclasses import dataclass, field

from cost.records import UsageKey
from rl.spec import CheckpointWritten, Event
from sweeps.executors import Attempt


@dataclass
class RunningAttempt:
    """An attempt that was handed to the executor and whose cards are not released yet."""

    attempt: Attempt
    key: UsageKey
    """Its usage in the ledger."""
    granted: bool = False
    """It has its cards."""
    ended: bool = False
    """Its trainer is over; its processes may still be ending."""
    phases: dict[str, int] = field(default_factory=dict)
    """Card-nanoseconds by phase, reported since the newest checkpoint and not in the ledger yet."""
    phases_before_checkpoints: list[tuple[int, dict[str, int]]] = field(default_factory=list)
    """The same up to each checkpoint, with the number of the checkpoint's message."""
    last_sequence: int = -1
    """Number of its newest message."""
    stop_sent: bool = False
    """Its trainer has received a stop command: it writes a checkpoint and ends."""
    checkpoint_flush: int | None = None
    """How often the journal had been flushed when the newest checkpoint was reported."""

    def add_phases(self, sequence: int, message: Event) -> None:
        """Add a message's card-nanoseconds by phase."""
        self.last_sequence = sequence
        for phase, card_ns in message.phase_card_ns.items():
            self.phases[phase] = self.phases.get(phase, 0) + card_ns
        if isinstance(message, CheckpointWritten):
            self.phases_before_checkpoints.append((sequence, self.phases))
            self.phases = {}

    def take_phases(self) -> list[tuple[UsageKey, int, dict[str, int]]]:
        """What was added since the last call, in sums that end at a checkpoint or at the newest message.

        The ledger keeps the sums apart, so that it knows which work came after the last checkpoint.
        """
        sums = [*self.phases_before_checkpoints, (self.last_sequence, self.phases)]
        self.phases, self.phases_before_checkpoints = {}, []
        return [(self.key, sequence, phases) for sequence, phases in sums if phases]

    def checkpoint_must_be_written(self, message: Event, flushes: int, keep_checkpoints: int) -> bool:
        """Whether a message has to be committed before the driver replies to it.

        After the reply a trainer removes all but its newest `keep_checkpoints`, and one of those that stay has to be in
        the journal. `flushes`: how often the journal has been flushed.
        """
        if not isinstance(message, CheckpointWritten):
            return False
        before, self.checkpoint_flush = self.checkpoint_flush, flushes
        return keep_checkpoints < 2 or before == flushes

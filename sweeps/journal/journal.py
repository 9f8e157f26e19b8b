"""The journal of a sweep: its events in the ledger, appended once. The state of the sweep is their replay.

The events are one stream of the ledger's `event` table, in the order in which the driver wrote them. Nothing is ever
updated or deleted, and no state is stored that the replay does not give. The end of an attempt comes with a summary of
its trial's messages, so that a reader can skip the messages.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from cost.records import IntegrityError, NewEvent
from rl.spec import Event, StepReport
from sweeps.journal.event_codec import encode, messages_in
from sweeps.journal.events import (
    AttemptEnded,
    AttemptStarted,
    DriverStarted,
    JournalEvent,
    MessagesReported,
    TrialSummarised,
)
from sweeps.journal.messages import RecordedMessage, record_message
from sweeps.journal.outcomes import AttemptOutcome
from sweeps.journal.state import OUTCOME_STATES, UNFINISHED, AttemptRecord, SweepRecord, TrialRecord, TrialState

if TYPE_CHECKING:
    from cost.ledger.ledger import Ledger
    from cost.records import StoredEvent

__all__ = [
    "OUTCOME_STATES",
    "UNFINISHED",
    "AttemptRecord",
    "Journal",
    "SweepRecord",
    "TrialRecord",
    "TrialState",
    "decisions",
    "load",
    "replay",
    "sweep_events",
    "sweep_ids",
]

STREAM_PREFIX = "sweep:"
"""A sweep's stream in the ledger is named by this and the sweep's id."""

REPORT_KINDS = frozenset({MessagesReported.kind, TrialSummarised.kind})
"""Kinds of events that only hold what trainers reported. All others are decisions: few, and small."""

MAX_WAITING_MESSAGES = 200
"""So many messages are written at once, at most."""
MAX_WAIT_NS = 10**9
"""For how long, by the driver's clock, a message waits to be written. A `kill -9` may lose the messages that wait."""


class Journal:
    """One sweep's journal: appends events, and keeps the state that they give.

    Trainer messages wait to be written with the next event, or for a `flush`; `record` includes them at once. An event
    is in `record` once its transaction is committed.
    """

    def __init__(self, ledger: Ledger, sweep_id: str, record: SweepRecord | None = None) -> None:
        """`record`: the state from an earlier read. Only newer events are read, and `record` is updated in place."""
        self._ledger, self._sweep_id = ledger, sweep_id
        self._is_driver = False
        """A driver has started with this journal; it writes nothing once another driver has started."""
        self._stream = STREAM_PREFIX + sweep_id
        self._waiting: list[RecordedMessage] = []
        self.flushes = 0
        """How often messages were written."""
        self._written: list[StoredEvent] = []
        self._in_transaction = False
        self._unkeyed_events = itertools.count()
        self.record = load(ledger, sweep_id) if record is None else record
        if record is not None:
            self.catch_up()

    def catch_up(self) -> None:
        """Apply to `record` what others appended since the last call."""
        for event in self._ledger.events.read(self._stream, after=self.record.read_up_to):
            self.record.apply(event)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """One transaction for events, the messages before them, and what they cost. Nested transactions join it.

        Raises:
            SweepLockedError: another driver has resumed the sweep; nothing was written.
        """
        if self._in_transaction:
            yield
            return
        waiting, self._in_transaction = self._waiting, True
        try:
            with self._ledger.transaction():
                yield
                if self._written and self._written[0].sequence != self.record.read_up_to + 1:
                    self._raise_if_another_driver_writes()
        except BaseException as error:
            if self._waiting is not waiting:
                self._waiting = waiting + self._waiting
            self._written.clear()
            if isinstance(error, IntegrityError):  # another driver may have written the same event with another body
                self._raise_if_another_driver_writes()
            raise
        finally:
            self._in_transaction = False
        self._apply_written()

    def _raise_if_another_driver_writes(self) -> None:
        """Raise if another driver has started since, or has ended attempts of this one, which it took for dead."""
        if not self._is_driver:
            return
        for event in self._ledger.events.read(self._stream, after=self.record.read_up_to):
            of_a_driver = event.kind in (DriverStarted.kind, AttemptEnded.kind)
            if of_a_driver and event.driver != self._ledger.driver_id:
                from cost.ledger.sweep_lock import SweepLockedError, driver_process

                with self._ledger.read() as connection:
                    raise SweepLockedError(self._sweep_id, driver_process(connection, event.driver, event.at_ns))

    def append(self, event: JournalEvent) -> None:
        """Write one event, and before it the messages that wait."""
        self._write(event)
        self._is_driver = self._is_driver or isinstance(event, DriverStarted)

    def flush(self) -> None:
        """Write the messages that wait."""
        self._write()

    def _write(self, *events: JournalEvent) -> None:
        with self.transaction():
            waiting = [MessagesReported(tuple(self._waiting))] if self._waiting else []
            entries = [self._entry(event) for event in (*waiting, *events)]
            self._written += self._ledger.events.append_all(self._stream, entries)
            if self._waiting:
                self._waiting = []
                self.flushes += 1

    def _entry(self, event: JournalEvent) -> NewEvent:
        key = event.key or f"{event.kind}:{self._ledger.now_ns()}:{next(self._unkeyed_events)}"
        return encode(event, key)

    def _apply_written(self) -> None:
        """Apply this driver's events without reading them back, unless another process wrote in between."""
        written, self._written = self._written, []
        if written and written[0].sequence != self.record.read_up_to + 1:
            self.catch_up()
            return
        for event in written:
            if event.kind != MessagesReported.kind:  # `add_message` has applied them
                self.record.apply(event)
            self.record.read_up_to = event.sequence

    def add_message(self, trial_id: str, attempt: int, sequence: int, message: Event) -> bool:
        """Record a trainer message; it is written soon. Returns False, and changes nothing, where it came before.

        Raises:
            IntegrityError: another message of the same number came before.
        """
        recorded = record_message(trial_id, attempt, sequence, self._ledger.now_ns(), message)
        if sequence < self.record.trials[trial_id].next_sequence:
            self._check_repeated(recorded, message)
            return False
        self._waiting.append(recorded)
        self.record.add_message(recorded, message)
        return True

    @property
    def flush_is_due(self) -> bool:
        """Whether messages have waited for long enough."""
        if not self._waiting:
            return False
        full = len(self._waiting) >= MAX_WAITING_MESSAGES
        return full or self._ledger.now_ns() - self._waiting[0].at_ns >= MAX_WAIT_NS

    def end_attempt(self, trial_id: str, attempt: int, outcome: AttemptOutcome, message: str) -> None:
        """Write that an attempt is over, and what its trial's messages add up to."""
        trial = self.record.trials[trial_id]
        summary = trial.summary
        self._write(
            AttemptEnded(trial_id, attempt, outcome, message, summary.step, summary.acc),
            TrialSummarised(trial_id, attempt, trial.next_sequence, summary),
        )

    def _check_repeated(self, recorded: RecordedMessage, message: Event) -> None:
        self.flush()
        for event in self._ledger.events.read(self._stream):
            for known in messages_in(event):
                if known.key == recorded.key and _without_replay(known.message) != _without_replay(message):
                    raise IntegrityError(
                        f"message {recorded.key} was received before as {known.body}, and now as {recorded.body}"
                    )


def _without_replay(message: Event) -> Event:
    """The message as its trainer sent it: the driver marks steps that are done again."""
    return replace(message, replay=False) if isinstance(message, StepReport) else message


def sweep_ids(ledger: Ledger) -> list[str]:
    """Every sweep in the ledger, oldest first."""
    return [s.removeprefix(STREAM_PREFIX) for s in ledger.events.streams() if s.startswith(STREAM_PREFIX)]


def sweep_events(ledger: Ledger, sweep_id: str, after: int = 0) -> Iterator[StoredEvent]:
    """Every event of a sweep, in order; `after`: those with a higher number only."""
    return ledger.events.read(STREAM_PREFIX + sweep_id, after=after)


def decisions(ledger: Ledger, sweep_id: str, without: Iterable[str] = ()) -> Iterator[StoredEvent]:
    """The decisions of a sweep, without events of these kinds: few, however many steps the sweep has."""
    return ledger.events.read(STREAM_PREFIX + sweep_id, without=REPORT_KINDS.union(without))


def replay(sweep_id: str, events: Iterable[StoredEvent]) -> SweepRecord:
    """The state of a sweep from its events alone."""
    record = SweepRecord(sweep_id)
    for event in events:
        record.apply(event)
    return record


def load(ledger: Ledger, sweep_id: str) -> SweepRecord:
    """The state of a sweep, equal to its whole replay.

    The messages of an attempt that is over are in its trial's summary: only messages without a summary are read.
    """
    record = SweepRecord(sweep_id)
    stream = STREAM_PREFIX + sweep_id
    unread: dict[str, int] = {}  # by trial, the event after which its messages are in no summary
    for stored in ledger.events.read(stream, without={MessagesReported.kind}):
        event = record.apply(stored)
        if isinstance(event, AttemptStarted):
            unread[event.trial_id] = stored.sequence
        elif isinstance(event, TrialSummarised):
            del unread[event.trial_id]
    last = record.read_up_to
    for stored in ledger.events.read(stream, after=min(unread.values(), default=last)):
        if stored.sequence > last:  # a driver wrote it after the events above were read
            record.apply(stored)
            continue
        for recorded in messages_in(stored):
            if stored.sequence > unread.get(recorded.trial_id, stored.sequence):
                record.add_message(recorded, recorded.message)
    return record

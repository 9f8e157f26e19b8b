"""The story of a sweep: every decision and every word of a trainer, appended once; state is its replay.

The events lie in the `event` table of the ledger's database, one stream per sweep, in the order in which the driver
heard and decided. Nothing here is ever updated or deleted, and no state is stored that the replay does not give: an
attempt's end comes with what its words add up to, so that a reader need not pass over them all again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cost.records import IntegrityError, NewEvent
from rl.codec import to_json
from rl.spec import Event, StepReport
from sweeps.journal.events import AttemptOutcome
from sweeps.journal.messages import (
    NOT_DECIDED,
    STREAM_PREFIX,
    SUMMARY,
    WORDS,
    RecordedMessage,
    as_event,
    word,
    words_in,
)
from sweeps.journal.state import OUTCOME_STATES, UNFINISHED, AttemptRecord, SweepRecord, TrialRecord, TrialState
from sweeps.planning.plan import Plan

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

MOST_WORDS = 200
"""So many words are written down at once, at most."""
LONGEST_WAIT_NS = 10**9
"""For so long, by the driver's clock, a word waits to be written down: what a `kill -9` may lose."""


class Journal:
    """One sweep's stream: appends to it, and keeps the record of what it says.

    Each event has a key of its own, so that writing the same fact twice changes nothing. Words wait to be written with
    the next event, or for a `flush`; `record` knows of them at once. It knows of an event when its transaction is over.
    """

    def __init__(self, ledger: Ledger, sweep_id: str, known: SweepRecord | None = None) -> None:
        """`known`: what was read of it before; only what came since is read, and `record` is this one."""
        self._ledger, self._sweep_id = ledger, sweep_id
        self._drives = False
        """Its owner has started to drive the sweep, and writes nothing more once another one does."""
        self._stream = STREAM_PREFIX + sweep_id
        self._words: list[RecordedMessage] = []
        self.flushes = 0
        """How often words were written down."""
        self._written: list[StoredEvent] = []
        self._in_transaction = False
        self.record = load(ledger, sweep_id) if known is None else known
        if known is not None:
            self.catch_up()

    def catch_up(self) -> None:
        """Take into `record` what others appended since the last call."""
        for event in self._ledger.events(self._stream, after=self.record.read_up_to):
            self.record.apply(event)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """One transaction for what is decided, what was said before, and what both cost. Nested ones join it.

        Raises:
            SweepLockedError: another driver has gone on with the sweep; nothing was written.
        """
        if self._in_transaction:
            yield
            return
        waiting, self._in_transaction = self._words, True
        try:
            with self._ledger.transaction():
                yield
                if self._written and self._written[0].sequence != self.record.read_up_to + 1:
                    self._refuse_where_another_drives()
        except BaseException as error:
            if self._words is not waiting:
                self._words = waiting + self._words
            self._written.clear()
            if isinstance(error, IntegrityError):  # two that write the same fact, each in its own words
                self._refuse_where_another_drives()
            raise
        finally:
            self._in_transaction = False
        self._take_written()

    def _refuse_where_another_drives(self) -> None:
        """Raise, if another driver has started since, or has ended attempts of this one, which it took for dead."""
        if not self._drives:
            return
        for event in self._ledger.events(self._stream, after=self.record.read_up_to):
            if event.kind in ("driver_started", "attempt_ended") and event.driver != self._ledger.driver_id:
                from cost.ledger.sweep_lock import SweepLockedError, signer

                with self._ledger.read() as connection:
                    raise SweepLockedError(self._sweep_id, signer(connection, event.driver, event.at_ns))

    def append(self, kind: str, body: Mapping[str, Any], key: str) -> None:
        """Write one event, and before it the words that were heard."""
        self._write(NewEvent(kind, body, key))
        self._drives = self._drives or kind == "driver_started"

    def flush(self) -> None:
        """Write down what was heard."""
        self._write()

    def _write(self, *events: NewEvent) -> None:
        with self.transaction():
            if self._words:
                events = (as_event(self._words), *events)
            self._written += self._ledger.append_events(self._stream, events)
            if self._words:
                self._words = []
                self.flushes += 1

    def _take_written(self) -> None:
        """What this driver wrote it need not read; but where another one wrote between, it reads, to keep the order."""
        written, self._written = self._written, []
        if written and written[0].sequence != self.record.read_up_to + 1:
            self.catch_up()
            return
        for event in written:
            if event.kind != WORDS:
                self.record.apply(event)
            self.record.read_up_to = event.sequence

    def planned(self, *, stage: str, machine: str, plan: Plan, config: Mapping[str, Any]) -> None:
        """The whole plan, as one event, before the first trial."""
        body = {
            "stage": stage,
            "machine": machine,
            "plan_digest": plan.digest,
            "points": plan.points,
            "trials": [to_json(t) for t in plan.trials],
            "proposals": plan.proposals,
            "config": config,
        }
        self.append("sweep_planned", body, "plan")

    def retry(
        self,
        trial_id: str,
        after_attempt: int,
        not_before_ns: int,
        reason: str,
        micro_batch_tokens: int | None = None,
        *,
        forgive: bool = False,
    ) -> None:
        """The trial shall be tried again. `forgive`: what it did so far does not count against its retries."""
        body = {
            "trial_id": trial_id,
            "after_attempt": after_attempt,
            "not_before_ns": not_before_ns,
            "reason": reason,
            "micro_batch_tokens": micro_batch_tokens,
            "forgive": forgive,
        }
        self.append("retry", body, f"retry:{trial_id}:{after_attempt}")

    def operator(self, command: str, reason: str, trials: Sequence[str], key: str) -> None:
        """What a person wants: `stop` the driver, or `cancel` these trials."""
        self.append("operator", {"command": command, "reason": reason, "trials": list(trials)}, f"operator:{key}")

    def message(self, trial_id: str, attempt: int, sequence: int, message: Event) -> bool:
        """Hear a word; it is written down soon. Returns False where it was heard before: nothing changes.

        Raises:
            IntegrityError: another word of the same number was heard before.
        """
        said = word(trial_id, attempt, sequence, self._ledger.now_ns(), message)
        if sequence < self.record.trials[trial_id].messages:
            self._check_the_same(said, message)
            return False
        self._words.append(said)
        self.record.hear(said, message)
        return True

    @property
    def flush_is_due(self) -> bool:
        """Whether words have waited for long enough."""
        if not self._words:
            return False
        return len(self._words) >= MOST_WORDS or self._ledger.now_ns() - self._words[0].at_ns >= LONGEST_WAIT_NS

    def attempt_ended(self, trial_id: str, attempt: int, outcome: AttemptOutcome, message: str) -> None:
        """An attempt is over: how, and what its trial's words add up to by now."""
        trial = self.record.trials[trial_id]
        name, summary = f"{trial_id}/{attempt}", trial.summary
        body = {"trial_id": trial_id, "attempt": attempt, "outcome": outcome, "message": message}
        body |= {"step": summary.step, "acc": summary.acc}
        whole = {"trial_id": trial_id, "attempt": attempt, "summary": to_json(summary), "messages": trial.messages}
        ended = NewEvent("attempt_ended", body, f"attempt_ended:{name}")
        self._write(ended, NewEvent(SUMMARY, whole, f"summary:{name}"))

    def _check_the_same(self, said: RecordedMessage, message: Event) -> None:
        self.flush()
        for event in self._ledger.events(self._stream):
            for known in words_in(event):
                if known.name == said.name and _without_replay(known.message) != _without_replay(message):
                    raise IntegrityError(f"word {said.name} came before as {known.body}, and now as {said.body}")


def _without_replay(message: Event) -> Event:
    """That a step is done again is the driver's remark, not the trainer's word."""
    return replace(message, replay=False) if isinstance(message, StepReport) else message


def sweep_ids(ledger: Ledger) -> list[str]:
    """Every sweep in the ledger, oldest first."""
    return [s.removeprefix(STREAM_PREFIX) for s in ledger.streams() if s.startswith(STREAM_PREFIX)]


def sweep_events(ledger: Ledger, sweep_id: str, after: int = 0) -> Iterator[StoredEvent]:
    return ledger.events(STREAM_PREFIX + sweep_id, after=after)


def decisions(ledger: Ledger, sweep_id: str, without: Iterable[str] = ()) -> Iterator[StoredEvent]:
    """The events of a sweep without what its trainers said, and without these kinds: few, however many steps it had."""
    return ledger.events(STREAM_PREFIX + sweep_id, without=NOT_DECIDED.union(without))


def replay(sweep_id: str, events: Iterable[StoredEvent]) -> SweepRecord:
    """The state of a sweep from its events alone."""
    record = SweepRecord(sweep_id)
    for event in events:
        record.apply(event)
    return record


def load(ledger: Ledger, sweep_id: str) -> SweepRecord:
    """The state of a sweep, as its whole replay would give it.

    Of an attempt that is over, its summary says what its words would: they are read only where there is none.
    """
    record = SweepRecord(sweep_id)
    stream = STREAM_PREFIX + sweep_id
    unread: dict[str, int] = {}  # by trial, the event after which its words are not in a summary
    for event in ledger.events(stream, without={WORDS}):
        record.apply(event)
        if event.kind == "attempt_started":
            unread[event.body["trial_id"]] = event.sequence
        elif event.kind == SUMMARY:
            del unread[event.body["trial_id"]]
    decided = record.read_up_to
    for event in ledger.events(stream, after=min(unread.values(), default=decided)):
        if event.sequence > decided:  # written after those were read: a driver is at work
            record.apply(event)
            continue
        for said in words_in(event):
            if event.sequence > unread.get(said.trial_id, event.sequence):
                record.hear(said, said.message)
    return record

"""What trainers said, in a sweep's stream: many words to an event, so that writing them down costs little.

A driver keeps the words it hears for at most a second and writes them together, before or with the next decision. Here
are the shape of such an event and its readers.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from cost.records import NewEvent, read_json
from rl.codec import message_from_json, to_json
from rl.spec import EvalReport, Event, StepReport

if TYPE_CHECKING:
    from cost.ledger.ledger import Ledger
    from cost.records import StoredEvent

STREAM_PREFIX = "sweep:"

WORDS = "messages"
SUMMARY = "summary"
NOT_DECIDED = frozenset({WORDS, SUMMARY})
"""Kinds of event that tell what trainers said. All others are the driver's decisions: few, and small."""


class RecordedMessage(msgspec.Struct, frozen=True, gc=False, rename={"message_json": "message"}):
    """One message of a trainer, as the driver heard it."""

    trial_id: str
    attempt: int
    sequence: int
    """0, 1, 2 ... within the attempt."""
    at_ns: int
    message_json: msgspec.Raw
    """The message as JSON, read when it is asked for."""

    @property
    def body(self) -> Mapping[str, Any]:
        return read_json(bytes(self.message_json))

    @property
    def message(self) -> Event:
        return message_from_json(self.body)

    @property
    def name(self) -> str:
        return f"{self.trial_id}:{self.attempt}:{self.sequence}"


class _Words(msgspec.Struct):
    messages: Sequence[RecordedMessage]


def _as_text(message: Mapping[str, Any]) -> msgspec.Raw:
    try:
        return msgspec.Raw(msgspec.json.encode(message))
    except UnicodeEncodeError:
        return msgspec.Raw(json.dumps(message).encode())


def word(trial_id: str, attempt: int, sequence: int, at_ns: int, message: Event) -> RecordedMessage:
    return RecordedMessage(trial_id, attempt, sequence, at_ns, _as_text(to_json(message)))


def as_event(words: Sequence[RecordedMessage]) -> NewEvent:
    """One or more words as one event. Its key is that of the first: a word is in one event only."""
    text = msgspec.json.encode(_Words(words)).decode()
    return NewEvent(WORDS, text, f"{WORDS}:{words[0].name}")


def words_in(event: StoredEvent) -> Iterator[RecordedMessage]:
    """The words of an event, in the order in which they were heard; none in a decision."""
    if event.kind == WORDS:
        try:
            yield from msgspec.json.decode(event.text, type=_Words).messages
        except msgspec.DecodeError:  # see `read_json`
            for row in event.body["messages"]:
                yield RecordedMessage(
                    row["trial_id"], row["attempt"], row["sequence"], row["at_ns"], _as_text(row["message"])
                )


@dataclass
class Reports:
    """Every report of one trial. One that was made again, after a restore, replaces the earlier one."""

    steps: dict[int, StepReport] = field(default_factory=dict)
    evaluations: dict[int, EvalReport] = field(default_factory=dict)


def reports(ledger: Ledger, sweep_id: str, trial_ids: Collection[str] | None = None) -> dict[str, Reports]:
    """All reports of these trials (None: of all that said something), in one pass over the journal.

    Every step of every trial asked for is held in memory: meant for one trial, or for small sweeps.
    """
    found: dict[str, Reports] = {}
    for event in ledger.events(STREAM_PREFIX + sweep_id):
        for said in words_in(event):
            if trial_ids is not None and said.trial_id not in trial_ids:
                continue
            of_trial = found.setdefault(said.trial_id, Reports())
            match said.message:
                case StepReport() as step:
                    of_trial.steps[step.step] = step
                case EvalReport() as evaluation:
                    of_trial.evaluations[evaluation.step] = evaluation
    return found


def steps_of(ledger: Ledger, sweep_id: str, trial_id: str) -> dict[int, StepReport]:
    """Every step of one trial, by number."""
    return reports(ledger, sweep_id, {trial_id}).get(trial_id, Reports()).steps

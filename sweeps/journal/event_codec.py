"""Journal events as JSON text and back: the one place that knows how an event is stored.

msgspec reads and writes the dataclasses, since a replay decodes many of them. Three fields hold values that `rl.codec`
or `Money` write as JSON or text, non-finite numbers included; they are converted on the way.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from cost.money import Money
from cost.records import NewEvent, StoredEvent
from rl.codec import from_json, message_from_json, to_json
from rl.trainers.logs.run import ImportedRun
from sweeps.journal.events import (
    AttemptStarted,
    CommandSent,
    JournalEvent,
    MessagesReported,
    RuleStopped,
    RunImported,
    TrialSummarised,
)
from sweeps.journal.messages import RecordedMessage
from sweeps.journal.trial_summary import TrialSummary

KINDS: Mapping[str, type[JournalEvent]] = {cls.kind: cls for cls in typing.get_args(JournalEvent)}
"""The dataclass of each kind of event."""


def encode(event: JournalEvent, key: str) -> NewEvent:
    """An event as an entry of the ledger's event table."""
    body: Any = event
    if convert := _CONVERTED.get(type(event)):
        field, write, _ = convert
        body = {f.name: getattr(event, f.name) for f in dataclasses.fields(event)}
        body[field] = write(body[field])
    try:
        text = msgspec.json.encode(body).decode()
    except UnicodeEncodeError:  # half a surrogate pair, as file names may have
        text = json.dumps(msgspec.to_builtins(body))
    return NewEvent(event.kind, text, key)


def decode(stored: StoredEvent) -> JournalEvent:
    """The event that `encode` wrote.

    Raises:
        ValueError: a kind that this version does not know, or a body that does not fit its dataclass.
    """
    if stored.kind not in KINDS:
        raise ValueError(
            f"{stored.stream} has an event of kind {stored.kind!r}, which this version does not know: a newer version "
            "wrote it; update this installation"
        )
    try:
        return _reader(stored.kind)(stored.text)
    except msgspec.ValidationError as error:
        raise ValueError(f"event {stored.sequence} ({stored.kind}) of {stored.stream}: {error}") from error
    except msgspec.DecodeError:  # half a surrogate pair: only the slower reader accepts it
        return _decode_slowly(KINDS[stored.kind], stored.text)


def messages_in(stored: StoredEvent) -> tuple[RecordedMessage, ...]:
    """The trainer messages of an event, in the order in which the driver received them; none in a decision."""
    event = decode(stored) if stored.kind == MessagesReported.kind else None
    return event.messages if isinstance(event, MessagesReported) else ()


def _money_text(amount: Money | None) -> str | None:
    return None if amount is None else str(amount)


def _money(text: str | None) -> Money | None:
    return None if text is None else Money.parse(text)


_CONVERTED: Mapping[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    AttemptStarted: ("reserved", _money_text, _money),
    RuleStopped: ("not_spent", _money_text, _money),
    RunImported: ("run", to_json, functools.partial(from_json, ImportedRun)),
    CommandSent: ("command", to_json, message_from_json),
    TrialSummarised: ("summary", to_json, functools.partial(from_json, TrialSummary)),
}
"""The field of an event that msgspec cannot convert by itself, and how it is written and read."""


@functools.cache
def _reader(kind: str) -> Callable[[str], JournalEvent]:
    cls = KINDS[kind]
    if cls not in _CONVERTED:
        return msgspec.json.Decoder(cls).decode
    decode_row = msgspec.json.Decoder(_row_type(cls)).decode
    return lambda text: _from_row(cls, decode_row(text))


@functools.cache
def _row_type(cls: type[JournalEvent]) -> type[Any]:
    """The class without its converted field's type: msgspec leaves that value as plain JSON types."""
    field, hints = _CONVERTED[cls][0], typing.get_type_hints(cls)
    columns = [(f.name, Any if f.name == field else hints[f.name]) for f in dataclasses.fields(cls)]
    return msgspec.defstruct(f"{cls.__name__}Row", columns)


def _from_row(cls: type[JournalEvent], row: Any) -> JournalEvent:
    field, _, read = _CONVERTED[cls]
    values = {name: getattr(row, name) for name in row.__struct_fields__}
    values[field] = read(values[field])
    return cls(**values)


def _decode_slowly(cls: type[JournalEvent], text: str) -> JournalEvent:
    body = json.loads(text)
    if cls in _CONVERTED:
        return _from_row(cls, msgspec.convert(body, _row_type(cls)))
    if cls is MessagesReported:
        rows = body["messages"]
        body["messages"] = [row | {"message": msgspec.Raw(json.dumps(row["message"]).encode())} for row in rows]
    return msgspec.convert(body, cls)

"""Trainer messages in a sweep's journal: how one is recorded, and every report of a trial as its readers want it.

A driver writes messages many to an event (`sweeps.journal.events.MessagesReported`), so that writing them costs little.

Tested in tests/sweeps/journal/test_journal.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from cost.records import read_json
from rl.codec import message_from_json, to_json
from rl.spec import Event


class RecordedMessage(msgspec.Struct, frozen=True, gc=False, rename={"message_json": "message"}):
    """One trainer message, as the driver received it. The message itself is decoded when it is asked for."""

    trial_id: str
    attempt: int
    sequence: int
    """0, 1, 2 ... within the attempt."""
    at_ns: int
    """When the driver received it, UTC nanoseconds."""
    message_json: msgspec.Raw

    @property
    def body(self) -> Mapping[str, Any]:
        """The message as JSON types."""
        return read_json(bytes(self.message_json))

    @property
    def message(self) -> Event:
        return message_from_json(self.body)

    @property
    def key(self) -> str:
        return f"{self.trial_id}:{self.attempt}:{self.sequence}"


def record_message(trial_id: str, attempt: int, sequence: int, at_ns: int, message: Event) -> RecordedMessage:
    body = to_json(message)
    try:
        text = msgspec.json.encode(body)
    except UnicodeEncodeError:  # half a surrogate pair, as file names may have
        text = json.dumps(body).encode()
    return RecordedMessage(trial_id, attempt, sequence, at_ns, msgspec.Raw(text))

"""Requests to release a machine, and their results as far as they are known.

A lease whose release was requested but not confirmed stays open, continues to cost money, and is listed as
RELEASE_UNCONFIRMED. A confirmed release is recorded by closing the lease (`LeaseStore.close`), all else as events here.

Tested in tests/sweeps/machines/test_release.py and tests/cost/reports/test_unaccounted.py.
"""

from __future__ import annotations

from cost.ledger.ledger import Ledger
from cost.records import StoredEvent

STREAM = "releases"
UNCONFIRMED = "RELEASE_UNCONFIRMED"


def record_planned(ledger: Ledger, lease_id: str, how: str) -> None:
    """Record that the last sweep on the machine has ended and `how` will be run. The driver may die before that."""
    _append(ledger, "planned", lease_id, f"{how} was planned, and it is unknown whether it was run")


def record_requested(ledger: Ledger, lease_id: str, how: str) -> None:
    """Record that the command `how` is about to be run to release the machine of a lease."""
    _append(ledger, "requested", lease_id, f"{how} was run; its result is unknown")


def record_failed(ledger: Ledger, lease_id: str, why: str) -> None:
    """Record that the command was run and did not confirm the release."""
    _append(ledger, "failed", lease_id, why)


def record_kept(ledger: Ledger, lease_id: str, why: str) -> None:
    """Record why a machine is kept although its release was due."""
    _append(ledger, "kept", lease_id, why)


def record_in_use(ledger: Ledger, lease_id: str) -> None:
    """Record that a sweep uses the machine again, so that earlier release requests no longer apply."""
    if lease_id in unconfirmed_releases(ledger):
        _append(ledger, "in_use", lease_id, "")


def record_released(ledger: Ledger, lease_id: str) -> None:
    """Record that the machine was released at the end of its lease, as a person confirmed."""
    ledger.events.append(STREAM, "gone", {"lease_id": lease_id, "text": ""}, f"gone:{lease_id}")


def released_leases(ledger: Ledger) -> set[str]:
    """The leases whose machine was released at their end, confirmed by the provider or by a person."""
    confirmed = {event.body["lease_id"] for event in ledger.events.read(STREAM) if event.kind == "gone"}
    return confirmed | {state.lease.lease_id for state in ledger.leases.find() if state.released}


def unconfirmed_releases(ledger: Ledger) -> dict[str, str]:
    """The latest result of the release request of each open lease, as text by lease id."""
    results: dict[str, str] = {}
    for event in _by_time(ledger):
        results[event.body["lease_id"]] = event.body["text"]
    results = {lease_id: text for lease_id, text in results.items() if text}
    open_ids = {state.lease.lease_id for state in ledger.leases.find(only_open=True)} if results else set()
    return {lease_id: text for lease_id, text in results.items() if lease_id in open_ids}


def unconfirmed_text(lease_id: str, text: str) -> str:
    """An entry of `unconfirmed_releases` as a sentence."""
    return f"{UNCONFIRMED}: lease {lease_id} is open and accrues cost: {text}"


def outcome_unknown(ledger: Ledger, lease_id: str) -> bool:
    """Whether a release was planned or requested, and its outcome is not recorded."""
    kinds = [e.kind for e in _by_time(ledger) if e.body["lease_id"] == lease_id]
    return kinds[-1:] in (["planned"], ["requested"])


def recorded_since(ledger: Ledger, lease_id: str, at_ns: int) -> bool:
    """Whether a release of this machine was requested, or decided against, at `at_ns` or after."""
    events = ledger.events.read(STREAM)
    return any(e.at_ns >= at_ns and e.body["lease_id"] == lease_id and e.kind != "planned" for e in events)


def _by_time(ledger: Ledger) -> list[StoredEvent]:
    """The events in the order of their times: in a merged ledger, the sequence has another order."""
    return sorted(ledger.events.read(STREAM), key=lambda event: event.at_ns)


def _append(ledger: Ledger, kind: str, lease_id: str, text: str) -> None:
    body = {"lease_id": lease_id, "text": text}
    ledger.events.append(STREAM, kind, body, f"{kind}:{lease_id}:{ledger.now_ns()}")

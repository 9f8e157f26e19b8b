"""Machines that were asked to go: whether they did is known only once their provider, or the command, has said so.

A lease that was asked to end and is not closed goes on accruing, and is RELEASE_UNCONFIRMED wherever it is listed. The
requests are a journal; that a release is confirmed is the end of the lease itself (`LeaseStore.close`).
"""

from __future__ import annotations

from cost.ledger.ledger import Ledger
from cost.records import StoredEvent

STREAM = "releases"
UNCONFIRMED = "RELEASE_UNCONFIRMED"


def record_planned(ledger: Ledger, lease_id: str, how: str) -> None:
    """The last sweep on the machine has ended, and `how` will release the machine. Until then its driver may die."""
    _note(ledger, "planned", lease_id, f"{how} was planned, and it is unknown whether it was run")


def record_requested(ledger: Ledger, lease_id: str, how: str) -> None:
    """`how` is about to be run, to give the machine of this lease back."""
    _note(ledger, "requested", lease_id, f"{how} was run, and its end is not known")


def record_failed(ledger: Ledger, lease_id: str, why: str) -> None:
    """It was run, and nobody confirmed that the machine is gone."""
    _note(ledger, "failed", lease_id, why)


def record_kept(ledger: Ledger, lease_id: str, why: str) -> None:
    """The machine was to go and is kept, for a reason."""
    _note(ledger, "kept", lease_id, why)


def record_in_use(ledger: Ledger, lease_id: str) -> None:
    """A sweep works on the machine: whatever was said of its going is over."""
    if lease_id in unconfirmed_releases(ledger):
        _note(ledger, "in_use", lease_id, "")


def record_released(ledger: Ledger, lease_id: str) -> None:
    """Somebody says that the machine went when its lease ended."""
    ledger.events.append(STREAM, "gone", {"lease_id": lease_id, "text": ""}, f"gone:{lease_id}")


def released_leases(ledger: Ledger) -> set[str]:
    """Leases whose end was the end of the machine: confirmed as released, or said by somebody."""
    said = {event.body["lease_id"] for event in ledger.events.read(STREAM) if event.kind == "gone"}
    return said | {state.lease.lease_id for state in ledger.leases.find() if state.released}


def unconfirmed_releases(ledger: Ledger) -> dict[str, str]:
    """What is known of each open lease whose machine was to go, by lease."""
    known: dict[str, str] = {}
    for event in _by_time(ledger):
        known[event.body["lease_id"]] = event.body["text"]
    known = {lease_id: text for lease_id, text in known.items() if text}
    still_open = {state.lease.lease_id for state in ledger.leases.find(only_open=True)} if known else set()
    return {lease_id: text for lease_id, text in known.items() if lease_id in still_open}


def unconfirmed_text(lease_id: str, text: str) -> str:
    """One entry of `unconfirmed_releases` for people."""
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
    """Books that were merged have them in another order than they happened."""
    return sorted(ledger.events.read(STREAM), key=lambda event: event.at_ns)


def _note(ledger: Ledger, kind: str, lease_id: str, text: str) -> None:
    body = {"lease_id": lease_id, "text": text}
    ledger.events.append(STREAM, kind, body, f"{kind}:{lease_id}:{ledger.now_ns()}")

"""What a machine does while it is held: it runs, or somebody stopped it and keeps it. Pure but for one journal.

From its lease's start a machine runs, until a hand says otherwise. Which states are billed, and whether a disk goes on
costing, is the provider's rule (`billed_states`, `storage_rule` of conf/pricing/billing.yaml); nothing is charged here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from itertools import pairwise

from cost.ledger import queries
from cost.ledger.corrections import Entries
from cost.ledger.journal import Journal
from cost.periods import instant_text, period_name
from cost.prices.billing import BillingRule
from cost.records import IntegrityError, LedgerError

STREAM = "machine_states"
RUNNING, STOPPED = "running", "stopped"


@dataclass(frozen=True)
class Change:
    """From a moment on a leased machine is in this state."""

    lease_id: str
    state: str
    at_ns: int


@dataclass(frozen=True)
class Stretch:
    """A time without a change: from `from_ns` to before `to_ns`."""

    from_ns: int
    to_ns: int
    state: str


def known_states(rules: Iterable[BillingRule]) -> list[str]:
    """Every state that a billing rule names, and `stopped`."""
    return sorted({STOPPED, RUNNING, *(state for rule in rules for state in rule.billed_states)})


def set_state(ledger: Entries, change: Change, rules: Iterable[BillingRule]) -> bool:
    """Enter what a machine does from a moment on. Returns False where it did so already.

    Raises:
        LedgerError: there is no such state, or the moment lies outside the lease.
        IntegrityError: it lies before an earlier change or in a closed month, or something ran on the machine later.
    """
    if change.state not in (states := known_states(rules)):
        raise LedgerError(f"{change.state!r} is no state of a machine; one of {', '.join(states)}")
    with ledger.transaction():
        state, at = ledger.lease_state(change.lease_id), instant_text(change.at_ns)
        end = ledger.now_ns() if state.to_ns is None else state.to_ns
        if not state.from_ns <= change.at_ns <= end:
            raise LedgerError(
                f"{at} is outside of lease {change.lease_id}, which was held from {instant_text(state.from_ns)} "
                f"to {instant_text(end)}"
            )
        earlier = load(ledger).get(change.lease_id, [])
        last = earlier[-1] if earlier else Change(change.lease_id, RUNNING, state.from_ns)
        if last.state == change.state:
            return False
        if earlier and change.at_ns <= last.at_ns:
            raise IntegrityError(
                f"lease {change.lease_id} is {last.state} since {instant_text(last.at_ns)}: what it does next begins "
                f"after that, not at {at}"
            )
        if late := [month for month in ledger.frozen_periods() if month >= period_name(change.at_ns, "month", UTC)]:
            raise IntegrityError(f"that would change {late[0]}, which is closed; write a correction instead")
        if change.state != RUNNING:
            _refuse_busy(ledger, change)
        body = {"lease_id": change.lease_id, "state": change.state, "at_ns": change.at_ns}
        return ledger.append_event(STREAM, "changed", body, f"{change.lease_id}:{change.at_ns}")


def _refuse_busy(ledger: Entries, change: Change) -> None:
    with ledger.read() as connection:
        usages = queries.usages(connection, lease_ids=[change.lease_id]).values()
    for usage in usages:
        if usage.to_ns is None or usage.to_ns > change.at_ns:
            raise IntegrityError(
                f"lease {change.lease_id} was not {change.state} at {instant_text(change.at_ns)}: trial "
                f"{usage.key.trial_id} attempt {usage.key.attempt} of sweep {usage.sweep_id} "
                + ("holds cards of it" if usage.to_ns is None else f"held cards until {instant_text(usage.to_ns)}")
            )


def load(ledger: Journal, as_of_ns: int | None = None) -> dict[str, list[Change]]:
    """The changes of every lease, oldest first, as they were known at a moment (None: now)."""
    found: dict[str, list[Change]] = defaultdict(list)
    for event in ledger.events(STREAM):
        if as_of_ns is None or event.at_ns <= as_of_ns:
            found[event.body["lease_id"]].append(Change(**event.body))
    # By when they were: books that were merged have them in another order than they happened.
    return {lease_id: sorted(changes, key=lambda one: one.at_ns) for lease_id, changes in found.items()}


def stretches(changes: Sequence[Change], from_ns: int, to_ns: int) -> list[Stretch]:
    """What a machine did from one moment to another, without a gap. `changes`: its lease's, oldest first."""
    within = [(from_ns, RUNNING), *((max(one.at_ns, from_ns), one.state) for one in changes if one.at_ns < to_ns)]
    pairs = pairwise([*within, (to_ns, "")])
    return [Stretch(start, stop, state) for (start, state), (stop, _) in pairs if start < stop]


def state_at(changes: Mapping[str, Sequence[Change]], lease_id: str, at_ns: int) -> Change | None:
    """The change that put a machine in the state that it has at a moment; None: it has run from the start."""
    before = [one for one in changes.get(lease_id, ()) if one.at_ns <= at_ns]
    return before[-1] if before else None

"""States of a leased machine: it runs, or a person stopped it and keeps the lease.

A machine runs from the start of its lease until a state change is entered by hand. The provider's billing rule decides
which states are billed and whether a disk is billed while the machine is stopped (`billed_states` and `storage_rule` in
conf/pricing/billing.yaml). Nothing is charged here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from cost.ledger import queries
from cost.ledger.closed_months import check_no_later_month_closed
from cost.ledger.events import EventStore
from cost.periods import instant_text
from cost.prices.billing import BillingRule
from cost.records import IntegrityError, LedgerError

if TYPE_CHECKING:
    from cost.ledger.ledger import Ledger

STREAM = "machine_states"
RUNNING, STOPPED = "running", "stopped"


@dataclass(frozen=True)
class StateChange:
    """A leased machine is in `state` from `at_ns` on."""

    lease_id: str
    state: str
    at_ns: int


@dataclass(frozen=True)
class StateSpan:
    """A machine is in one state from `from_ns` to `to_ns` (exclusive)."""

    from_ns: int
    to_ns: int
    state: str


def known_states(rules: Iterable[BillingRule]) -> list[str]:
    """Every state that a billing rule names, plus `running` and `stopped`."""
    return sorted({STOPPED, RUNNING, *(state for rule in rules for state in rule.billed_states)})


def set_state(ledger: Ledger, change: StateChange, rules: Iterable[BillingRule]) -> bool:
    """Record a state change. Returns False where the machine is in that state already.

    Raises:
        LedgerError: the state is unknown, or the instant lies outside the lease.
        IntegrityError: the instant lies before an earlier change or in a closed month, or the machine was in use later.
    """
    if change.state not in (states := known_states(rules)):
        raise LedgerError(f"{change.state!r} is not a state of a machine; choose one of {', '.join(states)}")
    with ledger.transaction():
        state, at = ledger.leases.get(change.lease_id), instant_text(change.at_ns)
        end = ledger.now_ns() if state.to_ns is None else state.to_ns
        if not state.from_ns <= change.at_ns <= end:
            raise LedgerError(
                f"{at} is outside of lease {change.lease_id}, which lasted from {instant_text(state.from_ns)} to "
                f"{instant_text(end)}"
            )
        earlier = load_changes(ledger.events).get(change.lease_id, [])
        last = earlier[-1] if earlier else StateChange(change.lease_id, RUNNING, state.from_ns)
        if last.state == change.state:
            return False
        if earlier and change.at_ns <= last.at_ns:
            raise IntegrityError(
                f"lease {change.lease_id} is {last.state} since {instant_text(last.at_ns)}; the next change must come "
                f"after that, not at {at}"
            )
        check_no_later_month_closed(ledger.closed_months.names(), change.at_ns)
        if change.state != RUNNING:
            _check_unused(ledger, change)
        body = {"lease_id": change.lease_id, "state": change.state, "at_ns": change.at_ns}
        return ledger.events.append(STREAM, "changed", body, f"{change.lease_id}:{change.at_ns}")


def _check_unused(ledger: Ledger, change: StateChange) -> None:
    with ledger.read() as connection:
        usages = queries.usages(connection, lease_ids=[change.lease_id]).values()
    for usage in usages:
        if usage.to_ns is None or usage.to_ns > change.at_ns:
            raise IntegrityError(
                f"lease {change.lease_id} was not {change.state} at {instant_text(change.at_ns)}: trial "
                f"{usage.key.trial_id} attempt {usage.key.attempt} of sweep {usage.sweep_id} "
                + ("uses its cards" if usage.to_ns is None else f"used its cards until {instant_text(usage.to_ns)}")
            )


def load_changes(events: EventStore, as_of_ns: int | None = None) -> dict[str, list[StateChange]]:
    """The state changes of every lease, oldest first, as recorded by an instant (None: by now)."""
    found: dict[str, list[StateChange]] = defaultdict(list)
    for event in events.read(STREAM):
        if as_of_ns is None or event.at_ns <= as_of_ns:
            found[event.body["lease_id"]].append(StateChange(**event.body))
    # A merged ledger does not have the events in the order of their instants.
    return {lease_id: sorted(changes, key=lambda change: change.at_ns) for lease_id, changes in found.items()}


def state_spans(changes: Sequence[StateChange], from_ns: int, to_ns: int) -> list[StateSpan]:
    """The states of a machine between two instants, without a gap. `changes`: of its lease, oldest first."""
    within = [(from_ns, RUNNING), *((max(c.at_ns, from_ns), c.state) for c in changes if c.at_ns < to_ns)]
    pairs = pairwise([*within, (to_ns, "")])
    return [StateSpan(start, stop, state) for (start, state), (stop, _) in pairs if start < stop]


def change_at(changes: Mapping[str, Sequence[StateChange]], lease_id: str, at_ns: int) -> StateChange | None:
    """The last state change of a machine up to an instant; None: the machine has been running since its lease began."""
    before = [change for change in changes.get(lease_id, ()) if change.at_ns <= at_ns]
    return before[-1] if before else None

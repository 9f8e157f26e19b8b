"""Unaccounted time: time after a lease in which its rented machine may have kept running, and that no lease covers.

A sweep that leaves a machine closes the lease, but the release of the machine may not be confirmed. Until a person
records what happened, the time after the lease is unknown, not zero: the lists of leases and the reports name it with
an estimate of its cost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from cost.charges import commitments
from cost.clock import NS_PER_HOUR
from cost.ledger.ledger import Ledger
from cost.ledger.release_requests import record_released, released_leases
from cost.money import rounded
from cost.periods import instant_text
from cost.prices.book import MissingPriceError, PriceBook, pico_per_hour
from cost.records import IntegrityError, LeaseState, LedgerError
from cost.reports.report import UNPRICED

LEFT = ("done", "budget", "interrupted", "failed")
"""How a lease ends if a sweep leaves a machine without a confirmed release."""


@dataclass(frozen=True)
class UnaccountedTime:
    """The time between the end of a lease and the next lease of the same machine."""

    before: LeaseState
    to_ns: int | None
    """The start of the next lease; None: there is none."""


def unaccounted_times(ledger: Ledger) -> list[UnaccountedTime]:
    """All unaccounted time, ordered by the start of the lease before it."""
    released = released_leases(ledger)
    by_machine: dict[str, list[LeaseState]] = defaultdict(list)
    for state in ledger.leases.find():
        by_machine[state.lease.instance_id].append(state)
    gaps = []
    for states in by_machine.values():
        for state, following in zip(states, [*states[1:], None], strict=True):
            lease = state.lease
            # The cost of own hardware and of commitments does not depend on the release; simulated machines have none.
            unaffected = lease.purchase == "own" or commitments.TAG in lease.tags or lease.simulated
            if state.to_ns is None or state.how not in LEFT or unaffected or lease.lease_id in released:
                continue
            if following is None or following.from_ns > state.to_ns:
                gaps.append(UnaccountedTime(state, following.from_ns if following else None))
    return sorted(gaps, key=lambda gap: (gap.before.from_ns, gap.before.lease.lease_id))


def describe(gaps: Sequence[UnaccountedTime], book: PriceBook, now_ns: int) -> dict[str, str]:
    """By lease id: a text on the latest gap of each machine, with its cost and the commands that record it."""
    by_machine: dict[str, list[UnaccountedTime]] = defaultdict(list)
    for gap in gaps:
        by_machine[gap.before.lease.instance_id].append(gap)
    return {of_machine[-1].before.lease.lease_id: _text(of_machine, book, now_ns) for of_machine in by_machine.values()}


def record_lease(ledger: Ledger, lease_id: str, to_ns: int | None = None) -> str:
    """Record that a machine kept running after a lease, and return the id of the lease that covers this time.

    The new lease lasts until `to_ns`, or else until the next lease of the machine. It stays open if there is neither.

    Raises:
        LedgerError: there is no unaccounted time after this lease.
        IntegrityError: the next lease began before `to_ns`, or the time lies in a closed month.
    """
    gap = next((g for g in unaccounted_times(ledger) if g.before.lease.lease_id == lease_id), None)
    if gap is None:
        raise LedgerError(f"no time after lease {lease_id} is unaccounted for")
    until_ns = gap.to_ns if to_ns is None else to_ns
    if until_ns is not None and gap.to_ns is not None and until_ns > gap.to_ns:
        raise IntegrityError(
            f"the next lease of that machine began at {instant_text(gap.to_ns)}, before {instant_text(until_ns)}"
        )
    lease = replace(gap.before.lease, lease_id=f"{lease_id}+", opened_by="hand", from_ns=gap.before.to_ns)
    ledger.leases.open(lease, until_ns=until_ns)
    return lease.lease_id


def record_release(ledger: Ledger, lease_id: str, at_ns: int | None = None) -> None:
    """Record that the machine of a lease was released: at the end of the lease, or later at `at_ns`.

    The time up to `at_ns` is recorded as a lease.

    Raises:
        LedgerError, IntegrityError: as `record_lease`.
    """
    state = ledger.leases.get(lease_id)
    with ledger.transaction():
        if at_ns is not None and state.to_ns is not None and at_ns > state.to_ns:
            record_lease(ledger, lease_id, at_ns)
        record_released(ledger, lease_id)


def _text(gaps: Sequence[UnaccountedTime], book: PriceBook, now_ns: int) -> str:
    """`gaps`: all gaps of one machine; the last one is described."""
    gap, earlier = gaps[-1], len(gaps) - 1
    lease, left_ns = gap.before.lease, gap.before.to_ns or 0
    until = "now" if gap.to_ns is None else instant_text(gap.to_ns)
    others = f" This machine has {earlier} earlier unaccounted time{'s' * (earlier > 1)}." if earlier else ""
    command = "python -m cost leases"
    return (
        f"{lease.machine} ({lease.sku}) was left at {instant_text(left_ns)}, release not confirmed. If it ran until "
        f"{until}, {_cost_text(gap, book, now_ns)} are missing from the ledger.{others} If it kept running: {command} "
        f"extend {lease.lease_id}. If it was released: {command} close {lease.lease_id} --released"
    )


def _cost_text(gap: UnaccountedTime, book: PriceBook, now_ns: int) -> str:
    lease, left_ns = gap.before.lease, gap.before.to_ns or 0
    try:
        row = book.in_force(lease.sku, left_ns, purchase=lease.purchase, region=lease.region or None)
    except MissingPriceError:
        return UNPRICED
    duration_ns = max(0, (now_ns if gap.to_ns is None else gap.to_ns) - left_ns)
    pico = pico_per_hour(row, lease.cards, lease.watts or 0) * Fraction(duration_ns, NS_PER_HOUR)
    return f"about {rounded(int(pico), 2)} {row.currency}"

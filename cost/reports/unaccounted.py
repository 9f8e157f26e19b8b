"""Time in which a rented machine may have been held, and that no lease has.

A sweep that leaves a machine ends its lease; whether the machine went with it, nobody has said. Until somebody does,
the time after it is unknown, which is not nothing: it is named wherever machines are listed, with what it comes to.
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
from cost.reports.csv_json import UNPRICED

LEFT = ("done", "budget", "interrupted", "failed")
"""How a lease ends that a sweep has left, and nothing has taken its machine down."""


@dataclass(frozen=True)
class UnaccountedTime:
    """After the end of a lease."""

    before: LeaseState
    to_ns: int | None
    """When the next lease of the machine began; None: there is none."""


def unaccounted_times(ledger: Ledger) -> list[UnaccountedTime]:
    """Those that nobody has accounted for, in the order their leases began."""
    settled, found = released_leases(ledger), []
    of_machine: dict[str, list[LeaseState]] = defaultdict(list)
    for state in ledger.leases.find():
        of_machine[state.lease.instance_id].append(state)
    for states in of_machine.values():
        for state, after in zip(states, [*states[1:], None], strict=True):
            lease = state.lease
            paid_anyway = lease.purchase == "own" or commitments.TAG in lease.tags or lease.simulated
            if state.to_ns is None or state.how not in LEFT or paid_anyway or lease.lease_id in settled:
                continue
            if after is None or after.from_ns > state.to_ns:
                found.append(UnaccountedTime(state, after.from_ns if after else None))
    return sorted(found, key=lambda gap: (gap.before.from_ns, gap.before.lease.lease_id))


def describe(found: Sequence[UnaccountedTime], book: PriceBook, now_ns: int) -> dict[str, str]:
    """The newest gap of each machine for a person, by its lease, with the commands that settle it."""
    of_machine: dict[str, list[UnaccountedTime]] = defaultdict(list)
    for gap in found:
        of_machine[gap.before.lease.instance_id].append(gap)
    return {ones[-1].before.lease.lease_id: _description(ones, book, now_ns) for ones in of_machine.values()}


def record_lease(ledger: Ledger, lease_id: str, to_ns: int | None = None) -> str:
    """The machine of a lease that a sweep has left was held on, until `to_ns`, or until its next lease began, or is
    still. The id of the lease that says so.

    Raises:
        LedgerError: there is no such gap after this lease, or it is shorter.
        IntegrityError: it lies in a closed month.
    """
    gap = next((g for g in unaccounted_times(ledger) if g.before.lease.lease_id == lease_id), None)
    if gap is None:
        raise LedgerError(f"no time after lease {lease_id} is unaccounted for")
    until_ns = gap.to_ns if to_ns is None else to_ns
    if until_ns is not None and gap.to_ns is not None and until_ns > gap.to_ns:
        raise IntegrityError(f"the next lease of that machine began at {instant_text(gap.to_ns)}, before that")
    lease = replace(gap.before.lease, lease_id=f"{lease_id}+", opened_by="hand", from_ns=gap.before.to_ns)
    ledger.leases.open(lease, until_ns=until_ns)
    return lease.lease_id


def record_release(ledger: Ledger, lease_id: str, at_ns: int | None = None) -> None:
    """The machine of a lease that a sweep has left is gone: since then, or since `at_ns`.

    Raises: as `enter`.
    """
    state = ledger.leases.get(lease_id)
    with ledger.transaction():
        if at_ns is not None and state.to_ns is not None and at_ns > state.to_ns:
            record_lease(ledger, lease_id, at_ns)
        record_released(ledger, lease_id)


def _description(gaps_of_it: Sequence[UnaccountedTime], book: PriceBook, now_ns: int) -> str:
    gap, earlier = gaps_of_it[-1], len(gaps_of_it) - 1
    lease, left_ns = gap.before.lease, gap.before.to_ns or 0
    until = "now" if gap.to_ns is None else instant_text(gap.to_ns)
    also = f" So {'is another time' if earlier == 1 else f'are {earlier} other times'} before." if earlier else ""
    command = "python -m cost leases"
    return (
        f"{lease.machine} ({lease.sku}) was left at {instant_text(left_ns)}, and nobody has said that it went: "
        f"if it ran on until {until}, {_amount(gap, book, now_ns)} are not in these books.{also} It ran on: "
        f"{command} extend {lease.lease_id}; it went: {command} close {lease.lease_id} --released"
    )


def _amount(gap: UnaccountedTime, book: PriceBook, now_ns: int) -> str:
    lease, left_ns = gap.before.lease, gap.before.to_ns or 0
    try:
        row = book.in_force(lease.sku, left_ns, purchase=lease.purchase, region=lease.region or None)
    except MissingPriceError:
        return UNPRICED
    held_ns = max(0, (now_ns if gap.to_ns is None else gap.to_ns) - left_ns)
    pico = pico_per_hour(row, lease.cards, lease.watts or 0) * Fraction(held_ns, NS_PER_HOUR)
    return f"about {rounded(int(pico), 2)} {row.currency}"

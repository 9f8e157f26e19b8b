"""The status of leases: what each has cost, and which open leases cost money without use. Writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import partial

from cost.charges import commitments
from cost.charges.lease_charge import (
    ChargeInputs,
    billing_rules,
    charge_lease,
    load_charge_inputs,
    tax_rate,
    total_with_tax,
)
from cost.clock import NS_PER_HOUR
from cost.ledger import queries
from cost.ledger.ledger import SILENT_NS, Ledger
from cost.ledger.machine_states import RUNNING, change_at
from cost.money import Money, money_text
from cost.periods import instant_text
from cost.prices.billing import BillingRule, rule_for
from cost.prices.book import TIME_UNITS, PriceBook, PriceRow, in_force, pico_per_hour
from cost.records import LeaseState
from cost.reports.report import UNPRICED

IDLE_NS = 3600 * 10**9
"""An open lease without a running attempt for this long is reported as idle."""


@dataclass(frozen=True)
class LeaseStatus:
    """A lease and its cost, tax and corrections included. Amounts are None without a price."""

    state: LeaseState
    cost: Money | None
    per_day: Money | None
    """What the lease costs a day if it stays open."""
    silent_since_ns: int | None
    """The last heartbeat of a driver, if the lease is open and that heartbeat is old; else None."""
    idle_since_ns: int | None
    """The end of the last usage, if the lease is open and that end is IDLE_NS ago; else None."""
    cost_since: Money | None
    """The cost since `silent_since_ns`, or else since `idle_since_ns`; None if both are None."""
    machine_state: str | None = RUNNING
    """The machine's state (`running`, `stopped` ...) if the lease is open, else None."""
    problem: str = ""
    """Why the lease cannot be priced; empty: it is priced."""

    @property
    def alert(self) -> str | None:
        """A sentence on an open lease that costs money without use, with the command that closes it; else None."""
        lease_id = self.state.lease.lease_id
        if self.machine_state != RUNNING and not self.per_day:
            return None
        if self.silent_since_ns is not None:
            reason = f"no driver has sent a heartbeat since {instant_text(self.silent_since_ns)}"
        elif self.idle_since_ns is not None:
            reason = f"no trial has run on it since {instant_text(self.idle_since_ns)}"
        else:
            return None
        return (
            f"lease {lease_id} is open, but {reason}: it has cost {_amount_text(self.cost_since)} since then, and "
            f"costs {_amount_text(self.per_day)} a day. Close it with: python -m cost leases close {lease_id}"
        )


def lease_statuses(
    ledger: Ledger,
    book: PriceBook,
    now_ns: int,
    *,
    only_open: bool = False,
    rules: Sequence[BillingRule] | None = None,
) -> list[LeaseStatus]:
    """The status of every lease, or of the open ones, in the order of their start.

    A lease that cannot be priced has a problem instead of amounts.
    """
    rules = billing_rules(book) if rules is None else rules
    in_use, last_end = set(), dict[str, int]()
    for usage in ledger.usages.find():
        lease_id = usage.key.lease_id
        if usage.to_ns is None:
            in_use.add(lease_id)
        else:
            last_end[lease_id] = max(usage.to_ns, last_end.get(lease_id, 0))
    all_states = ledger.leases.find()
    with ledger.read() as connection:
        corrections = queries.corrections_by_lease(connection)
    inputs_at = partial(load_charge_inputs, ledger, book, all_states)
    statuses = []
    for state in ledger.leases.find(only_open=only_open):
        lease_id = state.lease.lease_id
        unused_since_ns = None if lease_id in in_use else last_end.get(lease_id, state.from_ns)
        corrected_pico = corrections.get(lease_id, 0)
        statuses.append(_lease_status(state, rules, now_ns, unused_since_ns, corrected_pico, inputs_at))
    return statuses


def _lease_status(
    state: LeaseState,
    rules: Sequence[BillingRule],
    now_ns: int,
    unused_since_ns: int | None,
    corrected_pico: int,
    inputs_at: Callable[[int], ChargeInputs],
) -> LeaseStatus:
    """`unused_since_ns`: the end of the last usage; None while an attempt runs."""
    lease, is_open = state.lease, state.to_ns is None
    idle_since_ns = silent_since_ns = None
    if is_open and unused_since_ns is not None and now_ns - unused_since_ns >= IDLE_NS:
        idle_since_ns = unused_since_ns
    if is_open and now_ns - state.last_heartbeat_ns >= SILENT_NS:
        silent_since_ns = state.last_heartbeat_ns
    inputs = inputs_at(now_ns)
    change = change_at(inputs.state_changes, lease.lease_id, now_ns)
    machine_state = None if not is_open else change.state if change else RUNNING
    charge = charge_lease(state, rules, now_ns, inputs)
    if charge.problem:
        return LeaseStatus(state, None, None, silent_since_ns, idle_since_ns, None, machine_state, charge.problem)
    rows, cost = charge.rows, total_with_tax(charge.segments, charge.rows)
    since_ns = silent_since_ns if silent_since_ns is not None else idle_since_ns
    cost_since = None
    if since_ns is not None:
        earlier = charge_lease(state, rules, since_ns, inputs_at(since_ns))
        cost_since = Money(cost - total_with_tax(earlier.segments, earlier.rows), lease.currency)
    prices = tuple(row for row in rows.values() if row.per in TIME_UNITS)
    per_hour = _pico_per_hour(state, inputs, prices, now_ns, rules, machine_state or RUNNING)
    return LeaseStatus(
        state,
        cost=Money(cost + corrected_pico, lease.currency),
        per_day=Money(int(per_hour * 24), lease.currency),
        silent_since_ns=silent_since_ns,
        idle_since_ns=idle_since_ns,
        cost_since=cost_since,
        machine_state=machine_state,
    )


def _pico_per_hour(
    state: LeaseState,
    inputs: ChargeInputs,
    prices: tuple[PriceRow, ...],
    now_ns: int,
    rules: Sequence[BillingRule],
    machine_state: str,
) -> Fraction:
    """The present cost of an hour of the machine in 1e-12: its part of a commitment, or its price."""
    coverage, lease = inputs.commitment_usage.covered.get(state.lease.lease_id), state.lease
    if coverage is not None and (now_ns < coverage.commitment.to_ns or not prices):
        return commitments.drawdown_rate(coverage.commitment, lease, inputs.book) * NS_PER_HOUR
    row = in_force(prices, now_ns) or prices[-1]
    if machine_state not in rule_for(rules, row.provider, row.purchase).billed_states:
        return Fraction(0)
    return pico_per_hour(row, lease.cards, lease.watts or Decimal(0)) * (1 + tax_rate(row))


def _amount_text(money: Money | None) -> str:
    return UNPRICED if money is None else money_text(money)

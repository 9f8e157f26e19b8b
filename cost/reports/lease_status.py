"""What every machine has cost by now, and which of those still held has nobody looking after it. Changes nothing."""

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
from cost.reports.csv_json import UNPRICED

IDLE_NS = 3600 * 10**9
"""A machine that has had nothing to do for so long is worth a word."""


@dataclass(frozen=True)
class LeaseStatus:
    """A lease with what it has cost, as reports have it: tax and corrections are in. Amounts are None where there is no
    price."""

    state: LeaseState
    cost: Money | None
    per_day: Money | None
    unheard_since_ns: int | None
    """Still held, and no driver has said so since then; None: ended, or looked after."""
    idle_since_ns: int | None
    """Still held, and nothing has run on it since then; None: ended, or busy."""
    wasted: Money | None
    """What it has cost since then: since it was last heard of, else since it last had something to do."""
    doing: str | None = RUNNING
    """Still held, and in this state (`running`, `stopped` ...); None: ended."""

    @property
    def alert(self) -> str | None:
        """A sentence on a machine that costs for nothing, and the command that ends it; None: all is well."""
        lease_id = self.state.lease.lease_id
        if self.doing != RUNNING and not self.per_day:
            return None
        if self.unheard_since_ns is not None:
            what = f"no driver has been heard since {instant_text(self.unheard_since_ns)}"
        elif self.idle_since_ns is not None:
            what = f"nothing has run on it since {instant_text(self.idle_since_ns)}"
        else:
            return None
        return (
            f"lease {lease_id} is held, and {what}: it has cost {_shown(self.wasted)} since then, and goes on at "
            f"{_shown(self.per_day)} a day. Close it with: python -m cost leases close {lease_id}"
        )


def lease_statuses(
    ledger: Ledger,
    book: PriceBook,
    now_ns: int,
    *,
    only_open: bool = False,
    rules: Sequence[BillingRule] | None = None,
) -> list[LeaseStatus]:
    """Every lease, in the order they began.

    Raises:
        PriceError: a price or a billing rule is missing that a lease was opened with.
    """
    rules = billing_rules(book) if rules is None else rules
    busy, last_end = set(), dict[str, int]()
    for usage in ledger.usages.find():
        lease_id = usage.key.lease_id
        if usage.to_ns is None:
            busy.add(lease_id)
        else:
            last_end[lease_id] = max(usage.to_ns, last_end.get(lease_id, 0))
    every, found = ledger.leases.find(), []
    with ledger.read() as connection:
        corrected = queries.corrections_by_lease(connection)
    for state in ledger.leases.find(only_open=only_open):
        lease_id = state.lease.lease_id
        idle_since = None if lease_id in busy else last_end.get(lease_id, state.from_ns)
        more = corrected.get(lease_id, 0)
        found.append(
            _lease_status(
                state, book, rules, now_ns, idle_since, more, partial(load_charge_inputs, ledger, book, every)
            )
        )
    return found


def _lease_status(
    state: LeaseState,
    book: PriceBook,
    rules: Sequence[BillingRule],
    now_ns: int,
    idle_since_ns: int | None,
    corrected_pico: int,
    at: Callable[[int], ChargeInputs],
) -> LeaseStatus:
    lease, unheard_since = state.lease, None
    if state.to_ns is not None or (idle_since_ns is not None and now_ns - idle_since_ns < IDLE_NS):
        idle_since_ns = None
    if state.to_ns is None and now_ns - state.last_heartbeat_ns >= SILENT_NS:
        unheard_since = state.last_heartbeat_ns
    other = at(now_ns)
    changed = change_at(other.state_changes, lease.lease_id, now_ns)
    doing = None if state.to_ns is not None else changed.state if changed else RUNNING
    segments, rows = charge_lease(state, book, rules, now_ns, other)
    if not all(segment.price_hash for segment in segments):
        return LeaseStatus(state, None, None, unheard_since, idle_since_ns, None, doing)
    cost = total_with_tax(segments, rows)
    since = unheard_since if unheard_since is not None else idle_since_ns
    wasted = None if since is None else cost - total_with_tax(*charge_lease(state, book, rules, since, at(since)))
    prices = tuple(r for r in rows.values() if r.per in TIME_UNITS)
    per_day = int(_hourly(state, book, prices, now_ns, other.commitment_usage, rules, doing or RUNNING) * 24)
    money = [None if pico is None else Money(pico, lease.currency) for pico in (cost + corrected_pico, per_day, wasted)]
    return LeaseStatus(state, money[0], money[1], unheard_since, idle_since_ns, money[2], doing)


def _hourly(
    state: LeaseState,
    book: PriceBook,
    prices: tuple[PriceRow, ...],
    now_ns: int,
    used: commitments.CommitmentUsage,
    rules: Sequence[BillingRule],
    doing: str,
) -> Fraction:
    """What the machine goes on to cost an hour, in 1e-12: its share of a commitment, or its price now."""
    covered, lease = used.covered.get(state.lease.lease_id), state.lease
    if covered is not None and (now_ns < covered.commitment.to_ns or not prices):
        return commitments.drawdown_rate(covered.commitment, lease, book) * NS_PER_HOUR
    row = in_force(prices, now_ns) or prices[-1]
    if doing not in rule_for(rules, row.provider, row.purchase).billed_states:
        return Fraction(0)
    return pico_per_hour(row, lease.cards, lease.watts or Decimal(0)) * (1 + tax_rate(row))


def _shown(money: Money | None) -> str:
    return UNPRICED if money is None else money_text(money)

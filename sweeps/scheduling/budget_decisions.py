"""Decisions by a budget snapshot: may a trial start, how much is reserved for it, must the sweep stop, which warnings
are due.

Pure functions. `sweeps.scheduling.budget_controller` reads the snapshots and carries the decisions out.

Tested in tests/sweeps/scheduling/test_budget_controller.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import floor

from cost.budgets.budget import scope_name
from cost.budgets.snapshot import BudgetSnapshot, CardsInUse, Limit
from cost.money import Money, money_text
from sweeps.scheduling.cost_bound import CostBound

WARN_AT_PERCENT = (50, 80, 95)


@dataclass(frozen=True)
class BudgetReason:
    """Why a trial may not start or must stop: the limit, and a sentence for a person."""

    limit: Limit
    text: str


@dataclass(frozen=True)
class SpendingWarning:
    """The largest of `percents` of a limit is spent; the smaller ones were passed since the last warning."""

    limit: Limit
    percents: Mapping[int, str]
    """The key under which each percentage is recorded, so that it is reported once."""
    text: str


def limit_without_room(
    snapshot: BudgetSnapshot, need: CostBound, currency: str, *, lease_id: str | None, chosen_pico: int = 0
) -> BudgetReason | None:
    """The first limit that a further attempt does not fit under.

    Args:
        need: what is to be reserved for the attempt.
        currency: of the machine.
        lease_id: the machine that the attempt uses; None: it is not acquired yet, and `need` includes tax.
        chosen_pico: bounds of attempts that were chosen before and have no reservation yet.
    """
    pico = need.pico + chosen_pico
    for limit in snapshot.limits:
        own = limit.amount.currency
        used = snapshot.spent(limit.scope, own)
        if lease_id is not None:
            used += snapshot.reserved(limit.scope, own, {lease_id: pico})
        else:
            used += snapshot.reserved(limit.scope, own) + snapshot.convert(Money(pico, currency), own)
        if used > limit.amount:
            what = f"a trial needs {money_text(Money(need.pico, currency))} ({need.basis})"
            return BudgetReason(limit, limit_text(snapshot, limit, what))
    return None


def limit_reached(snapshot: BudgetSnapshot) -> BudgetReason | None:
    """The first limit that is spent."""
    for limit in snapshot.limits:
        if snapshot.spent(limit.scope, limit.amount.currency) >= limit.amount:
            return BudgetReason(limit, limit_text(snapshot, limit, "nothing is left"))
    return None


def limit_reached_within(snapshot: BudgetSnapshot, now_ns: int, duration_ns: int, work: str) -> BudgetReason | None:
    """The first limit that would be spent before some work ends during which a trainer cannot be stopped.

    Args:
        duration_ns: how long the work takes.
        work: its name for a person, such as `an evaluation`.
    """
    for limit in snapshot.limits:
        spent_at_ns = snapshot.spent_at_ns(limit)
        if spent_at_ns is not None and now_ns + duration_ns > spent_at_ns:
            what = f"{work} of {duration_ns / 1e9:.0f} s does not fit"
            return BudgetReason(limit, limit_text(snapshot, limit, what))
    return None


def trial_limit_reached(
    snapshot: BudgetSnapshot, sweep_id: str, trial_id: str, limit: Money, running: CardsInUse | None = None
) -> BudgetReason | None:
    """Whether a trial has cost as much as `budget.trial_limit` allows. `running`: the cards of its running attempt."""
    spent = snapshot.trial_spent(sweep_id, trial_id, limit.currency, running)
    if spent < limit:
        return None
    text = f"trial {trial_id} has cost {money_text(spent)} and budget.trial_limit is {limit}"
    return BudgetReason(Limit(f"trial:{trial_id}", limit, "budget.trial_limit"), text)


def amount_to_reserve(expected: CostBound | None, left_pico: int | None, cards: Decimal) -> CostBound | None:
    """What to reserve for an attempt; None: nothing is known about its cost.

    Args:
        expected: what the attempt is expected to cost at most; None: not known.
        left_pico: what `budget.trial_limit` leaves for the cards of the trial; None: there is no such limit.
        cards: cards of the trial.
    """
    if left_pico is None:
        return expected
    paid_for = expected.cards if expected else cards
    at_most = floor(left_pico * Fraction(paid_for) / Fraction(cards))
    if expected is not None and expected.pico <= at_most:
        return expected
    return CostBound(at_most, paid_for, "budget.trial_limit")


def free_amount(snapshot: BudgetSnapshot, currency: str) -> int:
    """What the tightest limit has left, in 1e-12 of a currency; 0 or more. There must be a limit."""
    left = []
    for limit in snapshot.limits:
        own = limit.amount.currency
        free = limit.amount - snapshot.spent(limit.scope, own) - snapshot.reserved(limit.scope, own)
        left.append(snapshot.convert(free, currency).pico)
    return max(0, min(left))


def due_warnings(snapshot: BudgetSnapshot, given: Collection[str]) -> list[SpendingWarning]:
    """Warnings about limits that are spent to 50, 80 or 95 %. `given`: the keys of earlier warnings."""
    found = []
    for limit in snapshot.limits:
        name = scope_name(limit.scope, snapshot.at_ns)
        spent = snapshot.spent(limit.scope, limit.amount.currency)
        keys = {percent: f"{name}:{limit.amount}:{percent}" for percent in WARN_AT_PERCENT}
        passed = {p: key for p, key in keys.items() if spent.pico * 100 >= limit.amount.pico * p and key not in given}
        if passed:
            found.append(SpendingWarning(limit, passed, limit_text(snapshot, limit, f"{max(passed)} % is spent")))
    return found


def limit_text(snapshot: BudgetSnapshot, limit: Limit, what: str) -> str:
    """A sentence about a limit, with what is spent and reserved under it."""
    currency = limit.amount.currency
    reserved = snapshot.reserved(limit.scope, currency)
    running = f", {money_text(reserved)} reserved for running trials" if reserved else ""
    spent = money_text(snapshot.spent(limit.scope, currency))
    name = scope_name(limit.scope, snapshot.at_ns)
    return f"{name}: {what}: limit {limit.amount} ({limit.source}), {spent} spent{running}"

"""A leased machine with a price, and attempts with reservations, on both databases."""

from __future__ import annotations

from decimal import Decimal

import pytest

from cost.ledger.ledger import Ledger
from cost.ledger.reservations import Reservation
from cost.money import Money
from cost.records import UsageKey
from tests.cost.reports.test_report import row

USD = 10**12


@pytest.fixture
def place(any_database: str) -> str:
    return any_database


@pytest.fixture
def machine(ledger, make_lease) -> Ledger:
    """A ledger with lease L1: eight cards at 1 USD per card and hour, sweep s1 attached."""
    ledger.leases.open(make_lease("L1", sku="box", provider="cloud", price_hash=row().hash))
    ledger.leases.attach("L1", "s1")
    return ledger


def start(ledger: Ledger, trial: str, amount: str, *, lease: str = "L1", sweep: str = "s1") -> UsageKey:
    """Start an attempt on one card, with a reservation, in stage smoke."""
    key = UsageKey(lease, trial, 1)
    with ledger.transaction():
        ledger.reservations.add(Reservation(key, sweep, "smoke", Money.parse(amount), Decimal(1), "as configured"))
        ledger.usages.start(key, sweep, Decimal(1), {"stage": "smoke"})
    return key

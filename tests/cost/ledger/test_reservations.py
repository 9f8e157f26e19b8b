"""Reservations of running attempts, on both databases."""

from __future__ import annotations

import threading
from decimal import Decimal

import pytest

from cost.ledger.ledger import Ledger
from cost.ledger.reservations import Reservation
from cost.money import Money
from cost.records import LedgerError, UsageKey
from tests.cost.reports.test_report import row

USD = 10**12


def key(trial: str = "t1", attempt: int = 1, lease: str = "L1") -> UsageKey:
    return UsageKey(lease, trial, attempt)


def of(
    key: UsageKey, amount: str = "5 USD", *, sweep: str = "s1", stage: str = "smoke", cards: str = "1"
) -> Reservation:
    return Reservation(key, sweep, stage, Money.parse(amount), Decimal(cards), "as configured")


@pytest.fixture
def held(ledger, make_lease):
    ledger.leases.open(make_lease("L1", sku="box", provider="cloud", price_hash=row().hash))
    ledger.leases.attach("L1", "s1")
    return ledger


def start(ledger: Ledger, one: UsageKey, amount: str = "5 USD", sweep: str = "s1") -> None:
    with ledger.transaction():
        ledger.reservations.add(of(one, amount, sweep=sweep))
        ledger.usages.start(one, sweep, Decimal(1), {"stage": "smoke"})


def amounts(ledger: Ledger) -> dict[str, str]:
    return {r.key.trial_id: str(r.amount) for r in ledger.reservations.find_open()}


def test_a_reservation_is_open_while_its_attempt_holds_cards_and_no_longer(held):
    start(held, key("t1"))
    start(held, key("t2"), "7 USD")
    assert amounts(held) == {"t1": "5 USD", "t2": "7 USD"}
    held.usages.end(key("t1"), "COMPLETED")
    assert amounts(held) == {"t2": "7 USD"}
    held.usages.end(key("t2"), "FAILED")
    assert amounts(held) == {}
    start(held, key("t2", 2), "3 USD")
    assert amounts(held) == {"t2": "3 USD"}


def test_the_latest_reservation_of_an_attempt_counts(held):
    start(held, key("t1"), "100 USD")
    held.reservations.add(of(key("t1"), "5 USD"))
    assert amounts(held) == {"t1": "5 USD"}


def test_a_start_that_is_undone_leaves_no_reservation(held):
    def fail() -> None:
        with held.transaction():
            held.usages.end(key("t1"), "COMPLETED")
            held.reservations.add(of(key("t2")))
            assert amounts(held) == {"t2": "5 USD"}
            raise RuntimeError

    start(held, key("t1"))
    with pytest.raises(RuntimeError):
        fail()
    assert amounts(held) == {"t1": "5 USD"}


def test_another_driver_sees_it_and_frees_it_by_closing_the_usages_of_a_dead_one(place, held, clock):
    start(held, key("t1"))
    with Ledger.open(place, clock) as other:
        assert amounts(other) == {"t1": "5 USD"}
        other.usages.end(key("t1"), "LOST", at_ns=clock.utc_ns(), end_estimated=True)
        assert amounts(other) == amounts(held) == {}


def test_a_reservation_below_zero_is_refused(held):
    with pytest.raises(LedgerError, match="zero or more"):
        held.reservations.add(of(key(), "-1 USD"))


def test_drivers_that_want_the_last_of_a_budget_at_the_same_moment_do_not_both_get_it(place, held, clock, make_lease):
    """Eight drivers, each on a machine of its own, and room for three trials."""
    limit, taken, barrier = 15 * USD, [], threading.Barrier(8)
    for number in range(8):
        held.leases.open(make_lease(f"M{number}", sku="box", provider="cloud", price_hash=row().hash))
        held.leases.attach(f"M{number}", f"d{number}")

    def drive(number: int) -> None:
        with Ledger.open(place, clock) as ledger:
            mine = key(f"t{number}", lease=f"M{number}")
            barrier.wait()
            with ledger.reservations.exclusive():
                if sum(r.amount.pico for r in ledger.reservations.find_open()) + 5 * USD <= limit:
                    ledger.reservations.add(of(mine, sweep=f"d{number}"))
                    ledger.usages.start(mine, f"d{number}", Decimal(1), {})
                    taken.append(number)

    threads = [threading.Thread(target=drive, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 3
    assert len(held.reservations.find_open()) == 3

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


def reservation(
    key: UsageKey, amount: str = "5 USD", *, sweep: str = "s1", stage: str = "smoke", cards: str = "1"
) -> Reservation:
    return Reservation(key, sweep, stage, Money.parse(amount), Decimal(cards), "as configured")


@pytest.fixture
def leased_box(ledger, make_lease):
    ledger.leases.open(make_lease("L1", sku="box", provider="cloud", price_hash=row().hash))
    ledger.leases.attach("L1", "s1")
    return ledger


def start(ledger: Ledger, usage_key: UsageKey, amount: str = "5 USD", sweep: str = "s1") -> None:
    with ledger.transaction():
        ledger.reservations.add(reservation(usage_key, amount, sweep=sweep))
        ledger.usages.start(usage_key, sweep, Decimal(1), {"stage": "smoke"})


def amounts(ledger: Ledger) -> dict[str, str]:
    return {r.key.trial_id: str(r.amount) for r in ledger.reservations.find_open()}


def test_a_reservation_is_open_while_its_attempt_uses_cards(leased_box):
    start(leased_box, key("t1"))
    start(leased_box, key("t2"), "7 USD")
    assert amounts(leased_box) == {"t1": "5 USD", "t2": "7 USD"}
    leased_box.usages.end(key("t1"), "COMPLETED")
    assert amounts(leased_box) == {"t2": "7 USD"}
    leased_box.usages.end(key("t2"), "FAILED")
    assert amounts(leased_box) == {}
    start(leased_box, key("t2", 2), "3 USD")
    assert amounts(leased_box) == {"t2": "3 USD"}


def test_the_latest_reservation_of_an_attempt_counts(leased_box):
    start(leased_box, key("t1"), "100 USD")
    leased_box.reservations.add(reservation(key("t1"), "5 USD"))
    assert amounts(leased_box) == {"t1": "5 USD"}


def test_a_start_that_is_rolled_back_leaves_no_reservation(leased_box):
    def fail() -> None:
        with leased_box.transaction():
            leased_box.usages.end(key("t1"), "COMPLETED")
            leased_box.reservations.add(reservation(key("t2")))
            assert amounts(leased_box) == {"t2": "5 USD"}
            raise RuntimeError

    start(leased_box, key("t1"))
    with pytest.raises(RuntimeError):
        fail()
    assert amounts(leased_box) == {"t1": "5 USD"}


def test_another_driver_sees_a_reservation_and_releases_it_by_closing_the_usage(place, leased_box, clock):
    start(leased_box, key("t1"))
    with Ledger.open(place, clock) as other:
        assert amounts(other) == {"t1": "5 USD"}
        other.usages.end(key("t1"), "LOST", at_ns=clock.utc_ns(), end_estimated=True)
        assert amounts(other) == amounts(leased_box) == {}


def test_a_negative_reservation_is_refused(leased_box):
    with pytest.raises(LedgerError, match="zero or more"):
        leased_box.reservations.add(reservation(key(), "-1 USD"))


def test_drivers_that_reserve_at_the_same_moment_do_not_exceed_the_limit(place, leased_box, clock, make_lease):
    """Eight drivers on eight machines; the limit allows three trials."""
    limit, taken, barrier = 15 * USD, [], threading.Barrier(8)
    for number in range(8):
        leased_box.leases.open(make_lease(f"M{number}", sku="box", provider="cloud", price_hash=row().hash))
        leased_box.leases.attach(f"M{number}", f"d{number}")

    def drive(number: int) -> None:
        with Ledger.open(place, clock) as ledger:
            mine = key(f"t{number}", lease=f"M{number}")
            barrier.wait()
            with ledger.reservations.exclusive():
                if sum(r.amount.pico for r in ledger.reservations.find_open()) + 5 * USD <= limit:
                    ledger.reservations.add(reservation(mine, sweep=f"d{number}"))
                    ledger.usages.start(mine, f"d{number}", Decimal(1), {})
                    taken.append(number)

    threads = [threading.Thread(target=drive, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 3
    assert len(leased_box.reservations.find_open()) == 3

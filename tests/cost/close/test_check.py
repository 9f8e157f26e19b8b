"""What each check finds after rows of the ledger were changed directly."""

from __future__ import annotations

from decimal import Decimal

import pytest
from sqlalchemy import insert, update

from cost.clock import NS_PER_SECOND
from cost.close.check import CHECKS, run_checks
from cost.ledger import schema
from cost.ledger.ledger import HEARTBEAT_NS, SILENT_NS, Ledger
from cost.prices.book import PriceBook
from cost.records import UsageKey

KEY = UsageKey("L1", "t1", 1)
HOUR = 3600


@pytest.fixture
def book() -> PriceBook:
    return PriceBook.load()


@pytest.fixture
def finished(ledger, make_lease, clock, book) -> Ledger:
    """A ledger with one finished trial on a machine of eight cards."""
    clock.utc = 1_795_860_000 * NS_PER_SECOND
    ledger = Ledger(ledger.database, clock)
    row = book.in_force("lambda-h100x8", clock.utc)
    ledger.leases.open(make_lease(sku=row.sku, provider=row.provider, price_hash=row.hash, purchase=row.purchase))
    ledger.leases.attach("L1", "s1")
    ledger.usages.start(KEY, "s1", Decimal(8), {})
    for number in range(1, 3):
        clock.advance(HEARTBEAT_NS)
        ledger.heartbeat("L1", [KEY])
        ledger.usages.add_phases(KEY, number, {"train": 8 * HEARTBEAT_NS})
        ledger.events.append("s1", "step", {}, str(number))
    ledger.usages.end(KEY, "COMPLETED")
    ledger.leases.detach("L1", "s1", "done")
    return ledger


@pytest.fixture
def found(finished, book, clock):
    return lambda: [finding.check for finding in run_checks(finished, book, clock.utc)]


def tamper(ledger: Ledger, statement) -> None:
    with ledger.database.write() as connection:
        connection.execute(statement)


def test_an_intact_ledger_has_no_findings(found):
    assert found() == []


def test_a_changed_interval_is_found(finished, found):
    tamper(finished, update(schema.usage_end).values(to_ns=schema.usage_end.c.to_ns - 3 * HEARTBEAT_NS))
    assert {"not_negative", "monotone"} <= set(found())


def test_a_usage_outside_its_lease_is_found(finished, found):
    tamper(finished, update(schema.usage_end).values(to_ns=schema.usage_end.c.to_ns + HOUR * NS_PER_SECOND))
    assert "monotone" in found()


def test_more_cards_than_the_machine_has_are_found(finished, found):
    rows = {"lease_id": "L1", "trial_id": "t2", "attempt": 1, "sweep_id": "s1", "cards_micro": 4_000_000}
    with finished.database.write() as connection:
        usage = connection.execute(schema.usage.select()).one()
        more = {"from_ns": usage.from_ns, "driver_id": usage.driver_id, "written_ns": usage.written_ns}
        key = connection.execute(insert(schema.usage), rows | more).inserted_primary_key
        assert key is not None
        end = connection.execute(schema.usage_end.select()).one()._asdict()
        connection.execute(insert(schema.usage_end), end | {"usage_id": key[0]})
    assert found() == ["cards"], "the cost still sums to the charge"


def test_a_report_of_more_time_than_the_usage_lasted_is_found(finished, found):
    tamper(finished, update(schema.phase).values(card_ns=schema.phase.c.card_ns * 2))
    assert found() == ["over_reported"]


def test_a_missing_event_is_found(finished, found):
    tamper(finished, schema.event.delete().where(schema.event.c.sequence == 1))
    assert found() == ["idempotency"]


def test_an_unknown_category_is_found(finished, found, clock):
    row = {"correction_id": "c", "lease_id": "L1", "sweep_id": "s1", "trial_id": "", "attempt": 0}
    row |= {"category": "bribe", "pico": 1, "currency": "USD", "at_ns": clock.utc, "reason": ""}
    tamper(finished, insert(schema.correction).values(**row, driver_id=finished.driver_id, written_ns=clock.utc))
    assert found() == ["categories"]


def test_an_open_lease_without_heartbeats_is_found(finished, found, make_lease, clock, book):
    row = book.in_force("lambda-h100x8", clock.utc)
    finished.leases.open(make_lease("L2", sku=row.sku, provider=row.provider, price_hash=row.hash))
    clock.advance(SILENT_NS - 1)
    assert found() == []
    clock.advance(1)
    assert found() == ["closed"]


def test_a_lease_without_a_price_is_found_also_after_its_price_was_removed(finished, make_lease, clock, book):
    finished.leases.open(make_lease("L2", sku="without-price", price_hash=None))
    clock.advance_seconds(1)
    (finding,) = run_checks(finished, book, clock.utc)
    assert (finding.check, finding.where) == ("priced", "lease L2")
    assert "python -m cost prices add without-price" in finding.what
    gone = run_checks(finished, PriceBook(()), clock.utc)
    assert [f.check for f in gone] == ["priced", "priced"]


def test_every_check_has_a_docstring():
    assert all((check.__doc__ or "").strip() for check in CHECKS.values())

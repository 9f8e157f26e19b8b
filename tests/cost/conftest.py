"""Ledgers to test on, in each of the databases of `tests/conftest.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from sqlalchemy import func, select

from cost.clock import FakeClock
from cost.ledger import schema
from cost.ledger.ledger import Ledger
from cost.records import Lease


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a test's ledger is: a SQLite file, and PostgreSQL too for tests that take `any_database`."""
    if "any_database" in request.fixturenames:
        return request.getfixturevalue("any_database")
    return str(tmp_path / "ledger.db")


@pytest.fixture
def ledger(place: str, clock: FakeClock) -> Iterator[Ledger]:
    with Ledger.open(place, clock) as opened:
        yield opened


@pytest.fixture
def make_lease() -> Callable[..., Lease]:
    def make(lease_id: str = "L1", **changes) -> Lease:
        fields = {
            "lease_id": lease_id,
            "instance_id": f"host-of-{lease_id}",
            "machine": "h100x8",
            "sku": "own",
            "provider": "own",
            "cards": 8,
            "currency": "USD",
            "price_hash": None,
            "watts": Decimal(700),
        }
        return Lease(**{**fields, **changes})

    return make


@pytest.fixture
def leased(ledger, make_lease):
    ledger.leases.open(make_lease())
    ledger.leases.attach("L1", "s1")
    return ledger


def rows_in(ledger: Ledger) -> dict[str, int]:
    with ledger.read() as connection:
        return {
            t.name: connection.execute(select(func.count()).select_from(t)).scalar_one()
            for t in schema.metadata.sorted_tables
        }

"""Machines that are opened, closed, and come to by sweeps, on SQLite and on PostgreSQL."""

from __future__ import annotations

from decimal import Decimal

import pytest

from cost.clock import NS_PER_SECOND
from cost.ledger import queries
from cost.records import IntegrityError, UsageKey

KEY = UsageKey("L1", "t1", 1)


def test_a_lease_is_known_with_all_its_terms(ledger, make_lease, clock):
    lease = make_lease(tags={"team": "a"}, owner="ann", watts=Decimal("412.5"), region="eu", price_hash="f" * 64)
    ledger.leases.open(lease)
    state = ledger.leases.get("L1")
    assert state.from_ns == clock.utc
    assert (state.to_ns, state.sweeps) == (None, ())
    assert {**vars(state.lease), "from_ns": None} == vars(lease)


def test_a_machine_has_one_open_lease_at_most(leased, make_lease, clock):
    with pytest.raises(IntegrityError, match="still open"):
        leased.leases.open(make_lease("L2", instance_id="host-of-L1"))
    assert leased.leases.open_on("host-of-L1").lease.lease_id == "L1"
    clock.advance_seconds(10)
    leased.leases.close("L1", "done", released=True)
    assert leased.leases.get("L1").released
    assert leased.leases.open_on("host-of-L1") is None
    with pytest.raises(IntegrityError, match="before lease L1"):
        leased.leases.open(make_lease("L2", instance_id="host-of-L1", from_ns=clock.utc - 1))
    leased.leases.open(make_lease("L2", instance_id="host-of-L1"))


def test_the_last_sweep_to_detach_closes_the_lease(leased, clock):
    leased.leases.attach("L1", "s2")
    clock.advance_seconds(5)
    assert not leased.leases.detach("L1", "s1", "done")
    assert leased.leases.get("L1").sweeps == ("s2",)
    clock.advance_seconds(5)
    assert leased.leases.detach("L1", "s2", "done")
    assert leased.leases.get("L1").to_ns == clock.utc
    with pytest.raises(IntegrityError, match="closed"):
        leased.leases.attach("L1", "s3")


def test_a_lease_opened_by_hand_outlives_its_sweeps(ledger, make_lease, clock):
    ledger.leases.open(make_lease(opened_by="hand", from_ns=clock.utc - 3600 * NS_PER_SECOND))
    ledger.leases.attach("L1", "s1")
    assert not ledger.leases.detach("L1", "s1", "done")
    assert ledger.leases.get("L1").to_ns is None


def test_a_sweep_can_leave_and_come_back(leased, clock):
    leased.leases.attach("L1", "s2")
    clock.advance_seconds(1)
    leased.leases.detach("L1", "s1", "interrupted")
    clock.advance_seconds(1)
    leased.leases.attach("L1", "s1")
    with leased.read() as connection:
        held = [(a.from_ns - clock.utc, a.to_ns) for a in queries.attachments(connection, ["L1"]) if a.sweep_id == "s1"]
    assert held == [(-2 * NS_PER_SECOND, clock.utc - NS_PER_SECOND), (0, None)]


def test_no_sweep_leaves_while_its_trials_hold_cards(leased):
    leased.usages.start(KEY, "s1", Decimal(1), {})
    with pytest.raises(IntegrityError, match="still uses cards"):
        leased.leases.detach("L1", "s1", "done")
    with pytest.raises(IntegrityError, match="still open"):
        leased.leases.close("L1", "done")

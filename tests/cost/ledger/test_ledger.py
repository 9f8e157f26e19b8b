"""What every ledger does, on SQLite and on PostgreSQL."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from decimal import Decimal

import pytest
from sqlalchemy import select

from cost.ledger import schema
from cost.records import Correction, IntegrityError, LedgerError, UsageKey
from tests.cost.conftest import rows_in

KEY = UsageKey("L1", "t1", 1)


def test_writing_every_fact_twice_changes_nothing(leased, make_lease, clock):
    def write():
        leased.leases.open(make_lease())
        leased.leases.attach("L1", "s1")
        leased.usages.start(KEY, "s1", Decimal("0.5"), {"stage": "smoke"})
        leased.usages.add_phases(KEY, 1, {"train": 5, "rollout": 7})
        leased.usages.set_labels(KEY, {"state": "RUNNING"})
        leased.heartbeat("L1", [KEY])
        leased.events.append("s1", "planned", {"trials": [1, 2]}, "plan")
        leased.corrections.add(Correction("c1", "L1", "credit", -(10**25), "USD", clock.utc, "credit note"))

    write()
    before = rows_in(leased)
    write()
    assert rows_in(leased) == before
    leased.usages.end(KEY, "COMPLETED")
    leased.usages.end(KEY, "COMPLETED")
    assert leased.leases.detach("L1", "s1", "done")
    before = rows_in(leased)
    leased.usages.end(KEY, "COMPLETED")
    assert leased.leases.detach("L1", "s1", "done")
    leased.leases.close("L1", "done")
    assert rows_in(leased) == before


def test_the_same_fact_with_another_content_is_an_integrity_error(leased, make_lease, clock):
    leased.usages.start(KEY, "s1", Decimal(1), {})
    leased.usages.add_phases(KEY, 1, {"train": 5})
    leased.events.append("s1", "planned", {"n": 1}, "plan")
    leased.corrections.add(Correction("c1", "L1", "credit", -5, "USD", clock.utc, "credit note"))
    before = rows_in(leased)
    with pytest.raises(IntegrityError, match="other content"):
        leased.leases.open(make_lease(cards=4))
    with pytest.raises(IntegrityError, match="with 1 cards"):
        leased.usages.start(KEY, "s1", Decimal(2), {})
    with pytest.raises(IntegrityError, match="exists as"):
        leased.usages.add_phases(KEY, 1, {"train": 6})
    with pytest.raises(IntegrityError, match="exists as"):
        leased.usages.add_phases(KEY, 1, {"train": 5, "sync": 1})
    with pytest.raises(IntegrityError, match="exists with other content"):
        leased.events.append("s1", "planned", {"n": 2}, "plan")
    with pytest.raises(IntegrityError, match="exists with other content"):
        leased.events.append("s1", "replanned", {"n": 1}, "plan")
    with pytest.raises(IntegrityError, match="other content"):
        leased.corrections.add(Correction("c1", "L1", "credit", -6, "USD", clock.utc, "credit note"))
    assert rows_in(leased) == before
    leased.usages.end(KEY, "COMPLETED")
    with pytest.raises(IntegrityError, match="ended as COMPLETED; now ended as FAILED"):
        leased.usages.end(KEY, "FAILED")


def test_a_transaction_is_all_or_nothing(leased):
    before = rows_in(leased)
    with pytest.raises(RuntimeError), leased.transaction():  # noqa: PT012
        leased.usages.start(KEY, "s1", Decimal(1), {})
        leased.events.append("s1", "started", {}, "t1/1")
        raise RuntimeError("killed here")
    assert rows_in(leased) == before
    with leased.transaction():
        leased.usages.start(KEY, "s1", Decimal(1), {})
        with leased.transaction():
            leased.events.append("s1", "started", {}, "t1/1")
        assert [e.kind for e in leased.events.read("s1")] == ["started"], "a transaction sees what it wrote"
    assert leased.usages.find()[0].key == KEY


def test_an_error_inside_a_transaction_cannot_be_swallowed(leased):
    leased.events.append("s1", "planned", {}, "plan")
    before = rows_in(leased)
    with pytest.raises(LedgerError, match="rolled back"), leased.transaction():  # noqa: PT012
        leased.events.append("s1", "more", {}, "more")
        with contextlib.suppress(IntegrityError):
            leased.events.append("s1", "planned", {"other": 1}, "plan")
    assert rows_in(leased) == before
    leased.events.append("s1", "more", {}, "more")


@pytest.mark.parametrize("pico", [0, 1, -1, 2**63, -(2**63) - 1, 10**38 - 1, 1 - 10**38])
def test_amounts_of_up_to_38_digits_are_kept_exactly(leased, clock, pico):
    leased.corrections.add(Correction("c1", "L1", "credit", pico, "USD", clock.utc, "test"))
    with leased.read() as connection:
        kept = connection.execute(select(schema.correction.c.pico)).scalar_one()
    assert kept == pico
    assert type(kept) is int


def test_an_amount_too_large_to_keep_is_an_error(leased, clock):
    with pytest.raises(LedgerError, match="38 digits"):
        leased.corrections.add(Correction("c1", "L1", "credit", 10**38, "USD", clock.utc, "test"))


def test_a_correction_in_another_currency_is_refused(leased, clock):
    with pytest.raises(IntegrityError, match="USD"):
        leased.corrections.add(Correction("c1", "L1", "credit", 1, "CNY", clock.utc, "test"))


def test_a_correction_of_what_never_was_on_the_lease_or_is_yet_to_come_is_refused(leased, clock):
    leased.usages.start(KEY, "s1", Decimal(1), {})
    made = Correction("c1", "L1", "credit", -1, "USD", clock.utc, "test")
    for changes, message in (
        ({"at_ns": clock.utc + 1}, "in the future"),
        ({"sweep_id": "s9"}, "sweep 's9' never used lease L1; its sweeps were s1"),
        ({"sweep_id": "s1", "trial_id": "t9"}, "trial 't9' of sweep s1 never ran on lease L1"),
        ({"trial_id": "t1"}, "names trial t1 without its sweep"),
    ):
        with pytest.raises(LedgerError, match=message):
            leased.corrections.add(replace(made, **changes))
    assert leased.corrections.add(replace(made, sweep_id="s1", trial_id=KEY.trial_id))

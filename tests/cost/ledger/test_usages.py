"""Usages: cards that attempts use, on SQLite and on PostgreSQL."""

from __future__ import annotations

import contextlib
from decimal import Decimal

import pytest
from sqlalchemy import text

from cost.ledger import queries
from cost.ledger.ledger import HEARTBEAT_NS, Ledger
from cost.records import IntegrityError, LedgerError, UsageKey
from tests.cost.conftest import rows_in

KEY = UsageKey("L1", "t1", 1)


def test_usage_of_an_unknown_lease_is_refused(ledger):
    with pytest.raises(IntegrityError, match="lease L1 does not exist"):
        ledger.usages.start(KEY, "s1", Decimal(1), {})
    with pytest.raises(IntegrityError, match="has not been started"):
        ledger.usages.end(KEY, "COMPLETED")


def test_usage_by_a_sweep_that_is_not_attached_is_refused(leased):
    with pytest.raises(IntegrityError, match="not attached"):
        leased.usages.start(KEY, "s2", Decimal(1), {})


def test_more_cards_than_the_machine_has_are_refused(leased):
    leased.usages.start(KEY, "s1", Decimal("7.5"), {})
    with pytest.raises(IntegrityError, match=r"needs 1 cards, but 0\.5 of the 8"):
        leased.usages.start(UsageKey("L1", "t2", 1), "s1", Decimal(1), {})
    leased.usages.start(UsageKey("L1", "t2", 1), "s1", Decimal("0.5"), {})


@pytest.mark.parametrize("cards", [Decimal(0), Decimal(-1), Decimal("0.0000001"), Decimal("NaN")])
def test_an_invalid_number_of_cards_is_refused(leased, cards):
    with pytest.raises(LedgerError, match="number of cards"):
        leased.usages.start(KEY, "s1", cards, {})


def test_a_trial_does_not_overlap_itself(leased, clock):
    leased.usages.start(KEY, "s1", Decimal(1), {})
    with pytest.raises(IntegrityError, match="already uses cards"):
        leased.usages.start(UsageKey("L1", "t1", 2), "s1", Decimal(1), {})
    clock.advance_seconds(1)
    leased.usages.end(KEY, "FAILED")
    leased.usages.start(UsageKey("L1", "t1", 2), "s1", Decimal(1), {})


def test_a_usage_that_ends_before_it_starts_is_refused(leased, clock):
    leased.usages.start(KEY, "s1", Decimal(1), {})
    with pytest.raises(IntegrityError, match="before it starts"):
        leased.usages.end(KEY, "COMPLETED", at_ns=clock.utc - 1)


def test_negative_durations_are_refused_at_write_time(leased):
    leased.usages.start(KEY, "s1", Decimal(1), {})
    with pytest.raises(LedgerError, match="a whole number >= 0"):
        leased.usages.add_phases(KEY, 1, {"train": -1})
    with pytest.raises(LedgerError, match="is not a phase"):
        leased.usages.add_phases(KEY, 1, {"thinking": 1})


def test_the_same_trial_in_two_sweeps_on_one_lease_is_two_usages(leased, clock):
    leased.leases.attach("L1", "s2")
    for sweep in ("s1", "s2"):
        leased.usages.start(KEY, sweep, Decimal(1), {"sweep": sweep})
        leased.usages.add_phases(KEY, 1, {"train": len(leased.usages.find())})
        clock.advance_seconds(1)
        leased.usages.end(KEY, "COMPLETED")
    first, second = leased.usages.find()
    assert (first.labels["sweep"], second.labels["sweep"]) == ("s1", "s2")
    assert first.to_ns == second.from_ns
    with leased.read() as connection:
        assert [phases for _, phases in sorted(queries.phase_totals(connection).items())] == [
            {"train": 1},
            {"train": 2},
        ]


def test_labels_keep_their_history_and_the_latest_counts(leased):
    leased.usages.start(KEY, "s1", Decimal(1), {"stage": "smoke", "state": "RUNNING"})
    leased.usages.set_labels(KEY, {"state": "COMPLETED", "acc": "0.5"})
    assert leased.usages.find()[0].labels == {"stage": "smoke", "state": "COMPLETED", "acc": "0.5"}
    assert rows_in(leased)["label"] == 4


def test_heartbeats_extend_the_lease_and_the_open_usages(leased, clock):
    leased.usages.start(KEY, "s1", Decimal(1), {})
    clock.advance(HEARTBEAT_NS)
    leased.heartbeat("L1", [KEY])
    assert leased.usages.find()[0].last_heartbeat_ns == leased.leases.get("L1").last_heartbeat_ns == clock.utc
    leased.usages.end(KEY, "COMPLETED")
    ended = clock.utc
    clock.advance(HEARTBEAT_NS)
    leased.heartbeat("L1", [KEY])
    assert leased.usages.find()[0].last_heartbeat_ns == ended
    assert leased.leases.get("L1").last_heartbeat_ns == clock.utc


def test_cards_returned_by_another_driver_are_free_and_cards_granted_to_it_are_not(place, clock, make_lease):
    with Ledger.open(place, clock) as mine, Ledger.open(place, clock) as theirs:
        mine.leases.open(make_lease())
        mine.leases.attach("L1", "s1")
        cards = mine.leases.get("L1").lease.cards
        mine.usages.start(UsageKey("L1", "t1", 1), "s1", Decimal(cards - 1), {})
        theirs.usages.start(UsageKey("L1", "t2", 1), "s1", Decimal(1), {})
        for ledger in (mine, theirs):
            with pytest.raises(IntegrityError, match="but 0 of the"):
                ledger.usages.start(UsageKey("L1", "t3", 1), "s1", Decimal(1), {})
        theirs.usages.end(UsageKey("L1", "t2", 1), "COMPLETED")
        mine.usages.start(UsageKey("L1", "t3", 1), "s1", Decimal(1), {})
        mine.usages.end(UsageKey("L1", "t1", 1), "COMPLETED")
        theirs.usages.start(UsageKey("L1", "t4", 1), "s1", Decimal(cards - 1), {})


def test_cards_granted_in_a_transaction_that_was_rolled_back_are_free(leased):
    cards = leased.leases.get("L1").lease.cards
    with contextlib.suppress(RuntimeError), leased.transaction():
        leased.usages.start(KEY, "s1", Decimal(cards), {})
        raise RuntimeError
    leased.usages.start(UsageKey("L1", "t2", 1), "s1", Decimal(cards), {})


def test_an_attempt_that_had_ended_before_its_driver_died_is_not_lost(place, clock, make_lease):
    with Ledger.open(place, clock) as killed:
        killed.leases.open(make_lease())
        killed.leases.attach("L1", "s1")
        killed.usages.start(KEY, "s1", Decimal(1), {"state": "RUNNING"})
        killed.usages.set_labels(KEY, {"state": "COMPLETED"})
        with killed.database.write() as connection:
            connection.execute(text("UPDATE driver SET process_start = 'of another process'"))
    with Ledger.open(place, clock) as after:
        (closed,) = after.usages.close_dead()
        assert (closed.outcome, closed.end_estimated) == ("COMPLETED", True)

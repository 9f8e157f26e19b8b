"""Several drivers of one ledger: threads, races, clocks that differ or are set, and drivers that die."""

from __future__ import annotations

import threading
from decimal import Decimal

import pytest
from sqlalchemy import select, text

from cost.clock import NS_PER_SECOND, FakeClock
from cost.ledger import schema
from cost.ledger.ledger import HEARTBEAT_NS, SILENT_NS, Ledger
from cost.records import IntegrityError, UsageKey
from tests.cost.conftest import rows_in

KEY = UsageKey("L1", "t1", 1)


def test_two_drivers_with_slightly_different_clocks_can_close_a_lease(place, clock, make_lease):
    ahead = FakeClock(utc=clock.utc + 5_000_000)
    with Ledger.open(place, clock) as behind, Ledger.open(place, ahead) as other:
        behind.leases.open(make_lease())
        behind.leases.attach("L1", "s1")
        other.leases.attach("L1", "s2")
        other.usages.start(KEY, "s2", Decimal(1), {})
        behind.usages.end(KEY, "CANCELLED")
        other.usages.start(UsageKey("L1", "t2", 1), "s2", Decimal(1), {})
        other.usages.end(UsageKey("L1", "t2", 1), "COMPLETED")
        other.leases.detach("L1", "s2", "done")
        assert behind.leases.detach("L1", "s1", "done")
        assert behind.leases.get("L1").to_ns == ahead.utc
        assert [u.to_ns for u in behind.usages.find()] == [ahead.utc, ahead.utc]


def test_usage_of_a_driver_on_another_host_ends_at_its_last_heartbeat_once_it_is_silent(place, clock, make_lease):
    with Ledger.open(place, clock) as dead:
        dead.leases.open(make_lease())
        dead.leases.attach("L1", "s1")
        dead.usages.start(KEY, "s1", Decimal(1), {})
        clock.advance(HEARTBEAT_NS)
        dead.heartbeat("L1", [KEY])
        last = clock.utc
        with dead.database.write() as connection:
            connection.execute(text("UPDATE driver SET host = 'elsewhere'"))
    with Ledger.open(place, clock) as other:
        clock.advance(SILENT_NS - 1)
        assert other.usages.close_dead() == []
        clock.advance(1)
        (closed,) = other.usages.close_dead()
        assert (closed.to_ns, closed.outcome, closed.end_estimated) == (last, "LOST", True)
        assert other.usages.find() == [closed.__class__(**{**vars(closed), "wall": True})]
        assert other.leases.get("L1").to_ns is None, "a dead driver ends its usages, never the lease"
        assert other.usages.close_dead() == []
        other.usages.end(KEY, "COMPLETED")
        assert other.usages.find()[0].outcome == "LOST", "an estimated end stays"


def test_usage_of_a_running_driver_stays_open(place, clock, make_lease):
    with Ledger.open(place, clock) as slow, Ledger.open(place, clock) as other:
        slow.leases.open(make_lease())
        slow.leases.attach("L1", "s1")
        slow.usages.start(KEY, "s1", Decimal(1), {})
        clock.advance(100 * SILENT_NS)
        assert other.usages.close_dead() == []


def test_usage_of_a_driver_from_before_a_reboot_is_closed_at_once(place, clock, make_lease):
    with Ledger.open(place, clock) as before:
        before.leases.open(make_lease())
        before.leases.attach("L1", "s1")
        before.usages.start(KEY, "s1", Decimal(1), {})
        with before.database.write() as connection:
            earlier = select(schema.driver.c.process_start).scalar_subquery()
            connection.execute(schema.driver.update().values(process_start="another-boot/" + earlier))
    with Ledger.open(place, clock) as after:
        assert [usage.outcome for usage in after.usages.close_dead()] == ["LOST"]


@pytest.mark.parametrize("host", ["here", "elsewhere"])
def test_a_simulated_driver_does_not_close_usages_of_a_real_driver(place, clock, make_lease, host):
    with Ledger.open(place) as real:
        real.leases.open(make_lease())
        real.leases.attach("L1", "s1")
        real.usages.start(KEY, "s1", Decimal(1), {})
        if host == "elsewhere":
            with real.database.write() as connection:
                connection.execute(text("UPDATE driver SET host = 'elsewhere'"))
        far_ahead = FakeClock(utc=real.now_ns() + 1000 * SILENT_NS)
        with Ledger.open(place, far_ahead) as simulated:
            assert simulated.usages.close_dead() == []


def test_a_driver_whose_first_write_fails_can_write_after_it(ledger):
    with pytest.raises(RuntimeError), ledger.transaction():  # noqa: PT012
        ledger.events.append("s", "a", {}, "a")
        raise RuntimeError
    ledger.events.append("s", "b", {}, "b")
    assert [e.driver for e in ledger.events.read("s")] == [ledger.driver_id]
    assert rows_in(ledger)["driver"] == 1


def test_drivers_in_threads_lose_and_duplicate_no_rows(place, make_lease):
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with Ledger.open(place) as mine:
                for index in range(25):
                    mine.events.append("shared", "entry", {"by": number}, f"{number}-{index}")
                    mine.events.append("shared", "common", {"n": index}, f"common-{index}")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with Ledger.open(place, read_only=True) as reader:
        events = list(reader.events.read("shared"))
    assert [e.sequence for e in events] == list(range(1, 126)), "opened, migrated and numbered without a gap"
    assert len({e.key for e in events}) == 125


def test_one_of_many_concurrent_drivers_is_granted_the_last_card(place, make_lease):
    with Ledger.open(place) as first:
        first.leases.open(make_lease(cards=1))
        first.leases.attach("L1", "s1")
    barrier, outcomes = threading.Barrier(4), []

    def want(number: int) -> None:
        with Ledger.open(place) as mine:
            barrier.wait()
            try:
                mine.usages.start(UsageKey("L1", f"t{number}", 1), "s1", Decimal(1), {})
                outcomes.append("got it")
            except IntegrityError as error:
                outcomes.append(str(error).partition("cards, ")[2])

    threads = [threading.Thread(target=want, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["but 0 of the 1 cards of lease L1 are free"] * 3 + ["got it"]


def test_one_of_many_concurrent_drivers_opens_the_lease_of_a_machine(place, make_lease):
    Ledger.open(place).close()
    barrier, outcomes = threading.Barrier(4), []

    def rent(number: int) -> None:
        with Ledger.open(place) as mine:
            barrier.wait()
            try:
                mine.leases.open(make_lease(f"L{number}", instance_id="the one"))
                outcomes.append("opened")
            except IntegrityError:
                outcomes.append("refused")

    threads = [threading.Thread(target=rent, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["opened", "refused", "refused", "refused"]


def test_one_ledger_is_shared_by_threads(ledger):
    threads = [
        threading.Thread(target=lambda n=n: [ledger.events.append(f"s{n}", "e", {}, str(i)) for i in range(20)])
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(list(ledger.events.read(f"s{n}"))) for n in range(4)] == [20] * 4


def test_a_step_of_the_wall_clock_changes_no_interval_and_is_recorded(leased, clock):
    leased.usages.start(KEY, "s1", Decimal(1), {})
    clock.step_wall(-7200 * NS_PER_SECOND)
    clock.advance_seconds(30)
    leased.usages.end(KEY, "COMPLETED")
    (usage,) = leased.usages.find()
    assert usage.to_ns - usage.from_ns == 30 * NS_PER_SECOND
    leased.events.append("s", "e", {}, "k")
    with leased.read() as connection:
        assert connection.execute(select(schema.clock_step.c.step_ns)).scalars().all() == [-7200 * NS_PER_SECOND]


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_set_by_an_hour_between_two_drivers_loses_and_duplicates_no_time(place, make_lease, hours: int):
    clock = FakeClock(boot="boot-1")
    with Ledger.open(place, clock) as killed:
        killed.leases.open(make_lease())
        killed.leases.attach("L1", "s1")
        killed.usages.start(KEY, "s1", Decimal(1), {})
        clock.advance(HEARTBEAT_NS)
        killed.heartbeat("L1", [KEY])
        with killed.database.write() as connection:
            connection.execute(text("UPDATE driver SET process_start = 'of another process'"))
    clock.advance(HEARTBEAT_NS)
    clock.step_wall(hours * 3600 * NS_PER_SECOND)
    again = UsageKey("L1", "t1", 2)
    with Ledger.open(place, clock) as after:
        after.usages.close_dead()
        after.usages.start(again, "s1", Decimal(1), {})
        clock.advance_seconds(84)
        after.usages.end(again, "COMPLETED")
        first, second = after.usages.find()
        assert first.to_ns is not None
        assert second.to_ns is not None
        assert second.from_ns > first.to_ns
        assert second.to_ns - second.from_ns == 84 * NS_PER_SECOND
        after.leases.detach("L1", "s1", "done")
        assert after.leases.find()[0].to_ns == second.to_ns


def test_a_clock_that_was_days_ahead_does_not_move_later_instants(place, make_lease):
    clock = FakeClock(boot="boot-1")
    right = clock.utc
    clock.step_wall(48 * 3600 * NS_PER_SECOND)
    with Ledger.open(place, clock) as wrong:
        wrong.leases.open(make_lease())
    clock.utc = right
    with Ledger.open(place, clock) as after:
        assert after.now_ns() == right

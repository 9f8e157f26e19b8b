"""What every ledger does, on SQLite and on PostgreSQL."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from decimal import Decimal

import pytest
from sqlalchemy import func, select, text

from cost import facts, schema
from cost.clock import NS_PER_SECOND, FakeClock
from cost.ledger import HEARTBEAT_NS, SILENT_NS, Ledger
from cost.records import Correction, IntegrityError, LedgerError, NewEvent, UsageKey

KEY = UsageKey("L1", "t1", 1)


@pytest.fixture
def leased(ledger, make_lease):
    ledger.open_lease(make_lease())
    ledger.attach("L1", "s1")
    return ledger


def rows_in(ledger: Ledger) -> dict[str, int]:
    with ledger.read() as connection:
        return {
            t.name: connection.execute(select(func.count()).select_from(t)).scalar_one()
            for t in schema.metadata.sorted_tables
        }


def test_a_lease_is_known_with_all_its_terms(ledger, make_lease, clock):
    lease = make_lease(tags={"team": "a"}, owner="ann", watts=Decimal("412.5"), region="eu", price_hash="f" * 64)
    ledger.open_lease(lease)
    state = ledger.lease_state("L1")
    assert state.from_ns == clock.utc
    assert (state.to_ns, state.sweeps) == (None, ())
    assert {**vars(state.lease), "from_ns": None} == vars(lease)


def test_writing_every_fact_twice_changes_nothing(leased, make_lease, clock):
    def write():
        leased.open_lease(make_lease())
        leased.attach("L1", "s1")
        leased.start_usage(KEY, "s1", Decimal("0.5"), {"stage": "smoke"})
        leased.add_phases(KEY, 1, {"train": 5, "rollout": 7})
        leased.set_labels(KEY, {"state": "RUNNING"})
        leased.heartbeat("L1", [KEY])
        leased.append_event("s1", "planned", {"trials": [1, 2]}, "plan")
        leased.add_correction(Correction("c1", "L1", "credit", -(10**25), "USD", clock.utc, "credit note"))

    write()
    before = rows_in(leased)
    write()
    assert rows_in(leased) == before
    leased.end_usage(KEY, "COMPLETED")
    leased.end_usage(KEY, "COMPLETED")
    assert leased.detach("L1", "s1", "done")
    before = rows_in(leased)
    leased.end_usage(KEY, "COMPLETED")
    assert leased.detach("L1", "s1", "done")
    leased.close_lease("L1", "done")
    assert rows_in(leased) == before


def test_the_same_fact_with_another_content_is_an_integrity_error(leased, make_lease, clock):
    leased.start_usage(KEY, "s1", Decimal(1), {})
    leased.add_phases(KEY, 1, {"train": 5})
    leased.append_event("s1", "planned", {"n": 1}, "plan")
    leased.add_correction(Correction("c1", "L1", "credit", -5, "USD", clock.utc, "credit note"))
    before = rows_in(leased)
    with pytest.raises(IntegrityError, match="other terms"):
        leased.open_lease(make_lease(cards=4))
    with pytest.raises(IntegrityError, match="with 1 cards"):
        leased.start_usage(KEY, "s1", Decimal(2), {})
    with pytest.raises(IntegrityError, match="came before"):
        leased.add_phases(KEY, 1, {"train": 6})
    with pytest.raises(IntegrityError, match="came before"):
        leased.add_phases(KEY, 1, {"train": 5, "sync": 1})
    with pytest.raises(IntegrityError, match="written before"):
        leased.append_event("s1", "planned", {"n": 2}, "plan")
    with pytest.raises(IntegrityError, match="written before"):
        leased.append_event("s1", "replanned", {"n": 1}, "plan")
    with pytest.raises(IntegrityError, match="another content"):
        leased.add_correction(Correction("c1", "L1", "credit", -6, "USD", clock.utc, "credit note"))
    assert rows_in(leased) == before
    leased.end_usage(KEY, "COMPLETED")
    with pytest.raises(IntegrityError, match="ended before as COMPLETED"):
        leased.end_usage(KEY, "FAILED")


def test_a_machine_has_one_open_lease_at_most(leased, make_lease, clock):
    with pytest.raises(IntegrityError, match="still open"):
        leased.open_lease(make_lease("L2", instance_id="host-of-L1"))
    assert leased.open_lease_of("host-of-L1").lease.lease_id == "L1"
    clock.advance_seconds(10)
    leased.close_lease("L1", "done", released=True)
    assert leased.lease_state("L1").released
    assert leased.open_lease_of("host-of-L1") is None
    with pytest.raises(IntegrityError, match="before lease L1"):
        leased.open_lease(make_lease("L2", instance_id="host-of-L1", from_ns=clock.utc - 1))
    leased.open_lease(make_lease("L2", instance_id="host-of-L1"))


def test_the_last_sweep_to_detach_closes_the_lease(leased, clock):
    leased.attach("L1", "s2")
    clock.advance_seconds(5)
    assert not leased.detach("L1", "s1", "done")
    assert leased.lease_state("L1").sweeps == ("s2",)
    clock.advance_seconds(5)
    assert leased.detach("L1", "s2", "done")
    assert leased.lease_state("L1").to_ns == clock.utc
    with pytest.raises(IntegrityError, match="closed"):
        leased.attach("L1", "s3")


def test_a_lease_opened_by_hand_outlives_its_sweeps(ledger, make_lease, clock):
    ledger.open_lease(make_lease(opened_by="hand", from_ns=clock.utc - 3600 * NS_PER_SECOND))
    ledger.attach("L1", "s1")
    assert not ledger.detach("L1", "s1", "done")
    assert ledger.lease_state("L1").to_ns is None


def test_a_sweep_can_leave_and_come_back(leased, clock):
    leased.attach("L1", "s2")
    clock.advance_seconds(1)
    leased.detach("L1", "s1", "interrupted")
    clock.advance_seconds(1)
    leased.attach("L1", "s1")
    with leased.read() as connection:
        held = [(a.from_ns - clock.utc, a.to_ns) for a in facts.attachments(connection, ["L1"]) if a.sweep_id == "s1"]
    assert held == [(-2 * NS_PER_SECOND, clock.utc - NS_PER_SECOND), (0, None)]


def test_no_sweep_leaves_while_its_trials_hold_cards(leased):
    leased.start_usage(KEY, "s1", Decimal(1), {})
    with pytest.raises(IntegrityError, match="still holds cards"):
        leased.detach("L1", "s1", "done")
    with pytest.raises(IntegrityError, match="still open"):
        leased.close_lease("L1", "done")


def test_usage_of_an_unknown_lease_is_refused(ledger):
    with pytest.raises(IntegrityError, match="no lease L1"):
        ledger.start_usage(KEY, "s1", Decimal(1), {})
    with pytest.raises(IntegrityError, match="has not been started"):
        ledger.end_usage(KEY, "COMPLETED")


def test_usage_by_a_sweep_that_is_not_attached_is_refused(leased):
    with pytest.raises(IntegrityError, match="not attached"):
        leased.start_usage(KEY, "s2", Decimal(1), {})


def test_more_cards_than_the_machine_has_are_refused(leased):
    leased.start_usage(KEY, "s1", Decimal("7.5"), {})
    with pytest.raises(IntegrityError, match=r"wants 1 cards, but 0\.5 of the 8"):
        leased.start_usage(UsageKey("L1", "t2", 1), "s1", Decimal(1), {})
    leased.start_usage(UsageKey("L1", "t2", 1), "s1", Decimal("0.5"), {})


@pytest.mark.parametrize("cards", [Decimal(0), Decimal(-1), Decimal("0.0000001"), Decimal("NaN")])
def test_a_number_of_cards_that_cannot_be_held_is_refused(leased, cards):
    with pytest.raises(LedgerError, match="number of cards"):
        leased.start_usage(KEY, "s1", cards, {})


def test_a_trial_does_not_overlap_itself(leased, clock):
    leased.start_usage(KEY, "s1", Decimal(1), {})
    with pytest.raises(IntegrityError, match="already holds cards"):
        leased.start_usage(UsageKey("L1", "t1", 2), "s1", Decimal(1), {})
    clock.advance_seconds(1)
    leased.end_usage(KEY, "FAILED")
    leased.start_usage(UsageKey("L1", "t1", 2), "s1", Decimal(1), {})


def test_a_usage_that_ends_before_it_starts_is_refused(leased, clock):
    leased.start_usage(KEY, "s1", Decimal(1), {})
    with pytest.raises(IntegrityError, match="before it starts"):
        leased.end_usage(KEY, "COMPLETED", at_ns=clock.utc - 1)


def test_negative_durations_are_refused_when_they_are_written(leased):
    leased.start_usage(KEY, "s1", Decimal(1), {})
    with pytest.raises(LedgerError, match="not a whole number"):
        leased.add_phases(KEY, 1, {"train": -1})
    with pytest.raises(LedgerError, match="no phase"):
        leased.add_phases(KEY, 1, {"thinking": 1})


def test_two_drivers_whose_clocks_differ_a_little_close_their_books(place, clock, make_lease):
    ahead = FakeClock(utc=clock.utc + 5_000_000)
    with Ledger.open(place, clock) as behind, Ledger.open(place, ahead) as other:
        behind.open_lease(make_lease())
        behind.attach("L1", "s1")
        other.attach("L1", "s2")
        other.start_usage(KEY, "s2", Decimal(1), {})
        behind.end_usage(KEY, "CANCELLED")
        other.start_usage(UsageKey("L1", "t2", 1), "s2", Decimal(1), {})
        other.end_usage(UsageKey("L1", "t2", 1), "COMPLETED")
        other.detach("L1", "s2", "done")
        assert behind.detach("L1", "s1", "done")
        assert behind.lease_state("L1").to_ns == ahead.utc
        assert [u.to_ns for u in behind.usages()] == [ahead.utc, ahead.utc]


def test_the_same_trial_in_two_sweeps_on_one_lease_is_two_usages(leased, clock):
    leased.attach("L1", "s2")
    for sweep in ("s1", "s2"):
        leased.start_usage(KEY, sweep, Decimal(1), {"sweep": sweep})
        leased.add_phases(KEY, 1, {"train": len(leased.usages())})
        clock.advance_seconds(1)
        leased.end_usage(KEY, "COMPLETED")
    first, second = leased.usages()
    assert (first.labels["sweep"], second.labels["sweep"]) == ("s1", "s2")
    assert first.to_ns == second.from_ns
    with leased.read() as connection:
        assert [phases for _, phases in sorted(facts.phase_totals(connection).items())] == [{"train": 1}, {"train": 2}]


def test_labels_keep_their_history_and_the_latest_counts(leased):
    leased.start_usage(KEY, "s1", Decimal(1), {"stage": "smoke", "state": "RUNNING"})
    leased.set_labels(KEY, {"state": "COMPLETED", "acc": "0.5"})
    assert leased.usages()[0].labels == {"stage": "smoke", "state": "COMPLETED", "acc": "0.5"}
    assert rows_in(leased)["label"] == 4


def test_heartbeats_extend_the_lease_and_the_open_usages(leased, clock):
    leased.start_usage(KEY, "s1", Decimal(1), {})
    clock.advance(HEARTBEAT_NS)
    leased.heartbeat("L1", [KEY])
    assert leased.usages()[0].last_heartbeat_ns == leased.lease_state("L1").last_heartbeat_ns == clock.utc
    leased.end_usage(KEY, "COMPLETED")
    ended = clock.utc
    clock.advance(HEARTBEAT_NS)
    leased.heartbeat("L1", [KEY])
    assert leased.usages()[0].last_heartbeat_ns == ended
    assert leased.lease_state("L1").last_heartbeat_ns == clock.utc


def test_usage_of_a_driver_on_another_host_ends_at_its_last_heartbeat_once_it_is_silent(place, clock, make_lease):
    with Ledger.open(place, clock) as dead:
        dead.open_lease(make_lease())
        dead.attach("L1", "s1")
        dead.start_usage(KEY, "s1", Decimal(1), {})
        clock.advance(HEARTBEAT_NS)
        dead.heartbeat("L1", [KEY])
        last = clock.utc
        with dead._store.write() as connection:
            connection.execute(text("UPDATE driver SET host = 'elsewhere'"))
    with Ledger.open(place, clock) as other:
        clock.advance(SILENT_NS - 1)
        assert other.close_dead() == []
        clock.advance(1)
        (closed,) = other.close_dead()
        assert (closed.to_ns, closed.outcome, closed.end_estimated) == (last, "LOST", True)
        assert other.usages() == [closed.__class__(**{**vars(closed), "wall": True})]
        assert other.lease_state("L1").to_ns is None, "a dead driver ends its usages, never the lease"
        assert other.close_dead() == []
        other.end_usage(KEY, "COMPLETED")
        assert other.usages()[0].outcome == "LOST", "an estimated end stays"


def test_usage_of_a_driver_that_still_runs_is_left_alone(place, clock, make_lease):
    with Ledger.open(place, clock) as slow, Ledger.open(place, clock) as other:
        slow.open_lease(make_lease())
        slow.attach("L1", "s1")
        slow.start_usage(KEY, "s1", Decimal(1), {})
        clock.advance(100 * SILENT_NS)
        assert other.close_dead() == []


def test_usage_of_a_driver_from_before_a_reboot_is_closed_at_once(place, clock, make_lease):
    with Ledger.open(place, clock) as before:
        before.open_lease(make_lease())
        before.attach("L1", "s1")
        before.start_usage(KEY, "s1", Decimal(1), {})
        with before._store.write() as connection:
            earlier = select(schema.driver.c.process_start).scalar_subquery()
            connection.execute(schema.driver.update().values(process_start="another-boot/" + earlier))
    with Ledger.open(place, clock) as after:
        assert [usage.outcome for usage in after.close_dead()] == ["LOST"]


@pytest.mark.parametrize("host", ["here", "elsewhere"])
def test_a_simulated_driver_does_not_end_what_a_real_one_runs(place, clock, make_lease, host):
    with Ledger.open(place) as real:
        real.open_lease(make_lease())
        real.attach("L1", "s1")
        real.start_usage(KEY, "s1", Decimal(1), {})
        if host == "elsewhere":
            with real._store.write() as connection:
                connection.execute(text("UPDATE driver SET host = 'elsewhere'"))
        far_ahead = FakeClock(utc=real.now_ns() + 1000 * SILENT_NS)
        with Ledger.open(place, far_ahead) as simulated:
            assert simulated.close_dead() == []


def test_a_transaction_is_all_or_nothing(leased):
    before = rows_in(leased)
    with pytest.raises(RuntimeError), leased.transaction():  # noqa: PT012
        leased.start_usage(KEY, "s1", Decimal(1), {})
        leased.append_event("s1", "started", {}, "t1/1")
        raise RuntimeError("killed here")
    assert rows_in(leased) == before
    with leased.transaction():
        leased.start_usage(KEY, "s1", Decimal(1), {})
        with leased.transaction():
            leased.append_event("s1", "started", {}, "t1/1")
        assert [e.kind for e in leased.events("s1")] == ["started"], "a transaction sees what it wrote"
    assert leased.usages()[0].key == KEY


def test_an_error_inside_a_transaction_cannot_be_swallowed(leased):
    leased.append_event("s1", "planned", {}, "plan")
    before = rows_in(leased)
    with pytest.raises(LedgerError, match="abandoned"), leased.transaction():  # noqa: PT012
        leased.append_event("s1", "more", {}, "more")
        with contextlib.suppress(IntegrityError):
            leased.append_event("s1", "planned", {"other": 1}, "plan")
    assert rows_in(leased) == before
    leased.append_event("s1", "more", {}, "more")


def test_a_driver_whose_first_write_fails_can_write_after_it(ledger):
    with pytest.raises(RuntimeError), ledger.transaction():  # noqa: PT012
        ledger.append_event("s", "a", {}, "a")
        raise RuntimeError
    ledger.append_event("s", "b", {}, "b")
    assert [e.driver for e in ledger.events("s")] == [ledger.driver_id]
    assert rows_in(ledger)["driver"] == 1


def test_events_come_back_in_order_with_their_bodies(ledger, clock):
    body = {"lr": 1e-5, "name": "größe", "none": None, "list": [1, "two"]}
    assert ledger.append_event("s1", "first", body, "k1")
    assert not ledger.append_event("s1", "first", dict(reversed(body.items())), "k1")
    clock.advance(5)
    assert ledger.append_event("s1", "second", {}, "k2")
    assert ledger.append_event("s2", "first", {}, "k1")
    first, second = ledger.events("s1")
    assert (first.sequence, first.body, first.key) == (1, body, "k1")
    assert (second.sequence, second.at_ns) == (2, clock.utc)
    assert list(ledger.events("s1", after=1)) == [second]
    assert list(ledger.events("s1", after=2)) == list(ledger.events("nothing")) == []
    assert ledger.streams() == ["s1", "s2"]


def test_many_events_are_written_at_once_and_those_that_are_there_change_nothing(ledger):
    many = [NewEvent("word", {"n": n}, str(n)) for n in range(1201)]
    assert [e.key for e in ledger.append_events("s1", many[:3])] == ["0", "1", "2"]
    assert ledger.append_events("s1", many) == list(ledger.events("s1", after=3))
    assert ledger.append_events("s1", many) == []
    assert [(e.sequence, e.body["n"]) for e in ledger.events("s1")] == [(n + 1, n) for n in range(1201)]


def test_of_events_of_which_one_has_another_body_none_is_written(ledger):
    ledger.append_event("s1", "word", {"n": 1}, "1")
    for other in (NewEvent("word", {"n": 2}, "1"), NewEvent("decision", {"n": 1}, "1")):
        with pytest.raises(IntegrityError, match="1 of s1"):
            ledger.append_events("s1", [NewEvent("word", {}, "0"), other])
    with pytest.raises(IntegrityError, match="same key"):
        ledger.append_events("s1", [NewEvent("word", {}, "2"), NewEvent("word", {}, "2")])
    assert [e.key for e in ledger.events("s1")] == ["1"]


def test_events_are_read_without_those_of_some_kinds(ledger):
    kinds = ["word", "start", "word", "stop"] * 300
    ledger.append_events("s1", [NewEvent(kind, {}, str(n)) for n, kind in enumerate(kinds)])
    assert ledger.event_kinds("s1") == ["start", "stop", "word"]
    decisions = list(ledger.events("s1", without={"word"}))
    assert [(e.kind, e.key) for e in decisions] == [(k, str(n)) for n, k in enumerate(kinds) if k != "word"]
    assert list(ledger.events("s1", after=1198, without={"word"})) == decisions[-1:]
    assert list(ledger.events("s1", without={"word", "start", "stop"})) == []


def test_an_event_keeps_text_that_no_encoding_has(ledger):
    body = {"text": "half of a pair: \ud83d, and nothing: \x00"}
    ledger.append_event("s1", "odd", body, "k")
    assert next(ledger.events("s1")).body == body


def test_an_event_that_json_cannot_say_is_refused(ledger):
    with pytest.raises(LedgerError, match="JSON"):
        ledger.append_event("s1", "bad", {"x": float("nan")}, "k")


def test_drivers_in_threads_lose_and_repeat_nothing(place, make_lease):
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with Ledger.open(place) as mine:
                for index in range(25):
                    mine.append_event("shared", "entry", {"by": number}, f"{number}-{index}")
                    mine.append_event("shared", "common", {"n": index}, f"common-{index}")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with Ledger.open(place, read_only=True) as reader:
        events = list(reader.events("shared"))
    assert [e.sequence for e in events] == list(range(1, 126)), "opened, migrated and numbered without a gap"
    assert len({e.key for e in events}) == 125


def test_of_many_drivers_that_want_the_last_card_one_gets_it(place, make_lease):
    with Ledger.open(place) as first:
        first.open_lease(make_lease(cards=1))
        first.attach("L1", "s1")
    barrier, outcomes = threading.Barrier(4), []

    def want(number: int) -> None:
        with Ledger.open(place) as mine:
            barrier.wait()
            try:
                mine.start_usage(UsageKey("L1", f"t{number}", 1), "s1", Decimal(1), {})
                outcomes.append("got it")
            except IntegrityError as error:
                outcomes.append(str(error).partition("cards, ")[2])

    threads = [threading.Thread(target=want, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["but 0 of the 1 cards of lease L1 are free"] * 3 + ["got it"]


def test_of_many_drivers_that_open_a_machine_one_does(place, make_lease):
    Ledger.open(place).close()
    barrier, outcomes = threading.Barrier(4), []

    def rent(number: int) -> None:
        with Ledger.open(place) as mine:
            barrier.wait()
            try:
                mine.open_lease(make_lease(f"L{number}", instance_id="the one"))
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
        threading.Thread(target=lambda n=n: [ledger.append_event(f"s{n}", "e", {}, str(i)) for i in range(20)])
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(list(ledger.events(f"s{n}"))) for n in range(4)] == [20] * 4


def test_a_stepped_wall_clock_bends_no_interval_and_is_written_down(leased, clock):
    leased.start_usage(KEY, "s1", Decimal(1), {})
    clock.step_wall(-7200 * NS_PER_SECOND)
    clock.advance_seconds(30)
    leased.end_usage(KEY, "COMPLETED")
    (usage,) = leased.usages()
    assert usage.to_ns - usage.from_ns == 30 * NS_PER_SECOND
    leased.append_event("s", "e", {}, "k")
    with leased.read() as connection:
        assert connection.execute(select(schema.clock_step.c.step_ns)).scalars().all() == [-7200 * NS_PER_SECOND]


@pytest.mark.parametrize("pico", [0, 1, -1, 2**63, -(2**63) - 1, 10**38 - 1, 1 - 10**38])
def test_amounts_of_up_to_38_digits_are_kept_exactly(leased, clock, pico):
    leased.add_correction(Correction("c1", "L1", "credit", pico, "USD", clock.utc, "test"))
    with leased.read() as connection:
        kept = connection.execute(select(schema.correction.c.pico)).scalar_one()
    assert kept == pico
    assert type(kept) is int


def test_an_amount_too_large_to_keep_is_an_error(leased, clock):
    with pytest.raises(LedgerError, match="38 digits"):
        leased.add_correction(Correction("c1", "L1", "credit", 10**38, "USD", clock.utc, "test"))


def test_a_correction_in_another_currency_is_refused(leased, clock):
    with pytest.raises(IntegrityError, match="USD"):
        leased.add_correction(Correction("c1", "L1", "credit", 1, "CNY", clock.utc, "test"))


def test_a_correction_of_what_never_was_on_the_lease_or_is_yet_to_come_is_refused(leased, clock):
    leased.start_usage(KEY, "s1", Decimal(1), {})
    made = Correction("c1", "L1", "credit", -1, "USD", clock.utc, "test")
    for changes, message in (
        ({"at_ns": clock.utc + 1}, "yet to come"),
        ({"sweep_id": "s9"}, "sweep 's9' was never on lease L1: those on it were s1"),
        ({"sweep_id": "s1", "trial_id": "t9"}, "trial 't9' of sweep s1 never ran on lease L1"),
        ({"trial_id": "t1"}, "of which sweep is trial t1"),
    ):
        with pytest.raises(LedgerError, match=message):
            leased.add_correction(replace(made, **changes))
    assert leased.add_correction(replace(made, sweep_id="s1", trial_id=KEY.trial_id))


def test_cards_that_another_driver_gave_back_are_free_and_those_it_took_are_not(place, clock, make_lease):
    with Ledger.open(place, clock) as mine, Ledger.open(place, clock) as theirs:
        mine.open_lease(make_lease())
        mine.attach("L1", "s1")
        cards = mine.lease_state("L1").lease.cards
        mine.start_usage(UsageKey("L1", "t1", 1), "s1", Decimal(cards - 1), {})
        theirs.start_usage(UsageKey("L1", "t2", 1), "s1", Decimal(1), {})
        for ledger in (mine, theirs):
            with pytest.raises(IntegrityError, match="but 0 of the"):
                ledger.start_usage(UsageKey("L1", "t3", 1), "s1", Decimal(1), {})
        theirs.end_usage(UsageKey("L1", "t2", 1), "COMPLETED")
        mine.start_usage(UsageKey("L1", "t3", 1), "s1", Decimal(1), {})
        mine.end_usage(UsageKey("L1", "t1", 1), "COMPLETED")
        theirs.start_usage(UsageKey("L1", "t4", 1), "s1", Decimal(cards - 1), {})


def test_cards_taken_in_a_transaction_that_was_undone_are_free(leased):
    cards = leased.lease_state("L1").lease.cards
    with contextlib.suppress(RuntimeError), leased.transaction():
        leased.start_usage(KEY, "s1", Decimal(cards), {})
        raise RuntimeError
    leased.start_usage(UsageKey("L1", "t2", 1), "s1", Decimal(cards), {})


def test_migrations_make_exactly_the_tables_of_the_schema(ledger):
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    from cost.migrations.run import scripts

    with ledger.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, schema.metadata) == []
    assert scripts().get_current_head() == schema.HEAD


def test_a_ledger_of_a_newer_version_is_refused(place, clock):
    from cost.records import StoreError

    with Ledger.open(place, clock) as now, now._store.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreError, match=r"newer version.*9999"):
        Ledger.open(place, clock)


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_set_by_an_hour_between_two_drivers_loses_and_repeats_no_time(place, make_lease, hours: int):
    clock = FakeClock(boot="boot-1")
    with Ledger.open(place, clock) as killed:
        killed.open_lease(make_lease())
        killed.attach("L1", "s1")
        killed.start_usage(KEY, "s1", Decimal(1), {})
        clock.advance(HEARTBEAT_NS)
        killed.heartbeat("L1", [KEY])
        with killed._store.write() as connection:
            connection.execute(text("UPDATE driver SET process_start = 'of another process'"))
    clock.advance(HEARTBEAT_NS)
    clock.step_wall(hours * 3600 * NS_PER_SECOND)
    again = UsageKey("L1", "t1", 2)
    with Ledger.open(place, clock) as after:
        after.close_dead()
        after.start_usage(again, "s1", Decimal(1), {})
        clock.advance_seconds(84)
        after.end_usage(again, "COMPLETED")
        first, second = after.usages()
        assert first.to_ns is not None
        assert second.to_ns is not None
        assert second.from_ns > first.to_ns
        assert second.to_ns - second.from_ns == 84 * NS_PER_SECOND
        after.detach("L1", "s1", "done")
        assert after.leases()[0].to_ns == second.to_ns


def test_a_clock_that_was_days_ahead_is_not_followed(place, make_lease):
    clock = FakeClock(boot="boot-1")
    right = clock.utc
    clock.step_wall(48 * 3600 * NS_PER_SECOND)
    with Ledger.open(place, clock) as wrong:
        wrong.open_lease(make_lease())
    clock.utc = right
    with Ledger.open(place, clock) as after:
        assert after.now_ns() == right


def test_an_attempt_that_was_over_when_its_driver_died_is_not_lost(place, clock, make_lease):
    with Ledger.open(place, clock) as killed:
        killed.open_lease(make_lease())
        killed.attach("L1", "s1")
        killed.start_usage(KEY, "s1", Decimal(1), {"state": "RUNNING"})
        killed.set_labels(KEY, {"state": "COMPLETED"})
        with killed._store.write() as connection:
            connection.execute(text("UPDATE driver SET process_start = 'of another process'"))
    with Ledger.open(place, clock) as after:
        (closed,) = after.close_dead()
        assert (closed.outcome, closed.end_estimated) == ("COMPLETED", True)

"""Merging two ledgers: after a split and a merge, reports equal those of one ledger; a second merge adds nothing."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from datetime import UTC
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select

from cost.charges.chargeback import Chargeback, set_chargeback
from cost.clock import FakeClock
from cost.close.check import run_checks
from cost.copies import merge as merging
from cost.copies.merge import merge_ledger
from cost.ledger import schema
from cost.ledger.ledger import Ledger
from cost.ledger.reservations import Reservation
from cost.money import Money
from cost.periods import period_name
from cost.prices.book import PriceBook, PriceRow
from cost.records import Correction, IntegrityError, Lease, NoLedgerError, StoreError, UsageKey
from cost.reports.grouped import ReportScope, grouped_report

SECOND = 10**9
ROW = PriceRow(
    provider="aws",
    sku="box",
    region="",
    per="machine_hour",
    cards=8,
    purchase="on_demand",
    currency="USD",
    price=Decimal("8.123"),
    tax_included=False,
    tax_rate=Decimal("0.07"),
    valid_from="2025-01-01",
    source="test",
    valid_to="",
    day_read="2025-01-01",
)
BOOK = PriceBook((ROW,))


@pytest.fixture
def place(any_database: str) -> str:
    """Every ledger that is merged into runs on both databases."""
    return any_database


def test_every_table_has_a_rule():
    own = {schema.event, schema.closed_period}
    assert own | set(merging._KEYS) | set(merging._COUNTED) == set(schema.metadata.sorted_tables)


def rows(ledger: Ledger) -> dict[str, int]:
    with ledger.read() as connection:
        return {
            t.name: connection.execute(select(func.count()).select_from(t)).scalar_one()
            for t in schema.metadata.sorted_tables
        }


def a_lease(lease_id: str) -> Lease:
    return Lease(lease_id, f"host-{lease_id}", "h100x8", "box", "aws", 8, "USD", ROW.hash)


def one_sweep(ledger: Ledger, clock: FakeClock, sweep_id: str, *, ended: bool = True) -> None:
    """A sweep of one trial on a machine of its own."""
    lease_id = f"lease-{sweep_id}"
    ledger.leases.open(a_lease(lease_id))
    ledger.leases.attach(lease_id, sweep_id)
    clock.advance(5 * SECOND)
    key = UsageKey(lease_id, f"trial-{sweep_id}", 1)
    ledger.usages.start(key, sweep_id, Decimal(1), {"stage": "smoke"})
    ledger.events.append(f"sweep:{sweep_id}", "planned", {"trials": 1}, "plan")
    clock.advance(10 * SECOND)
    ledger.heartbeat(lease_id, [key])
    ledger.usages.add_phases(key, 0, {"train": 3 * SECOND})
    if ended:
        ledger.usages.end(key, "COMPLETED")
        ledger.leases.detach(lease_id, sweep_id, "done")
        ledger.events.append(f"sweep:{sweep_id}", "ended", {"how": "done"}, "end")
    clock.advance(SECOND)


@pytest.fixture
def box(tmp_path, clock) -> Iterator[Ledger]:
    """The ledger of another machine."""
    with Ledger.open(tmp_path / "box" / "ledger.db", clock) as opened:
        yield opened


def test_rows_of_another_machine_are_added_once(ledger, box, clock):
    one_sweep(ledger, clock, "home")
    one_sweep(box, clock, "away")
    done = merge_ledger(ledger, box.place)
    assert done.streams == ("sweep:away",)
    assert done.added["usage"] == done.added["lease"] == 1
    assert {u.sweep_id for u in ledger.usages.find()} == {"home", "away"}
    assert [e.kind for e in ledger.events.read("sweep:away")] == ["planned", "ended"]
    assert run_checks(ledger, BOOK, ledger.now_ns()) == []
    before = rows(ledger)
    again = merge_ledger(ledger, box.place)
    assert (dict(again.added), again.streams) == ({}, ())
    assert rows(ledger) == before


def test_equal_row_numbers_of_both_databases_do_not_collide(ledger, box, clock):
    for name in ("h1", "h2"):
        one_sweep(ledger, clock, name)
    one_sweep(box, clock, "b1")
    mine, theirs = ledger.usages.find(), box.usages.find()
    merge_ledger(ledger, box.place)
    assert sorted(ledger.usages.find(), key=lambda u: u.from_ns) == sorted([*mine, *theirs], key=lambda u: u.from_ns)
    states = {s.lease.lease_id: s for s in ledger.leases.find()}
    assert all(s.to_ns is not None and s.sweeps == () for s in states.values())


def test_later_rows_of_the_other_ledger_are_appended_in_order(tmp_path, ledger, clock):
    one_sweep(ledger, clock, "s1")
    ledger.copy_to(tmp_path / "copy.db")
    with Ledger.open(tmp_path / "copy.db", clock) as away:
        away.events.append("sweep:s1", "later", {}, "later")
        one_sweep(away, clock, "s2")
        ledger.events.append("sweep:other", "here", {}, "here")
        merge_ledger(ledger, away.place)
    assert [(e.sequence, e.kind) for e in ledger.events.read("sweep:s1")] == [
        (1, "planned"),
        (2, "ended"),
        (3, "later"),
    ]
    assert [e.kind for e in ledger.events.read("sweep:other")] == ["here"]


def test_a_journal_that_grew_on_both_sides_is_refused_and_nothing_is_changed(tmp_path, ledger, clock):
    one_sweep(ledger, clock, "s1")
    ledger.copy_to(tmp_path / "copy.db")
    with Ledger.open(tmp_path / "copy.db", clock) as away:
        one_sweep(away, clock, "s2")
        away.events.append("sweep:s1", "there", {}, "there")
    ledger.events.append("sweep:s1", "here", {}, "here")
    before = rows(ledger)
    with pytest.raises(
        IntegrityError, match=r"sweep:s1 was continued in both ledgers: its event 3 is here .* and there"
    ):
        merge_ledger(ledger, tmp_path / "copy.db")
    assert rows(ledger) == before


def test_a_row_with_the_same_key_and_other_content_is_refused_and_nothing_is_changed(ledger, box, clock):
    one_sweep(ledger, clock, "s1")
    one_sweep(box, clock, "a1")
    for where, amount in ((ledger, 1), (box, 2)):
        lease = "lease-s1" if where is ledger else "lease-a1"
        where.corrections.add(Correction("cn-17", lease, "credit", amount, "USD", clock.utc_ns(), "note 17"))
    before = rows(ledger)
    with pytest.raises(IntegrityError, match=r"correction of cn-17: .*pico is 1 here and 2 there"):
        merge_ledger(ledger, box.place)
    assert rows(ledger) == before


def test_rows_without_an_order_are_merged_from_both_sides(tmp_path, ledger, clock):
    stream = "chargeback"
    ledger.events.append(stream, "set", {"sweep_id": "s0"}, "s0")
    ledger.copy_to(tmp_path / "copy.db")
    with Ledger.open(tmp_path / "copy.db", clock) as away:
        away.events.append(stream, "set", {"sweep_id": "s1"}, "s1")
    ledger.events.append(stream, "set", {"sweep_id": "s2"}, "s2")
    merge_ledger(ledger, tmp_path / "copy.db")
    merge_ledger(ledger, tmp_path / "copy.db")
    assert [(e.sequence, e.key) for e in ledger.events.read(stream)] == [(1, "s0"), (2, "s2"), (3, "s1")]
    with Ledger.open(tmp_path / "other.db", clock) as other:
        other.events.append(stream, "set", {"sweep_id": "another"}, "s2")
    with pytest.raises(IntegrityError, match="event s2 of journal chargeback"):
        merge_ledger(ledger, tmp_path / "other.db")


def test_attempts_that_still_run_on_the_other_machine_are_refused_or_closed_as_lost(ledger, box, clock):
    one_sweep(box, clock, "a1", ended=False)
    before = rows(ledger)
    with pytest.raises(IntegrityError, match=r"trial-a1/1 of a1.*--lost"):
        merge_ledger(ledger, box.place)
    assert rows(ledger) == before
    assert merge_ledger(ledger, box.place, lost=True).closed_as_lost == 1
    (usage,) = ledger.usages.find()
    assert (usage.outcome, usage.end_estimated, usage.to_ns) == ("LOST", True, usage.last_heartbeat_ns)
    assert merge_ledger(ledger, box.place).closed_as_lost == 0


def test_an_exact_end_in_this_ledger_is_not_replaced_by_an_estimate(tmp_path, ledger, clock):
    one_sweep(ledger, clock, "s1", ended=False)
    ledger.copy_to(tmp_path / "copy.db")
    clock.advance(120 * SECOND)
    with Ledger.open(tmp_path / "copy.db", clock) as away:
        row = {"usage_id": 1, "to_ns": clock.utc_ns() - 110 * SECOND, "outcome": "LOST", "estimated": 1}
        with away.writer.write() as connection:  # as `close_dead` does on a machine without contact to the first one
            connection.execute(schema.usage_end.insert(), row | away.writer.signature())
    ledger.usages.end(UsageKey("lease-s1", "trial-s1", 1), "COMPLETED")
    (known,) = ledger.usages.find()
    assert merge_ledger(ledger, tmp_path / "copy.db").estimates_dropped == 1
    assert ledger.usages.find() == [known]


def test_a_real_end_of_a_usage_closed_here_as_lost_is_an_error(ledger, box, clock):
    one_sweep(box, clock, "a1", ended=False)
    merge_ledger(ledger, box.place, lost=True)
    box.usages.end(UsageKey("lease-a1", "trial-a1", 1), "COMPLETED")
    with pytest.raises(IntegrityError, match="closed here as lost before it ended there"):
        merge_ledger(ledger, box.place)


def test_nothing_is_added_to_a_month_that_is_closed_here(ledger, box, clock):
    one_sweep(box, clock, "a1")
    ledger.closed_months.add(period_name(clock.utc_ns(), "month", UTC))
    before = rows(ledger)
    with pytest.raises(IntegrityError, match="which is closed here"):
        merge_ledger(ledger, box.place)
    assert rows(ledger) == before


def test_a_month_that_is_closed_in_the_other_ledger_only_is_refused(ledger, box):
    box.closed_months.add("2026-01")
    with pytest.raises(IntegrityError, match="2026-01 was closed in the other ledger but not in this one"):
        merge_ledger(ledger, box.place)


def test_a_dry_merge_reports_and_changes_nothing(ledger, box, clock):
    one_sweep(box, clock, "a1")
    before = rows(ledger)
    assert merge_ledger(ledger, box.place, dry=True).added["lease"] == 1
    assert rows(ledger) == before
    assert merge_ledger(ledger, box.place).added["lease"] == 1


def test_a_price_archived_on_both_sides_is_one_price(ledger, box):
    ledger.price_archive.add([ROW])
    box.price_archive.add([ROW])
    assert "price" not in merge_ledger(ledger, box.place).added


def test_a_ledger_on_a_server_can_be_merged(ledger, postgres, clock):
    with Ledger.open(postgres, clock) as away:
        one_sweep(away, clock, "a1")
        merge_ledger(ledger, postgres)
        assert ledger.usages.find() == away.usages.find()


def test_a_file_that_is_not_a_ledger_is_refused(ledger, tmp_path):
    with pytest.raises(NoLedgerError):
        merge_ledger(ledger, tmp_path / "none.db")
    (tmp_path / "text.db").write_text("not a database")
    with pytest.raises(StoreError):
        merge_ledger(ledger, tmp_path / "text.db")


# Ledgers that were split and merged equal one ledger


@dataclass(frozen=True)
class Script:
    """The events of one sweep, on either machine."""

    side: str
    """`before` the split, then at `home` or `away`."""
    on_rented: bool
    """On the machine that was entered by hand before the split, which only `away` uses afterwards."""
    attempts: tuple[tuple[int, int, str], ...]
    """Seconds, card-seconds reported in training, outcome."""
    credit: int
    """Pico; 0: none."""


scripts = st.builds(
    Script,
    st.sampled_from(["before", "home", "away", "away"]),
    st.booleans(),
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(0, 9), st.sampled_from(["COMPLETED", "FAILED", "PREEMPTED"])),
        min_size=1,
        max_size=3,
    ).map(tuple),
    st.sampled_from([0, 0, 5 * 10**9]),
)


def acted(script: Script, name: str, clock: FakeClock, ledgers: Sequence[Ledger]) -> Iterator[None]:
    """The sweep, one row at a time, written into each of the ledgers."""
    rented = script.on_rented and script.side != "home"
    lease_id = "rented" if rented else f"lease-{name}"
    for ledger in ledgers:
        if not rented:
            ledger.leases.open(a_lease(lease_id))
        ledger.leases.attach(lease_id, name)
        ledger.events.append(f"sweep:{name}", "planned", {"attempts": len(script.attempts)}, "plan")
        set_chargeback(ledger, name, Chargeback(owner=name, project="p"))
    yield
    for number, (seconds, trained, outcome) in enumerate(script.attempts, start=1):
        key = UsageKey(lease_id, f"trial-{name}", number)
        for ledger in ledgers:
            ledger.usages.start(key, name, Decimal("0.5"), {"stage": "smoke", "state": "RUNNING"})
            ledger.reservations.add(Reservation(key, name, "smoke", Money(seconds, "USD"), Decimal(1), "bound"))
        clock.advance(seconds * SECOND)
        yield
        for ledger in ledgers:
            ledger.heartbeat(lease_id, [key])
            ledger.usages.add_phases(key, 0, {"train": min(trained, seconds // 2) * SECOND})
            ledger.events.append(f"sweep:{name}", "did", {"attempt": number}, f"did:{number}")
        clock.advance(SECOND)
        yield
        for ledger in ledgers:
            ledger.usages.set_labels(key, {"state": outcome})
            ledger.usages.end(key, outcome)
    for ledger in ledgers:
        if script.credit:
            credit = Correction(f"cn-{name}", lease_id, "credit", -script.credit, "USD", clock.utc_ns(), "a note", name)
            ledger.corrections.add(credit)
        ledger.leases.detach(lease_id, name, "done")


def all_of(ledger: Ledger, at_ns: int) -> list:
    found: list = [run_checks(ledger, BOOK, at_ns)]
    for by in ("trial", "sweep", "category", "day", "machine", "user"):
        report = grouped_report(ledger, BOOK, ReportScope(by=by), at_ns)
        found.append((by, sorted(map(repr, report.rows)), report.open_leases))
    found.append(
        [
            (e.sequence, e.kind, e.key)
            for s in sorted(ledger.events.streams())
            if s.startswith("sweep:")
            for e in ledger.events.read(s)
        ]
    )
    return found


def test_a_ledger_of_a_newer_version_is_refused_with_its_path(tmp_path):
    there = tmp_path / "there.db"
    Ledger.open(there).close()
    with closing(sqlite3.connect(there)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    refused = pytest.raises(StoreError, match=f"the ledger {there} was written by a newer version")
    with Ledger.open(tmp_path / "home.db") as home, refused:
        merge_ledger(home, there)


@settings(max_examples=12)
@given(st.lists(scripts, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_ledgers_that_were_split_and_merged_equal_one_ledger(plan, random):
    clock = FakeClock()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:

        def opened(name: str) -> Ledger:
            return stack.enter_context(Ledger.open(Path(folder) / name, clock))

        one_home, one_away, home = opened("one.db"), opened("one.db"), opened("home.db")
        for ledger in (one_home, home):
            ledger.leases.open(replace(a_lease("rented"), opened_by="hand"))
        parts = [(f"s{i}", script) for i, script in enumerate(plan)]
        for name, script in parts:
            if script.side == "before":
                for _ in acted(script, name, clock, (one_home, home)):
                    pass
        home.copy_to(Path(folder) / "away.db")
        away = opened("away.db")
        sides = {"home": (one_home, home), "away": (one_away, away)}
        going = [acted(s, name, clock, sides[s.side]) for name, s in parts if s.side != "before"]
        while going:
            script = random.choice(going)
            if next(script, script) is script:
                going.remove(script)
            clock.advance(random.randrange(3) * SECOND)
            if random.random() < 0.2 and not any(u.to_ns is None for u in away.usages.find()):
                merge_ledger(home, away.place)
        for _ in range(2):
            merge_ledger(home, away.place)
            assert all_of(home, clock.utc_ns()) == all_of(one_home, clock.utc_ns())
        assert not home.reservations.find_open()
        several = {"driver", "price"}  # each half has its own driver, and both may have the same price
        assert rows(home).items() - rows(one_home).items() <= {(name, rows(home)[name]) for name in several}

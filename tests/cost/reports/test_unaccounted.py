"""Time after a sweep has left a rented machine: named until somebody says what became of it."""

from __future__ import annotations

import dataclasses
import json

import pytest
from typer import Typer
from typer.testing import CliRunner

from cost.charges.attribution import attribute
from cost.cli.main import app as cost
from cost.clock import FakeClock
from cost.close.check import run_checks
from cost.ledger.ledger import Ledger
from cost.prices.book import PriceBook
from cost.records import IntegrityError, Lease, LedgerError
from cost.reports import unaccounted
from sweeps.cli.main import app as sweeps
from tests.e2e.test_sweep_command import ROOT

HOUR_NS = 3600 * 10**9
BOOK = PriceBook.load(ROOT / "conf" / "pricing")
ROW = BOOK.in_force("runpod-h100", FakeClock().utc + 365 * 24 * HOUR_NS)


@pytest.fixture
def books(tmp_path):
    clock = FakeClock(ROW.from_ns)
    with Ledger.open(tmp_path / "ledger.db", clock) as ledger:
        yield ledger, clock


def lease(lease_id: str, **changes) -> Lease:
    priced = {"sku": ROW.sku, "provider": ROW.provider, "currency": ROW.currency, "price_hash": ROW.hash}
    box = {"instance_id": "box", "machine": "h100", "cards": 1, "purchase": "on_demand"}
    return Lease(lease_id, **{**priced, **box, **changes})


def hold(books, lease_id: str, hours: int, how: str = "done", **changes) -> None:
    """A sweep holds the machine for some hours and leaves it; nothing happens for as long afterwards."""
    ledger, clock = books
    ledger.leases.open(lease(lease_id, **changes))
    ledger.price_archive.add([ROW])
    ledger.leases.attach(lease_id, f"sweep-{lease_id}")
    clock.advance(hours * HOUR_NS)
    ledger.leases.detach(lease_id, f"sweep-{lease_id}", how)
    clock.advance(hours * HOUR_NS)


def named(books) -> list[tuple[str, int | None]]:
    return [(gap.before.lease.lease_id, gap.to_ns) for gap in unaccounted.unaccounted_times(books[0])]


def billed_hours(books) -> float:
    ledger, clock = books
    lines = attribute(ledger, BOOK, clock.utc).lines
    assert run_checks(ledger, BOOK, clock.utc) == []
    return sum(line.pico for line in lines if line.category != "billing_increment") / float(ROW.price) / 1e12


def test_what_a_sweep_has_left_is_named_with_what_it_comes_to_and_the_commands_that_settle_it(books):
    hold(books, "one", 3)
    ledger, clock = books
    assert named(books) == [("one", None)]
    said = unaccounted.describe(unaccounted.unaccounted_times(ledger), BOOK, clock.utc)["one"]
    assert f"about {3 * float(ROW.price):.2f} USD are not in these books" in said
    assert "leases extend one; it went: python -m cost leases close one --released" in said


def test_between_two_leases_it_is_entered_to_the_cent_and_nobodys(books):
    hold(books, "one", 3)
    hold(books, "two", 1)
    ledger, _ = books
    assert [lease_id for lease_id, _ in named(books)] == ["one", "two"]
    (said,) = unaccounted.describe(unaccounted.unaccounted_times(ledger), BOOK, books[1].utc).values()
    assert "So is another time before" in said
    assert unaccounted.record_lease(ledger, "one") == "one+"
    assert named(books)[0][0] == "two"
    assert billed_hours(books) == pytest.approx(3 + 3 + 1)
    state = ledger.leases.get("one+")
    assert (state.to_ns, state.lease.opened_by) == (ledger.leases.get("two").from_ns, "hand")
    with pytest.raises(LedgerError, match="no time after lease one is unaccounted for"):
        unaccounted.record_lease(ledger, "one")


def test_a_machine_that_is_still_held_is_held_on_and_the_next_sweep_comes_to_it(books):
    hold(books, "one", 2)
    ledger, clock = books
    assert unaccounted.record_lease(ledger, "one") == "one+"
    assert named(books) == []
    held = ledger.leases.open_on("box")
    assert held is not None
    assert held.lease.lease_id == "one+"
    ledger.leases.attach("one+", "later")
    clock.advance(HOUR_NS)
    ledger.leases.detach("one+", "later", "done")
    assert ledger.leases.get("one+").to_ns is None, "a hand has opened it"
    assert billed_hours(books) == pytest.approx(2 + 2 + 1)


def test_one_that_went_is_named_no_more_and_costs_until_it_went(books):
    hold(books, "one", 2)
    ledger, clock = books
    unaccounted.record_release(ledger, "one", clock.utc - HOUR_NS)
    assert named(books) == []
    assert billed_hours(books) == pytest.approx(2 + 1)
    hold(books, "two", 1)
    unaccounted.record_release(ledger, "two")
    unaccounted.record_release(ledger, "two")
    assert named(books) == []
    assert billed_hours(books) == pytest.approx(2 + 1 + 1)


def test_it_did_not_go_later_than_its_next_lease_began(books):
    hold(books, "one", 2)
    hold(books, "two", 1)
    with pytest.raises(IntegrityError, match="the next lease of that machine began at"):
        unaccounted.record_release(books[0], "one", books[1].utc)
    assert [lease_id for lease_id, _ in named(books)] == ["one", "two"]


@pytest.mark.parametrize(
    ("how", "changes"),
    [("taken_back", {}), ("done", {"purchase": "own"}), ("done", {"tags": {"simulated": "true"}})],
)
def test_what_its_provider_took_what_is_ones_own_and_what_is_simulated_is_not_asked_for(books, how, changes):
    hold(books, "one", 1, how, **changes)
    assert named(books) == []


def test_a_lease_that_begins_where_the_other_ended_leaves_no_gap(books):
    hold(books, "one", 1)
    ledger, _ = books
    ledger.leases.open(dataclasses.replace(lease("two"), from_ns=ledger.leases.get("one").to_ns))
    assert named(books) == []


def told(app: Typer, *arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_commands_name_it_and_settle_it(books, tmp_path):
    hold(books, "one", 2)
    root = ("--root", str(tmp_path))
    for said in (told(cost, "leases", "list", *root), told(cost, "report", *root), told(sweeps, "status", *root)):
        assert "h100 (runpod-h100) was left at" in said
    (listed,) = json.loads(told(cost, "leases", "list", "--json", *root))["leases"]
    assert "leases extend one" in listed["unaccounted"]
    assert told(cost, "leases", "extend", "one", *root) == "one+\n"
    assert named(books) == []
    told(cost, "leases", "close", "one+", "--released", *root)
    assert "was left at" not in told(cost, "leases", "list", *root)

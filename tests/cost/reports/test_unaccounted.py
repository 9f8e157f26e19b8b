"""Time after a lease whose machine may have kept running: reported until a person records what happened."""

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
def leased(tmp_path):
    clock = FakeClock(ROW.from_ns)
    with Ledger.open(tmp_path / "ledger.db", clock) as ledger:
        yield ledger, clock


def lease(lease_id: str, **changes) -> Lease:
    priced = {"sku": ROW.sku, "provider": ROW.provider, "currency": ROW.currency, "price_hash": ROW.hash}
    box = {"instance_id": "box", "machine": "h100", "cards": 1, "purchase": "on_demand"}
    return Lease(lease_id, **{**priced, **box, **changes})


def run_sweep(leased, lease_id: str, hours: int, how: str = "done", **changes) -> None:
    """A sweep leases the machine for some hours and leaves it. Then the same time passes without a lease."""
    ledger, clock = leased
    ledger.leases.open(lease(lease_id, **changes))
    ledger.price_archive.add([ROW])
    ledger.leases.attach(lease_id, f"sweep-{lease_id}")
    clock.advance(hours * HOUR_NS)
    ledger.leases.detach(lease_id, f"sweep-{lease_id}", how)
    clock.advance(hours * HOUR_NS)


def unaccounted_spans(leased) -> list[tuple[str, int | None]]:
    """The lease before each unaccounted time, and its end."""
    return [(gap.before.lease.lease_id, gap.to_ns) for gap in unaccounted.unaccounted_times(leased[0])]


def billed_hours(leased) -> float:
    ledger, clock = leased
    lines = attribute(ledger, BOOK, clock.utc).lines
    assert run_checks(ledger, BOOK, clock.utc) == []
    return sum(line.pico for line in lines if line.category != "billing_increment") / float(ROW.price) / 1e12


def test_a_machine_left_without_confirmed_release_is_reported_with_its_cost_and_the_commands(leased):
    run_sweep(leased, "one", 3)
    ledger, clock = leased
    assert unaccounted_spans(leased) == [("one", None)]
    text = unaccounted.describe(unaccounted.unaccounted_times(ledger), BOOK, clock.utc)["one"]
    assert f"about {3 * float(ROW.price):.2f} USD are missing from the ledger" in text
    assert "If it kept running: python -m cost leases extend one." in text
    assert text.endswith("If it was released: python -m cost leases close one --released")


def test_a_lease_recorded_between_two_others_costs_exactly_the_time_between_them(leased):
    run_sweep(leased, "one", 3)
    run_sweep(leased, "two", 1)
    ledger, _ = leased
    assert [lease_id for lease_id, _ in unaccounted_spans(leased)] == ["one", "two"]
    (text,) = unaccounted.describe(unaccounted.unaccounted_times(ledger), BOOK, leased[1].utc).values()
    assert "This machine has 1 earlier unaccounted time." in text
    assert unaccounted.record_lease(ledger, "one") == "one+"
    assert unaccounted_spans(leased)[0][0] == "two"
    assert billed_hours(leased) == pytest.approx(3 + 3 + 1)
    state = ledger.leases.get("one+")
    assert (state.to_ns, state.lease.opened_by) == (ledger.leases.get("two").from_ns, "hand")
    with pytest.raises(LedgerError, match="no time after lease one is unaccounted for"):
        unaccounted.record_lease(ledger, "one")


def test_a_machine_that_still_runs_gets_an_open_lease_that_the_next_sweep_attaches_to(leased):
    run_sweep(leased, "one", 2)
    ledger, clock = leased
    assert unaccounted.record_lease(ledger, "one") == "one+"
    assert unaccounted_spans(leased) == []
    state = ledger.leases.open_on("box")
    assert state is not None
    assert state.lease.lease_id == "one+"
    ledger.leases.attach("one+", "later")
    clock.advance(HOUR_NS)
    ledger.leases.detach("one+", "later", "done")
    assert ledger.leases.get("one+").to_ns is None, "leases opened by hand stay open after the last sweep"
    assert billed_hours(leased) == pytest.approx(2 + 2 + 1)


def test_a_recorded_release_ends_the_report_and_charges_the_time_until_then(leased):
    run_sweep(leased, "one", 2)
    ledger, clock = leased
    unaccounted.record_release(ledger, "one", clock.utc - HOUR_NS)
    assert unaccounted_spans(leased) == []
    assert billed_hours(leased) == pytest.approx(2 + 1)
    run_sweep(leased, "two", 1)
    unaccounted.record_release(ledger, "two")
    unaccounted.record_release(ledger, "two")
    assert unaccounted_spans(leased) == []
    assert billed_hours(leased) == pytest.approx(2 + 1 + 1)


def test_a_release_after_the_start_of_the_next_lease_is_refused(leased):
    run_sweep(leased, "one", 2)
    run_sweep(leased, "two", 1)
    with pytest.raises(IntegrityError, match="the next lease of that machine began at"):
        unaccounted.record_release(leased[0], "one", leased[1].utc)
    assert [lease_id for lease_id, _ in unaccounted_spans(leased)] == ["one", "two"]


@pytest.mark.parametrize(
    ("how", "changes"),
    [("taken_back", {}), ("done", {"purchase": "own"}), ("done", {"tags": {"simulated": "true"}})],
)
def test_interrupted_own_and_simulated_machines_have_no_unaccounted_time(leased, how, changes):
    run_sweep(leased, "one", 1, how, **changes)
    assert unaccounted_spans(leased) == []


def test_adjacent_leases_leave_no_unaccounted_time(leased):
    run_sweep(leased, "one", 1)
    ledger, _ = leased
    ledger.leases.open(dataclasses.replace(lease("two"), from_ns=ledger.leases.get("one").to_ns))
    assert unaccounted_spans(leased) == []


def output_of(app: Typer, *arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_commands_report_unaccounted_time_and_record_a_lease_for_it(leased, tmp_path):
    run_sweep(leased, "one", 2)
    root = ("--root", str(tmp_path))
    for text in (
        output_of(cost, "leases", "list", *root),
        output_of(cost, "report", *root),
        output_of(sweeps, "status", *root),
    ):
        assert "h100 (runpod-h100) was left at" in text
    (listed,) = json.loads(output_of(cost, "leases", "list", "--json", *root))["leases"]
    assert "leases extend one" in listed["unaccounted"]
    assert output_of(cost, "leases", "extend", "one", *root) == "one+\n"
    assert unaccounted_spans(leased) == []
    output_of(cost, "leases", "close", "one+", "--released", *root)
    assert "was left at" not in output_of(cost, "leases", "list", *root)

"""Who answers for what: a sweep's owner, project and tags, on a machine that has others."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from typer.testing import CliRunner

from cost.charges.chargeback import Chargeback, chargebacks_by_sweep, required_names, set_chargeback, set_required_names
from cost.cli.main import app
from cost.money import pico_of
from cost.prices.billing import BillingRule
from cost.prices.book import PriceBook, PriceRow
from cost.records import UsageKey
from cost.reports.grouped import ReportScope, grouped_report, scoped_attribution
from cost.reports.report import Report

HOUR = 3600
ROW = PriceRow(
    *("cloud", "box", "", "machine_hour", 8, "on_demand", "USD", Decimal(8), False, Decimal(0), "2025-01-01", ""),
    *("page", "2025-12-01"),
)

RULES = (BillingRule("cloud", 1, 0, "up", False, ("running",), "moment", 0, "none", "page", "2025-12-01"),)


@pytest.fixture
def place(request, tmp_path) -> str:
    """SQLite, and PostgreSQL where a test asks for it by name."""
    if "any_database" in request.fixturenames:
        return request.getfixturevalue("any_database")
    return str(tmp_path / "ledger.db")


@pytest.fixture
def books(ledger, clock, make_lease):
    """An hour of start-up, an hour of a trial on half the cards, an hour with no sweep, on ann's machine."""
    more = {"sku": "box", "provider": "cloud", "price_hash": ROW.hash, "opened_by": "hand"}
    ledger.leases.open(make_lease(owner="ann", project="pool", tags={"team": "infra", "site": "x"}, **more))
    set_chargeback(ledger, "s1", Chargeback("bob", "", {"team": "rl", "cost_center": "4711"}))
    ledger.leases.attach("L1", "s1")
    clock.advance_seconds(HOUR)
    ledger.usages.start(UsageKey("L1", "t1", 1), "s1", Decimal(4), {})
    clock.advance_seconds(HOUR)
    ledger.usages.end(UsageKey("L1", "t1", 1), "COMPLETED")
    ledger.leases.detach("L1", "s1", "done")
    clock.advance_seconds(HOUR)
    ledger.leases.close("L1", "done")
    return ledger


def costs(report: Report) -> dict[str, int]:
    return {row.name: row.pico for row in report.rows}


def by(books, clock, what: str, **more) -> dict[str, int]:
    return costs(grouped_report(books, PriceBook((ROW,)), ReportScope(by=what, **more), clock.utc, rules=RULES))


def test_a_sweep_is_charged_to_its_own_owner_and_what_nobody_used_to_the_machines(any_database, books, clock):
    assert by(books, clock, "user") == {"ann": pico_of(8), "bob": pico_of(16)}
    assert by(books, clock, "tag:team") == {"infra": pico_of(8), "rl": pico_of(16)}
    assert by(books, clock, "cost_center") == {"(none)": pico_of(8), "4711": pico_of(16)}


def test_what_a_sweep_does_not_say_the_machine_does(books, clock):
    assert by(books, clock, "project") == {"pool": pico_of(24)}
    assert by(books, clock, "tag:site") == {"x": pico_of(24)}


def test_idle_time_can_be_left_to_the_machines_owner_or_spread_over_those_who_ran(books, clock):
    assert by(books, clock, "user", idle="owner") == {"ann": pico_of(20), "bob": pico_of(4)}
    assert by(books, clock, "user", idle="spread") == {"bob": pico_of(24)}


def test_the_latest_owner_of_a_sweep_counts_and_an_old_report_has_the_old_one(any_database, books, clock):
    then = clock.utc
    clock.advance_seconds(HOUR)
    set_chargeback(books, "s1", Chargeback("cy"))
    set_chargeback(books, "s1", Chargeback("cy"))
    assert chargebacks_by_sweep(books) == {"s1": Chargeback("cy")}
    assert len(list(books.events.read("chargeback"))) == 2
    assert by(books, clock, "user") == {"ann": pico_of(8), "cy": pico_of(16)}
    assert by(books, clock, "user", as_of_ns=then) == {"ann": pico_of(8), "bob": pico_of(16)}


def test_finance_sees_the_same_owner(books, clock):
    lines = scoped_attribution(books, PriceBook((ROW,)), ReportScope(), clock.utc, rules=RULES).lines
    assert {line.lease.owner for line in lines if line.trial_id} == {"bob"}


def test_what_the_books_require_is_asked_of_every_machine_opened_by_hand(tmp_path):
    runner, root = CliRunner(), ["--root", str(tmp_path / "runs")]

    def run(*words: str) -> tuple[int, str]:
        said = runner.invoke(app, ["leases", *words, *root])
        return said.exit_code, said.output

    opening = ["open", "--machine", "m", "--sku", "lambda-h100x8", "--cards", "8"]
    assert run(*opening, "--instance", "i-0")[0] == 0, "nothing is required before somebody says so"
    assert run("require", "project", "team") == (0, "required: project, team\n")
    assert run("require") == (0, "required: project, team\n")
    code, said = run(*opening, "--instance", "i-1", "--owner", "ann")
    assert (code, "require project, team of every machine: add --project NAME --tag team=VALUE" in said) == (2, True)
    assert run(*opening, "--instance", "i-1", "--project", " ", "--tag", "team=rl")[0] == 2, "a blank says nothing"
    assert run(*opening, "--instance", "i-1", "--project", "ladder", "--tag", "team=rl")[0] == 0
    assert run("require", "--nothing") == (0, "required: nothing\n")
    assert run(*opening, "--instance", "i-2")[0] == 0
    assert run("require", "a b")[0] == 2
    assert json.loads(run("list", "--json")[1])["leases"][1]["tags"] == {"team": "rl"}


def test_the_latest_requirement_counts(any_database, ledger, clock):
    assert required_names(ledger) == ()
    for names in (["owner"], ["owner"], ["team", "cost_center"]):
        clock.advance_seconds(1)
        set_required_names(ledger, names)
    assert required_names(ledger) == ("team", "cost_center")
    assert [event.kind for event in ledger.events.read("chargeback")] == ["required", "required"]
    set_chargeback(ledger, "s1", Chargeback("ann"))
    assert (chargebacks_by_sweep(ledger), required_names(ledger)) == (
        {"s1": Chargeback("ann")},
        ("team", "cost_center"),
    )
    assert Chargeback("ann", tags={"cost_center": "4711"}).missing(required_names(ledger)) == ["team"]

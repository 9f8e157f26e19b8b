"""Chargeback: the cost of a sweep goes to its owner, project and tags, not to those of the machine."""

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
def filled_ledger(ledger, clock, make_lease):
    """On ann's machine: an hour of startup, an hour of a trial on half the cards, an hour without a sweep."""
    fields = {"sku": "box", "provider": "cloud", "price_hash": ROW.hash, "opened_by": "hand"}
    ledger.leases.open(make_lease(owner="ann", project="pool", tags={"team": "infra", "site": "x"}, **fields))
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


def costs_by(filled_ledger, clock, grouping: str, **scope) -> dict[str, int]:
    return costs(
        grouped_report(filled_ledger, PriceBook((ROW,)), ReportScope(by=grouping, **scope), clock.utc, rules=RULES)
    )


def test_a_sweep_is_charged_to_its_owner_and_unassigned_time_to_the_machines_owner(any_database, filled_ledger, clock):
    assert costs_by(filled_ledger, clock, "user") == {"ann": pico_of(8), "bob": pico_of(16)}
    assert costs_by(filled_ledger, clock, "tag:team") == {"infra": pico_of(8), "rl": pico_of(16)}
    assert costs_by(filled_ledger, clock, "cost_center") == {"(none)": pico_of(8), "4711": pico_of(16)}


def test_a_name_that_a_sweep_leaves_empty_comes_from_the_machine(filled_ledger, clock):
    assert costs_by(filled_ledger, clock, "project") == {"pool": pico_of(24)}
    assert costs_by(filled_ledger, clock, "tag:site") == {"x": pico_of(24)}


def test_idle_time_can_be_charged_to_the_machines_owner_or_spread_over_trials(filled_ledger, clock):
    assert costs_by(filled_ledger, clock, "user", idle="owner") == {"ann": pico_of(20), "bob": pico_of(4)}
    assert costs_by(filled_ledger, clock, "user", idle="spread") == {"bob": pico_of(24)}


def test_the_latest_owner_of_a_sweep_applies_and_a_report_as_of_a_moment_has_the_owner_of_that_moment(
    any_database, filled_ledger, clock
):
    then = clock.utc
    clock.advance_seconds(HOUR)
    set_chargeback(filled_ledger, "s1", Chargeback("cy"))
    set_chargeback(filled_ledger, "s1", Chargeback("cy"))
    assert chargebacks_by_sweep(filled_ledger) == {"s1": Chargeback("cy")}
    assert len(list(filled_ledger.events.read("chargeback"))) == 2
    assert costs_by(filled_ledger, clock, "user") == {"ann": pico_of(8), "cy": pico_of(16)}
    assert costs_by(filled_ledger, clock, "user", as_of_ns=then) == {"ann": pico_of(8), "bob": pico_of(16)}


def test_scoped_lines_have_the_sweeps_owner(filled_ledger, clock):
    lines = scoped_attribution(filled_ledger, PriceBook((ROW,)), ReportScope(), clock.utc, rules=RULES).lines
    assert {line.lease.owner for line in lines if line.trial_id} == {"bob"}


def test_required_names_are_enforced_for_machines_opened_by_hand(tmp_path):
    runner, root = CliRunner(), ["--root", str(tmp_path / "runs")]

    def run(*arguments: str) -> tuple[int, str]:
        result = runner.invoke(app, ["leases", *arguments, *root])
        return result.exit_code, result.output

    opening = ["open", "--machine", "m", "--sku", "lambda-h100x8", "--cards", "8"]
    assert run(*opening, "--instance", "i-0")[0] == 0, "nothing is required by default"
    assert run("require", "project", "team") == (0, "required: project, team\n")
    assert run("require") == (0, "required: project, team\n")
    code, output = run(*opening, "--instance", "i-1", "--owner", "ann")
    assert (code, "requires project, team for every machine: add --project NAME --tag team=VALUE" in output) == (
        2,
        True,
    )
    assert run(*opening, "--instance", "i-1", "--project", " ", "--tag", "team=rl")[0] == 2, (
        "a blank value counts as missing"
    )
    assert run(*opening, "--instance", "i-1", "--project", "ladder", "--tag", "team=rl")[0] == 0
    assert run("require", "--nothing") == (0, "required: nothing\n")
    assert run(*opening, "--instance", "i-2")[0] == 0
    assert run("require", "a b")[0] == 2
    assert json.loads(run("list", "--json")[1])["leases"][1]["tags"] == {"team": "rl"}


def test_the_latest_required_names_apply(any_database, ledger, clock):
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

"""`python -m cost budget`: limits are set and shown."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from tests.cost.cli.conftest import run


def test_a_budget_shows_limit_spent_and_free_money_with_idle_time(root, pricing):
    place = ("--root", root, "--pricing", pricing)
    run("budget", *place, "--set", "sweep:sweep-1=100 USD", "--set", "stage:single=200 USD", "--set", "month=100 EUR")
    run("budget", *place, "--set", "sweep:sweep-1=150.50 USD")
    found = {b["scope"]: b for b in json.loads(run("budget", *place, "--json"))["budgets"]}
    spent = json.loads(run("report", *place, "--sweep", "sweep-1", "--json"))["total"]
    assert found["sweep:sweep-1"]["limit"] == "150.5 USD"
    assert found["sweep:sweep-1"]["spent"] == f"{spent} USD"
    assert Decimal(found["sweep:sweep-1"]["free"].split()[0]) == Decimal("150.5") - Decimal(spent)
    assert found["month"]["spent"].endswith("EUR")
    assert "sweep sweep-1" in run("budget", *place)


@pytest.mark.parametrize("setting", ["month", "month=500", "month=-5 USD", "year=5 USD", "stage:=5 USD", "month=0 USD"])
def test_an_invalid_limit_is_refused(root, pricing, setting):
    run("budget", "--root", root, "--pricing", pricing, "--set", setting, code=2)


def test_the_help_explains_what_a_limit_does_to_sweeps():
    text = " ".join(run("budget", "--help").split())
    assert "a trial that does not fit is not started" in text
    assert "budget.sweep_limit" in text

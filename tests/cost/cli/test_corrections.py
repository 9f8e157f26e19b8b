"""`python -m cost correct` and `python -m cost close`."""

from __future__ import annotations

import json
from decimal import Decimal

from tests.cost.cli.conftest import run


def test_a_month_can_be_closed_after_its_end(root, pricing):
    place = ("--root", root, "--pricing", pricing)
    text = run("close", "--period", "2026-10", *place)
    assert text == "Closed 2026-10: 0 leases, no cost\n"
    assert "not over" in run("close", "--period", "2099-01", *place, code=2)
    assert "is not a month" in run("close", "--period", "2026-13", *place, code=2)


def test_a_correction_changes_the_total_once_however_often_it_is_written(root, pricing):
    place = ("--root", root)
    total = Decimal(json.loads(run("report", *place, "--pricing", pricing, "--sweep", "sweep-1", "--json"))["total"])
    correction = ("correct", "L1", *place, "--amount", "-5.25 USD", "--category", "credit", "--sweep", "sweep-1")
    for _ in range(2):
        run(*correction, "--reason", "credit note 17", "--id", "cn-17", "--at", "2026-11-28")
    after = json.loads(run("report", *place, "--pricing", pricing, "--sweep", "sweep-1", "--json"))
    assert Decimal(after["total"]) == total - Decimal("5.25")
    assert run("check", *place, "--pricing", pricing) == ""
    assert "exists with other content" in run(
        *correction, "--reason", "credit note 18", "--id", "cn-17", "--at", "2026-11-28", code=2
    )
    for wrong, message in (
        (("--amount", "5.25"), "not an amount and a currency"),
        (("--amount", "5.25 EUR"), "is in USD"),
        (("--category", "bribe"), "'bribe' is not a category"),
        (("--reason", " "), "needs a reason"),
    ):
        assert message in run(*correction, "--reason", "x", *wrong, code=2)
    assert "lease L7 does not exist" in run("correct", "L7", *place, "--amount", "1 USD", "--reason", "x", code=2)

"""`python -m cost check`: exit code and output."""

from __future__ import annotations

from tests.cost.cli.conftest import run


def test_a_consistent_ledger_prints_nothing(root, pricing):
    assert run("check", "--root", root, "--pricing", pricing) == ""


def test_a_missing_price_names_the_sku_and_the_command_that_adds_it(root, pricing):
    (pricing / "cloud.yaml").write_text("prices: []\n", encoding="utf-8")
    text = run("check", "--root", root, "--pricing", pricing, code=1)
    assert "priced: lease L1" in text
    assert "python -m cost prices add box" in text
    report = run("report", "--root", root, "--pricing", pricing)
    assert "prices add box" in report
    assert "0.0000 USD" not in report, "an unknown total is not zero"

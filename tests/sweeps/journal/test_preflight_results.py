"""Results of preflights in a ledger, found again by their recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from cost.ledger.ledger import Ledger
from rl.checks.result import CheckResult, Status
from sweeps.journal.journal import sweep_ids
from sweeps.journal.preflight_results import PreflightResult, has_passed, record_result, results_of


def a_result(status: Status, recipe: str = "abc", *, simulated: bool = False) -> PreflightResult:
    checks = (CheckResult("reward probe", status, "seen", "change", ("a  b",)), CheckResult("price", "passed", "7"))
    return PreflightResult(recipe, "all", simulated, checks)


@pytest.fixture
def ledger(tmp_path: Path):
    with Ledger.open(tmp_path / "ledger.db") as opened:
        yield opened


def test_a_result_is_read_back_as_it_was_and_is_no_sweep(ledger: Ledger) -> None:
    record_result(ledger, a_result("warned"))
    assert results_of(ledger, "abc") == [a_result("warned")]
    assert results_of(ledger, "ab") == []
    assert sweep_ids(ledger) == []


def test_the_newest_result_of_the_recipe_decides(ledger: Ledger) -> None:
    assert not has_passed(ledger, "abc", simulated=False)
    record_result(ledger, a_result("passed"))
    record_result(ledger, a_result("failed", "other"))
    assert has_passed(ledger, "abc", simulated=False)
    assert not has_passed(ledger, "other", simulated=False)
    record_result(ledger, a_result("failed"))
    assert not has_passed(ledger, "abc", simulated=False)


def test_a_simulated_result_is_valid_for_simulated_stages_only(ledger: Ledger) -> None:
    record_result(ledger, a_result("warned", simulated=True))
    assert has_passed(ledger, "abc", simulated=True)
    assert not has_passed(ledger, "abc", simulated=False)

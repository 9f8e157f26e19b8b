"""The checks of a preflight in terminals of 80 and 100 columns."""

from __future__ import annotations

import pytest

from rl.checks.result import CheckResult
from sweeps.report.console import PlainTextConsole
from sweeps.report.preflight_text import check_lines, print_checks, totals

RESULT = CheckResult("reward probe", "failed", "seen " * 40, "other " * 30, ("a      b", "x " * 60))


@pytest.mark.parametrize("width", [80, 100])
def test_no_line_is_wider_than_the_terminal(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    print_checks(PlainTextConsole(width=width), [RESULT])
    printed = capsys.readouterr().out.splitlines()
    assert max(map(len, printed)) <= width
    assert printed[0] == "failed  reward probe"


def test_columns_of_details_stay_and_the_remedy_is_named() -> None:
    lines = list(check_lines(RESULT, 100))
    assert "          a      b" in lines
    assert any(line.startswith("        change: other") for line in lines)


def test_totals_count_each_status() -> None:
    assert totals([RESULT, CheckResult("a", "passed", "")]) == "1 passed, 0 warned, 1 failed, 0 skipped"

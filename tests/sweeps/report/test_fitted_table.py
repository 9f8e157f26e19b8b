"""Tables on narrow terminals: whole numbers, and fewer columns instead."""

from __future__ import annotations

import io
from collections.abc import Callable
from decimal import Decimal

import pytest
from rich.console import Console, RenderableType

from sweeps.planning.plan import make_plan
from sweeps.report.fitted_table import Column, FittedTable, shown_columns
from sweeps.report.live_view import LiveView
from sweeps.report.plan_tables import plan_table
from sweeps.report.results import results_table
from tests.sweeps.in_process import Sweep, a_sweep

COLUMNS = (Column("name", wraps=True), Column("first", drop=1), Column("second", drop=2), Column("cost", right=True))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    return a_sweep(tmp_path_factory.mktemp("fitted")).run()


def lines(renderable: RenderableType, width: int) -> list[str]:
    output = io.StringIO()
    Console(file=output, width=width, highlight=False).print(renderable)
    return output.getvalue().splitlines()


def test_columns_are_left_out_in_the_order_of_their_numbers() -> None:
    widths = (30, 10, 10, 12)
    assert shown_columns(COLUMNS, widths, 60, 2) == [0, 1, 2, 3]
    assert shown_columns(COLUMNS, widths, 50, 2) == [0, 2, 3]
    assert shown_columns(COLUMNS, widths, 40, 2) == [0, 3]
    assert shown_columns(COLUMNS, widths, 10, 2) == [0, 3]


def test_a_long_text_wraps_and_the_number_beside_it_is_whole() -> None:
    table = FittedTable(COLUMNS)
    table.add_row("kl_coef=0.01 temperature=0.9 placement=reward", "a" * 9, "b" * 9, "1234.567890 USD")
    printed = lines(table, 40)
    assert any(line.endswith("1234.567890 USD") for line in printed)
    assert max(map(len, printed)) <= 40
    assert "…" not in "".join(printed)


def _results(sweep: Sweep) -> RenderableType:
    trials = sweep.journal.record.trials
    return results_table(
        sweep.journal.record, dict.fromkeys(trials, "1234.567890 USD"), dict.fromkeys(trials, Decimal("123.4567"))
    )


def _plan(sweep: Sweep) -> RenderableType:
    plan = make_plan(sweep.cfg)
    return plan_table(plan, 2, 20, {t.trial_id: 36_000.0 for t in plan.trials})


def _live(sweep: Sweep) -> RenderableType:
    costs = dict.fromkeys(sweep.journal.record.trials, "1234.567890 USD")
    view = LiveView(Console(file=io.StringIO()), sweep.journal.record, 20, lambda: costs, None)
    view._cost_texts = costs
    return view._table()


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize(
    ("table", "numbers"),
    [(_results, ["1234.567890 USD"]), (_plan, ["10 h 00 min"]), (_live, ["1234.567890 USD", "20/20"])],
    ids=["results", "plan", "live view"],
)
def test_numbers_are_whole_at_80_and_100_columns(
    sweep: Sweep, table: Callable[[Sweep], RenderableType], numbers: list[str], width: int
) -> None:
    printed = lines(table(sweep), width)
    rows = [line for line in printed[1:] if line.strip()]
    assert len(rows) == len(sweep.journal.record.trials)
    for row in rows:
        assert all(number in row for number in numbers), row
        assert "…" not in row
        assert len(row) <= width

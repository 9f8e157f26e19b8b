"""Plain text tables: the width, which columns are left out, and what is cut."""

from __future__ import annotations

import pytest

from cost.reports.text_table import table_text

COLUMNS = ("", "stage", "machine", "card-hours", "cost")
ROW = ("smoke-20261201-054415-2x8-hold", "smoke", "h100x8-us-east-2", "123.4567", "12345.678901 USD")


@pytest.mark.parametrize("width", [60, 80, 100])
def test_numbers_are_never_cut(width: int) -> None:
    line = table_text(COLUMNS, [ROW], right=("card-hours", "cost"), drop=("machine", "stage"), width=width)
    for row in line.splitlines():
        assert len(row) <= width
    assert "123.4567  12345.678901 USD" in line


def test_columns_are_left_out_before_texts_become_unreadable() -> None:
    def header(width: int) -> list[str]:
        text = table_text(COLUMNS, [ROW], right=("card-hours", "cost"), drop=("machine", "stage"), width=width)
        return text.splitlines()[0].split()

    assert header(100) == ["stage", "machine", "card-hours", "cost"]
    assert header(60) == ["stage", "card-hours", "cost"]
    assert header(45) == ["card-hours", "cost"]


def test_the_widest_text_is_cut_first() -> None:
    assert table_text(("a", "b"), [("x" * 40, "short")], width=30).splitlines()[1] == "x" * 22 + "…  short"

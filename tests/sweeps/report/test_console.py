"""How numbers and durations are written in the terminal."""

from __future__ import annotations

from sweeps.report.console import WIDTH, duration_text, make_console, number_text, percent_text


def test_durations_are_written_with_two_units_at_most() -> None:
    texts = [duration_text(s) for s in (None, 0, 45, 190, 7500)]
    assert texts == ["-", "0 s", "45 s", "3 min 10 s", "2 h 05 min"]


def test_unknown_values_are_dashes() -> None:
    assert (number_text(None), percent_text(None)) == ("-", "-")
    assert (number_text(0.12345), number_text(0.5, 1), percent_text(0.031)) == ("0.123", "0.5", "3.1%")


def test_without_a_terminal_lines_are_100_columns_wide() -> None:
    assert make_console().width == WIDTH

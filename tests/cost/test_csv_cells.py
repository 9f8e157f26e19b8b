"""Texts that begin like a formula are escaped in CSV files, and read back as they were."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.csv_cells import escape_cell, escape_row, unescape_cell


@pytest.mark.parametrize("text", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "'=1"])
def test_a_text_that_a_spreadsheet_would_run_is_quoted(text):
    assert escape_cell(text) == "'" + text


@pytest.mark.parametrize("text", ["-0.5", "+3", "-1e-06", "plain", "", "a=b", "'quoted'"])
def test_numbers_and_other_texts_are_left_as_they_are(text):
    assert escape_cell(text) == text


@given(st.text(alphabet="'=+-@\t\ra1.e", max_size=8))
def test_an_escaped_text_is_read_back_as_it_was(text):
    assert unescape_cell(escape_cell(text)) == text


def test_control_characters_of_a_row_are_escaped():
    assert escape_row({"owner": "\x1b[2J", "cost": "-0.5"}) == {"owner": r"\x1b[2J", "cost": "-0.5"}

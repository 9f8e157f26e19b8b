"""Control characters in names and messages are escaped before a terminal shows them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.printable import json_text, printable, printable_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b2J", r"\x9b2J"),
        ("good\rbad", r"good\rbad"),
        ("abc\u202edef", r"abc\u202edef"),
        ("\ud800", r"\ud800"),
        ("Zürich 東京 🚀 [bold] 50 %", "Zürich 東京 🚀 [bold] 50 %"),
        ("two\n\tlines", "two\n\tlines"),
    ],
)
def test_control_characters_are_escaped_and_letters_kept(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_line_has_no_line_breaks() -> None:
    assert printable_line("owner\r\nMetric gate: open\t!\x1b") == r"owner Metric gate: open !\x1b"


@given(st.text())
def test_an_escaped_text_can_be_encoded_and_stays_the_same_when_escaped_again(text: str) -> None:
    shown = printable(text)
    shown.encode()
    assert printable(shown) == shown


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5) | st.integers(), max_size=3))
def test_json_has_no_control_characters_and_reads_back_as_it_was(body: dict) -> None:
    text = json_text(body)
    assert printable(text) == text
    assert json.loads(text) == body

"""Texts in CSV files that a spreadsheet must not run as formulas.

A cell that begins with one of these characters is a formula to a spreadsheet. OWASP's page on CSV injection advises a
single quote in front: https://owasp.org/www-community/attacks/CSV_Injection. Numbers keep their sign.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from cost.printable import printable

_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?")


def escape_cell(text: str) -> str:
    """A cell that every spreadsheet shows as text, or as the number that the text is."""
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def unescape_cell(text: str) -> str:
    """The text that `escape_cell` escaped; other texts are returned as they are."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def escape_row(row: Mapping[str, str]) -> dict[str, str]:
    """The row of a CSV file with its texts escaped, control characters too: people show these files in terminals."""
    return {name: escape_cell(printable(value)) for name, value in row.items()}

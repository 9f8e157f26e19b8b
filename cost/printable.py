"""Text from outside (names, labels, error messages) as a terminal may show it.

Escape sequences can recolour, retitle or overwrite what a terminal shows, and bidirectional controls can reorder it.
Both are shown as Python writes them in a string: `\\x1b`, `\\u202e`. Every command prints through these functions.
"""

from __future__ import annotations

import json
import re
from typing import Any

_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    "\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"  # separators, directions, no width
    "\ud800-\udfff\U000e0000-\U000e007f]"  # lone surrogates cannot be encoded; tags are invisible
)
_BREAKS = re.compile(r"[\t\n\r]+")


def printable(text: str) -> str:
    """The text with its control characters escaped. Newlines and tabs are kept."""
    return text if text.isascii() and text.isprintable() else _CONTROLS.sub(_escaped, text)


def printable_line(text: str) -> str:
    """The text as one line: newlines and tabs become spaces, other control characters are escaped."""
    return printable(_BREAKS.sub(" ", text))


def json_text(body: Any, **options: Any) -> str:
    """JSON with letters as they are and control characters as JSON escapes. `options`: those of `json.dumps`."""
    return _CONTROLS.sub(_json_escaped, json.dumps(body, ensure_ascii=False, **options))


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def _json_escaped(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1] if ord(found[0]) > 0x7F else f"\\u{ord(found[0]):04x}"

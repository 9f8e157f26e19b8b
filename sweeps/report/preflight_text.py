"""The checks of a preflight as text that fits the terminal.

Tested in tests/sweeps/report/test_preflight_text.py.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from rl.checks.result import CheckResult

STYLES = {"passed": "green", "warned": "yellow", "failed": "red", "skipped": "dim"}
_INDENT = " " * 8


def print_checks(console: Console, results: Sequence[CheckResult]) -> None:
    """Every check with what was done and seen, and what to change."""
    for result in results:
        first, *rest = check_lines(result, console.width)
        console.print(Text(first, style=STYLES[result.status]))
        for line in rest:
            console.print(Text(line), soft_wrap=True)


def check_lines(result: CheckResult, width: int) -> Iterator[str]:
    """The lines of one check, none longer than `width` except a word of that length."""
    yield f"{result.status:8}{result.name}"
    yield from _wrapped(result.seen, width)
    if result.remedy:
        yield from _wrapped(f"change: {result.remedy}", width)
    for line in result.lines:
        yield from textwrap.wrap(
            line,
            width,
            initial_indent=_INDENT + "  ",
            subsequent_indent=_INDENT + "  ",
            replace_whitespace=False,
            drop_whitespace=False,
        ) or [""]


def totals(results: Sequence[CheckResult]) -> str:
    """`12 passed, 1 warned, 0 failed, 2 skipped`."""
    return ", ".join(f"{sum(r.status == status for r in results)} {status}" for status in STYLES)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False)

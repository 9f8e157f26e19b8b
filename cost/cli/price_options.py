"""Options and formats that the `prices` commands share.

Tested in tests/cost/cli/test_prices.py.
"""

from __future__ import annotations

import time
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from cost.periods import instant_text
from cost.prices.book import PriceRow, as_mapping

Folder = Annotated[Path, typer.Option("--pricing", help="Folder of the price book.", show_default="conf/pricing")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be written; write nothing.")]
ValidFrom = Annotated[str, typer.Option("--valid-from", help="First day on which the prices apply; default: today.")]


def today_utc() -> date:
    return datetime.now(UTC).date()


def now_text() -> str:
    return instant_text(time.time_ns())


def row_body(row: PriceRow) -> dict[str, Any]:
    """A price row as JSON, with its hash."""
    return as_mapping(row) | {"hash": row.hash}

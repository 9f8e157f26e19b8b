"""Adds one price row to added.yaml in the price book, completely or not at all.

Tested in tests/cost/cli/test_prices.py.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cost.prices.book import PriceBook, PriceError, PriceRow, as_mapping

_HEAD = """\
# Prices added with `python -m cost prices add`. Rows are not edited: a new price is a new row with a later valid_from.

# List of price rows; the keys are explained in runpod.yaml.
prices:
"""


def add_row(folder: Path, row: PriceRow) -> Path:
    """Append the row and return the file. Raises PriceError if the SKU has a price from the same moment."""
    with _lock(folder):
        return _append(folder, row)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Exclude other programs that add a row, so that each sees the rows of the earlier ones."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise PriceError(f"{folder}: cannot be read: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _append(folder: Path, row: PriceRow) -> Path:
    for other in PriceBook.load(folder).rows:
        if other.series == row.series and other.from_ns == row.from_ns:
            raise PriceError(
                f"SKU {row.sku!r} has a price of {other.price} {other.currency} from {other.valid_from} already; "
                "give the new one a later --valid-from"
            )
    file = folder / "added.yaml"
    text = file.read_text(encoding="utf-8") if file.exists() else _HEAD
    partial = file.with_suffix(".part")
    with partial.open("w", encoding="utf-8") as stream:
        stream.write(f"{text.rstrip()}\n  - {json.dumps(as_mapping(row), ensure_ascii=False)}\n")
        stream.flush()
        os.fsync(stream.fileno())
    partial.rename(file)
    return file

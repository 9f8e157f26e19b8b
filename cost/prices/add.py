"""Adding one price row by hand to the price book's added.yaml, whole or not at all."""

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
    """Appends the row and returns the file. Raises PriceError when the SKU has a price from that moment already."""
    with _turn(folder):
        return _append(folder, row)


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Of several programs that add a row at once, each sees what the one before it has written."""
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

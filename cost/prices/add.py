"""Adds one price row to added.yaml in the price book, completely or not at all.

Tested in tests/cost/cli/test_prices.py.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cost.prices.book import PriceBook, PriceError, PriceRow, as_mapping
from cost.prices.fx import Rate, load_rates

_HEAD = """\
# Prices added with `python -m cost prices add`. Rows are not edited: a new price is a new row with a later valid_from.

# List of price rows; the keys are explained in runpod.yaml.
prices:
"""


_RATES_HEAD = """\
# Exchange rates, dated: the rate of a day is that of the last row on or before it.

# List of rates; one unit of `base` is `rate` units of `quote`.
rates:
"""


def add_rate(folder: Path, rate: Rate) -> Path:
    """Append an exchange rate to fx.yaml and return the file.

    Raises:
        PriceError: the pair has a rate of that day already, or the rate is 0.
    """
    if not rate.rate:
        raise PriceError(f"the rate from {rate.base} to {rate.quote} is 0")
    with _lock(folder):
        for other in load_rates(folder):
            if (other.base, other.quote, other.day) == (rate.base, rate.quote, rate.day):
                raise PriceError(f"1 {rate.base} = {other.rate} {rate.quote} on {rate.day} is in fx.yaml already")
        body = {name: str(value) for name, value in vars(rate).items()}
        return _append_line(folder / "fx.yaml", _RATES_HEAD, body)


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
    return _append_line(folder / "added.yaml", _HEAD, as_mapping(row))


def _append_line(file: Path, head: str, body: Mapping[str, object]) -> Path:
    """Append one item to the list at the end of a YAML file, whole or not at all."""
    text = file.read_text(encoding="utf-8") if file.exists() else head
    partial = file.with_suffix(".part")
    with partial.open("w", encoding="utf-8") as stream:
        stream.write(f"{text.rstrip()}\n  - {json.dumps(body, ensure_ascii=False)}\n")
        stream.flush()
        os.fsync(stream.fileno())
    partial.rename(file)
    return file

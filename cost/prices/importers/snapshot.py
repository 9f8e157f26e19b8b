"""A snapshot of another party's price list: its rows, their source, and what was left out or rounded.

A snapshot is written once and never changed. A newer import is a newer file with a later `valid_from`.

Tested in tests/cost/prices/importers/test_importers.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Context, Decimal
from pathlib import Path

from cost.money import plain
from cost.prices.book import PRICE_PLACES, PriceError, PriceRow, as_mapping, parse_price


@dataclass(frozen=True)
class Snapshot:
    """Rows of one import. `sha256` is that of the source. `reports`: one sentence on each thing that was left out,
    rounded or doubted."""

    name: str
    source: str
    version: str
    sha256: str
    day_read: str
    rows: tuple[PriceRow, ...]
    reports: tuple[str, ...]


@dataclass(frozen=True)
class Offer:
    """One line of a catalogue: the hourly price of a machine in a region. `price` is the text of the catalogue."""

    instance: str
    card: str
    cards: int
    region: str
    zone: str
    purchase: str
    price: str
    where: str


_FLOAT_DIGITS = 15
"""Significant decimal digits that a double always keeps; what a price has beyond them is noise of the computation."""
_NUMBER = re.compile(r"\d+(\.\d+)?([eE][+-]?\d+)?")


def clean_price(text: str, where: str) -> Decimal:
    """A price as a catalogue writes it, without the noise of float arithmetic: 0.36979999999999996 is 0.3698.

    Raises:
        PriceError: the text is not a plain number. The message begins with `where`.
    """
    if not _NUMBER.fullmatch(text.strip()):
        return parse_price(text, where)
    written = value = Decimal(text.strip())
    if value and len(value.as_tuple().digits) > _FLOAT_DIGITS:
        places = _FLOAT_DIGITS - 1 - value.adjusted()
        value = value.quantize(Decimal(1).scaleb(-places), context=Context(prec=60))
    exponent = value.as_tuple().exponent
    if isinstance(exponent, int) and exponent < -PRICE_PLACES:
        value = value.quantize(Decimal(1).scaleb(-PRICE_PLACES), context=Context(prec=60))
    # Digits that need no cleaning stay as they are written: the hash of a price row depends on them.
    as_written = value.as_tuple() == written.as_tuple() and "e" not in text.lower()
    return parse_price(text if as_written else plain(value), where)


def rows_of(
    offers: Iterable[Offer], *, provider: str, currency: str, valid_from: str, day_read: str, source: str
) -> tuple[tuple[PriceRow, ...], tuple[str, ...]]:
    """One row per machine, purchase option and region, and sentences on what was left out or rounded.

    A region whose zones differ in price gets a row per zone. A price of 0 means that the price is unknown: no provider
    gives cards away. Such lines are left out and counted. A price with float noise is rounded.

    Raises:
        PriceError: a price is not a plain number of 0 or more, or one machine has two prices in one zone. The message
            names the line.
    """
    grouped: dict[tuple[str, str, str], dict[str, Offer]] = {}
    zeros: Counter[str] = Counter()
    noise: list[str] = []
    prices: dict[str, Decimal] = {}
    for offer in offers:
        price = prices[offer.price] = clean_price(offer.price, offer.where)
        if not price:
            zeros[offer.purchase] += 1
            continue
        if price != Decimal(offer.price):
            noise.append(f"{offer.price.strip()} to {plain(price)}")
        zones = grouped.setdefault((offer.instance, offer.purchase, offer.region), {})
        known = zones.get(offer.zone)
        if known is not None and prices[known.price] != price:
            raise PriceError(
                f"{offer.where}: {offer.instance} in {offer.zone or offer.region} costs {offer.price}, "
                f"but {known.price} at {known.where}"
            )
        zones.setdefault(offer.zone, offer)
    reports = [
        f"{count} lines with a price {purchase} of 0: unknown, left out" for purchase, count in sorted(zeros.items())
    ]
    if noise:
        reports.append(f"{len(noise)} prices with float noise rounded, such as {noise[0]}")
    rows = []
    for (_, _, region), zones in grouped.items():
        one_price = len({prices[o.price] for o in zones.values()}) == 1
        for offer in list(zones.values())[: 1 if one_price else None]:
            place = region if one_price or not offer.zone else f"{region}/{offer.zone}"
            rows.append(
                PriceRow(
                    provider=provider,
                    sku=f"{provider}-{'-'.join(offer.instance.lower().split())}",
                    region=place,
                    per="machine_hour",
                    cards=offer.cards,
                    purchase=offer.purchase,
                    currency=currency,
                    price=prices[offer.price],
                    tax_included=False,
                    tax_rate=parse_price("0"),
                    valid_from=valid_from,
                    valid_to="",
                    source=source,
                    day_read=day_read,
                    card=offer.card,
                )
            )
    return tuple(sorted(rows, key=lambda r: (r.sku, r.purchase, r.region))), tuple(reports)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write(snapshot: Snapshot, folder: Path) -> Path | None:
    """Write the snapshot to the price folder, completely or not at all. Returns None if it exists already.

    Raises PriceError if a snapshot of this name and day exists with other content.
    """
    valid_from = max(r.valid_from for r in snapshot.rows)[:10] if snapshot.rows else snapshot.day_read
    file = folder / f"imported-{snapshot.name}-{valid_from}.yaml"
    if file.exists():
        if snapshot.sha256 in file.read_text(encoding="utf-8"):
            return None
        raise PriceError(
            f"{file} contains another import of {snapshot.name} for {valid_from}; "
            "give the first day on which the new prices apply: --valid-from DAY"
        )
    head = {"source": snapshot.source, "version": snapshot.version}
    head |= {"sha256": snapshot.sha256, "day_read": snapshot.day_read}
    lines = [
        f"# Prices imported from {snapshot.source}. Not edited: a newer import is a newer file.",
        "",
        "# Where the rows come from: source, its version, the sha256 of what was read, the day it was read.",
        f"snapshot: {json.dumps(head)}",
        "",
        "# List of price rows; the keys are explained in runpod.yaml.",
        "prices:",
    ]
    for row in snapshot.rows:
        lines.append(f"  - {json.dumps(as_mapping(row), ensure_ascii=False)}")
    partial = file.with_suffix(".part")
    with partial.open("w", encoding="utf-8") as stream:
        stream.write("\n".join(lines) + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    partial.rename(file)
    return file

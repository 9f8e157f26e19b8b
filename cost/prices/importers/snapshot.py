"""A snapshot of a foreign price list: its rows, where they came from, and what in it was not believed.

Written once, never changed: a newer import is a newer file with a later `valid_from`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cost.prices.book import PriceError, PriceRow, as_mapping, parse_price


@dataclass(frozen=True)
class Snapshot:
    """Rows of one import. `sha256` is that of the source; `reports` say, a sentence each, what was left out or not
    believed."""

    name: str
    source: str
    version: str
    sha256: str
    day_read: str
    rows: tuple[PriceRow, ...]
    reports: tuple[str, ...]


@dataclass(frozen=True)
class Offer:
    """One line of a catalogue: a machine at a price per hour in one place. `price` is the text as written."""

    instance: str
    card: str
    cards: int
    region: str
    zone: str
    purchase: str
    price: str
    where: str


def rows_of(
    offers: Iterable[Offer], *, provider: str, currency: str, valid_from: str, day_read: str, source: str
) -> tuple[PriceRow, ...]:
    """One row per machine, purchase option and region; a region whose zones differ in price gets a row per zone.

    Raises PriceError, naming the line, for a price that is not a plain number above 0.
    """
    grouped: dict[tuple[str, str, str], dict[str, Offer]] = {}
    for offer in offers:
        if parse_price(offer.price, offer.where) == 0:
            raise PriceError(f"{offer.where}: a price of 0; an unknown price is left empty, not 0")
        zones = grouped.setdefault((offer.instance, offer.purchase, offer.region), {})
        known = zones.get(offer.zone)
        if known is not None and parse_price(known.price) != parse_price(offer.price):
            raise PriceError(
                f"{offer.where}: {offer.instance} in {offer.zone or offer.region} costs {offer.price}, "
                f"but {known.price} at {known.where}"
            )
        zones.setdefault(offer.zone, offer)
    rows = []
    for (_, _, region), zones in grouped.items():
        one_price = len({parse_price(o.price) for o in zones.values()}) == 1
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
                    price=parse_price(offer.price, offer.where),
                    tax_included=False,
                    tax_rate=parse_price("0"),
                    valid_from=valid_from,
                    valid_to="",
                    source=source,
                    day_read=day_read,
                    card=offer.card,
                )
            )
    return tuple(sorted(rows, key=lambda r: (r.sku, r.purchase, r.region)))


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write(snapshot: Snapshot, folder: Path) -> Path | None:
    """Writes the snapshot into the price folder, whole or not at all; None when it is there already.

    Raises PriceError when a snapshot of that name and day with other content is there.
    """
    valid_from = max(r.valid_from for r in snapshot.rows)[:10] if snapshot.rows else snapshot.day_read
    file = folder / f"imported-{snapshot.name}-{valid_from}.yaml"
    if file.exists():
        if snapshot.sha256 in file.read_text(encoding="utf-8"):
            return None
        raise PriceError(
            f"{file} holds another import of {snapshot.name} for {valid_from}; "
            "give this one the day from which it holds: --valid-from DAY"
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

"""Prices from a gpuhunt catalogue folder: one CSV per provider, as its offline catalogue unpacks.

Only the files are read: gpuhunt is not needed, and nothing is downloaded. Prices are in dollars per machine and hour;
an empty price is unknown and left out.

Tested in tests/cost/prices/importers/test_importers.py.
"""

from __future__ import annotations

import csv
import hashlib
from decimal import Decimal
from pathlib import Path

from cost.prices.book import PriceError
from cost.prices.importers.snapshot import Offer, Snapshot, clean_price, rows_of

_CALLED = {"lambdalabs": "lambda", "vastai": "vast"}
"""Providers that have another name in billing.yaml."""
_NEEDED = ("instance_name", "location", "price", "gpu_count", "gpu_name", "spot")


def read(folder: Path, *, day_read: str, valid_from: str = "", version: str = "") -> tuple[Snapshot, ...]:
    """A snapshot per provider, in order of name.

    Raises PriceError for a folder without catalogues, and for a line that cannot be read.
    """
    files = sorted(folder.glob("*.csv")) if folder.is_dir() else []
    if not files:
        raise PriceError(f"{folder}: no gpuhunt catalogue: expected a folder of CSV files, one per provider")
    version_file = folder / "version"
    if not version and version_file.exists():
        version = version_file.read_text(encoding="utf-8").strip()
    return tuple(_read_provider(f, day_read=day_read, valid_from=valid_from, version=version) for f in files)


def _read_provider(file: Path, *, day_read: str, valid_from: str, version: str) -> Snapshot:
    provider = _CALLED.get(file.stem.lower(), file.stem.lower())
    content = file.read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    offers: list[Offer] = []
    unknown = without_card = 0
    reader = csv.DictReader(content.decode("utf-8-sig").splitlines())
    missing = [c for c in _NEEDED if c not in (reader.fieldnames or ())]
    if missing:
        raise PriceError(f"{file}: not a gpuhunt catalogue: column {missing[0]} is missing")
    for number, line in enumerate(reader, 2):
        where = f"{file.name} line {number}"
        count = line["gpu_count"].strip()
        if not line["gpu_name"].strip() or count in ("", "0"):
            without_card += 1
            continue
        if not count.isdecimal():
            raise PriceError(f"{where}: gpu_count {count!r} is not a whole number of cards")
        if not line["price"].strip():
            unknown += 1
            continue
        purchase = "spot" if line["spot"].strip().lower() == "true" else "on_demand"
        offers.append(
            Offer(
                line["instance_name"].strip(),
                line["gpu_name"].strip(),
                int(count),
                line["location"].strip(),
                "",
                purchase,
                line["price"].strip(),
                where,
            )
        )
    source = f"gpuhunt catalogue {version or '(version unknown)'} {file.name}"
    rows, left_out = rows_of(
        _one_price_each(offers),
        provider=provider,
        currency="USD",
        valid_from=valid_from or day_read,
        day_read=day_read,
        source=f"{source}, sha256 {sha256[:12]}",
    )
    reports = []
    if without_card:
        reports.append(f"{without_card} lines without a card left out")
    if unknown:
        reports.append(f"{unknown} lines without a price: unknown, left out")
    return Snapshot(f"gpuhunt-{provider}", source, version or "unknown", sha256, day_read, rows, (*reports, *left_out))


def _one_price_each(offers: list[Offer]) -> list[Offer]:
    """Marketplaces list a machine at several prices (disk sizes, hosts). The highest is used, so that forecasts are not
    too low."""
    dearest: dict[tuple[str, str, str], Offer] = {}
    for offer in offers:
        key = (offer.instance, offer.purchase, offer.region)
        if key not in dearest or _price(offer) > _price(dearest[key]):
            dearest[key] = offer
    return list(dearest.values())


def _price(offer: Offer) -> Decimal:
    return clean_price(offer.price, offer.where)

"""Prices from a SkyPilot catalogue (`catalogs/<version>/<cloud>/vms.csv`, in both shapes in which they are published).

Prices are per machine and hour. An empty price is unknown and left out, never 0. Counts are floats; rows repeat per
region and zone. Machines with a fraction of a card, and machines priced without their cards, are left out and counted.
GpuInfo is JSON or a Python literal; impossible values of memory are reported, and none is used.

Tested in tests/cost/prices/importers/test_importers.py.
"""

from __future__ import annotations

import ast
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

from cost.prices.book import PriceError
from cost.prices.importers.snapshot import Offer, Snapshot, digest, rows_of

_NEEDED = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Region", "Price")
_SMALLEST_CARD_MIB = 1024


def read(
    path: Path, *, day_read: str, valid_from: str = "", provider: str = "", version: str = "", currency: str = "USD"
) -> Snapshot:
    """A snapshot of one catalogue file.

    The provider is the `<cloud>` of the path, or of a name such as verda_vms.csv. Raises PriceError for a file that is
    not such a catalogue, and for a price or a count that cannot be read, naming the line.
    """
    try:
        content = path.read_bytes()
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise PriceError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PriceError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    provider = provider or _provider(path)
    reports: list[str] = []
    offers = list(_offers(text, path, reports))
    name = "/".join(path.parts[-4:]) if path.name == "vms.csv" else path.name
    source = f"SkyPilot catalogue (github.com/skypilot-org/skypilot-catalog) {name}"
    rows, left_out = rows_of(
        offers,
        provider=provider,
        currency=currency,
        valid_from=valid_from or day_read,
        day_read=day_read,
        source=f"{source}, sha256 {digest(content)[:12]}",
    )
    return Snapshot(provider, source, version or "unknown", digest(content), day_read, rows, (*reports, *left_out))


def _provider(path: Path) -> str:
    if path.name == "vms.csv":
        return path.parent.name
    match = re.fullmatch(r"([a-z0-9]+)_vms.*\.csv", path.name)
    if not match:
        raise PriceError(f"{path}: the provider is not part of the name; give it with --provider NAME")
    return match[1]


def _offers(text: str, path: Path, reports: list[str]) -> Iterator[Offer]:
    reader = csv.DictReader(io.StringIO(text))
    missing = [c for c in _NEEDED if c not in (reader.fieldnames or ())]
    if missing:
        raise PriceError(f"{path}: not a SkyPilot catalogue: column {missing[0]} is missing")
    unknown: Counter[str] = Counter()
    doubted: Counter[str] = Counter()
    without_card = without_machine = parts = 0
    for number, line in enumerate(reader, 2):
        where = f"{path.name} line {number}"
        if None in line or None in line.values():
            raise PriceError(f"{where}: has not as many fields as the header")
        card = line["AcceleratorName"].strip()
        if not card:
            without_card += 1
            continue
        if not line["InstanceType"].strip():
            without_machine += 1
            continue
        count = _count(line["AcceleratorCount"], where)
        if count.denominator != 1:
            parts += 1
            continue
        cards = int(count)
        if doubt := _doubt(line.get("GpuInfo", ""), cards):
            doubted[f"{card}: {doubt}"] += 1
        for column, purchase in (("Price", "on_demand"), ("SpotPrice", "spot")):
            price = (line.get(column) or "").strip()
            if not price:
                unknown[purchase] += 1
                continue
            zone = (line.get("AvailabilityZone") or "").strip()
            yield Offer(line["InstanceType"].strip(), card, cards, line["Region"].strip(), zone, purchase, price, where)
    if without_card:
        reports.append(f"{without_card} lines without a card left out")
    if without_machine:
        reports.append(f"{without_machine} lines that price cards apart from their machine left out")
    if parts:
        reports.append(f"{parts} lines for a part of a card left out")
    reports += [f"{n} lines without a price {purchase}: unknown, left out" for purchase, n in sorted(unknown.items())]
    reports += [f"{what} ({n} lines); not used" for what, n in sorted(doubted.items())]


def _count(text: str, where: str) -> Fraction:
    try:
        count = Fraction(text.strip())
    except (ValueError, ZeroDivisionError):
        raise PriceError(f"{where}: AcceleratorCount {text!r} is not a number") from None
    if count <= 0:
        raise PriceError(f"{where}: AcceleratorCount {text!r} should be above 0")
    return count


def _doubt(text: str, cards: int) -> str:
    """An impossible value in GpuInfo, as text; empty: there is none."""
    if not text.strip():
        return ""
    try:
        info = json.loads(text)
    except json.JSONDecodeError:
        try:
            info = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return "GpuInfo is neither JSON nor a Python literal"
    try:
        cards_info = info["Gpus"]
        sizes = [g["MemoryInfo"]["SizeInMiB"] * g["Count"] for g in cards_info]
        total = info["TotalGpuMemoryInMiB"]
        counted = sum(g["Count"] for g in cards_info)
    except (KeyError, TypeError):
        return "GpuInfo lacks Gpus, MemoryInfo or TotalGpuMemoryInMiB"
    if sum(sizes) < _SMALLEST_CARD_MIB * counted:
        return f"a card of {cards_info[0]['MemoryInfo']['SizeInMiB']} MiB"
    if counted != cards:
        return f"GpuInfo counts {counted:g} cards, AcceleratorCount {cards}"
    if sum(sizes) != total:
        return f"memory of {sum(sizes):g} MiB in the cards but {total:g} in total"
    return ""

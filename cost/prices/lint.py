"""The linter of the price book: finds errors in its rows without running a sweep. Nothing is repaired or downloaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import yaml

from cost.periods import instant_ns, utc_datetime
from cost.prices.billing import BillingRule
from cost.prices.book import TIME_UNITS, PriceBook, PriceRow, add_command, in_force

MAX_PRICE_AGE_DAYS = 180
# The end of a SKU that gives the number of cards: lambda-h100x8 has eight of the cards of lambda-h100.
_SIZES = ("x16", "x8", "x4", "x2", "x1")


@dataclass(frozen=True)
class PriceFinding:
    """An error: the name of the check, the place, and a message with the remedy."""

    check: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.check}: {self.where}: {self.message}"


def lint(
    book: PriceBook,
    *,
    today: date,
    max_age_days: int = MAX_PRICE_AGE_DAYS,
    rules: Sequence[BillingRule] | None = None,
    machine_folder: Path | None = None,
) -> list[PriceFinding]:
    """All findings, in the order of the checks. `rules` None leaves the check for billing rules out."""
    findings = [*_validity(book.rows), *_age(book.rows, today, max_age_days), *_monotone(book.rows)]
    findings += _spot(book.rows, instant_ns(today))
    if rules is not None:
        findings += without_rule(book.rows, rules)
    if machine_folder is not None and machine_folder.is_dir():
        findings += _unknown_skus(book, machine_folder, today)
    return findings


def _series(rows: Iterable[PriceRow]) -> dict[tuple[str, str, str, str], list[PriceRow]]:
    grouped: dict[tuple[str, str, str, str], list[PriceRow]] = {}
    for row in sorted(rows, key=lambda r: r.from_ns):
        grouped.setdefault(row.series, []).append(row)
    return grouped


def _name(row: PriceRow) -> str:
    return " ".join(filter(None, (row.sku, row.purchase, row.region, "" if row.kind == "list" else row.kind)))


def _validity(rows: Iterable[PriceRow]) -> list[PriceFinding]:
    """Overlaps, gaps, and one SKU in two units, currencies or card counts."""
    findings = []
    for series in _series(rows).values():
        for a, b in pairwise(series):
            if a.from_ns == b.from_ns:
                message = f"two prices from {a.valid_from} ({a.price} and {b.price}); keep one"
                findings.append(PriceFinding("overlap", _name(a), message))
            elif a.to_ns is not None and a.to_ns > b.from_ns:
                message = (
                    f"{a.price} is valid to {a.valid_to}, but {b.price} starts on {b.valid_from}; end the first then"
                )
                findings.append(PriceFinding("overlap", _name(a), message))
            elif a.to_ns is not None and a.to_ns < b.from_ns:
                message = f"no price from {a.valid_to} to {b.valid_from}; add the row, or leave valid_to empty"
                findings.append(PriceFinding("gap", _name(a), message))
    by_sku: dict[str, list[PriceRow]] = {}
    for row in rows:
        by_sku.setdefault(row.sku, []).append(row)
    for sku, group in by_sku.items():
        for field in ("per", "cards", "currency", "provider"):
            values = sorted({str(getattr(r, field)) for r in group})
            if len(values) > 1:
                message = f"has {field} {' and '.join(values)}; a SKU has only one: use different SKUs"
                findings.append(PriceFinding("unit", sku, message))
    return findings


def _age(rows: Iterable[PriceRow], today: date, max_age_days: int) -> list[PriceFinding]:
    """Prices in force that were read too long ago, or in the future."""
    findings = []
    for series in _series(rows).values():
        row = in_force(tuple(series), instant_ns(today)) or series[-1]
        days = (today - date.fromisoformat(row.day_read[:10])).days
        if days > max_age_days:
            message = f"read {days} days ago, on {row.day_read} (limit {max_age_days}); read {row.source} again"
            findings.append(PriceFinding("age", _name(row), message))
        elif days < 0:
            findings.append(PriceFinding("age", _name(row), f"day_read {row.day_read} lies in the future"))
    return findings


def _monotone(rows: Iterable[PriceRow]) -> list[PriceFinding]:
    """Of machines with the same card, the one with more cards must cost more.

    Equal prices for different numbers of cards show that a price per card was entered as a price per machine, or the
    reverse. Of several machines with the same cards the cheapest is compared.
    """
    families: dict[tuple[str, ...], dict[int, PriceRow]] = {}
    for series in _series(rows).values():
        row = series[-1]
        if row.per in ("card_hour", "machine_hour") and row.cards:
            key = (row.provider, row.card or _family(row.sku), row.purchase, row.region, row.currency, row.kind)
            sizes = families.setdefault(key, {})
            if row.cards not in sizes or _machine_price(row) < _machine_price(sizes[row.cards]):
                sizes[row.cards] = row
    findings = []
    for sizes in families.values():
        for a, b in pairwise(sizes[n] for n in sorted(sizes)):
            small, large = _machine_price(a), _machine_price(b)
            where = f"{_name(a)} and {_name(b)}"
            costs = f"{a.cards} cards at {_text(small)} and {b.cards} at {_text(large)} {a.currency} an hour"
            if large == small:
                findings.append(PriceFinding("per", where, f"{costs}: one of them is a price per card"))
            elif large < small:
                findings.append(PriceFinding("monotone", where, f"{costs}: more cards cost less"))
            elif large / small > 3 * Fraction(b.cards, a.cards):
                findings.append(PriceFinding("per", where, f"{costs}: a machine's price entered as one per card?"))
    return findings


def _spot(rows: Iterable[PriceRow], at_ns: int) -> list[PriceFinding]:
    """Spot prices above the on-demand price of the same SKU and region: one of the two is wrong, or spot is no saving.

    A spot price of a zone (`us-east-1/us-east-1f`) is compared with the on-demand price of its region.
    """
    now = {series: row for series, of in _series(rows).items() if (row := in_force(tuple(of), at_ns))}
    findings = []
    for (sku, purchase, region, kind), spot in now.items():
        usual = now.get((sku, "on_demand", region, kind)) or now.get((sku, "on_demand", region.split("/")[0], kind))
        comparable = usual is not None and (usual.per, usual.currency) == (spot.per, spot.currency)
        if purchase == "spot" and usual is not None and comparable and spot.price > usual.price:
            message = f"{spot.price} {spot.currency} spot, but {usual.price} on demand; check both"
            findings.append(PriceFinding("spot", _name(spot), message))
    return findings


def old_price_text(row: PriceRow, at_ns: int, max_age_days: int = MAX_PRICE_AGE_DAYS) -> str:
    """A warning that a price was read long before a moment at which it is used; empty if it was not."""
    days = (utc_datetime(at_ns).date() - date.fromisoformat(row.day_read[:10])).days
    if days <= max_age_days:
        return ""
    return f"The price of {_name(row)} was read {days} days before its use, on {row.day_read[:10]}: check {row.source}"


def _machine_price(row: PriceRow) -> Fraction:
    return Fraction(row.price) * (row.cards if row.per == "card_hour" else 1)


def _text(price: Fraction) -> str:
    return f"{float(price):g}"


def _family(sku: str) -> str:
    for size in _SIZES:
        if sku.endswith(size):
            return sku.removesuffix(size)
    return sku


def without_rule(rows: Iterable[PriceRow], rules: Sequence[BillingRule]) -> list[PriceFinding]:
    findings = []
    known = {(r.provider, p) for r in rules for p in (r.purchases or ("",))}
    for row in {(r.provider, r.purchase): r for r in rows if r.per in TIME_UNITS}.values():
        if (row.provider, row.purchase) not in known and (row.provider, "") not in known:
            message = f"no billing rule for provider {row.provider} ({row.purchase}); add one to billing.yaml"
            findings.append(PriceFinding("billing", _name(row), message))
    return findings


def _unknown_skus(book: PriceBook, machine_folder: Path, today: date) -> list[PriceFinding]:
    findings = []
    at_ns = instant_ns(today)
    skus = {row.sku for row in book.rows}
    priced = {row.sku for row in book.rows if row.to_ns is None or row.to_ns > at_ns}
    for file in sorted(machine_folder.glob("*.yaml")):
        try:
            raw = yaml.safe_load(file.read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            findings.append(PriceFinding("machine", file.name, f"not readable as YAML: {error}"))
            continue
        sku = raw.get("sku") if isinstance(raw, dict) else None
        # An interpolation is resolved and checked when the configuration of a sweep is composed.
        if sku and "${" not in str(sku) and sku not in skus:
            message = f"SKU {sku!r} has no price; add it with: {add_command(str(sku))}"
            findings.append(PriceFinding("machine", file.name, message))
        elif sku in skus - priced:
            message = f"SKU {sku!r} has no current price; add it with: {add_command(str(sku))}"
            findings.append(PriceFinding("machine", file.name, message))
    return findings

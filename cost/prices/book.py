"""The price book: dated price rows, and which of them is in force at a moment.

A row has a unit, a currency, a date from which it applies, its source and the day on which the source was read. Prices
are strings read as Decimal, never floats. Nothing is guessed: an unknown SKU, a moment before the first row or a
currency sign in a price is an error with its place and remedy. An unknown price is never 0.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from datetime import date
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from cost.money import PICO_PER_UNIT, Money
from cost.periods import instant_ns, instant_text
from cost.records import LedgerError

PRICE_UNITS = ("card_hour", "machine_hour", "gib_month", "gib", "request", "kwh", "one_off")
TIME_UNITS = ("card_hour", "machine_hour", "kwh")
PURCHASE_OPTIONS = ("on_demand", "spot", "reserved", "capacity_block", "savings_plan", "own")
PRICE_KINDS = ("list", "contracted", "effective")
# Files in the price folder that hold something other than price rows.
NOT_PRICES = ("billing.yaml", "fx.yaml")
DEFAULT_FOLDER = Path(__file__).resolve().parents[2] / "conf" / "pricing"
PRICE_PLACES = 12
"""The most decimal places of a price."""
_PRICE = re.compile(rf"\d{{1,12}}(\.\d{{1,{PRICE_PLACES}}})?")
_CURRENCY = re.compile(r"[A-Z]{3}")


class PriceError(ValueError):
    """A price row, or the use of a row, is wrong. The message names the problem, the place and the remedy."""


class MissingPriceError(PriceError, LookupError):
    """No price is in force for a SKU at a moment."""


class AmbiguousPriceError(PriceError, LookupError):
    """A SKU has several prices at a moment (regions or purchase options), and none was chosen."""


def parse_price(text: object, where: str = "") -> Decimal:
    """A price as written in a file: digits and at most one point, at most 12 decimals.

    Raises PriceError for a number that is not a string (YAML floats have already lost digits), NaN, a negative,
    an empty text, a thousands separator or a currency sign.
    """
    place = f"{where}: " if where else ""
    if isinstance(text, Decimal):
        text = format(text, "f")
    if not isinstance(text, str):
        raise PriceError(f"{place}price {text!r} is a {type(text).__name__}; write it as a quoted string: '{text}'")
    if not _PRICE.fullmatch(text.strip()):
        raise PriceError(
            f"{place}price {text!r} is not a price; write digits with a point and at most 12 decimals, "
            "without sign, currency or thousands separator, such as '2.99'"
        )
    return Decimal(text.strip())


def price_instant(text: object, where: str = "") -> int:
    """The UTC instant of a date in a price row. Raises PriceError that begins with `where`."""
    try:
        return instant_ns(text if isinstance(text, date) else str(text))
    except LedgerError as error:
        raise PriceError(f"{where + ': ' if where else ''}{error}") from None


@dataclass(frozen=True)
class PriceRow:
    """One price of one SKU: `price` in `currency` per `per`.

    cards: number of cards of the priced machine; 0 if the price applies to any number of cards (RunPod), or if cards
    are not priced (kWh, GiB). valid_from, valid_to: half-open, UTC; an empty `valid_to` means until the next row. card:
    the model of the card if the SKU does not contain it, for the linter. depreciation: of own hardware per hour of the
    whole machine, in addition to its energy (rows per kWh only). added: the moment (UTC) at which a command added the
    row; if it is empty, the row counts as known from the beginning of `day_read`.
    """

    provider: str
    sku: str
    region: str
    per: str
    cards: int
    purchase: str
    currency: str
    price: Decimal
    tax_included: bool
    tax_rate: Decimal
    valid_from: str
    valid_to: str
    source: str
    day_read: str
    note: str = ""
    kind: str = "list"
    card: str = ""
    added: str = ""
    depreciation: Decimal | None = None

    @cached_property
    def hash(self) -> str:
        """sha256 of the row as canonical JSON. Charges store it, so that an old report can be explained.

        Empty fields are left out, so that a field added to the schema later does not change the hash of older rows.
        """
        body = {k: v for k, v in as_mapping(self).items() if v != ""}
        return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    @cached_property
    def from_ns(self) -> int:
        return price_instant(self.valid_from)

    @cached_property
    def to_ns(self) -> int | None:
        return price_instant(self.valid_to) if self.valid_to else None

    def known_at(self, at_ns: int) -> bool:
        """Whether the row was in the book at a moment."""
        return (price_instant(self.added) if self.added else price_instant(self.day_read[:10])) <= at_ns

    @property
    def series(self) -> tuple[str, str, str, str]:
        """Rows with the same SKU, purchase option, region and kind of price must not overlap in time."""
        return (self.sku, self.purchase, self.region, self.kind)


def as_mapping(row: PriceRow) -> dict[str, str | int | bool]:
    """The row as in a price file, for `read_row`: amounts as texts, without missing fields."""
    body = {k: v for k, v in asdict(row).items() if v is not None}
    return {k: v if isinstance(v, (bool, int)) else str(v) for k, v in body.items()}


def read_row(raw: dict[str, Any], where: str) -> PriceRow:
    """Read and check a row of a price file. Raises PriceError with `where`, the field and the remedy."""
    known = {f.name for f in fields(PriceRow)}
    if unknown := sorted(set(raw) - known):
        raise PriceError(f"{where}: unknown field {unknown[0]!r}; a price row has {', '.join(sorted(known))}")
    optional = {"region": "", "cards": 0, "purchase": "on_demand", "tax_included": False, "tax_rate": "0"}
    optional |= {"valid_to": "", "note": "", "kind": "list", "card": "", "added": ""}
    data = optional | {k: v for k, v in raw.items() if v is not None}
    for name in known - {"depreciation"}:
        if name not in data:
            raise PriceError(f"{where}: {name} is missing")
    for name, allowed in (("per", PRICE_UNITS), ("purchase", PURCHASE_OPTIONS), ("kind", PRICE_KINDS)):
        if data[name] not in allowed:
            raise PriceError(f"{where}: {name} {data[name]!r} is not one of {', '.join(allowed)}")
    if not _CURRENCY.fullmatch(str(data["currency"])):
        raise PriceError(f"{where}: currency {data['currency']!r} is not a three-letter code such as USD")
    cards = data["cards"]
    if isinstance(cards, bool) or not isinstance(cards, int) or cards < 0:
        raise PriceError(f"{where}: cards {cards!r} must be a whole number, 0 for any")
    if data["per"] == "machine_hour" and cards == 0 and "cards" not in raw:
        raise PriceError(
            f"{where}: a price per machine_hour needs `cards`, the number of cards of the machine (0 for none)"
        )
    if not isinstance(data["tax_included"], bool):
        raise PriceError(f"{where}: tax_included {data['tax_included']!r} must be true or false")
    depreciation = data.get("depreciation")
    if depreciation is not None and data["per"] != "kwh":
        raise PriceError(f"{where}: depreciation belongs to own hardware priced per kwh, not per {data['per']}")
    for name in ("sku", "provider", "source"):
        if not str(data[name]).strip():
            raise PriceError(f"{where}: {name} is empty")
    start = price_instant(data["valid_from"], f"{where}: valid_from")
    price_instant(data["day_read"], f"{where}: day_read")
    if data["added"] != "":
        price_instant(data["added"], f"{where}: added")
    if data["valid_to"] != "" and price_instant(data["valid_to"], f"{where}: valid_to") <= start:
        raise PriceError(f"{where}: valid_to {data['valid_to']} must be after valid_from {data['valid_from']}")
    tax_rate = parse_price(data["tax_rate"], f"{where}: tax_rate")
    if tax_rate > 1:
        raise PriceError(f"{where}: tax_rate {tax_rate} is a share of the price: write 19 % as '0.19'")
    return PriceRow(
        price=parse_price(data["price"], where),
        tax_rate=tax_rate,
        cards=cards,
        tax_included=data["tax_included"],
        depreciation=None if depreciation is None else parse_price(depreciation, f"{where}: depreciation"),
        **{f.name: str(data[f.name]) for f in fields(PriceRow) if f.type == "str"},
    )


@dataclass(frozen=True)
class PriceBook:
    """All price rows, in the order of the files."""

    rows: tuple[PriceRow, ...]
    folder: str = str(DEFAULT_FOLDER)
    _by_sku: dict[str, tuple[PriceRow, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        grouped: dict[str, list[PriceRow]] = {}
        for row in self.rows:
            grouped.setdefault(row.sku, []).append(row)
        object.__setattr__(self, "_by_sku", {sku: tuple(rows) for sku, rows in grouped.items()})

    @classmethod
    def load(cls, folder: str | Path | None = None) -> PriceBook:
        """Read all price files (*.yaml) in a folder; None: the conf/pricing of the project.

        Raises PriceError with file and row.
        """
        path = Path(folder) if folder is not None else DEFAULT_FOLDER
        if not path.is_dir():
            raise PriceError(f"{path} is not a folder; the price book is a folder of YAML files such as conf/pricing")
        rows: list[PriceRow] = []
        for file in sorted(path.glob("*.yaml")):
            if file.name not in NOT_PRICES:
                rows += read_file(file)
        return cls(tuple(rows), str(path))

    @property
    def shown(self) -> str:
        """The folder for messages."""
        return "conf/pricing" if Path(self.folder) == DEFAULT_FOLDER else self.folder

    def with_kept_rows(self, kept: Iterable[PriceRow]) -> PriceBook:
        """The same book with rows that were in it before and that a ledger has kept.

        A kept row counts only where the book has no row of its series in force at the row's start: a price that has
        left the book goes on to apply to the leases that it was charged for.
        """
        missing = {row.hash: row for row in kept if self._in_force(row) is None}
        return PriceBook((*self.rows, *missing.values()), self.folder) if missing else self

    def _in_force(self, kept: PriceRow) -> PriceRow | None:
        rows = sorted((row for row in self._by_sku.get(kept.sku, ()) if row.series == kept.series), key=_start)
        return in_force(tuple(rows), kept.from_ns)

    def skus(self) -> tuple[str, ...]:
        return tuple(sorted(self._by_sku))

    def by_hash(self, digest: str) -> PriceRow | None:
        return self._hashes.get(digest)

    @cached_property
    def _hashes(self) -> dict[str, PriceRow]:
        return {row.hash: row for row in self.rows}

    def series(
        self, sku: str, *, purchase: str | None = None, region: str | None = None, kind: str | None = None
    ) -> tuple[PriceRow, ...]:
        """The rows of a SKU, oldest first, as `billing.charge` expects them.

        purchase None: own, else on_demand, else the only purchase option. region None: the only region. kind None: the
        contracted price if there is one, else the list price.
        Raises MissingPriceError (unknown SKU, purchase or region) and AmbiguousPriceError.
        """
        rows = self._by_sku.get(sku, ())
        if not rows:
            raise MissingPriceError(f"no price for SKU {sku!r} in {self.shown}; add it with: {add_command(sku)}")
        chosen = purchase or _usual_purchase(sku, rows)
        rows = tuple(r for r in rows if r.purchase == chosen)
        if not rows:
            raise MissingPriceError(
                f"no {chosen} price for SKU {sku!r} in {self.shown}; add it with: {add_command(sku, chosen)}"
            )
        regions = sorted({r.region for r in rows})
        if region is not None:
            exact = tuple(r for r in rows if r.region == region)
            rows = exact or tuple(r for r in rows if r.region == "")
            if not rows:
                raise MissingPriceError(
                    f"no {chosen} price for SKU {sku!r} in region {region!r}; {self.shown} has it in "
                    f"{', '.join(regions)}; add it with: {add_command(sku, chosen)} --region {region}"
                )
        elif len(regions) > 1:
            raise AmbiguousPriceError(
                f"SKU {sku!r} has {chosen} prices in several regions; choose one: {', '.join(regions)}"
            )
        if kind is None:
            kind = "contracted" if any(r.kind == "contracted" for r in rows) else "list"
        return tuple(sorted((r for r in rows if r.kind == kind), key=lambda r: r.from_ns))

    def in_force(
        self,
        sku: str,
        at_ns: int,
        *,
        purchase: str | None = None,
        region: str | None = None,
        kind: str | None = None,
    ) -> PriceRow:
        """The row in force at `at_ns` (UTC nanoseconds). Raises as `series`, and MissingPriceError when none is."""
        rows = self.series(sku, purchase=purchase, region=region, kind=kind)
        row = in_force(rows, at_ns)
        if row is None:
            spans = ", ".join(f"{r.valid_from} to {r.valid_to or 'now'}" for r in rows)
            raise MissingPriceError(
                f"no price for SKU {sku!r} in force at {instant_text(at_ns)}; {self.shown} has {spans or 'none'}; "
                f"add it with: {add_command(sku, purchase)}"
            )
        return row


def _start(row: PriceRow) -> int:
    return row.from_ns


def in_force(rows: tuple[PriceRow, ...], at_ns: int) -> PriceRow | None:
    """The row of a sorted series in force at a moment; None before the first row or in a gap."""
    i = bisect_right(rows, at_ns, key=lambda r: r.from_ns) - 1
    if i < 0:
        return None
    row = rows[i]
    return row if row.to_ns is None or at_ns < row.to_ns else None


def add_command(sku: str, purchase: str | None = None) -> str:
    """The command that adds a price for a SKU, for error messages."""
    option = f" --purchase {purchase}" if purchase and purchase != "on_demand" else ""
    return (
        f"python -m cost prices add {sku}{option} --provider NAME --per card_hour --currency USD --price 1.23 "
        "--valid-from 2026-11-29 --source PAGE"
    )


def read_yaml(file: Path) -> Any:
    """The content of a YAML file. Raises PriceError if it cannot be read."""
    import yaml  # most commands read no YAML

    try:
        # The default loader reads 1.5 as a float, which parse_price refuses: prices must be quoted.
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise PriceError(f"{file}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise PriceError(f"{file}: not readable as YAML: {error}") from error


def read_file(file: Path) -> list[PriceRow]:
    """The rows of one YAML file (`prices:` a list of mappings). Raises PriceError with file name and row number."""
    raw = read_yaml(file)
    rows = raw.get("prices") if isinstance(raw, dict) else None
    if not isinstance(rows, list):
        raise PriceError(f"{file}: expected a list of price rows under the key `prices`")
    result = []
    for number, item in enumerate(rows, 1):
        if not isinstance(item, dict):
            raise PriceError(f"{file} row {number}: a price row is a mapping of field to value, not {item!r}")
        result.append(read_row(item, f"{file} row {number} ({item.get('sku', 'no sku')})"))
    return result


def pico_per_hour(row: PriceRow, cards: int, watts: Decimal | int = 0) -> Fraction:
    """The exact cost of a machine per hour, in 1e-12 of the currency. `watts`: power of the whole machine (kWh rows).

    Raises PriceError if the row is not a price of time, if the row prices another number of cards, or if watts are
    missing for a price per kWh.
    """
    if row.per not in TIME_UNITS:
        raise PriceError(f"SKU {row.sku!r} is priced per {row.per}: that is not a price of time")
    if cards < 0:
        raise PriceError(f"cards {cards} must not be negative")
    if row.cards and cards != row.cards and row.per != "kwh":
        raise PriceError(
            f"SKU {row.sku!r} prices a machine of {row.cards} cards, not of {cards}; name the SKU of the machine"
        )
    price = Fraction(row.price) * PICO_PER_UNIT
    if row.per == "machine_hour":
        return price
    if row.per == "card_hour":
        return price * cards
    if watts <= 0:
        raise PriceError(f"SKU {row.sku!r} is priced per kWh: the machine's watts must be above 0, not {watts}")
    return price * Fraction(watts) / 1000 + Fraction(row.depreciation or 0) * PICO_PER_UNIT


def hourly(row: PriceRow, cards: int, watts: Decimal | int = 0) -> Money:
    """What the machine costs per hour, as Money, to show; charges are computed from `pico_per_hour`, unrounded."""
    return Money(_floor(pico_per_hour(row, cards, watts)), row.currency)


def _floor(value: Fraction) -> int:
    return value.numerator // value.denominator


def _usual_purchase(sku: str, rows: Iterable[PriceRow]) -> str:
    options = sorted({r.purchase for r in rows})
    for usual in ("own", "on_demand"):
        if usual in options:
            return usual
    if len(options) == 1:
        return options[0]
    raise AmbiguousPriceError(f"SKU {sku!r} has no on-demand price; choose a purchase option: {', '.join(options)}")

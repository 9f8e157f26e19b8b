"""Reading a provider's bill: FOCUS, AWS CUR 2.0, or a plain list of machines, through a column map.

Maps are data (conf/pricing/bills). Columns may be in any order and the file in any common encoding; a total row is
checked against the lines and not counted. What cannot be read is an error that names file and line: nothing is skipped
in silence. This module compares nothing and writes nothing.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import yaml

from cost.money import pico_of
from cost.periods import day_text, instant_ns
from cost.prices.book import DEFAULT_FOLDER, PriceError
from cost.records import LedgerError

KINDS = ("machine", "storage", "egress", "requests", "fee", "tax", "credit", "refund", "purchase")
FIELDS = (
    *("resource", "commitment", "start", "end", "amount", "currency", "quantity", "unit", "category", "description"),
    "invoice",
)
REQUIRED_FIELDS = ("resource", "start", "amount")
_TOTAL = re.compile(r"\s*((grand|sub)[ -]?)?(total|sum)\b.*|\s*(合计|总计|小计|总额).*", re.IGNORECASE)
_AMOUNT = re.compile(r"-?\d+(\.\d+)?([eE]-?\d+)?")
_DAY_NS = 86_400 * 10**9


class BillError(PriceError):
    """A bill, or the map of its columns, cannot be read; the message names file and line, and what would be right."""


@dataclass(frozen=True)
class BillMap:
    """Which column of a file holds what. The fields are explained in conf/pricing/bills/focus.yaml."""

    name: str
    provider: str
    columns: Mapping[str, tuple[str, ...]]
    categories: Mapping[str, str]
    kind_column: str
    kinds: Mapping[str, str]
    units: Mapping[str, Fraction]
    card_units: Mapping[str, Fraction]
    currency: str
    timezone: str
    exact_times: bool
    thousands: str


@dataclass(frozen=True)
class BillLine:
    """One charge on a bill. `seconds` is machine time billed, `card_seconds` the same counted in cards; None: unknown.
    `quantum` is the last place of the amount as written: what the provider's rounding can have moved."""

    resource: str
    from_ns: int
    to_ns: int
    pico: int
    currency: str
    kind: str
    description: str
    seconds: Fraction | None
    card_seconds: Fraction | None
    quantum: int
    where: str
    commitment: str = ""
    """The commitment that it pays for, or is paid for by."""
    invoice: str = ""
    """The number of the invoice that it is on."""


@dataclass(frozen=True)
class Bill:
    """A bill as read. `sha256` is that of the file; `map` the column map it was read with."""

    path: str
    sha256: str
    map: BillMap
    lines: tuple[BillLine, ...]

    @property
    def invoice(self) -> str:
        """The number of the one invoice that it is; empty where it names none, or several."""
        named = {line.invoice for line in self.lines}
        return named.pop() if len(named) == 1 else ""


def load_maps(folder: str | Path | None = None) -> tuple[BillMap, ...]:
    """The column maps of `folder`/bills, in order of name. Raises BillError for a map that is not one."""
    place = (Path(folder) if folder is not None else DEFAULT_FOLDER) / "bills"
    return tuple(read_map(file) for file in sorted(place.glob("*.yaml")))


def read_map(file: Path) -> BillMap:
    """One column map. Raises BillError naming the key that is missing or wrong."""
    try:
        raw = yaml.safe_load(file.read_text(encoding="utf-8"))
        columns = {fact: tuple(raw["columns"].get(fact) or ()) for fact in FIELDS}
        found = BillMap(
            name=raw["name"],
            provider=raw["provider"],
            columns=columns,
            categories=dict(raw["categories"]),
            kind_column=raw["kind_column"],
            kinds=dict(raw["kinds"]),
            units={k: Fraction(str(v)) for k, v in raw["units"].items()},
            card_units={k: Fraction(str(v)) for k, v in raw["card_units"].items()},
            currency=raw["currency"],
            timezone=raw["timezone"],
            exact_times=raw["exact_times"],
            thousands=raw["thousands"],
        )
        ZoneInfo(found.timezone)
    except OSError as error:
        raise BillError(f"{file}: cannot be read: {error.strerror or error}") from error
    except (KeyError, TypeError, AttributeError, ValueError, yaml.YAMLError) as error:
        raise BillError(f"{file}: not a column map ({error}); see conf/pricing/bills/focus.yaml") from error
    for kind in (*found.categories.values(), *found.kinds.values()):
        if kind not in KINDS:
            raise BillError(f"{file}: kind {kind!r} is not one of {', '.join(KINDS)}")
    return found


def read_bill(path: Path, maps: Sequence[BillMap], *, name: str = "") -> Bill:
    """Reads a bill with the map of a name, or with the one that fits its columns best.

    Raises BillError: no map fits, a line cannot be read, or the total row is not the sum of the lines.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BillError(f"{path}: cannot be read: {error.strerror}") from error
    text = _decoded(content, path)
    header, rows = _rows(text, path)
    chosen = _fitting(header, maps, path, name)
    position = {fact: _position(header, chosen.columns[fact]) for fact in FIELDS}
    reader = _LineReader(path, chosen, header, position)
    lines: list[BillLine] = []
    stated: list[tuple[int, int]] = []
    for number, cells in rows:
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(header):
            raise BillError(f"{path} line {number}: {len(cells)} fields where the header has {len(header)}")
        if _is_total(cells, position):
            stated.append((number, reader.amount(cells, number)[0]))
            continue
        lines.append(reader.line(cells, number))
    if not lines:
        raise BillError(f"{path}: has no lines")
    total = sum(line.pico for line in lines)
    if stated and stated[-1][1] != total:
        number, pico = stated[-1]
        difference = Decimal(total - pico).scaleb(-12).normalize()
        raise BillError(f"{path} line {number}: the total differs from the sum of the lines by {difference:f}")
    return Bill(str(path), hashlib.sha256(content).hexdigest(), chosen, tuple(lines))


def _is_total(cells: Sequence[str], position: Mapping[str, int | None]) -> bool:
    """A total row names itself, and is about no machine."""
    resource = cells[position["resource"] or 0].strip() if position["resource"] is not None else ""
    named = any(_TOTAL.fullmatch(cell) for cell in cells)
    return named and (not resource or bool(_TOTAL.fullmatch(resource)))


def _decoded(content: bytes, path: Path) -> str:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16")
    for encoding in ("utf-8-sig", "gb18030", "cp1252"):
        try:
            return content.decode(encoding)
        except UnicodeDecodeError:
            continue
    raise BillError(f"{path}: is no text in UTF-8, UTF-16, GB 18030 or Windows-1252; export it again as UTF-8 CSV")


def _rows(text: str, path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    first = next((line for line in text.splitlines() if line.strip()), "")
    delimiter = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text), delimiter=delimiter)
    rows = [(reader.line_num, row) for row in reader]
    rows = [(number, row) for number, row in rows if any(cell.strip() for cell in row)]
    if not rows:
        raise BillError(f"{path}: is empty")
    return [cell.strip() for cell in rows[0][1]], rows[1:]


def _position(header: Sequence[str], names: Sequence[str]) -> int | None:
    for name in names:
        if name in header:
            return header.index(name)
    return None


def _fitting(header: Sequence[str], maps: Sequence[BillMap], path: Path, name: str) -> BillMap:
    if name:
        maps = [m for m in maps if m.name == name]
        if not maps:
            raise BillError(f"no column map is called {name!r}; add one to conf/pricing/bills")
    found = {m.name: {f for f in FIELDS if _position(header, m.columns[f]) is not None} for m in maps}
    fits = [m for m in maps if found[m.name] >= set(REQUIRED_FIELDS)]
    if not fits:
        wanted = maps[0] if name else None
        lacking = [f for f in REQUIRED_FIELDS if wanted and f not in found[wanted.name]]
        hint = f"map {name} finds no column for {lacking[0]} " if lacking else "no column map fits "
        raise BillError(
            f"{path}: {hint}in the columns {', '.join(header[:12])}; copy conf/pricing/bills/instances.yaml and name "
            "your columns there"
        )
    return max(fits, key=lambda m: len(found[m.name]))


class _LineReader:
    """Turns the cells of one row into a line, by a map."""

    def __init__(self, path: Path, used: BillMap, header: Sequence[str], position: Mapping[str, int | None]) -> None:
        self._path, self._map, self._at = path, used, position
        self._kind_at = header.index(used.kind_column) if used.kind_column in header else None
        self._zone = ZoneInfo(used.timezone)
        # Groups of three only: 2,48 is no 248.
        between = re.escape(used.thousands)
        self._grouped = re.compile(rf"-?\d{{1,3}}({between}\d{{3}})+(\.\d+)?") if between else None

    def _cell(self, cells: Sequence[str], fact: str) -> str:
        at = self._at[fact]
        return cells[at].strip() if at is not None else ""

    def line(self, cells: Sequence[str], number: int) -> BillLine:
        where = f"{self._path.name} line {number}"
        from_ns = self._moment(self._cell(cells, "start"), where)
        end = self._cell(cells, "end")
        to_ns = self._moment(end, where) if end else from_ns // _DAY_NS * _DAY_NS + _DAY_NS
        if to_ns < from_ns:
            raise BillError(f"{where}: ends before it starts: {self._cell(cells, 'start')} to {end}")
        pico, quantum = self.amount(cells, number)
        currency = self._cell(cells, "currency") or self._map.currency
        if not re.fullmatch(r"[A-Z]{3}", currency):
            raise BillError(f"{where}: currency {currency!r} is not a three-letter code; set `currency` in the map")
        kind = self._kind(cells)
        seconds, card_seconds = self._time(cells, where) if kind == "machine" else (None, None)
        if kind == "machine" and seconds is None and card_seconds is None and self._map.exact_times and end:
            seconds = Fraction(to_ns - from_ns, 10**9)
        return BillLine(
            resource=self._cell(cells, "resource"),
            from_ns=from_ns,
            to_ns=to_ns,
            pico=pico,
            currency=currency,
            kind=kind,
            description=self._cell(cells, "description"),
            seconds=seconds,
            card_seconds=card_seconds,
            quantum=quantum,
            where=where,
            commitment=self._cell(cells, "commitment"),
            invoice=self._cell(cells, "invoice"),
        )

    def amount(self, cells: Sequence[str], number: int) -> tuple[int, int]:
        """(amount, one unit of its last place), both in 1e-12."""
        text = plain = self._cell(cells, "amount")
        if self._grouped and self._grouped.fullmatch(text):
            plain = text.replace(self._map.thousands, "")
        if not _AMOUNT.fullmatch(plain):
            raise BillError(
                f"{self._path.name} line {number}: amount {text!r} is not a plain number; write digits and a point, "
                "or say in the map which character groups thousands"
            )
        value = Decimal(plain)
        exponent = value.as_tuple().exponent
        places = -exponent if isinstance(exponent, int) and exponent < 0 else 0
        # Costs computed in floats come with more places than the ledger counts: they are rounded to its smallest unit.
        exact = value if places <= 12 else value.quantize(Decimal("1e-12"))
        return pico_of(exact), 10 ** (12 - min(places, 12))

    def _moment(self, text: str, where: str) -> int:
        for form in ("%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M", "%Y/%m/%d", "%Y-%m-%d %H:%M:%S UTC"):
            try:
                moment = datetime.strptime(text, form).replace(tzinfo=UTC if form.endswith("UTC") else self._zone)
                return instant_ns(moment)
            except ValueError:
                continue
        try:
            return instant_ns(text, self._zone)
        except LedgerError as error:
            raise BillError(f"{where}: {error}") from None

    def _kind(self, cells: Sequence[str]) -> str:
        kind = self._map.categories.get(self._cell(cells, "category"), "machine")
        if kind == "machine" and self._kind_at is not None:
            for text, other in self._map.kinds.items():
                if text in cells[self._kind_at]:
                    return other
        return kind

    def _time(self, cells: Sequence[str], where: str) -> tuple[Fraction | None, Fraction | None]:
        quantity, unit = self._cell(cells, "quantity"), self._cell(cells, "unit")
        if not quantity:
            return None, None
        if not _AMOUNT.fullmatch(quantity):
            raise BillError(f"{where}: quantity {quantity!r} is not a plain number")
        if unit in self._map.units:
            return Fraction(quantity) * self._map.units[unit], None
        if unit in self._map.card_units:
            return None, Fraction(quantity) * self._map.card_units[unit]
        return None, None


def period_of(bill: Bill) -> tuple[int, int]:
    """The UTC days that the bill is about, as instants."""
    first = min(line.from_ns for line in bill.lines)
    last = max(line.to_ns for line in bill.lines)
    return first // _DAY_NS * _DAY_NS, -(-last // _DAY_NS) * _DAY_NS


def summary(bill: Bill) -> dict[str, Any]:
    """What was read, in a few words, for a report."""
    first, last = period_of(bill)
    return {
        "path": Path(bill.path).name,
        "map": bill.map.name,
        "lines": len(bill.lines),
        "from": day_text(first),
        "to": day_text(last),
        "sha256": bill.sha256,
    }

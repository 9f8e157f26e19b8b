"""Read a provider's bill through a column map: FOCUS, AWS CUR 2.0, or a plain list of machines.

A total row is checked against the lines and not counted. A line that cannot be read is an error that names file and
line; no line is skipped. Nothing is compared or written here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from cost.bills.bill import Bill, BillError, BillLine
from cost.bills.column_map import FIELDS, BillMap, choose_map
from cost.bills.csv_table import read_table
from cost.bills.line_kinds import kind_of
from cost.money import pico_of
from cost.periods import instant_ns, midnight_ns, next_start, period_start
from cost.records import LedgerError

_TOTAL = re.compile(r"\s*((grand|sub)[ -]?)?(total|sum)\b.*|\s*(合计|总计|小计|总额).*", re.IGNORECASE)
_AMOUNT = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_DATE_FORMATS = ("%Y-%m-%d", "%Y/%m/%d")
_TIME_FORMATS = ("%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M", "%Y-%m-%d %H:%M:%S UTC")


def read_bill(path: Path, maps: Sequence[BillMap], *, name: str = "") -> Bill:
    """Read a bill with the map of a name, or with the map that fits its columns best.

    Raises BillError: no map fits, a line cannot be read, or the total row is not the sum of the lines.
    """
    table = read_table(path)
    header, rows = table.header, table.rows
    chosen = choose_map(header, maps, path, name)
    position = {fact: chosen.position(header, fact) for fact in FIELDS}
    for number, cells in rows:
        if len(cells) != len(header):
            raise BillError(f"{path} line {number}: {len(cells)} fields where the header has {len(header)}")
    reader = _LineReader(path, chosen, header, position)
    reader.inclusive_end_days = any(reader.ends_on_its_first_day(cells) for _, cells in rows)
    lines: list[BillLine] = []
    stated: list[tuple[int, int]] = []
    for number, cells in rows:
        if _is_total(cells, position):
            stated.append((number, reader.amount(cells, number)[0]))
        else:
            lines.append(reader.line(cells, number))
    if not lines:
        raise BillError(f"{path}: has no lines")
    total = sum(line.pico for line in lines)
    if stated and stated[-1][1] != total:
        number, pico = stated[-1]
        difference = Decimal(total - pico).scaleb(-12).normalize()
        raise BillError(f"{path} line {number}: the total differs from the sum of the lines by {difference:f}")
    return Bill(str(path), table.sha256, chosen, tuple(lines))


def _is_total(cells: Sequence[str], position: Mapping[str, int | None]) -> bool:
    """A total row has a word for it in some cell, and names no machine."""
    resource = cells[position["resource"] or 0].strip() if position["resource"] is not None else ""
    named = any(_TOTAL.fullmatch(cell) for cell in cells)
    return named and (not resource or bool(_TOTAL.fullmatch(resource)))


@dataclass(frozen=True)
class _Moment:
    """A date or a time of a cell. `day` is set if the cell has no time of day."""

    ns: int
    day: date | None


class _LineReader:
    """Turns the cells of one row into a line, by a map."""

    inclusive_end_days = False
    """Whether an end without a time of day includes that day. True if a line of the bill ends on its first day."""

    def __init__(self, path: Path, used: BillMap, header: Sequence[str], position: Mapping[str, int | None]) -> None:
        self._path, self._map, self._at = path, used, position
        self._kind_positions = [header.index(name) for name in used.kind_columns if name in header]
        self._zone = ZoneInfo(used.timezone)
        # Groups of three digits only: 2,48 is not 248.
        between = re.escape(used.thousands)
        self._grouped = re.compile(rf"-?\d{{1,3}}({between}\d{{3}})+(\.\d+)?") if between else None

    def _cell(self, cells: Sequence[str], fact: str) -> str:
        at = self._at[fact]
        return cells[at].strip() if at is not None else ""

    def ends_on_its_first_day(self, cells: Sequence[str]) -> bool:
        """Whether a line starts and ends on one day, without times: a line of no length if the end were exclusive."""
        start, end = (self._day(self._cell(cells, fact)) for fact in ("start", "end"))
        return start is not None and start == end

    def line(self, cells: Sequence[str], number: int) -> BillLine:
        where = f"{self._path.name} line {number}"
        start = self._moment(self._cell(cells, "start"), where)
        end_text = self._cell(cells, "end")
        end = self._moment(end_text, where) if end_text else None
        from_ns, to_ns = start.ns, self._end_ns(start, end)
        if to_ns < from_ns:
            raise BillError(f"{where}: ends before it starts: {self._cell(cells, 'start')} to {end_text}")
        pico, quantum = self.amount(cells, number)
        currency = self._cell(cells, "currency") or self._map.currency
        if not re.fullmatch(r"[A-Z]{3}", currency):
            raise BillError(f"{where}: currency {currency!r} is not a three-letter code; set `currency` in the map")
        kind = self._kind(cells)
        commitment = self._cell(cells, "commitment")
        # A commitment has paid for the usage that it names at an amount of 0.
        kind = "covered" if kind == "machine" and commitment and not pico else kind
        timed = kind in ("machine", "covered")
        seconds, card_seconds = self._time(cells, where) if timed else (None, None)
        if timed and seconds is None and card_seconds is None and self._map.exact_times and end and not end.day:
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
            commitment=commitment,
            invoice=self._cell(cells, "invoice"),
        )

    def amount(self, cells: Sequence[str], number: int) -> tuple[int, int]:
        """The amount, and one unit of its last decimal place, both in 1e-12."""
        text = plain = self._cell(cells, "amount")
        if self._grouped and self._grouped.fullmatch(text):
            plain = text.replace(self._map.thousands, "")
        if not _AMOUNT.fullmatch(plain):
            raise BillError(
                f"{self._path.name} line {number}: amount {text!r} is not a plain number; write digits and a point, "
                "or set `thousands` in the map to the character that groups digits"
            )
        value = Decimal(plain)
        exponent = value.as_tuple().exponent
        places = -exponent if isinstance(exponent, int) and exponent < 0 else 0
        # Amounts computed in floats have more decimal places than the ledger counts: they are rounded to 1e-12.
        exact = value if places <= 12 else value.quantize(Decimal("1e-12"), context=Context(prec=60))
        return pico_of(exact), 10 ** (12 - min(places, 12))

    def _end_ns(self, start: _Moment, end: _Moment | None) -> int:
        """A line without an end covers the day of its start; an end that is a day is inclusive or exclusive."""
        if end is None:
            return self._day_after(period_start(start.ns, "day", self._zone))
        return self._day_after(end.day) if end.day and self.inclusive_end_days else end.ns

    def _day_after(self, day: date) -> int:
        return midnight_ns(next_start(day, "day"), self._zone)

    def _day(self, text: str) -> date | None:
        """The day of a text that is a date without a time of day; None for any other text."""
        for form in _DATE_FORMATS:
            try:
                return datetime.strptime(text, form).replace(tzinfo=UTC).date()
            except ValueError:
                continue
        return None

    def _moment(self, text: str, where: str) -> _Moment:
        if day := self._day(text):
            return _Moment(midnight_ns(day, self._zone), day)
        for form in _TIME_FORMATS:
            try:
                moment = datetime.strptime(text, form).replace(tzinfo=UTC if form.endswith("UTC") else self._zone)
                return _Moment(instant_ns(moment), None)
            except ValueError:
                continue
        try:
            return _Moment(instant_ns(text, self._zone), None)
        except LedgerError as error:
            raise BillError(f"{where}: {error}") from None

    def _kind(self, cells: Sequence[str]) -> str:
        by_category = self._map.categories.get(self._cell(cells, "category"), "machine")
        texts = [cells[at] for at in self._kind_positions]
        return kind_of(by_category, texts, self._cell(cells, "unit"), self._map.kinds)

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


def summary(bill: Bill) -> dict[str, Any]:
    """What was read, for a report: file, map, lines and days."""
    start, stop = bill.period
    return {
        "path": Path(bill.path).name,
        "map": bill.map.name,
        "lines": len(bill.lines),
        "from": bill.day_of(start).isoformat(),
        "to": bill.day_of(stop).isoformat(),
        "sha256": bill.sha256,
    }

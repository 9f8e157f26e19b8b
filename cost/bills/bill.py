"""A provider's bill as records: its lines, and the days that it covers in the time zone of the bill.

Tested in tests/cost/bills/test_reader.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from cost.periods import midnight_ns, next_start, period_start
from cost.prices.book import PriceError

if TYPE_CHECKING:
    from cost.bills.column_map import BillMap

KINDS = (
    *("machine", "storage", "egress", "requests", "fee", "tax", "credit", "refund", "purchase"),
    *("covered", "negation"),
)
"""Kinds of charge. `purchase` pays for a commitment, `covered` is usage that a commitment has paid for, and `negation`
takes the price of covered usage off the bill again."""


class BillError(PriceError):
    """A bill or a column map cannot be read. The message names the file, the line, and what would be right."""


@dataclass(frozen=True)
class BillLine:
    """One charge on a bill."""

    resource: str
    from_ns: int
    to_ns: int
    """Equal to `from_ns` for a charge of one moment, such as a refund."""
    pico: int
    currency: str
    kind: str
    description: str
    seconds: Fraction | None
    """Billed time of the machine; None: unknown."""
    card_seconds: Fraction | None
    """Billed time counted in cards; None: unknown."""
    quantum: int
    """One unit in the last decimal place of the amount, in 1e-12: the provider may have rounded by half of it."""
    where: str
    """File and line, for messages."""
    commitment: str = ""
    """Id of the commitment that the line pays for, or that has paid for the line."""
    invoice: str = ""
    """Number of the invoice that the line is on."""


@dataclass(frozen=True)
class Bill:
    """A bill as read. `sha256` is the hash of its text; `map` is the column map it was read with."""

    path: str
    sha256: str
    map: BillMap
    lines: tuple[BillLine, ...]

    @property
    def zone(self) -> ZoneInfo:
        """The time zone in which the bill's days begin."""
        return ZoneInfo(self.map.timezone)

    @property
    def period(self) -> tuple[int, int]:
        """The whole days that the bill covers, from the first midnight to the last, in the bill's zone."""
        last_ns = max(last_instant(line) for line in self.lines)
        return self.midnight(self.day_of(min(line.from_ns for line in self.lines))), self.day_after(last_ns)

    @property
    def midnights(self) -> list[int]:
        """The first instant of each day of the period, and the end of the period."""
        start, stop = self.period
        edges = [start]
        while edges[-1] < stop:
            edges.append(self.day_after(edges[-1]))
        return edges

    def day_of(self, at_ns: int) -> date:
        """The day of an instant in the bill's zone."""
        return period_start(at_ns, "day", self.zone)

    def midnight(self, day: date) -> int:
        """The first instant of a day of the bill."""
        return midnight_ns(day, self.zone)

    def day_after(self, at_ns: int) -> int:
        """The first instant of the day after that of an instant."""
        return self.midnight(next_start(self.day_of(at_ns), "day"))


def last_instant(line: BillLine) -> int:
    """The last nanosecond that a line covers."""
    return max(line.to_ns - 1, line.from_ns)

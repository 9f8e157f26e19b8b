"""Days, weeks and months of a time zone, as instants: where to cut a charge, and what to call each piece.

Inside the books everything is UTC; a zone decides only where a day begins. A day of 23 or 25 hours is a day.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cost.records import LedgerError

PERIODS = ("day", "week", "month")
_NS = 10**9


def zone_of(name: str) -> tzinfo:
    """The time zone of an IANA name. Raises LedgerError where there is none."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise LedgerError(f"{name!r} is no time zone; write an IANA name such as UTC or Europe/Berlin") from error


def period_start(at_ns: int, period: str, zone: tzinfo) -> date:
    """First day of the day, week (from Monday) or month in which an instant lies."""
    day = datetime.fromtimestamp(at_ns // _NS, UTC).astimezone(zone).date()
    if period == "week":
        return day - timedelta(days=day.weekday())
    return day.replace(day=1) if period == "month" else day


def period_name(at_ns: int, period: str, zone: tzinfo) -> str:
    """`2026-11-29`, `2026-W48` (ISO week) or `2026-11`."""
    first = period_start(at_ns, period, zone)
    if period == "week":
        return f"{first.isocalendar().year}-W{first.isocalendar().week:02d}"
    return first.isoformat()[:7] if period == "month" else first.isoformat()


def midnight_ns(day: date, zone: tzinfo) -> int:
    """The instant at which a day begins in a zone."""
    start = datetime.combine(day, time(0), zone)
    return int(start.timestamp()) * _NS


def period_edges(from_ns: int, to_ns: int, period: str, zone: tzinfo) -> list[int]:
    """Every beginning of a period from the one that holds `from_ns` to the first one after `to_ns`, sorted."""
    day = period_start(from_ns, period, zone)
    edges = []
    while True:
        edges.append(midnight_ns(day, zone))
        if edges[-1] > to_ns:
            return edges
        if period == "month":
            day = date(day.year + day.month // 12, day.month % 12 + 1, 1)
        else:
            day += timedelta(days=7 if period == "week" else 1)


def instant_in(text: str, zone: tzinfo) -> int:
    """UTC nanoseconds of `2026-11-29` or `2026-11-29T08:00` in a zone; an offset in the text wins over the zone.

    Raises:
        LedgerError: it is no date.
    """
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as error:
        raise LedgerError(f"{text!r} is no date; write 2026-11-29 or 2026-11-29T08:00") from error
    moment = moment if moment.tzinfo else moment.replace(tzinfo=zone)
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return delta // timedelta(microseconds=1) * 1000

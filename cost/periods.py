"""UTC instants as text, and the days, weeks and months of a time zone.

An instant is integer nanoseconds since 1970-01-01 UTC. `instant_text` and `instant_ns` are the only functions that
format and parse an instant. A time zone only decides where a day begins; a day of 23 or 25 hours is one day.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cost.records import LedgerError

PERIODS = ("day", "week", "month")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NS = 10**9


def instant_text(at_ns: int) -> str:
    """An instant as `2026-11-29T08:00:00Z`; fractions of a second are cut off."""
    return utc_datetime(at_ns).strftime("%Y-%m-%dT%H:%M:%SZ")


def day_text(at_ns: int) -> str:
    """The UTC day of an instant as `2026-11-29`."""
    return utc_day(at_ns).isoformat()


def utc_day(at_ns: int) -> date:
    """The UTC day that contains an instant."""
    return utc_datetime(at_ns).date()


def utc_datetime(at_ns: int) -> datetime:
    """An instant as a datetime in UTC, to the second."""
    return _EPOCH + timedelta(seconds=at_ns // _NS)


def instant_ns(text: str | date, zone: tzinfo = UTC) -> int:
    """The instant of `2026-11-29` (the day's midnight), `2026-11-29T08:00` or `2026-11-29T08:00:00Z`.

    A date or a datetime is accepted as well. `zone` applies where the text or the datetime has no offset.

    Raises:
        LedgerError: the text is not a date.
    """
    if isinstance(text, datetime):
        moment = text
    elif isinstance(text, date):
        moment = datetime.combine(text, time(0))
    else:
        try:
            moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
        except ValueError as error:
            raise LedgerError(f"{text!r} is not a date; write 2026-11-29 or 2026-11-29T08:00:00Z") from error
    moment = moment if moment.tzinfo else moment.replace(tzinfo=zone)
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000


def zone_of(name: str) -> tzinfo:
    """The time zone of an IANA name. Raises LedgerError for an unknown name."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise LedgerError(f"{name!r} is no time zone; write an IANA name such as UTC or Europe/Berlin") from error


def period_start(at_ns: int, period: str, zone: tzinfo) -> date:
    """First day of the day, week (from Monday) or month that contains an instant."""
    day = utc_datetime(at_ns).astimezone(zone).date()
    if period == "week":
        return day - timedelta(days=day.weekday())
    return day.replace(day=1) if period == "month" else day


def next_start(first: date, period: str) -> date:
    """First day of the period after the one that begins on `first`."""
    if period == "month":
        return date(first.year + first.month // 12, first.month % 12 + 1, 1)
    return first + timedelta(days=7 if period == "week" else 1)


def period_name(at_ns: int, period: str, zone: tzinfo) -> str:
    """`2026-11-29`, `2026-W48` (ISO week) or `2026-11`."""
    first = period_start(at_ns, period, zone)
    if period == "week":
        return f"{first.isocalendar().year}-W{first.isocalendar().week:02d}"
    return first.isoformat()[:7] if period == "month" else first.isoformat()


def month_of(at_ns: int) -> tuple[int, int]:
    """The UTC month that contains an instant: its first instant, and that of the next month."""
    first = period_start(at_ns, "month", UTC)
    return midnight_ns(first, UTC), midnight_ns(next_start(first, "month"), UTC)


def month_bounds(name: str) -> tuple[int, int]:
    """First instant of the UTC month `2026-11`, and of the next month.

    Raises:
        LedgerError: the text is not a month.
    """
    try:
        first = date.fromisoformat(f"{name}-01")
    except ValueError as error:
        raise LedgerError(f"{name!r} is not a month; write for example 2026-11") from error
    return month_of(midnight_ns(first, UTC))


def midnight_ns(day: date, zone: tzinfo) -> int:
    """The instant at which a day begins in a zone."""
    return int(datetime.combine(day, time(0), zone).timestamp()) * _NS


def period_edges(from_ns: int, to_ns: int, period: str, zone: tzinfo) -> list[int]:
    """The first instant of each period, from the period that contains `from_ns` to the first one after `to_ns`."""
    day = period_start(from_ns, period, zone)
    edges = [midnight_ns(day, zone)]
    while edges[-1] <= to_ns:
        day = next_start(day, period)
        edges.append(midnight_ns(day, zone))
    return edges

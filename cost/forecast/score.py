"""Store a forecast, and score stored forecasts against what happened: error and coverage, by category.

A stored forecast is a plain dataclass with a JSON form of integers and texts. A category that a forecast did not name
counts as forecast with 0, so that what was forgotten shows in its row.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from cost.forecast.lease_cost import MoneyForecast
from cost.forecast.predict import Forecast
from cost.forecast.priors import Basis
from cost.forecast.sampling import ForecastError, Interval

FORMAT = 1


@dataclass(frozen=True)
class StoredCategory:
    """One category at the total's P50 and P90: card-time in nanoseconds, or money in 1e-12 of the currency."""

    name: str
    p50: int
    p90: int


@dataclass(frozen=True)
class StoredForecast:
    """A forecast as it was made. `subject` names what it is of, such as a sweep; `made_at_ns` is UTC."""

    forecast_id: str
    subject: str
    made_at_ns: int
    machine: str
    basis: Basis
    lease_ns: Interval
    card_ns: Interval
    time: tuple[StoredCategory, ...]
    currency: str | None = None
    money_pico: Interval | None = None
    money: tuple[StoredCategory, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Actual:
    """What happened. Card-time and money by the ledger's categories; money is None where nothing was priced."""

    forecast_id: str
    lease_ns: int
    card_ns: Mapping[str, int]
    money_pico: Mapping[str, int] | None = None


@dataclass(frozen=True)
class ScoreRow:
    """Errors are P50 minus actual. For `lease`, `card time` and `money` they are shares of the actual total; for a
    category, shares of the actual total that it belongs to, so that rows show where a total went wrong."""

    quantity: Literal["lease", "time", "money"]
    category: str
    """`total`, or a category."""
    forecasts: int
    median_error: float
    """With its sign: below 0, forecasts are too low."""
    median_absolute_error: float
    worst_absolute_error: float
    within_p90: float
    """Share of forecasts whose actual was at or under P90."""
    within_80_percent: float | None
    """Share between P10 and P90; None for categories, which have no P10."""


def store(
    forecast: Forecast, *, forecast_id: str, subject: str, made_at_ns: int, money: MoneyForecast | None = None
) -> StoredForecast:
    """The stored form of a forecast and, where it was priced, of its money."""
    return StoredForecast(
        forecast_id=forecast_id,
        subject=subject,
        made_at_ns=made_at_ns,
        machine=forecast.machine,
        basis=forecast.basis,
        lease_ns=forecast.lease_ns,
        card_ns=forecast.card_ns,
        time=tuple(StoredCategory(c.name, c.p50_ns, c.p90_ns) for c in forecast.categories),
        currency=money.currency if money else None,
        money_pico=money.total if money else None,
        money=tuple(StoredCategory(c.name, c.p50_pico, c.p90_pico) for c in money.categories) if money else (),
        notes=forecast.notes,
    )


def to_json(forecast: StoredForecast) -> str:
    """One line of JSON, keys sorted."""
    return json.dumps({"format": FORMAT, **asdict(forecast)}, sort_keys=True, separators=(",", ":"))


def from_json(text: str) -> StoredForecast:
    """Read what `to_json` wrote. Raises ForecastError for another format or a damaged text."""
    try:
        raw: dict[str, Any] = json.loads(text)
        if (found := raw.pop("format")) != FORMAT:
            raise ForecastError(f"stored forecast of format {found!r}; this version reads format {FORMAT}")
        return StoredForecast(
            **{
                **raw,
                "lease_ns": Interval(**raw["lease_ns"]),
                "card_ns": Interval(**raw["card_ns"]),
                "time": tuple(StoredCategory(**c) for c in raw["time"]),
                "money_pico": Interval(**raw["money_pico"]) if raw["money_pico"] is not None else None,
                "money": tuple(StoredCategory(**c) for c in raw["money"]),
                "notes": tuple(raw["notes"]),
            }
        )
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ForecastError(f"not a stored forecast: {error}") from error


def score(forecasts: Sequence[StoredForecast], actuals: Sequence[Actual]) -> tuple[ScoreRow, ...]:
    """Rows for the lease, card-time and money, each with its categories. Forecasts without an actual are left out.

    Raises ForecastError where an id repeats or an actual has no forecast.
    """
    by_id = {forecast.forecast_id: forecast for forecast in forecasts}
    if len(by_id) < len(forecasts) or len({a.forecast_id for a in actuals}) < len(actuals):
        raise ForecastError("forecast ids must not repeat")
    if unknown := sorted(a.forecast_id for a in actuals if a.forecast_id not in by_id):
        raise ForecastError(f"no stored forecast has the id {unknown[0]!r}")
    pairs = [(by_id[actual.forecast_id], actual) for actual in actuals]
    lease = [_Point(f.lease_ns.p50, f.lease_ns.p90, a.lease_ns, a.lease_ns, f.lease_ns.p10) for f, a in pairs]
    rows = _row("lease", "total", lease)
    rows += _rows("time", [(f.card_ns, f.time, a.card_ns) for f, a in pairs])
    rows += _rows(
        "money",
        [
            (f.money_pico, f.money, a.money_pico)
            for f, a in pairs
            if f.money_pico is not None and a.money_pico is not None
        ],
    )
    return tuple(rows)


@dataclass(frozen=True)
class _Point:
    p50: int
    p90: int
    actual: int
    whole: int
    """Actual total that errors are shares of."""
    p10: int | None = None


def _rows(
    quantity: Literal["time", "money"],
    triples: Sequence[tuple[Interval, tuple[StoredCategory, ...], Mapping[str, int]]],
) -> list[ScoreRow]:
    totals: list[_Point] = []
    points: dict[str, list[_Point]] = {}
    for total, categories, actual in triples:
        whole = sum(actual.values())
        totals.append(_Point(total.p50, total.p90, whole, whole, total.p10))
        forecast = {c.name: c for c in categories}
        for name in {*forecast, *actual}:
            c = forecast.get(name, StoredCategory(name, 0, 0))
            points.setdefault(name, []).append(_Point(c.p50, c.p90, actual.get(name, 0), whole))
    rows = _row(quantity, "total", totals)
    for name in sorted(points):
        rows += _row(quantity, name, points[name])
    return rows


def _row(quantity: Literal["lease", "time", "money"], category: str, points: Sequence[_Point]) -> list[ScoreRow]:
    """One row; none where no forecast has an actual above 0."""
    points = [p for p in points if p.whole > 0]
    if not points:
        return []
    errors = [(p.p50 - p.actual) / p.whole for p in points]
    absolute = [abs(e) for e in errors]
    inside = [p.p10 <= p.actual <= p.p90 for p in points if p.p10 is not None]
    return [
        ScoreRow(
            quantity,
            category,
            len(points),
            statistics.median(errors),
            statistics.median(absolute),
            max(absolute),
            statistics.fmean(p.actual <= p.p90 for p in points),
            statistics.fmean(inside) if inside else None,
        )
    ]

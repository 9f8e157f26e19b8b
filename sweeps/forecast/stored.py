"""Forecasts as they were made, stored in the ledger, and their score against what happened.

A forecast is stored under the digest of its plan and the name of its machine. It is scored against the first finished
sweep of that plan on that machine that was planned after the forecast.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from cost.charges.attribution import attribute
from cost.forecast.score import Actual, ScoreRow, StoredForecast, from_json, score, store, to_json
from cost.prices.book import PriceBook
from sweeps.journal.outcomes import DriverEnd

if TYPE_CHECKING:
    from cost.ledger.ledger import Ledger
    from sweeps.forecast.stage_forecast import StageForecast
    from sweeps.journal.state import SweepRecord

STREAM = "forecasts"
KIND = "forecast"


def store_forecasts(ledger: Ledger, digest: str, forecasts: Iterable[StageForecast]) -> int:
    """Append the forecasts of one plan, one per machine; returns how many."""
    now_ns, count = ledger.now_ns(), 0
    for made in forecasts:
        if made.forecast is None:
            continue
        subject = f"{digest}@{made.machine}"
        stored = store(
            made.forecast, forecast_id=f"{subject}:{now_ns}", subject=subject, made_at_ns=now_ns, money=made.money
        )
        ledger.events.append(STREAM, KIND, {"forecast": to_json(stored)}, stored.forecast_id)
        count += 1
    return count


def stored_forecasts(ledger: Ledger) -> list[StoredForecast]:
    """Every stored forecast, oldest first."""
    return [from_json(event.body["forecast"]) for event in ledger.events.read(STREAM)]


def scored(ledger: Ledger, records: Sequence[SweepRecord], book: PriceBook) -> tuple[int, tuple[ScoreRow, ...]]:
    """How many stored forecasts have an outcome, and the rows of their score."""
    pairs = [(forecast, record) for forecast in stored_forecasts(ledger) if (record := _outcome(forecast, records))]
    actuals = [_actual(ledger, forecast, record, book) for forecast, record in pairs]
    return len(pairs), score([forecast for forecast, _ in pairs], actuals)


def _outcome(forecast: StoredForecast, records: Sequence[SweepRecord]) -> SweepRecord | None:
    for record in records:
        same = forecast.subject == f"{record.plan_digest}@{record.machine}"
        if same and record.planned_ns >= forecast.made_at_ns and record.ended is DriverEnd.DONE:
            return record
    return None


def _actual(ledger: Ledger, forecast: StoredForecast, record: SweepRecord, book: PriceBook) -> Actual:
    attribution = attribute(ledger, book, ledger.now_ns(), sweep_id=record.sweep_id)
    card_ns: dict[str, int] = {}
    money: dict[str, int] = {}
    for line in attribution.lines:
        card_ns[line.category] = card_ns.get(line.category, 0) + line.micro_card_ns
        money[line.category] = money.get(line.category, 0) + line.pico
    leases = [state for state in attribution.leases if state.lease.lease_id in record.lease_ids]
    leased_ns = sum((state.to_ns or ledger.now_ns()) - state.from_ns for state in leases)
    priced = not any(line.unpriced for line in attribution.lines)
    return Actual(
        forecast.forecast_id, leased_ns, {k: v // 10**6 for k, v in card_ns.items() if v}, money if priced else None
    )

"""Stored forecasts: their JSON form, and their errors and coverage against what happened."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cost.forecast.predict import TrialWork, predict
from cost.forecast.sampling import ForecastError, Interval
from cost.forecast.score import Actual, StoredCategory, StoredForecast, from_json, score, store, to_json
from cost.forecast.step_profile import fit_profile
from tests.cost.forecast.runs import run, sweep

STORED = StoredForecast(
    forecast_id="a",
    subject="multi-1",
    made_at_ns=1_000,
    machine="h100x8",
    basis="scaled",
    lease_ns=Interval(80, 100, 120),
    card_ns=Interval(640, 800, 960),
    time=(StoredCategory("train", 600, 700), StoredCategory("idle", 200, 260)),
    currency="USD",
    money_pico=Interval(8, 10, 12),
    money=(StoredCategory("train", 7, 8), StoredCategory("idle", 3, 4)),
    notes=("scaled to 8 cards",),
)
HAPPENED = Actual("a", 110, {"train": 660, "idle": 180, "lost_work": 40}, {"train": 8, "idle": 2})


def rows(forecasts, actuals):
    return {(r.quantity, r.category): r for r in score(forecasts, actuals)}


def test_json_gives_the_same_forecast_back() -> None:
    assert from_json(to_json(STORED)) == STORED


def test_a_forecast_without_money_is_stored_too() -> None:
    forecast = predict(fit_profile([run(20)]), sweep(TrialWork(200, 8, 8, 1)))
    stored = store(forecast, forecast_id="b", subject="single-1", made_at_ns=5)
    assert stored.money_pico is None
    assert from_json(to_json(stored)) == stored
    assert sum(c.p50 for c in stored.time) == stored.card_ns.p50


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format":1}', '{"format":2}', "null"])
def test_a_damaged_text_is_refused(text: str) -> None:
    with pytest.raises(ForecastError, match="stored forecast"):
        from_json(text)


def test_errors_are_shares_of_the_actual_total() -> None:
    found = rows([STORED], [HAPPENED])
    assert found["lease", "total"].median_error == pytest.approx(-10 / 110)
    assert found["time", "total"].median_error == pytest.approx(-80 / 880)
    assert found["time", "train"].median_error == pytest.approx(-60 / 880)
    assert found["time", "idle"].median_error == pytest.approx(20 / 880)
    assert found["money", "total"].median_error == pytest.approx(0.0)
    assert found["money", "idle"].median_error == pytest.approx(0.1)


def test_a_category_that_was_not_forecast_counts_as_zero() -> None:
    lost = rows([STORED], [HAPPENED])["time", "lost_work"]
    assert lost.median_error == pytest.approx(-40 / 880)
    assert lost.within_p90 == 0.0


def test_coverage_is_counted_at_p90_and_in_the_80_percent_interval() -> None:
    forecasts = [replace(STORED, forecast_id=str(i)) for i in range(4)]
    actuals = [replace(HAPPENED, forecast_id=str(i), lease_ns=ns) for i, ns in enumerate((70, 90, 120, 130))]
    lease = rows(forecasts, actuals)["lease", "total"]
    assert (lease.forecasts, lease.within_p90, lease.within_80_percent) == (4, 0.75, 0.5)
    assert lease.worst_absolute_error == pytest.approx(30 / 70)


def test_a_forecast_that_has_not_ended_is_left_out() -> None:
    assert rows([STORED, replace(STORED, forecast_id="open")], [HAPPENED])["lease", "total"].forecasts == 1


def test_money_that_was_not_priced_is_left_out() -> None:
    assert ("money", "total") not in rows([STORED], [replace(HAPPENED, money_pico=None)])


def test_no_actual_gives_no_rows() -> None:
    assert score([STORED], []) == ()


def test_unknown_and_repeated_ids_are_refused() -> None:
    with pytest.raises(ForecastError, match="no stored forecast has the id 'x'"):
        score([STORED], [replace(HAPPENED, forecast_id="x")])
    with pytest.raises(ForecastError, match="must not repeat"):
        score([STORED, STORED], [])

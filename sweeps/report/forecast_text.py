"""Forecasts of a stage as tables of at most 100 columns, and as JSON.

Tested in tests/sweeps/cli/test_forecast.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from cost.money import Money, money_text
from cost.reports.text_table import WIDTH, table_text

if TYPE_CHECKING:
    from cost.forecast.score import ScoreRow
    from sweeps.forecast.stage_forecast import StageForecast

NS_PER_HOUR = 3_600 * 10**9


def forecast_text(forecasts: Sequence[StageForecast]) -> str:
    """The machines side by side, what speed costs, and the categories of the cheapest and of the fastest machine."""
    parts = [machines_table(forecasts)]
    if choice := choice_text(forecasts):
        parts.append("\n".join(wrap(choice, WIDTH)))
    shown = [made for made in forecasts if made.forecast is not None]
    if len(shown) > 2 and (ends := _cheapest_and_fastest(forecasts)):
        shown = [made for made in shown if made in ends]
    return "\n\n".join(parts + [categories_table(made) for made in shown])


def _cheapest_and_fastest(forecasts: Sequence[StageForecast]) -> tuple[StageForecast, StageForecast] | None:
    """At P50. None: fewer than two machines have a price, or their currencies differ."""
    priced = [(m, m.forecast, m.money) for m in forecasts if m.forecast is not None and m.money is not None]
    if len(priced) < 2 or len({money.currency for _, _, money in priced}) > 1:
        return None
    cheapest = min(priced, key=lambda p: p[2].total.p50)[0]
    fastest = min(priced, key=lambda p: p[1].lease_ns.p50)[0]
    return cheapest, fastest


def machines_table(forecasts: Sequence[StageForecast]) -> str:
    rows = []
    for made in forecasts:
        if made.forecast is None:
            rows.append([made.machine, str(made.cards), *["-"] * 6, "does not fit"])
            continue
        lease, money, cards = made.forecast.lease_ns, made.money, made.forecast.card_ns
        rows.append(
            [
                made.machine,
                str(made.cards),
                _step(made),
                time_text(lease.p50),
                time_text(lease.p90),
                f"{cards.p50 / NS_PER_HOUR:.2f}",
                "UNPRICED" if money is None else money_of(money.total.p50, money.currency),
                "UNPRICED" if money is None else money_of(money.total.p90, money.currency),
                made.forecast.basis,
            ]
        )
    columns = ["machine", "cards", "step", "time P50", "P90", "card-h", "cost P50", "P90", "rests on"]
    text = table_text(columns, rows, right=["cards", "step", "time P50", "P90", "card-h", "cost P50"])
    problems = [f"{made.machine}: {made.problem}" for made in forecasts if made.problem]
    return "\n".join([text, *problems])


def choice_text(forecasts: Sequence[StageForecast]) -> str:
    """Which machine is cheapest, which is fastest, and what the difference costs."""
    ends = _cheapest_and_fastest(forecasts)
    if ends is None:
        return ""
    cheapest, fastest = ends
    if cheapest is fastest:
        return f"{cheapest.machine} is the cheapest and the fastest."
    assert cheapest.forecast is not None
    assert cheapest.money is not None
    assert fastest.forecast is not None
    assert fastest.money is not None
    saved = cheapest.forecast.lease_ns.p50 - fastest.forecast.lease_ns.p50
    more = fastest.money.total.p50 - cheapest.money.total.p50
    currency = cheapest.money.currency
    text = f"Cheapest: {cheapest.machine}. Fastest: {fastest.machine}, {time_text(saved)} sooner for "
    if not saved:
        return text + f"{money_of(more, currency)} more (at P50)."
    per_hour = money_of(more * NS_PER_HOUR // saved, currency)
    return text + f"{money_of(more, currency)} more, which is {per_hour} per hour saved (at P50)."


def categories_table(made: StageForecast) -> str:
    """Card-hours and money of one machine by category, and the notes of its forecast."""
    assert made.forecast is not None
    money = {} if made.money is None else {c.name: c for c in made.money.categories}
    currency = "" if made.money is None else made.money.currency
    basis = {c.name: c for c in made.forecast.categories}
    rows = []
    for name in dict.fromkeys([*basis, *money]):
        time, amount = basis.get(name), money.get(name)
        if not (time and time.p90_ns) and not (amount and amount.p90_pico):
            continue
        rows.append(
            [
                name,
                f"{time.p50_ns / NS_PER_HOUR:.3f}" if time else "-",
                f"{time.p90_ns / NS_PER_HOUR:.3f}" if time else "-",
                money_of(amount.p50_pico, currency) if amount else "-",
                money_of(amount.p90_pico, currency) if amount else "-",
                time.basis if time else "-",
            ]
        )
    columns = [made.machine, "card-h P50", "card-h P90", "cost P50", "cost P90", "rests on"]
    lines = [table_text(columns, rows, right=columns[1:5])]
    lines += [f"  {note}" for note in made.notes]
    return "\n".join(lines)


def forecast_json(forecasts: Sequence[StageForecast]) -> list[dict[str, Any]]:
    """Integers: nanoseconds, card-nanoseconds and 1e-12 of the currency."""
    return [
        {
            "machine": made.machine,
            "cards": made.cards,
            "rented": made.rented,
            "problem": made.problem or None,
            "notes": list(made.notes),
            "forecast": None
            if made.forecast is None
            else {
                "basis": made.forecast.basis,
                "lease_ns": asdict(made.forecast.lease_ns),
                "card_ns": asdict(made.forecast.card_ns),
                "categories": [asdict(category) for category in made.forecast.categories],
                "trials": [
                    {
                        "prompts": trial.work.prompts,
                        "group_size": trial.work.group_size,
                        "steps": trial.work.steps,
                        "step_ns": asdict(trial.step_ns),
                        "wall_ns": asdict(trial.wall_ns),
                    }
                    for trial in made.forecast.trials
                ],
            },
            "money": None
            if made.money is None
            else {
                "currency": made.money.currency,
                "total_pico": asdict(made.money.total),
                "categories": [asdict(category) for category in made.money.categories],
            },
        }
        for made in forecasts
    ]


def score_table(rows: Sequence[ScoreRow]) -> str:
    """Error and coverage of stored forecasts."""
    return table_text(
        ["of", "category", "forecasts", "median error", "median |error|", "worst", "at most P90", "in 80 %"],
        [
            [
                row.quantity,
                row.category,
                str(row.forecasts),
                f"{row.median_error:+.1%}",
                f"{row.median_absolute_error:.1%}",
                f"{row.worst_absolute_error:.1%}",
                f"{row.within_p90:.0%}",
                "-" if row.within_80_percent is None else f"{row.within_80_percent:.0%}",
            ]
            for row in rows
        ],
        right=["forecasts", "median error", "median |error|", "worst", "at most P90", "in 80 %"],
    )


def time_text(ns: int) -> str:
    """`45 s`, `12 min`, `3.4 h`."""
    seconds = ns / 10**9
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * 3600 else f"{seconds / 3600:.1f} h"


def money_of(pico: int, currency: str) -> str:
    return money_text(Money(pico, currency))


def _step(made: StageForecast) -> str:
    assert made.forecast is not None
    steps = [trial.step_ns for trial in made.forecast.trials]
    low, high = min(s.p50 for s in steps), max(s.p50 for s in steps)
    shortest, longest = f"{low / 1e9:.2g}", f"{high / 1e9:.2g}"
    return f"{shortest} s" if shortest == longest else f"{shortest} to {longest} s"

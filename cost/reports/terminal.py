"""A report as a table for the terminal, of at most 100 columns. Shown amounts and a rounding row sum to the total.

Small totals are shown with as many places as it takes to see three digits of them: half a cent is not nothing.
"""

from __future__ import annotations

from decimal import Decimal

from cost.money import rounded
from cost.periods import instant_text
from cost.reports.csv_json import UNPRICED
from cost.reports.report import Report, ReportRow
from cost.reports.text_table import table_text

PLACES = 4
"""Decimal places, where the total is large enough for them."""

_NARROW = ("", "card-hours", "cost")
_WIDE = ("", "stage", "state", "tries", "machine", "acc", "card-hours", "cost")


def report_table(report: Report) -> str:
    """Title, rows, total, and what a reader has to know about them."""
    columns = _WIDE if report.trials else _NARROW
    if len({row.sweep_id for row in report.rows if row.kind != "group"}) > 1:
        columns = (columns[0], "sweep", *columns[1:])
    places = {currency: _places(report.total_in(currency)) for currency in report.currencies}
    rows = [_cells(row, columns, places[row.currency]) for row in report.rows]
    for currency in report.currencies:
        mine = [row for row in report.rows if row.currency == currency]
        total = rounded(report.total_in(currency), places[currency])
        lost = total - sum((rounded(row.pico, places[currency]) for row in mine), Decimal(0))
        if lost:
            rows.append(_line("rounding", "", f"{lost:f} {currency}", columns))
        hours = sum((row.card_hours for row in mine), Decimal(0))
        rows.append(_line("total", f"{hours:.4f}", f"{total:f} {currency}", columns))
        for name, pico in _costs(report, currency).items():
            rows.append(_line(name, "", f"{rounded(pico, places[currency]):f} {currency}", columns))
    lines = [f"{report.title}, at {instant_text(report.at_ns)}"]
    lines.append(table_text(columns, rows, right=("tries", "acc", "card-hours", "cost")))
    if any("imputed" in row.flags for row in report.rows):
        lines.append("Own hardware is imputed: a cost, but on nobody's bill.")
    if any("simulated" in row.flags for row in report.rows):
        lines.append("Simulated: nothing of this was spent, and no other report counts it.")
    if report.unpriced:
        lines.append("UNPRICED parts are not in the total. Add their prices: python -m cost prices add")
    if report.open_leases:
        lines.append(f"Still held: {', '.join(report.open_leases)}")
    lines += report.notes
    return "\n".join(lines)


def _costs(report: Report, currency: str) -> dict[str, int]:
    """The total as finance tells it apart, where kinds of price differ. (Own hardware is not billed anyway.)"""
    costs = report.costs_in(currency)
    prices = {pico for name, pico in costs.items() if name != "billed_cost"} | {report.total_in(currency)}
    return costs if len(prices) > 1 else {}


def _places(total_pico: int) -> int:
    total = Decimal(total_pico).scaleb(-12)
    return max(PLACES, 2 - total.adjusted()) if total else PLACES


def _cells(row: ReportRow, columns: tuple[str, ...], places: int) -> tuple[str, ...]:
    cost = UNPRICED if row.unpriced else f"{rounded(row.pico, places):f} {row.currency}"
    cells = {"": row.name, "sweep": row.sweep_id, "card-hours": f"{row.card_hours:.4f}", "cost": cost}
    if row.kind == "trial":
        label = row.labels.get
        cells |= {"stage": label("stage", ""), "state": label("state", ""), "tries": str(row.attempts or "")}
        cells |= {"machine": row.machine, "acc": label("acc", "")}
    return tuple(cells.get(name, "") for name in columns)


def _line(name: str, hours: str, cost: str, columns: tuple[str, ...]) -> tuple[str, ...]:
    return (name, *("",) * (len(columns) - 3), hours, cost)

"""A report as a table for the terminal, at most 100 characters wide.

The shown amounts and a rounding row sum to the shown total. A small total gets as many decimal places as three of its
digits need.

Tested in tests/cost/reports/test_report.py.
"""

from __future__ import annotations

from decimal import Decimal

from cost.money import rounded
from cost.periods import instant_text
from cost.reports.report import UNPRICED, Report, ReportRow
from cost.reports.text_table import table_text

PLACES = 4
"""The least number of decimal places."""

_GROUP_COLUMNS = ("", "card-hours", "cost")
_TRIAL_COLUMNS = ("", "stage", "state", "tries", "machine", "acc", "card-hours", "cost")


def report_table(report: Report) -> str:
    """Title, rows, total and notes."""
    columns = _TRIAL_COLUMNS if report.trials else _GROUP_COLUMNS
    if len({row.sweep_id for row in report.rows if row.kind != "group"}) > 1:
        columns = (columns[0], "sweep", *columns[1:])
    places = {currency: _decimal_places(report.total_in(currency)) for currency in report.currencies}
    rows = [_cells(row, columns, places[row.currency]) for row in report.rows]
    for currency in report.currencies:
        in_currency = [row for row in report.rows if row.currency == currency]
        total = rounded(report.total_in(currency), places[currency])
        rounding = total - sum((rounded(row.pico, places[currency]) for row in in_currency), Decimal(0))
        if rounding:
            rows.append(_total_cells("rounding", "", f"{rounding:f} {currency}", columns))
        hours = sum((row.card_hours for row in in_currency), Decimal(0))
        priced = any(not row.unpriced for row in in_currency)
        rows.append(_total_cells("total", f"{hours:.4f}", f"{total:f} {currency}" if priced else UNPRICED, columns))
        for name, pico in _costs_by_price_kind(report, currency).items():
            rows.append(_total_cells(name, "", f"{rounded(pico, places[currency]):f} {currency}", columns))
    lines = [f"{report.title}, at {instant_text(report.at_ns)}"]
    lines.append(
        table_text(columns, rows, right=("tries", "acc", "card-hours", "cost"), drop=("machine", "tries", "stage"))
    )
    if any("imputed" in row.flags for row in report.rows):
        lines.append("Own hardware is imputed: a cost that no provider bills.")
    if any("simulated" in row.flags for row in report.rows):
        lines.append("Simulated: no money was spent, and no other report includes this sweep.")
    if report.unpriced:
        lines.append("The total leaves out UNPRICED parts. Add their prices with: python -m cost prices add")
    if report.open_leases:
        lines.append(f"Open leases: {', '.join(report.open_leases)}")
    lines += report.notes
    return "\n".join(lines)


def _costs_by_price_kind(report: Report, currency: str) -> dict[str, int]:
    """The totals of COSTS by name; empty if list, contracted and effective cost all equal the total."""
    costs = report.costs_in(currency)
    amounts = {pico for name, pico in costs.items() if name != "billed_cost"} | {report.total_in(currency)}
    return costs if len(amounts) > 1 else {}


def _decimal_places(total_pico: int) -> int:
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


def _total_cells(name: str, hours: str, cost: str, columns: tuple[str, ...]) -> tuple[str, ...]:
    return (name, *("",) * (len(columns) - 3), hours, cost)

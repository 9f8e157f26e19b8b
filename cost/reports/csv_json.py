"""Reports as CSV and JSON.

The CSV is rounded to CSV_PLACES. The rounding difference is a row of its own, so that the column `cost` sums to the
rounded total. JSON is exact: amounts are decimal texts.

Tested in tests/cost/reports/test_report.py.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from cost.csv_cells import escape_row
from cost.money import pico_of, pico_text, plain, rounded
from cost.periods import instant_text
from cost.printable import json_text
from cost.records import CATEGORIES, FORECAST_LABELS
from cost.reports.atomic_file import write_text
from cost.reports.report import COSTS, UNPRICED, Report, ReportRow
from cost.reports.shares import shares

CSV_PLACES = 6
"""Decimal places of the CSV's amounts."""

_SEARCH_LABELS = ("prompts_per_step", "group_size", "lr", "lr_scaling", "steps")
_ACCURACY_LABELS = ("acc", "acc_ci_low", "acc_ci_high")
# Columns are only ever added, before the last two: these labels and categories stand apart from the others.
_APPENDED_LABELS = ("seed", "varied")
_APPENDED_CATEGORIES = ("stopped",)

COLUMNS = (
    *("row", "sweep_id", "trial_id", "stage", "state", "attempts", "machine", "sku", "cards"),
    *_SEARCH_LABELS,
    "card_hours",
    *(name for name in CATEGORIES if name not in _APPENDED_CATEGORIES),
    "rounding",
    *("cost", "billed_cost", "currency"),
    *_ACCURACY_LABELS,
    "cost_per_acc_point",
    *FORECAST_LABELS,
    *(name for name in COSTS if name != "billed_cost"),
    *_APPENDED_CATEGORIES,
    *_APPENDED_LABELS,
    *("group", "provider", "account", "period"),
    *("price_source", "flags"),
)
"""The CSV's columns. docs/cost-report.md explains each of them."""


def write_csv(report: Report, path: str | Path, *, places: int = CSV_PLACES) -> Path:
    """Write the report as a CSV file. In every currency, the column `cost` sums to the rounded total."""
    return write_text(csv_text(report, places=places), path)


def csv_text(report: Report, *, places: int = CSV_PLACES) -> str:
    """The report as CSV, with one rounding row per currency where rounded amounts do not sum to the rounded total."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    cells = [csv_cells(row, places) for row in report.rows]
    writer.writerows(map(escape_row, cells))
    for currency in report.currencies:
        rows = zip(report.rows, cells, strict=True)
        priced = [(row, cell) for row, cell in rows if row.currency == currency and cell["cost"] != UNPRICED]
        totals = {"cost": sum(row.pico for row, _ in priced)}
        totals |= {name: sum(row.costs[name] for row, _ in priced) for name in COSTS}
        rounding = {k: rounded(v, places) - sum(Decimal(cell[k]) for _, cell in priced) for k, v in totals.items()}
        if any(rounding.values()):
            texts = {name: _amount_text(amount, places) for name, amount in rounding.items()}
            writer.writerow({"row": "rounding", "rounding": texts["cost"], "currency": currency, **texts})
    return buffer.getvalue()


def csv_cells(row: ReportRow, places: int) -> dict[str, str]:
    """The cells of a row. Its cost is the sum of its rounded categories, so that a row adds up across its columns."""
    cells = {
        "row": row.kind if row.kind != "overhead" else f"overhead:{row.name}",
        "sweep_id": row.sweep_id,
        "trial_id": row.trial_id,
        "group": row.name if row.kind == "group" else "",
        "provider": row.provider,
        "account": row.account,
        "period": period_text(row),
        "attempts": str(row.attempts) if row.attempts else "",
        "machine": row.machine,
        "sku": row.sku,
        "cards": "" if row.cards is None else plain(row.cards),
        "card_hours": plain(row.card_hours),
        "currency": row.currency,
        "price_source": row.price_source,
        "flags": " ".join(row.flags if row.unpriced else (row.status, *row.flags)),
    }
    for name in ("stage", "state", *_SEARCH_LABELS, *_ACCURACY_LABELS, *_APPENDED_LABELS):
        cells[name] = row.labels.get(name, "")
    for name in FORECAST_LABELS:
        # Not rounded. A forecast in another currency than the row keeps its currency.
        cells[name] = row.labels.get(name, "").removesuffix(f" {row.currency}")
    if row.unpriced:
        return cells | dict.fromkeys(("cost", *COSTS), UNPRICED)
    total = Decimal(0)
    for name, pico in row.categories.items():
        amount = rounded(pico, places)
        cells[name] = _amount_text(amount, places)
        total += amount
    cells["cost"] = _amount_text(total, places)
    cells |= {name: _amount_text(rounded(pico, places), places) for name, pico in row.costs.items()}
    cells["cost_per_acc_point"] = cost_per_acc_point(row, places)
    return cells


def period_text(row: ReportRow) -> str:
    """The time that the row's costs cover, as an ISO 8601 interval in UTC."""
    return f"{instant_text(row.from_ns)}/{instant_text(row.to_ns)}"


def cost_per_acc_point(row: ReportRow, places: int) -> str:
    """The row's cost per percentage point of its final accuracy; empty if the accuracy is zero or unknown."""
    try:
        points = Decimal(row.labels.get("acc", "")) * 100
    except InvalidOperation:
        return ""
    if not points.is_finite() or points <= 0:
        return ""
    return plain(rounded(int(Decimal(row.pico) / points), places))


def as_json(report: Report) -> str:
    """The report as JSON. The exact costs of `trials` and `overheads`, or of `groups`, sum to `total`."""
    body: dict[str, Any] = {
        "title": report.title,
        "at": instant_text(report.at_ns),
        "trials": [_json_row(row) for row in report.rows if row.kind == "trial"],
        "overheads": [_json_row(row) for row in report.rows if row.kind == "overhead"],
    }
    groups = [_json_row(row) for row in report.rows if row.kind == "group"]
    if groups:
        body["groups"] = groups
    body["totals"] = {
        currency: {
            "cost": pico_text(report.total_in(currency)),
            **{name: pico_text(pico) for name, pico in report.costs_in(currency).items()},
        }
        for currency in report.currencies
    }
    if len(report.currencies) <= 1:
        body |= {"currency": report.currency, "total": pico_text(report.total_pico)}
    body["shares"] = {
        currency: {purpose: str(percent) for purpose, percent in shares(report, currency).items()}
        for currency in report.currencies
    }
    body |= {"unpriced": report.unpriced, "open_leases": list(report.open_leases), "notes": list(report.notes)}
    return json_text(body, indent=2)


def _json_row(row: ReportRow) -> Mapping[str, Any]:
    body: dict[str, Any] = {"trial_id": row.trial_id} if row.kind == "trial" else {"name": row.name}
    body |= {
        "sweep_id": row.sweep_id,
        "attempts": row.attempts,
        "machine": row.machine,
        "sku": row.sku,
        "provider": row.provider,
        "account": row.account,
        "period": period_text(row),
        "cards": None if row.cards is None else plain(row.cards),
        "card_hours": plain(row.card_hours),
        "cost": UNPRICED if row.unpriced else pico_text(row.pico),
        **{name: UNPRICED if row.unpriced else pico_text(pico) for name, pico in row.costs.items()},
        "currency": row.currency,
        "categories": {} if row.unpriced else {k: pico_text(v) for k, v in row.categories.items()},
        "labels": dict(row.labels),
        "price_source": row.price_source,
        "status": row.status,
        "flags": list(row.flags),
    }
    return body


def _amount_text(amount: Decimal | int, places: int) -> str:
    return plain(rounded(pico_of(Decimal(amount)), places))

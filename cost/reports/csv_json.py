"""Reports as CSV and JSON. The only place where amounts are rounded, and what rounding takes or adds is a row there.

JSON is exact: decimal texts that anybody can add up. CSV files are written under another name first and renamed, so a
reader never sees half of one.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, TextIO

from cost.money import pico_of, pico_text, plain, rounded
from cost.periods import instant_text
from cost.records import CATEGORIES, FORECAST_LABELS, StoreError
from cost.reports.report import COSTS, Report, ReportRow

CSV_PLACES = 6
"""Decimal places of the CSV's amounts."""

UNPRICED = "UNPRICED"

_LABELS_BEFORE = ("prompts_per_step", "group_size", "lr", "lr_scaling", "steps")
_LABELS_AFTER = ("acc", "acc_ci_low", "acc_ci_high")
_LABELS_SINCE = ("seed", "varied")
"""Labels that came after the columns behind them had their place."""
_CATEGORIES_SINCE = ("stopped",)
"""Categories that came after the columns behind them had their place."""
_COSTS = tuple(name for name in COSTS if name != "billed_cost")

COLUMNS = (
    *("row", "sweep_id", "trial_id", "stage", "state", "attempts", "machine", "sku", "cards"),
    *_LABELS_BEFORE,
    "card_hours",
    *(name for name in CATEGORIES if name not in _CATEGORIES_SINCE),
    "rounding",
    *("cost", "billed_cost", "currency"),
    *_LABELS_AFTER,
    "cost_per_acc_point",
    *FORECAST_LABELS,
    *_COSTS,
    *_CATEGORIES_SINCE,
    *_LABELS_SINCE,
    *("price_source", "flags"),
)
"""The CSV's columns, explained one by one in docs/cost-report.md. They are only ever added to, before the last two."""


def write_csv(report: Report, path: str | Path, *, places: int = CSV_PLACES) -> Path:
    """Write the report for a spreadsheet: the column `cost` sums to the rounded total, in every currency."""
    return write_text(csv_text(report, places=places), path)


def write_text(text: str, path: str | Path) -> Path:
    """A whole file or none. Raises StoreError where it cannot be written."""
    with atomic_file(path) as file:
        file.write(text)
    return Path(path)


@contextmanager
def atomic_file(path: str | Path) -> Iterator[TextIO]:
    """A file to write to that is there as a whole afterwards, or not at all: it has another name until it is flushed.

    What is no file (a pipe, /dev/stdout) is written to as it is, never replaced.

    Raises:
        StoreError: it cannot be written.
    """
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        if target.exists() and not target.is_file() and not target.is_dir():
            with target.open("w", encoding="utf-8", newline="") as file:
                yield file
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            partial.unlink()


def csv_text(report: Report, *, places: int = CSV_PLACES) -> str:
    """The CSV as text."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    cells = [csv_cells(row, places) for row in report.rows]
    writer.writerows(cells)
    for currency in report.currencies:
        mine = zip(report.rows, cells, strict=True)
        priced = [(row, cell) for row, cell in mine if row.currency == currency and cell["cost"] != UNPRICED]
        totals = {"cost": sum(row.pico for row, _ in priced)}
        totals |= {name: sum(row.costs[name] for row, _ in priced) for name in COSTS}
        lost = {k: rounded(v, places) - sum(Decimal(cell[k]) for _, cell in priced) for k, v in totals.items()}
        if any(lost.values()):
            texts = {name: _text(amount, places) for name, amount in lost.items()}
            writer.writerow({"row": "rounding", "rounding": texts["cost"], "currency": currency, **texts})
    return buffer.getvalue()


def csv_cells(row: ReportRow, places: int) -> dict[str, str]:
    """One row's cells. Its categories are rounded, and its cost is their sum, so that it adds up across as well."""
    cells = {
        "row": row.kind if row.kind != "overhead" else f"overhead:{row.name}",
        "sweep_id": row.sweep_id,
        "trial_id": row.trial_id or (row.name if row.kind == "group" else ""),
        "attempts": str(row.attempts) if row.attempts else "",
        "machine": row.machine,
        "sku": row.sku,
        "cards": "" if row.cards is None else plain(row.cards),
        "card_hours": plain(row.card_hours),
        "currency": row.currency,
        "price_source": row.price_source,
        "flags": " ".join(row.flags if row.unpriced else (row.status, *row.flags)),
    }
    for name in ("stage", "state", *_LABELS_BEFORE, *_LABELS_AFTER, *_LABELS_SINCE):
        cells[name] = row.labels.get(name, "")
    for name in FORECAST_LABELS:
        # Exact, and in the row's currency; one in another currency says so.
        cells[name] = row.labels.get(name, "").removesuffix(f" {row.currency}")
    if row.unpriced:
        return cells | dict.fromkeys(("cost", *COSTS), UNPRICED)
    total = Decimal(0)
    for name, pico in row.categories.items():
        amount = rounded(pico, places)
        cells[name] = _text(amount, places)
        total += amount
    cells["cost"] = _text(total, places)
    cells |= {name: _text(rounded(pico, places), places) for name, pico in row.costs.items()}
    cells["cost_per_acc_point"] = cost_per_acc_point(row, places)
    return cells


def cost_per_acc_point(row: ReportRow, places: int) -> str:
    """The row's cost by percentage point of its final accuracy; empty where that is zero or unknown."""
    try:
        points = Decimal(row.labels.get("acc", "")) * 100
    except InvalidOperation:
        return ""
    if not points.is_finite() or points <= 0:
        return ""
    return plain(rounded(int(Decimal(row.pico) / points), places))


def as_json(report: Report) -> str:
    """Exact amounts as decimal texts. `trials` + `overheads` (or `groups`) add up to `total`, to the last digit."""
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
    body |= {"unpriced": report.unpriced, "open_leases": list(report.open_leases), "notes": list(report.notes)}
    return json.dumps(body, indent=2, ensure_ascii=False)


def _json_row(row: ReportRow) -> Mapping[str, Any]:
    body: dict[str, Any] = {"trial_id": row.trial_id} if row.kind == "trial" else {"name": row.name}
    body |= {
        "sweep_id": row.sweep_id,
        "attempts": row.attempts,
        "machine": row.machine,
        "sku": row.sku,
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


def _text(amount: Decimal | int, places: int) -> str:
    return plain(rounded(pico_of(Decimal(amount)), places))

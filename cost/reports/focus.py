"""The ledger as a FOCUS cost and usage file: version 1.2, or 1.3 with the split by trial in its Allocated columns.

Amounts are exact decimals: the column EffectiveCost sums to the ledger. A lease without a price is an error, since the
format cannot express an unknown cost. Nothing is charged or read from the ledger here.

Source of every rule: the FinOps Open Cost and Usage Specification, tag v1.2 and the columns of 1.3
(https://focus.finops.org).
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path

from cost.charges.attribution import Attribution
from cost.csv_cells import escape_row
from cost.periods import period_edges
from cost.reports.atomic_file import atomic_file
from cost.reports.focus_charges import group_lines, set_allocated_ratios
from cost.reports.focus_columns import columns
from cost.reports.focus_row import allocation_cells, focus_row


def month_cuts(from_ns: int, to_ns: int) -> list[int]:
    """The starts of the UTC months within a span: cuts for `attribute`, so that no line crosses a billing period."""
    return [start for start in period_edges(from_ns, to_ns, "month", UTC) if from_ns < start < to_ns]


def rows(attribution: Attribution, *, version: str = "1.2") -> Iterator[dict[str, str]]:
    """The rows of the file by column; a column that is null in a row is missing or empty.

    The attribution must have been cut at `month_cuts`.

    Raises:
        MissingPriceError: a lease has no price.
    """
    charges = group_lines(attribution)
    if version == "1.3":
        set_allocated_ratios(charges)
    usages = {(sweep_id, key.lease_id, key.trial_id): usage for (sweep_id, key), usage in attribution.usages.items()}
    for charge in charges:
        row = focus_row(charge)
        if version == "1.3":
            line = charge.line
            row |= allocation_cells(charge, usages.get((line.sweep_id, line.lease.lease_id, line.trial_id)))
        yield escape_row(row)


def write(attribution: Attribution, path: str | Path, *, version: str = "1.2") -> Path:
    """Write the file, completely or not at all.

    Raises:
        MissingPriceError: a lease has no price.
        StoreError: the file cannot be written.
    """
    with atomic_file(path) as stream:
        writer = csv.DictWriter(stream, columns(version), restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows(attribution, version=version))
    return Path(path)

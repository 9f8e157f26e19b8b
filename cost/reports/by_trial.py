"""Group cost lines into the rows of a report. The rows sum exactly to the lines.

A sweep's report has one row per trial and one per overhead category; together they are the sweep's share of its leases.

Tested in tests/cost/reports/test_report.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence

from cost.charges.attribution import Attribution, CostLine, attribute
from cost.ledger.ledger import Ledger
from cost.money import Money
from cost.prices.billing import BillingRule
from cost.prices.book import TIME_UNITS, PriceBook, PriceRow
from cost.prices.lint import old_price_text
from cost.records import FORECAST_LABELS, Usage, UsageKey
from cost.reports.csv_json import write_csv
from cost.reports.report import Report, ReportRow, sum_lines

__all__ = ["Report", "ReportRow", "sweep_report", "trial_costs", "write_csv"]


def sweep_report(
    ledger: Ledger,
    book: PriceBook,
    sweep_id: str,
    now_ns: int,
    *,
    rules: Sequence[BillingRule] | None = None,
    as_of_ns: int | None = None,
) -> Report:
    """One row per trial and per overhead category of a sweep; they sum to the sweep's share of its leases' charges."""
    attribution = attribute(ledger, book, now_ns, sweep_id=sweep_id, rules=rules, as_of_ns=as_of_ns)
    lines = [line for line in attribution.lines if line.sweep_id == sweep_id]
    rows, notes = trial_rows(lines, attribution), problem_notes(attribution)
    notes += old_price_notes(lines)
    return Report(f"sweep {sweep_id}", now_ns, rows, open_leases(lines, attribution), notes)


def trial_costs(
    ledger: Ledger, book: PriceBook, sweep_id: str, now_ns: int, *, rules: Sequence[BillingRule] | None = None
) -> dict[str, Money]:
    """The cost so far of each trial of a sweep; trials without a price are left out."""
    report = sweep_report(ledger, book, sweep_id, now_ns, rules=rules)
    return {row.trial_id: cost for row in report.trials if (cost := row.cost) is not None}


def trial_rows(lines: Iterable[CostLine], attribution: Attribution) -> tuple[ReportRow, ...]:
    """Rows by trial in the order of their start, then by overhead category; separate for each sweep and currency."""
    trials: dict[Hashable, list[CostLine]] = defaultdict(list)
    overheads: dict[Hashable, list[CostLine]] = defaultdict(list)
    for line in lines:
        if line.trial_id:
            trials[line.sweep_id, line.trial_id, line.lease.currency].append(line)
        else:
            overheads[line.sweep_id, line.category, line.lease.currency].append(line)
    starts: dict[Hashable, int] = {}
    attempts: dict[tuple[str, str], list[Usage]] = defaultdict(list)
    for (sweep_id, key), usage in attribution.usages.items():
        attempts[sweep_id, key.trial_id].append(usage)
        starts[sweep_id, key.trial_id] = min(usage.from_ns, starts.get((sweep_id, key.trial_id), usage.from_ns))
    rows = []
    for key, trial_lines in sorted(trials.items(), key=lambda item: (starts.get(item[0][:2], 0), str(item[0]))):  # type: ignore[index]
        sweep_id, trial_id, _ = key  # type: ignore[misc]
        usages = sorted(attempts[sweep_id, trial_id], key=lambda u: (u.key.attempt, u.from_ns))
        rows.append(_trial_row(trial_lines, usages))
    for _, overhead_lines in sorted(overheads.items(), key=lambda item: str(item[0])):
        first = overhead_lines[0]
        rows.append(sum_lines("overhead", first.category, overhead_lines, sweep_id=first.sweep_id))
    return tuple(rows)


def grouped_rows(lines: Iterable[CostLine], name_of: Callable[[CostLine], str]) -> tuple[ReportRow, ...]:
    """Rows by any property of a line, one per name and currency, ordered by name."""
    groups: dict[tuple[str, str], list[CostLine]] = defaultdict(list)
    for line in lines:
        groups[name_of(line), line.lease.currency].append(line)
    return tuple(sum_lines("group", name, group) for (name, _), group in sorted(groups.items()))


def _trial_row(lines: Sequence[CostLine], attempts: Sequence[Usage]) -> ReportRow:
    first = lines[0]
    if not attempts:
        return sum_lines("trial", first.trial_id, lines, sweep_id=first.sweep_id, trial_id=first.trial_id)
    flags = set()
    for usage in attempts:
        if usage.end_estimated:
            flags.add("end_estimated")
        if usage.wall:
            flags.add("wall")
        if usage.to_ns is None:
            flags.add("open")
    labels: dict[str, str] = {}
    for usage in attempts:
        labels.update(usage.labels)
    for usage in reversed(attempts):
        # The forecast of the first attempt counts: a later one already uses what the earlier attempts measured.
        labels.update({name: usage.labels[name] for name in FORECAST_LABELS if name in usage.labels})
    return sum_lines(
        *("trial", first.trial_id, lines),
        sweep_id=first.sweep_id,
        trial_id=first.trial_id,
        attempts=len(attempts),
        cards=attempts[-1].cards,
        labels=labels,
        flags=flags,
    )


def open_leases(lines: Iterable[CostLine], attribution: Attribution) -> tuple[str, ...]:
    """The ids of the leases of some lines that are still open."""
    lease_ids = {line.lease.lease_id for line in lines}
    return tuple(s.lease.lease_id for s in attribution.leases if s.to_ns is None and s.lease.lease_id in lease_ids)


def old_price_notes(lines: Iterable[CostLine]) -> tuple[str, ...]:
    """A warning for each price that was read long before the time that it was charged for."""
    last_ns: dict[PriceRow, int] = {}
    for line in lines:
        if line.price is not None and line.price.per in TIME_UNITS:
            last_ns[line.price] = max(line.from_ns, last_ns.get(line.price, 0))
    return tuple(text for price, at_ns in last_ns.items() if (text := old_price_text(price, at_ns)))


def problem_notes(attribution: Attribution, *, simulated: bool = True) -> tuple[str, ...]:
    """A sentence for each lease that cannot be priced. `simulated`: whether simulated leases count."""
    hidden = {s.lease.lease_id for s in attribution.leases if s.lease.simulated and not simulated}
    return tuple(
        f"Lease {lease_id} is UNPRICED: {problem}"
        for lease_id, problem in attribution.problems.items()
        if lease_id not in hidden
    )


def usage_of(line: CostLine, attribution: Attribution) -> Usage | None:
    """The usage that caused a line; None for overhead."""
    return attribution.usages.get((line.sweep_id, UsageKey(line.lease.lease_id, line.trial_id, line.attempt)))

"""Reports over all leases: by trial, stage, sweep, day, user ... for a range of time, and in another currency.

Every grouping uses the same cost lines, so all reports of one range have the same total.

Tested in tests/cost/cli/test_report.py and tests/cost/prices/test_fx.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from functools import partial

from cost.charges.attribution import Attribution, CostLine, attribute
from cost.charges.chargeback import COST_CENTER, apply_chargebacks, chargebacks_by_sweep
from cost.ledger.ledger import Ledger
from cost.money import Money, largest_remainder, money_text
from cost.periods import PERIODS, period_edges, period_name
from cost.prices.billing import BillingRule
from cost.prices.book import PriceBook
from cost.prices.fx import Converter, Rate, fixings, load_rates, rate_notes, rates_as_of
from cost.records import FORECAST_LABELS, LedgerError
from cost.reports.as_of import book_as_of, cost_changes_since
from cost.reports.by_trial import (
    Report,
    grouped_rows,
    old_price_notes,
    open_leases,
    problem_notes,
    trial_rows,
    usage_of,
)

GROUPINGS = ("trial", "stage", "sweep", *PERIODS, "user", "project", "cost_center", "machine", "category")
IDLE_POLICIES = ("apart", "spread", "owner")
NO_NAME = "(none)"
"""The group of the lines that have no value for what a report is grouped by."""

MAX_INCREMENT_NS = 32 * 86_400 * 10**9
"""How far a billing increment can lie after the end of its lease: no known billing rule adds more than a month."""


@dataclass(frozen=True)
class ReportScope:
    """What a report covers and how it is grouped.

    by: one of GROUPINGS, or `tag:NAME`. zone: the time zone in which days begin. currency: None leaves each amount in
    its own. idle: `apart` puts overhead in rows of its own, `spread` adds each sweep's overhead to its trials in
    proportion to their cost, `owner` leaves overhead to the machine's owner and to no sweep.
    """

    by: str = "trial"
    sweep_id: str | None = None
    from_ns: int | None = None
    to_ns: int | None = None
    zone: tzinfo = UTC
    currency: str | None = None
    idle: str = "apart"
    as_of_ns: int | None = None


def grouped_report(
    ledger: Ledger, book: PriceBook, scope: ReportScope, now_ns: int, *, rules: Sequence[BillingRule] | None = None
) -> Report:
    """The report of a scope.

    Raises:
        LedgerError: the scope names an unknown grouping or idle policy.
        PriceError: a price, a billing rule or an exchange rate is missing.
    """
    if scope.by not in GROUPINGS and not scope.by.startswith("tag:"):
        raise LedgerError(f"unknown grouping {scope.by!r}; choose one of {', '.join(GROUPINGS)}, tag:NAME")
    cuts: list[int] = []
    if scope.by in PERIODS:
        first = min((s.from_ns for s in ledger.leases.find()), default=now_ns)
        cuts = period_edges(first, now_ns + MAX_INCREMENT_NS, scope.by, scope.zone)
    rates = load_rates(book.folder) if scope.currency is not None else ()
    if scope.as_of_ns is not None:
        rates = rates_as_of(rates, scope.as_of_ns)
    attribution = scoped_attribution(ledger, book, scope, now_ns, cuts=[*cuts, *fixings(rates)], rules=rules)
    notes = tuple[str, ...]()
    if scope.currency is not None:
        attribution, notes = in_currency(attribution, scope.currency, rates)
    lines = attribution.lines
    if scope.by == "trial":
        rows = trial_rows(lines, attribution)
    else:
        rows = grouped_rows(lines, _group_name(scope, attribution))
    if scope.as_of_ns is not None:
        changes = cost_changes_since(ledger, book, scope.as_of_ns, sweep_id=scope.sweep_id, rules=rules)
        notes += tuple(change.text for change in changes)
    notes += unassigned_notes(attribution) + old_price_notes(lines)
    notes += problem_notes(attribution, simulated=scope.sweep_id is not None) + simulated_note(scope, attribution)
    # The clock of a simulated sweep runs ahead of real time: its report is dated at its end, not at an earlier moment.
    simulated = [state for state in attribution.leases if state.lease.simulated]
    ends = [state.to_ns or 0 for state in simulated] if scope.sweep_id else []
    at_ns = max([now_ns, *ends]) if scope.as_of_ns is None else now_ns
    subject = f"sweep {scope.sweep_id}" if scope.sweep_id else "all leases"
    return Report(f"{subject} by {scope.by}", at_ns, rows, open_leases(lines, attribution), notes)


def scoped_attribution(
    ledger: Ledger,
    book: PriceBook,
    scope: ReportScope,
    now_ns: int,
    *,
    cuts: Sequence[int] = (),
    rules: Sequence[BillingRule] | None = None,
) -> Attribution:
    """The cost lines within a scope, cut at its range and at `cuts`, each in its own currency."""
    if scope.idle not in IDLE_POLICIES:
        raise LedgerError(f"unknown policy for idle time: {scope.idle!r}; choose one of {', '.join(IDLE_POLICIES)}")
    if scope.as_of_ns is not None:
        book = book_as_of(ledger, book, scope.as_of_ns)
    edges = {ns for ns in (scope.from_ns, scope.to_ns) if ns is not None}.union(cuts)
    attribution = attribute(
        ledger, book, now_ns, sweep_id=scope.sweep_id, cuts=sorted(edges), rules=rules, as_of_ns=scope.as_of_ns
    )
    lines = [line for line in _with_idle_policy(attribution.lines, scope.idle) if _in_scope(line, scope)]
    lines = apply_chargebacks(lines, chargebacks_by_sweep(ledger, scope.as_of_ns))
    unassigned: dict[str, int] = {}
    for line in attribution.lines if scope.sweep_id and scope.idle == "apart" else ():
        if not line.sweep_id and _in_range(line, scope):
            unassigned[line.lease.currency] = unassigned.get(line.lease.currency, 0) + line.pico
    return replace(attribution, lines=tuple(lines), unassigned=unassigned)


def unassigned_notes(attribution: Attribution) -> tuple[str, ...]:
    """What the machines of a sweep cost while no sweep was attached: idle money that no sweep's report contains."""
    return tuple(
        f"Its machines cost {money_text(Money(pico, currency))} more while no sweep was attached: "
        "python -m cost report --by category"
        for currency, pico in sorted(attribution.unassigned.items())
        if pico > 0
    )


def simulated_note(scope: ReportScope, attribution: Attribution) -> tuple[str, ...]:
    """A note for a report over all leases that leaves out simulated sweeps; else empty."""
    if scope.sweep_id is None and any(state.lease.simulated for state in attribution.leases):
        return ("Simulated sweeps are left out; see one with: python -m cost report --sweep NAME",)
    return ()


def in_currency(attribution: Attribution, currency: str, rates: Sequence[Rate]) -> tuple[Attribution, tuple[str, ...]]:
    """Convert lines and forecasts to another currency, each at the rate of its day; also returns notes on the rates.

    The lines must have been cut at `fixings(rates)`, so that one rate applies to each.

    Raises:
        MissingRateError: a rate is missing.
    """
    converter, lines = Converter(currency, rates), []
    for line in attribution.lines:
        convert = partial(converter, currency=line.lease.currency, at_ns=line.from_ns)
        lines.append(
            replace(
                line,
                pico=convert("pico", line.pico),
                paid_pico=convert("paid_pico", line.paid_pico),
                by_price_kind=line.by_price_kind and line.by_price_kind.converted(convert),
                lease=replace(line.lease, currency=currency),
                exchange_rate=converter.text(line.lease.currency, line.from_ns),
            )
        )
    usages = dict(attribution.usages)
    for key, usage in attribution.usages.items():
        forecasts = {name: Money.parse(usage.labels[name]) for name in FORECAST_LABELS if name in usage.labels}
        if forecasts:
            texts = {
                name: str(Money(converter(f"{name} {key}", money.pico, money.currency, usage.from_ns), currency))
                for name, money in forecasts.items()
            }
            usages[key] = replace(usage, labels={**usage.labels, **texts})
    return replace(attribution, lines=tuple(lines), usages=usages), rate_notes(converter.used)


def _in_scope(line: CostLine, scope: ReportScope) -> bool:
    if line.lease.simulated if scope.sweep_id is None else line.sweep_id != scope.sweep_id:
        return False
    return _in_range(line, scope)


def _in_range(line: CostLine, scope: ReportScope) -> bool:
    if scope.from_ns is not None and line.from_ns < scope.from_ns:
        return False
    return scope.to_ns is None or line.from_ns < scope.to_ns


def _group_name(scope: ReportScope, attribution: Attribution) -> Callable[[CostLine], str]:
    """A function from a line to the name of its group."""
    if scope.by in PERIODS:
        return lambda line: period_name(line.from_ns, scope.by, scope.zone)
    if scope.by == "stage":
        stages = {sweep: u.labels["stage"] for (sweep, _), u in attribution.usages.items() if "stage" in u.labels}
        return lambda line: _stage(line, attribution) or stages.get(line.sweep_id, NO_NAME)
    if scope.by.startswith("tag:"):
        tag = scope.by.removeprefix("tag:")
        return lambda line: line.lease.tags.get(tag) or NO_NAME
    fields: dict[str, Callable[[CostLine], str]] = {
        "sweep": lambda line: line.sweep_id,
        "user": lambda line: line.lease.owner,
        "project": lambda line: line.lease.project,
        "cost_center": lambda line: line.lease.tags.get(COST_CENTER, ""),
        "machine": lambda line: line.lease.machine,
        "category": lambda line: line.category,
    }
    return lambda line: fields[scope.by](line) or NO_NAME


def _stage(line: CostLine, attribution: Attribution) -> str | None:
    usage = usage_of(line, attribution)
    return usage.labels.get("stage") if usage else None


def _with_idle_policy(lines: Sequence[CostLine], policy: str) -> Iterable[CostLine]:
    if policy == "owner":
        return [line if line.trial_id else replace(line, sweep_id="") for line in lines]
    return _spread(lines) if policy == "spread" else lines


def _spread(lines: Sequence[CostLine]) -> list[CostLine]:
    """Add each lease's overhead of a sweep to the sweep's trials, and unassigned overhead to all trials of the lease.

    The weights are what the trials cost.
    """
    weights: dict[tuple[str, str], dict[tuple[str, str, int], int]] = {}
    for line in lines:
        if line.trial_id and line.pico > 0:
            attempt = (line.sweep_id, line.trial_id, line.attempt)
            for sweep_id in (line.sweep_id, ""):
                attempt_weights = weights.setdefault((line.lease.lease_id, sweep_id), {})
                attempt_weights[attempt] = attempt_weights.get(attempt, 0) + line.pico
    spread = []
    for line in lines:
        attempt_weights = weights.get((line.lease.lease_id, line.sweep_id))
        if line.trial_id or not attempt_weights:
            spread.append(line)
            continue
        costs = list(attempt_weights.values())
        parts = zip(
            attempt_weights,
            largest_remainder(line.pico, costs),
            largest_remainder(line.micro_card_ns, costs),
            line.by_price_kind.split(costs) if line.by_price_kind else [None] * len(costs),
            strict=True,
        )
        for (sweep_id, trial_id, attempt), pico, micro_card_ns, amounts in parts:
            share = {"pico": pico, "micro_card_ns": micro_card_ns, "by_price_kind": amounts}
            spread.append(replace(line, sweep_id=sweep_id, trial_id=trial_id, attempt=attempt, **share))
    return spread

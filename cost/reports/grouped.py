"""Reports over all leases: by trial, stage, sweep, day, user ... with a range of time and another currency.

Every grouping gathers the same lines, so that every report of the same range has the same total.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from functools import partial

from cost.charges.attribution import Attribution, CostLine, attribute
from cost.charges.chargeback import COST_CENTER, apply_chargebacks, chargebacks_by_sweep
from cost.ledger.ledger import Ledger
from cost.money import Money, largest_remainder
from cost.periods import PERIODS, period_edges, period_name
from cost.prices.billing import BillingRule
from cost.prices.book import PriceBook
from cost.prices.fx import Converter, Rate, fixings, load_rates, rate_notes, rates_as_of
from cost.records import FORECASTS, LedgerError
from cost.reports.as_of import book_as_of, cost_changes_since
from cost.reports.by_trial import Report, grouped_rows, open_leases, trial_rows, usage_of

GROUPINGS = ("trial", "stage", "sweep", *PERIODS, "user", "project", "cost_center", "machine", "category")
IDLE_POLICIES = ("apart", "spread", "owner")
NOBODY = "(none)"


@dataclass(frozen=True)
class ReportScope:
    """What a report is about.

    by: one of GROUPINGS, or `tag:NAME`. zone: where days begin. currency: None leaves each amount in its own.
    idle: `apart` keeps overhead in rows of its own, `spread` adds each sweep's to its trials in proportion to what
    they cost, `owner` leaves it to the machine's owner and no sweep.
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
        LedgerError: the scope names a grouping or a policy that there is not.
        PriceError: a price, a billing rule or an exchange rate is missing.
    """
    if scope.by not in GROUPINGS and not scope.by.startswith("tag:"):
        raise LedgerError(f"there is no report by {scope.by!r}; by one of {', '.join(GROUPINGS)}, tag:NAME")
    cuts: list[int] = []
    if scope.by in PERIODS:
        first = min((s.from_ns for s in ledger.leases.find()), default=now_ns)
        # A billing increment may lie after the end of its lease: no known rule adds more than a month.
        cuts = period_edges(first, now_ns + 32 * 86_400 * 10**9, scope.by, scope.zone)
    rates = load_rates(book.folder) if scope.currency is not None else ()
    if scope.as_of_ns is not None:
        rates = rates_as_of(rates, scope.as_of_ns)
    found = scoped_attribution(ledger, book, scope, now_ns, cuts=[*cuts, *fixings(rates)], rules=rules)
    notes = tuple[str, ...]()
    if scope.currency is not None:
        found, notes = in_currency(found, scope.currency, rates)
    lines = found.lines
    rows = trial_rows(lines, found) if scope.by == "trial" else grouped_rows(lines, _namer(scope, found))
    if scope.as_of_ns is not None:
        changes = cost_changes_since(ledger, book, scope.as_of_ns, sweep_id=scope.sweep_id, rules=rules)
        notes += tuple(change.text for change in changes)
    simulated = [state for state in found.leases if state.lease.simulated]
    notes += left_out(scope, found)
    # Simulated time runs ahead of the world's: its report is of its own end, not of an earlier moment.
    ends = [state.to_ns or 0 for state in simulated] if scope.sweep_id else []
    at_ns = max([now_ns, *ends]) if scope.as_of_ns is None else now_ns
    what = f"sweep {scope.sweep_id}" if scope.sweep_id else "all leases"
    return Report(f"{what} by {scope.by}", at_ns, rows, open_leases(lines, found), notes)


def scoped_attribution(
    ledger: Ledger,
    book: PriceBook,
    scope: ReportScope,
    now_ns: int,
    *,
    cuts: Sequence[int] = (),
    rules: Sequence[BillingRule] | None = None,
) -> Attribution:
    """The lines that a scope lets through, cut at its range and at `cuts`, in their own currencies."""
    if scope.idle not in IDLE_POLICIES:
        raise LedgerError(f"{scope.idle!r} is no way to treat idle time; one of {', '.join(IDLE_POLICIES)}")
    if scope.as_of_ns is not None:
        book = book_as_of(ledger, book, scope.as_of_ns)
    edges = {ns for ns in (scope.from_ns, scope.to_ns) if ns is not None}.union(cuts)
    found = attribute(
        ledger, book, now_ns, sweep_id=scope.sweep_id, cuts=sorted(edges), rules=rules, as_of_ns=scope.as_of_ns
    )
    lines = [line for line in _with_policy(found.lines, scope.idle) if _in_scope(line, scope)]
    return replace(found, lines=tuple(apply_chargebacks(lines, chargebacks_by_sweep(ledger, scope.as_of_ns))))


def left_out(scope: ReportScope, found: Attribution) -> tuple[str, ...]:
    """A sentence where what was simulated is not in a report of everything."""
    if scope.sweep_id is None and any(state.lease.simulated for state in found.leases):
        return ("Simulated sweeps are left out; see one with: python -m cost report --sweep NAME",)
    return ()


def in_currency(found: Attribution, currency: str, rates: Sequence[Rate]) -> tuple[Attribution, tuple[str, ...]]:
    """The lines, and the forecasts of their trials, in another currency, each at the rate of its day; and the sentences
    that name the rates. `found` must have been cut at their `fixings`: a line has one rate.

    Raises:
        MissingRateError: a rate is missing.
    """
    converter, lines = Converter(currency, rates), []
    for line in found.lines:
        to = partial(converter, currency=line.lease.currency, at_ns=line.from_ns)
        amounts, lease = line.by_price_kind and line.by_price_kind.converted(to), replace(line.lease, currency=currency)
        pico, paid = to("pico", line.pico), to("paid_pico", line.paid_pico)
        rate = converter.text(line.lease.currency, line.from_ns)
        lines.append(replace(line, pico=pico, paid_pico=paid, by_price_kind=amounts, lease=lease, exchange_rate=rate))
    usages = dict(found.usages)
    for key, usage in found.usages.items():
        forecasts = {name: Money.parse(usage.labels[name]) for name in FORECASTS if name in usage.labels}
        if forecasts:
            texts = {
                name: str(Money(converter(f"{name} {key}", money.pico, money.currency, usage.from_ns), currency))
                for name, money in forecasts.items()
            }
            usages[key] = replace(usage, labels={**usage.labels, **texts})
    return replace(found, lines=tuple(lines), usages=usages), rate_notes(converter.used)


def _in_scope(line: CostLine, scope: ReportScope) -> bool:
    if line.lease.simulated if scope.sweep_id is None else line.sweep_id != scope.sweep_id:
        return False
    if scope.from_ns is not None and line.from_ns < scope.from_ns:
        return False
    return scope.to_ns is None or line.from_ns < scope.to_ns


def _namer(scope: ReportScope, found: Attribution) -> Callable[[CostLine], str]:
    if scope.by in PERIODS:
        return lambda line: period_name(line.from_ns, scope.by, scope.zone)
    if scope.by == "stage":
        of_sweep = {sweep: u.labels["stage"] for (sweep, _), u in found.usages.items() if "stage" in u.labels}
        return lambda line: _stage(line, found) or of_sweep.get(line.sweep_id, NOBODY)
    if scope.by.startswith("tag:"):
        tag = scope.by.removeprefix("tag:")
        return lambda line: line.lease.tags.get(tag) or NOBODY
    fields: dict[str, Callable[[CostLine], str]] = {
        "sweep": lambda line: line.sweep_id,
        "user": lambda line: line.lease.owner,
        "project": lambda line: line.lease.project,
        "cost_center": lambda line: line.lease.tags.get(COST_CENTER, ""),
        "machine": lambda line: line.lease.machine,
        "category": lambda line: line.category,
    }
    return lambda line: fields[scope.by](line) or NOBODY


def _stage(line: CostLine, found: Attribution) -> str | None:
    usage = usage_of(line, found)
    return usage.labels.get("stage") if usage else None


def _with_policy(lines: Sequence[CostLine], policy: str) -> Iterable[CostLine]:
    if policy == "owner":
        return [line if line.trial_id else replace(line, sweep_id="") for line in lines]
    return _spread(lines) if policy == "spread" else lines


def _spread(lines: Sequence[CostLine]) -> list[CostLine]:
    """Each lease's overhead of a sweep goes to that sweep's trials; unassigned overhead to all trials of the lease."""
    weights: dict[tuple[str, str], dict[tuple[str, str, int], int]] = {}
    for line in lines:
        if line.trial_id and line.pico > 0:
            holder = (line.sweep_id, line.trial_id, line.attempt)
            for sweep_id in (line.sweep_id, ""):
                of_sweep = weights.setdefault((line.lease.lease_id, sweep_id), {})
                of_sweep[holder] = of_sweep.get(holder, 0) + line.pico
    found = []
    for line in lines:
        holders = weights.get((line.lease.lease_id, line.sweep_id))
        if line.trial_id or not holders:
            found.append(line)
            continue
        pico = largest_remainder(line.pico, list(holders.values()))
        time = largest_remainder(line.micro_card_ns, list(holders.values()))
        kinds = line.by_price_kind.split(list(holders.values())) if line.by_price_kind else [None] * len(holders)
        for (sweep_id, trial_id, attempt), part, card_ns, of_part in zip(holders, pico, time, kinds, strict=True):
            more = {"sweep_id": sweep_id, "trial_id": trial_id, "attempt": attempt}
            found.append(replace(line, pico=part, micro_card_ns=card_ns, by_price_kind=of_part, **more))
    return found

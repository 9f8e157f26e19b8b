"""Closing a month, and telling what changed since: the books as they were, against the books as they are.

A closed month changes only by corrections; its totals are kept with it, so that anything else that moves them (a
price edited in place, a fact that came late) is found and named.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date

from cost.attribution import attribute
from cost.billing import BillingRule
from cost.charging import beside, charged, rules_of
from cost.ledger import Ledger
from cost.money import Money, pico_text
from cost.periods import midnight_ns
from cost.prices import PriceBook
from cost.records import LedgerError

STREAM = "closed_months"

Totals = Mapping[str, tuple[int, str]]
"""By lease: an amount in 1e-12, and its currency."""


@dataclass(frozen=True)
class Change:
    """Why a lease costs another amount than it did; the three causes sum to the difference."""

    lease_id: str
    currency: str
    then_pico: int
    now_pico: int
    by_prices: int
    by_corrections: int
    by_late_entries: int

    @property
    def text(self) -> str:
        causes = {"prices": self.by_prices, "corrections": self.by_corrections, "late entries": self.by_late_entries}
        why = ", ".join(f"{name} {pico_text(pico)}" for name, pico in causes.items() if pico)
        then, now = (Money(pico, self.currency) for pico in (self.then_pico, self.now_pico))
        return f"lease {self.lease_id}: {then} then, {now} in today's books: {why}"


def month_bounds(period: str) -> tuple[int, int]:
    """First instant of a month of UTC (`2026-11`), and of the next. Raises LedgerError."""
    try:
        first = date.fromisoformat(f"{period}-01")
    except ValueError as error:
        raise LedgerError(f"{period!r} is no month; write for example 2026-11") from error
    following = date(first.year + first.month // 12, first.month % 12 + 1, 1)
    return midnight_ns(first, UTC), midnight_ns(following, UTC)


def close_month(
    ledger: Ledger, book: PriceBook, period: str, now_ns: int, *, rules: Sequence[BillingRule] | None = None
) -> Totals:
    """Freeze a month of UTC and keep its totals; returns them. Closed before: its totals as they were kept.

    Raises:
        LedgerError: the month is not over, something in it is still open with nobody looking after it, or the books
            are not whole.
    """
    from cost.check import run_checks

    _, end = month_bounds(period)
    if now_ns < end:
        raise LedgerError(f"{period} is not over yet")
    if period in ledger.frozen_periods():
        return closed_months(ledger)[period]
    for usage in ledger.usages(only_open=True):
        if usage.from_ns < end and usage.last_heartbeat_ns < end:
            raise LedgerError(
                f"{period} cannot be closed: trial {usage.key.trial_id} attempt {usage.key.attempt} of sweep "
                f"{usage.sweep_id} has not ended; resume the sweep, or close its lease: "
                f"python -m cost leases close {usage.key.lease_id}"
            )
    findings = [f for f in run_checks(ledger, book, now_ns, rules=rules) if f.check != "closed"]
    if findings:
        first = findings[0]
        raise LedgerError(
            f"{period} cannot be closed: {first.check}: {first.where}: {first.what}"
            + (f" (and {len(findings) - 1} more; see python -m cost check)" if len(findings) > 1 else "")
        )
    totals = month_totals(ledger, book, period, now_ns, rules=rules)
    states = ledger.leases()
    other = beside(ledger, states, now_ns)
    kept = rules_of(book) if rules is None else rules
    rows = [row for state in states for row in charged(state, book, kept, now_ns, other)[1].values()]
    with ledger.transaction():
        ledger.remember_prices(rows)
        ledger.freeze(period)
        body = {lease_id: f"{pico_text(pico)} {currency}" for lease_id, (pico, currency) in totals.items()}
        ledger.append_event(STREAM, "closed", {"period": period, "leases": body}, period)
    return totals


def closed_months(ledger: Ledger) -> dict[str, Totals]:
    """The totals that closed months were closed with."""
    found: dict[str, Totals] = {}
    for event in ledger.events(STREAM):
        amounts = {lease_id: Money.parse(text) for lease_id, text in event.body["leases"].items()}
        found[event.body["period"]] = {lease_id: (m.pico, m.currency) for lease_id, m in amounts.items()}
    return found


def month_totals(
    ledger: Ledger, book: PriceBook, period: str, now_ns: int, *, rules: Sequence[BillingRule] | None = None
) -> Totals:
    """What each lease cost within a month of UTC, corrections left out."""
    start, end = month_bounds(period)
    totals: dict[str, tuple[int, str]] = {}
    for line in attribute(ledger, book, now_ns, cuts=(start, end), rules=rules).lines:
        if start <= line.from_ns < end and "corrected" not in line.flags and not line.lease.simulated:
            before = totals.get(line.lease.lease_id, (0, ""))[0]
            totals[line.lease.lease_id] = (before + line.pico, line.lease.currency)
    return totals


def book_as_of(ledger: Ledger, book: PriceBook, as_of_ns: int) -> PriceBook:
    """The price book as it was known at a moment.

    Rows that the ledger kept by then stand in for those edited since; rows that came later are left out, unless their
    series has no earlier one.
    """
    kept = {(row.series, row.valid_from): row for row in ledger.remembered_prices(as_of_ns)}
    known = {row.series for row in book.rows if row.known_at(as_of_ns)} | {series for series, _ in kept}
    rows = [row for row in book.rows if (row.series, row.valid_from) not in kept]
    rows = [row for row in rows if row.known_at(as_of_ns) or row.series not in known]
    return PriceBook((*rows, *kept.values()), book.folder)


def changes_since(
    ledger: Ledger,
    book: PriceBook,
    as_of_ns: int,
    *,
    sweep_id: str | None = None,
    rules: Sequence[BillingRule] | None = None,
) -> list[Change]:
    """For each lease whose cost up to a moment is another one in today's books: by how much, and why.

    What a billing rule would have added at that moment is left out on both sides.
    """
    old_book = book_as_of(ledger, book, as_of_ns)

    def totals(prices: PriceBook, as_of: int | None) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        cuts = (as_of_ns,)
        books = attribute(ledger, prices, as_of_ns, sweep_id=sweep_id, cuts=cuts, rules=rules, as_of_ns=as_of)
        for line in books.lines:
            if line.from_ns >= as_of_ns and "corrected" not in line.flags:
                continue
            found[line.lease.lease_id]["corrected" in line.flags] += line.pico
            currencies[line.lease.lease_id] = line.lease.currency
        return found

    currencies: dict[str, str] = {}
    then, same_prices, now = totals(old_book, as_of_ns), totals(old_book, None), totals(book, None)
    found = []
    for lease_id in then:
        change = Change(
            lease_id,
            currencies[lease_id],
            then_pico=sum(then[lease_id]),
            now_pico=sum(now[lease_id]),
            by_prices=now[lease_id][0] - same_prices[lease_id][0],
            by_corrections=now[lease_id][1] - then[lease_id][1],
            by_late_entries=same_prices[lease_id][0] - then[lease_id][0],
        )
        if change.then_pico != change.now_pico:
            found.append(change)
    return found

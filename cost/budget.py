"""Limits on what is spent, and how much of them is left. Reads the books; stops nothing by itself.

A limit counts the charge of the leases, idle time included. Limits are kept in the ledger's journal `budget`; the
latest one for a scope counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC

from cost.billing import BillingRule
from cost.grouping import Scope, grouped_report
from cost.ledger import Ledger
from cost.money import Money, MoneyError
from cost.periods import period_edges, period_name
from cost.prices import PriceBook
from cost.records import LedgerError

STREAM = "budget"
KINDS = ("month", "stage:NAME", "sweep:NAME")


@dataclass(frozen=True)
class Budget:
    """A limit and what has been spent under it. `scope`: `month`, `stage:NAME` or `sweep:NAME`."""

    scope: str
    name: str
    """The scope in words, such as `month 2026-11`."""
    limit: Money | None
    """None: nobody has set one."""
    spent: Money

    @property
    def free(self) -> Money | None:
        """Negative where more was spent than allowed."""
        return None if self.limit is None else self.limit - self.spent


def set_limit(ledger: Ledger, scope: str, limit: Money) -> None:
    """From now on at most `limit` is to be spent under `scope`.

    Raises:
        LedgerError: there is no such scope, or the limit is not above zero.
    """
    kind, _, name = scope.partition(":")
    if scope != "month" and (kind not in ("stage", "sweep") or not name):
        raise LedgerError(f"{scope!r} has no budget; one of {', '.join(KINDS)}")
    if limit.pico <= 0:
        raise LedgerError(f"a limit of {limit} on {scope}: it must be above zero")
    ledger.append_event(STREAM, "limit", {"scope": scope, "limit": str(limit)}, f"{scope}:{ledger.now_ns()}")


def limits(ledger: Ledger) -> dict[str, Money]:
    """The limit of each scope that has one."""
    found: dict[str, Money] = {}
    for event in ledger.events(STREAM):
        if event.kind == "limit":
            found[event.body["scope"]] = Money.parse(event.body["limit"])
    return found


def budgets(
    ledger: Ledger, book: PriceBook, now_ns: int, *, rules: Sequence[BillingRule] | None = None
) -> list[Budget]:
    """This calendar month (UTC), then every scope that has a limit.

    Raises:
        PriceError: a price or an exchange rate is missing.
    """
    set_limits = limits(ledger)
    found = []
    for scope in ["month", *sorted(set(set_limits) - {"month"})]:
        limit = set_limits.get(scope)
        found += _budget(ledger, book, now_ns, scope, limit, rules)
    return found


def _budget(
    ledger: Ledger,
    book: PriceBook,
    now_ns: int,
    scope: str,
    limit: Money | None,
    rules: Sequence[BillingRule] | None,
) -> list[Budget]:
    kind, _, name = scope.partition(":")
    label = f"month {period_name(now_ns, 'month', UTC)}" if kind == "month" else f"{kind} {name}"
    by = Scope(by="stage" if kind == "stage" else "sweep", sweep_id=name if kind == "sweep" else None)
    if kind == "month":
        start, end = period_edges(now_ns, now_ns, "month", UTC)
        by = Scope(by="sweep", from_ns=start, to_ns=end)
    if limit is not None:
        by = Scope(**{**vars(by), "currency": limit.currency})
    report = grouped_report(ledger, book, by, now_ns, rules=rules)
    rows = [row for row in report.rows if kind != "stage" or row.name == name]
    currencies = sorted({row.currency for row in rows}) or ([limit.currency] if limit else [])
    return [
        Budget(scope, label, limit, Money(sum(row.pico for row in rows if row.currency == currency), currency))
        for currency in currencies
    ]


def parse_setting(text: str) -> tuple[str, Money]:
    """Read `month=500 USD`. Raises LedgerError."""
    scope, equals, amount = text.partition("=")
    try:
        if equals:
            return scope, Money.parse(amount, negative=False)
    except MoneyError as error:
        raise LedgerError(f"--set {text!r}: {error}") from error
    raise LedgerError(f"--set {text!r}: write for example --set 'month=500 USD'")

"""Limits on what is spent, as `python -m cost budget` sets and shows them: limit, reserved, spent, free.

Limits are stored in the ledger's journal `budget`; of each scope the limit that was set last applies. Nothing here
stops a sweep: `sweeps.scheduling.budget_controller` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC

from cost.budgets.reader import STREAM, BudgetReader, stored_limits
from cost.ledger.ledger import Ledger
from cost.money import Money, MoneyError
from cost.periods import period_name
from cost.prices.billing import BillingRule
from cost.prices.book import PriceBook
from cost.records import LedgerError

SCOPES = ("month", "stage:NAME", "sweep:NAME")
NONE = "none"
"""Written instead of an amount to remove a limit."""


@dataclass(frozen=True)
class Budget:
    """A limit, and what is spent and reserved under it."""

    scope: str
    name: str
    """The scope for a person, such as `month 2026-11`."""
    limit: Money | None
    """None: no limit is set."""
    reserved: Money
    """What running attempts may still cost."""
    spent: Money
    simulated: bool = False
    """The amounts are those of simulated sweeps, which are counted separately."""

    @property
    def free(self) -> Money | None:
        """Negative where more is spent and reserved than the limit allows."""
        return None if self.limit is None else self.limit - self.spent - self.reserved


def set_limit(ledger: Ledger, scope: str, limit: Money | None) -> None:
    """Store the limit of a scope, in place of an earlier one. None: remove it.

    Raises:
        LedgerError: there is no such scope, or the limit is not above zero.
    """
    kind, _, name = scope.partition(":")
    if scope != "month" and (kind not in ("stage", "sweep") or not name):
        raise LedgerError(f"{scope!r} is not a budget scope; use one of {', '.join(SCOPES)}")
    if limit is not None and limit.pico <= 0:
        raise LedgerError(f"{scope}={limit}: a limit must be above zero")
    body = {"scope": scope, "limit": None if limit is None else str(limit)}
    ledger.events.append(STREAM, "limit", body, f"{scope}:{ledger.now_ns()}")


def scope_name(scope: str, now_ns: int) -> str:
    """A scope for a person: `month 2026-11`, `stage smoke`, `sweep smoke-3c947e-1`."""
    return f"month {period_name(now_ns, 'month', UTC)}" if scope == "month" else scope.replace(":", " ", 1)


def budgets(
    ledger: Ledger, book: PriceBook, now_ns: int, *, rules: Sequence[BillingRule] | None = None
) -> tuple[list[Budget], tuple[str, ...]]:
    """This calendar month (UTC), then every scope with a limit; and notes on exchange rates and missing prices.

    Simulated sweeps come after real ones, where there are any.

    Raises:
        PriceError: a price or an exchange rate is missing.
    """
    limits = stored_limits(ledger)
    scopes = ["month", *sorted(set(limits) - {"month"})]
    found: list[Budget] = []
    notes: list[str] = []
    for simulated in sorted({False, *(state.lease.simulated for state in ledger.leases.find())}):
        reader = BudgetReader(ledger, book, scopes, always=scopes, simulated=simulated, rules=rules)
        snapshot = reader.read(now_ns, exact=True)
        for scope in scopes:
            limit = limits.get(scope)
            # Without a limit there is no currency to convert into: each currency has a row.
            for currency in [limit.currency] if limit else snapshot.currencies(scope):
                spent = snapshot.spent(scope, currency, unconverted=limit is None)
                reserved = snapshot.reserved(scope, currency, unconverted=limit is None)
                if simulated and not (limit and (spent or reserved)):
                    continue
                name = scope_name(scope, now_ns) + (" (simulated)" if simulated else "")
                found.append(Budget(scope, name, limit, reserved, spent, simulated))
                notes += snapshot.rate_notes(scope, currency) if limit else ()
        notes += [
            f"UNPRICED: the cost of lease {lease_id} is unknown and in none of these amounts; {problem}"
            for lease_id, problem in snapshot.unpriced.items()
        ]
    return found, tuple(dict.fromkeys(notes))


def parse_setting(text: str) -> tuple[str, Money | None]:
    """Read `month=500 USD` or `month=none`. Raises LedgerError."""
    scope, equals, amount = text.partition("=")
    try:
        if equals:
            return scope, None if amount.strip() == NONE else Money.parse(amount, negative=False)
    except MoneyError as error:
        raise LedgerError(f"--set {text!r}: {error}") from error
    raise LedgerError(f"--set {text!r}: write for example --set 'month=500 USD'")

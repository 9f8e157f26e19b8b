"""Limits on what is spent, and what is left of them: limit, reserved, spent, free. Stops nothing by itself.

A limit counts the charge of the leases, idle time included, and what running attempts may still cost. Limits are kept
in the ledger's journal `budget`; the latest one for a scope counts. Sweeps hold to them, as to those of their own
configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC

from cost.budgets.spending import Spending
from cost.ledger.ledger import Ledger
from cost.money import Money, MoneyError
from cost.periods import period_name
from cost.prices.billing import BillingRule
from cost.prices.book import PriceBook
from cost.records import LedgerError

STREAM = "budget"
KINDS = ("month", "stage:NAME", "sweep:NAME")
NONE = "none"
"""In place of an amount: the limit is lifted."""


@dataclass(frozen=True)
class Limit:
    """At most `amount` is to be spent under `scope`: `month`, `stage:NAME` or `sweep:NAME`."""

    scope: str
    amount: Money
    source: str
    """Where a person changes it."""


@dataclass(frozen=True)
class Budget:
    """A limit and what has become of it."""

    scope: str
    name: str
    """The scope in words, such as `month 2026-11`."""
    limit: Money | None
    """None: nobody has set one."""
    reserved: Money
    """What running attempts may still cost."""
    spent: Money
    simulated: bool = False
    """Of simulated sweeps, which are counted apart."""

    @property
    def free(self) -> Money | None:
        """Negative where more was spent, or may be, than allowed."""
        return None if self.limit is None else self.limit - self.spent - self.reserved


def set_limit(ledger: Ledger, scope: str, limit: Money | None) -> None:
    """From now on at most `limit` is to be spent under `scope`; None: as much as one likes.

    Raises:
        LedgerError: there is no such scope, or the limit is not above zero.
    """
    kind, _, name = scope.partition(":")
    if scope != "month" and (kind not in ("stage", "sweep") or not name):
        raise LedgerError(f"{scope!r} has no budget; one of {', '.join(KINDS)}")
    if limit is not None and limit.pico <= 0:
        raise LedgerError(f"a limit of {limit} on {scope}: it must be above zero")
    body = {"scope": scope, "limit": None if limit is None else str(limit)}
    ledger.events.append(STREAM, "limit", body, f"{scope}:{ledger.now_ns()}")


def limits(ledger: Ledger) -> dict[str, Money]:
    """The limit of each scope that has one."""
    found: dict[str, Money] = {}
    for event in ledger.events.read(STREAM):
        if event.kind == "limit":
            found.pop(event.body["scope"], None)
            if event.body["limit"] is not None:
                found[event.body["scope"]] = Money.parse(event.body["limit"])
    return found


def scope_name(scope: str, now_ns: int) -> str:
    """A scope in words."""
    return f"month {period_name(now_ns, 'month', UTC)}" if scope == "month" else scope.replace(":", " ", 1)


def budgets(
    ledger: Ledger, book: PriceBook, now_ns: int, *, rules: Sequence[BillingRule] | None = None
) -> tuple[list[Budget], tuple[str, ...]]:
    """This calendar month (UTC), then every scope that has a limit; and the exchange rates that were used, in words.

    Simulated sweeps come after the real ones, where there are any.

    Raises:
        PriceError: a price or an exchange rate is missing.
    """
    set_limits = limits(ledger)
    scopes = ["month", *sorted(set(set_limits) - {"month"})]
    found: list[Budget] = []
    notes: list[str] = []
    for simulated in sorted({False, *(state.lease.simulated for state in ledger.leases.find())}):
        spending = Spending(ledger, book, scopes, simulated=simulated, rules=rules)
        spending.look(now_ns, full=True)
        for scope in scopes:
            limit = set_limits.get(scope)
            for currency in [limit.currency] if limit else spending.currencies(scope):
                # Without a limit nothing says into which currency: each is told by itself.
                spent = Money(spending.spent(scope, currency, only=limit is None), currency)
                reserved = Money(spending.reserved(scope, currency, only=limit is None), currency)
                if simulated and not (limit and (spent or reserved)):
                    continue
                name = scope_name(scope, now_ns) + (" (simulated)" if simulated else "")
                found.append(Budget(scope, name, limit, reserved, spent, simulated))
        notes += spending.notes
        notes += [
            f"UNPRICED: what lease {lease_id} costs is not known, and in none of these amounts; add its SKU's price: "
            f"python -m cost prices add {sku}"
            for lease_id, sku in spending.unpriced.items()
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

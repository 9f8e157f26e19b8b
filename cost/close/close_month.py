"""Close a month, so that only corrections change its cost.

The totals of the month are stored, so that `check` finds any other change, such as an edited price or a late entry.
"""

from __future__ import annotations

from collections.abc import Sequence

from cost.charges.lease_charge import billing_rules, charge_lease, load_charge_inputs
from cost.close.check import run_checks
from cost.close.months import STREAM, Totals, closed_totals, month_totals
from cost.ledger.ledger import Ledger
from cost.money import pico_text
from cost.periods import month_bounds
from cost.prices.billing import BillingRule
from cost.prices.book import PriceBook
from cost.records import LedgerError


def close_month(
    ledger: Ledger, book: PriceBook, period: str, now_ns: int, *, rules: Sequence[BillingRule] | None = None
) -> Totals:
    """Close a month (UTC), store its totals and return them. For a closed month: return the stored totals.

    Raises:
        LedgerError: the month is not over, an attempt in it is open without heartbeats, or a check fails.
    """
    _, end = month_bounds(period)
    if now_ns < end:
        raise LedgerError(f"{period} is not over yet")
    if period in ledger.closed_months.names():
        return closed_totals(ledger)[period]
    with ledger.transaction():  # nothing may change between the sum and the closing
        for usage in ledger.usages.find(only_open=True):
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
        states = ledger.leases.find()
        charge_inputs = load_charge_inputs(ledger, book, states, now_ns)
        applied_rules = billing_rules(book) if rules is None else rules
        rows = [
            row for state in states for row in charge_lease(state, applied_rules, now_ns, charge_inputs).rows.values()
        ]
        ledger.price_archive.add(rows)
        ledger.closed_months.add(period)
        body = {lease_id: f"{pico_text(pico)} {currency}" for lease_id, (pico, currency) in totals.items()}
        ledger.events.append(STREAM, "closed", {"period": period, "leases": body}, period)
    return totals

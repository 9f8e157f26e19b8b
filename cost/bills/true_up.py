"""Entries that make the books say what a bill says, down to each trial. They can be written twice without effect.

The bill is believed, the facts are not changed. A commitment's price is not corrected: its purchase was entered, and
what a bill has of it otherwise is for a person to enter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC
from typing import TYPE_CHECKING

from cost.bills.commitment_purchases import PURCHASE
from cost.bills.differences import DAY_NS, SEPARATE_KINDS, Cause, Comparison, Reconciliation
from cost.bills.reader import Bill, period_of
from cost.bills.reconcile import is_billable
from cost.charges.attribution import BILL_PREFIX, CostLine, attribute
from cost.charges.charge_status import record_invoice
from cost.money import largest_remainder
from cost.periods import period_name
from cost.prices.billing import BillingRule
from cost.prices.book import PriceBook
from cost.records import Correction

if TYPE_CHECKING:
    from cost.ledger.ledger import Ledger


def corrections(done: Reconciliation, ledger_lines: Sequence[CostLine]) -> list[Correction]:
    """Entries that make each compared lease cost what the bill says, down to each trial.

    A difference of price or rounding is spread over what it was a price of; machine time that the books did not know
    is idle, time that was not billed goes back to those it was booked to. Ids follow from bill, lease, day and cause,
    so that writing them twice changes nothing. `ledger_lines` are those the comparison was made of.
    """
    by_lease: dict[str, list[CostLine]] = defaultdict(list)
    for line in ledger_lines:
        by_lease[line.lease.lease_id].append(line)
    found = []
    for one in done.comparisons:
        if one.kind == PURCHASE:
            continue
        lines = [
            line
            for line in by_lease[one.lease.lease_id]
            if one.from_ns <= line.from_ns < one.to_ns and SEPARATE_KINDS.get(line.category, "machine") == "machine"
        ]
        for cause in one.causes:
            found += _spread(done.bill, one, cause, lines)
    return found


def _spread(bill: Bill, one: Comparison, cause: Cause, lines: Sequence[CostLine]) -> list[Correction]:
    # By month too: a bill of several days says not which of them it means, but what is due in a month stays in it.
    weights: dict[tuple[str, str, str, int, str], int] = defaultdict(int)
    began: dict[str, int] = {}
    own_category = cause.name if cause.name in ("tax", "credit", "storage", "egress", "fee", "idle") else ""
    for line in lines:
        month = period_name(line.from_ns, "month", UTC)
        began[month] = min(line.from_ns, began.get(month, line.from_ns))
        if own_category:
            weights[month, line.sweep_id, "", 0, own_category] += line.pico
        else:
            weights[month, line.sweep_id, line.trial_id, line.attempt, line.category] += line.pico
    keys = [key for key, weight in sorted(weights.items()) if weight > 0]
    if not keys:
        category = own_category if own_category and own_category != "idle" else "adjustment"
        keys = [(period_name(one.from_ns, "month", UTC), "", "", 0, category)]
        weights = dict.fromkeys(keys, 1)
    parts = largest_remainder(cause.pico, [weights[key] for key in keys])
    found = []
    # What the books said is part of the id: another difference found later, on the same bill, is another entry.
    head = f"{BILL_PREFIX}{bill.sha256[:16]}:{one.lease.lease_id}:{one.when}:{one.kind}:{one.ledger_pico}"
    for number, (key, pico) in enumerate(zip(keys, parts, strict=True)):
        month, sweep_id, trial_id, attempt, category = key
        if pico:
            found.append(
                Correction(
                    correction_id=f"{head}:{cause.name}:{number}",
                    lease_id=one.lease.lease_id,
                    category=category,
                    pico=pico,
                    currency=one.lease.currency,
                    at_ns=max(one.from_ns, began.get(month, one.from_ns)),
                    reason=f"{cause.name}: {cause.text}",
                    sweep_id=sweep_id,
                    trial_id=trial_id,
                    attempt=attempt,
                )
            )
    return found


def apply(
    ledger: Ledger,
    book: PriceBook,
    done: Reconciliation,
    now_ns: int,
    *,
    rules: Sequence[BillingRule] | None = None,
) -> list[Correction]:
    """Writes the corrections of a reconciliation, all or none, and that what it is about is invoiced now.

    Returns the corrections that were new.
    """
    first, last = period_of(done.bill)
    cuts = list(range(first, last + DAY_NS, DAY_NS))
    lines = attribute(ledger, book, now_ns, cuts=cuts, rules=rules).lines
    within = [line for line in lines if first <= line.from_ns < last and is_billable(line)]
    spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for one in done.comparisons:
        if one.kind != PURCHASE or not one.difference:
            spans[one.lease.lease_id].append((one.from_ns, one.to_ns))
    with ledger.transaction():
        written = [one for one in corrections(done, within) if ledger.corrections.add(one)]
        record_invoice(ledger, done.bill.sha256, spans, done.bill.invoice)
    return written

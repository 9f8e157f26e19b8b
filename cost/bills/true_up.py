"""Corrections that make the ledger cost what a bill says, down to each trial. Writing them twice changes nothing.

The bill decides the amounts; facts such as times are not changed. What a person has to settle is not corrected: a
commitment that was entered at another price, and a lease without a price.

Tested in tests/cost/bills/test_reconcile.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC
from typing import TYPE_CHECKING

from cost.bills.bill import Bill
from cost.bills.differences import NOT_CORRECTED, Cause, Comparison, Reconciliation
from cost.bills.reconcile import is_billable
from cost.charges.attribution import CostLine, attribute
from cost.charges.charge_status import MACHINE, charge_kind, correction_prefix, record_invoice
from cost.money import largest_remainder
from cost.periods import period_name
from cost.prices.billing import BillingRule
from cost.prices.book import PriceBook
from cost.records import Correction

if TYPE_CHECKING:
    from cost.ledger.ledger import Ledger

_OWN_CATEGORY = ("tax", "credit", "storage", "egress", "fee", "idle")
"""Causes that are a category of cost; any other cause changes the categories that it was found in."""


def corrections(done: Reconciliation, ledger_lines: Sequence[CostLine]) -> list[Correction]:
    """Corrections that make each compared lease cost what the bill says.

    A difference of price or rounding is spread over what the price was charged for. Machine time that is not in the
    ledger is idle; time that was not billed is taken from those who were charged for it. A charge without machine time
    on its day, such as a late refund, is spread over all that the lease cost. Ids follow from bill, lease, day and
    cause. `ledger_lines`: the billable cost of every lease, cut at the days of the bill.
    """
    by_lease: dict[str, list[CostLine]] = defaultdict(list)
    for line in ledger_lines:
        if charge_kind(line.category) == MACHINE:
            by_lease[line.lease.lease_id].append(line)
    found = []
    for one in done.comparisons:
        every = by_lease[one.lease.lease_id]
        within = [line for line in every if one.from_ns <= line.from_ns < one.to_ns]
        for cause in one.causes:
            if cause.name not in NOT_CORRECTED:
                found += _spread(done.bill, one, cause, within, every)
    return found


def _spread(
    bill: Bill, one: Comparison, cause: Cause, within: Sequence[CostLine], every: Sequence[CostLine]
) -> list[Correction]:
    own_category = cause.name if cause.name in _OWN_CATEGORY else ""
    # A bill of several days does not say which of them it corrects, but what is due in a month stays in that month.
    weights: dict[tuple[str, str, str, int, str], int] = defaultdict(int)
    first_ns: dict[str, int] = {}
    own_month = period_name(one.from_ns, "month", UTC)
    for line in within or every:
        month = period_name(line.from_ns, "month", UTC) if within else own_month
        at_ns = line.from_ns if within else one.from_ns
        first_ns[month] = min(at_ns, first_ns.get(month, at_ns))
        if own_category:
            weights[month, line.sweep_id, "", 0, own_category] += line.pico
        else:
            weights[month, line.sweep_id, line.trial_id, line.attempt, line.category] += line.pico
    keys = [key for key, weight in sorted(weights.items()) if weight > 0]
    if not keys:
        category = own_category if own_category and own_category != "idle" else "adjustment"
        keys = [(own_month, "", "", 0, category)]
        weights = dict.fromkeys(keys, 1)
    parts = largest_remainder(cause.pico, [weights[key] for key in keys])
    found = []
    # The ledger's amount is a part of the id: another difference, found later on the same bill, is another correction.
    head = f"{correction_prefix(bill.sha256)}{one.lease.lease_id}:{one.when}:{one.kind}:{one.ledger_pico}"
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
                    at_ns=max(one.from_ns, first_ns.get(month, one.from_ns)),
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
    """Write the corrections of a reconciliation, all or none, and record that the compared charges are invoiced.

    Returns the corrections that were new.
    """
    lines = attribute(ledger, book, now_ns, cuts=done.bill.midnights, rules=rules).lines
    billable = [line for line in lines if is_billable(line)]
    with ledger.transaction():
        written = [one for one in corrections(done, billable) if ledger.corrections.add(one)]
        for invoice, kind, compared in _by_invoice(done.comparisons):
            spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
            for one in compared:
                spans[one.lease.lease_id].append((one.from_ns, one.to_ns))
            by_hand = [name for one in compared for name, _ in one.by_hand]
            record_invoice(ledger, done.bill.sha256, spans, invoice, kind=kind, corrections=by_hand)
    return written


def _by_invoice(comparisons: Sequence[Comparison]) -> list[tuple[str, str, list[Comparison]]]:
    """The settled comparisons by number of the invoice and kind of charge."""
    groups: dict[tuple[str, str], list[Comparison]] = defaultdict(list)
    for one in comparisons:
        if one.settled:
            groups[one.invoice, one.kind].append(one)
    return [(invoice, kind, group) for (invoice, kind), group in sorted(groups.items())]

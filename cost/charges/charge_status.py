"""How final an amount is: `estimated` while the lease is open, `provisional` once it is closed, `invoiced` once a bill
was reconciled and applied.

The status and the invoice number are derived whenever they are needed, from the lease and from the bills that were
applied. Only the applied bills are stored. An applied bill covers one kind of charge of a lease in some spans, and the
corrections that the ledger had there when the bill was applied. A correction that is written later is not on that
invoice, whatever day the correction belongs to.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cost.ledger.ledger import Ledger
from cost.ledger.queries import canonical_json
from cost.records import LeaseState

STREAM = "invoices"
STATUSES = ("estimated", "provisional", "invoiced")
"""From the least to the most final."""

BILL_PREFIX = "bill:"
"""The start of the id of every correction that comes from a bill. All other corrections were made by hand."""

MACHINE = "machine"
_KIND_OF_CATEGORY = {"requests": "storage", "refund": "credit"}
_KIND_OF_CATEGORY |= {name: name for name in ("storage", "egress", "fee", "tax", "credit", "purchase")}


def charge_kind(category: str) -> str:
    """The kind of charge that a bill shows a category of cost as; every category of time is machine time."""
    return _KIND_OF_CATEGORY.get(category, MACHINE)


def correction_prefix(bill_sha256: str) -> str:
    """The start of the id of every correction that comes from one bill."""
    return f"{BILL_PREFIX}{bill_sha256[:16]}:"


@dataclass(frozen=True)
class AppliedBill:
    """A bill that was applied to the charges of one kind and span of a lease."""

    from_ns: int
    to_ns: int
    kind: str
    """Empty: every kind of charge."""
    invoice: str
    """Number of the invoice; empty: the bill names none."""
    bill_sha256: str
    corrections: frozenset[str]
    """Ids of the corrections made by hand that the bill was compared with."""

    def covers(self, at_ns: int, category: str) -> bool:
        return self.from_ns <= at_ns < self.to_ns and self.kind in ("", charge_kind(category))


AppliedBills = Mapping[str, Sequence[AppliedBill]]
"""By lease id, the bill that was applied last first."""

LeaseSpans = Mapping[str, Sequence[tuple[int, int]]]
"""By lease id: start and end, in nanoseconds UTC, of what a bill covers."""


def record_invoice(
    ledger: Ledger,
    bill_sha256: str,
    spans: LeaseSpans,
    invoice: str = "",
    *,
    kind: str = "",
    corrections: Iterable[str] = (),
) -> None:
    """Record that a bill was applied to these spans. Recording it again changes nothing.

    `invoice`: its number. `kind`: the kind of charge that was compared; empty: every kind. `corrections`: ids of the
    corrections made by hand that the bill was compared with.
    """
    for lease_id, lease_spans in spans.items():
        body = {"lease_id": lease_id, "bill": bill_sha256, "spans": [list(span) for span in sorted(set(lease_spans))]}
        optional = {"invoice": invoice, "kind": kind, "corrections": sorted(corrections)}
        body |= {name: value for name, value in optional.items() if value}
        # The spans are part of the key: the same bill can be applied again once the ledger has more of its days.
        digest = hashlib.sha256(canonical_json(body).encode()).hexdigest()
        ledger.events.append(STREAM, "applied", body, digest)


def applied_bills(ledger: Ledger, as_of_ns: int | None = None) -> dict[str, list[AppliedBill]]:
    """The bills that were applied up to a moment (None: up to now), by lease id, the last first."""
    found: dict[str, list[AppliedBill]] = defaultdict(list)
    for event in ledger.events.read(STREAM):
        if as_of_ns is None or event.at_ns <= as_of_ns:
            body = event.body
            parts = (
                body.get("kind", ""),
                body.get("invoice", ""),
                body["bill"],
                frozenset(body.get("corrections", ())),
            )
            found[body["lease_id"]] += [AppliedBill(start, stop, *parts) for start, stop in body["spans"]]
    return {lease_id: bills[::-1] for lease_id, bills in found.items()}


def bills_of_charge(bills: Iterable[AppliedBill], at_ns: int, category: str) -> list[AppliedBill]:
    """The bills that a charge of a lease is on, the last first."""
    return [bill for bill in bills if bill.covers(at_ns, category)]


def bills_of_correction(
    bills: Sequence[AppliedBill], correction_id: str, at_ns: int, category: str
) -> list[AppliedBill]:
    """The bills that a correction is on: the bill that it comes from, or those that it was compared with."""
    if correction_id.startswith(BILL_PREFIX):
        own = [bill for bill in bills if correction_id.startswith(correction_prefix(bill.bill_sha256))]
        return bills_of_charge(own, at_ns, category) or own[:1]
    return [bill for bill in bills if correction_id in bill.corrections]


def status_of(state: LeaseState, bills: Sequence[AppliedBill]) -> str:
    """The status of an amount of a lease that is on these bills."""
    if bills:
        return "invoiced"
    return "estimated" if state.to_ns is None else "provisional"


def invoice_number(bills: Iterable[AppliedBill]) -> str:
    """The number of the last invoice among some bills; empty: none of them names one."""
    return next((bill.invoice for bill in bills if bill.invoice), "")


def least_final(statuses: Iterable[str]) -> str:
    """The status of a sum: the least final of its parts."""
    return min(statuses, key=STATUSES.index)

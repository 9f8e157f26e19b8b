"""How final an amount is: `estimated` while the lease is open, `provisional` once it is closed, `invoiced` once a bill
was reconciled and applied.

The status is derived whenever it is needed, from the lease and from the bills that were applied. Only the applied
bills are stored.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from cost.ledger.ledger import Ledger
from cost.ledger.queries import canonical_json
from cost.records import LeaseState

STREAM = "invoices"
STATUSES = ("estimated", "provisional", "invoiced")
"""From the least to the most final."""

LeaseSpans = Mapping[str, Sequence[tuple[int, int]]]
"""By lease id: start and end, in nanoseconds UTC, of what a bill covers."""


def record_invoice(ledger: Ledger, bill_sha256: str, spans: LeaseSpans, invoice: str = "") -> None:
    """Record that a bill was applied to these spans. Recording it again changes nothing. `invoice`: its number."""
    for lease_id, lease_spans in spans.items():
        body = {"lease_id": lease_id, "bill": bill_sha256, "spans": [list(span) for span in sorted(set(lease_spans))]}
        body |= {"invoice": invoice} if invoice else {}
        # The spans are part of the key: the same bill can be applied again once the ledger has more of its days.
        digest = hashlib.sha256(canonical_json(body).encode()).hexdigest()
        ledger.events.append(STREAM, "applied", body, digest)


def invoiced_spans(ledger: Ledger, as_of_ns: int | None = None) -> dict[str, list[tuple[int, int]]]:
    """By lease id: the spans that bills were applied to, up to a moment (None: up to now)."""
    spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for event in ledger.events.read(STREAM):
        if as_of_ns is None or event.at_ns <= as_of_ns:
            spans[event.body["lease_id"]] += [(start, stop) for start, stop in event.body["spans"]]
    return dict(spans)


def invoice_numbers(ledger: Ledger, as_of_ns: int | None = None) -> dict[str, list[tuple[int, int, str]]]:
    """By lease id: start, end and number of each invoice that was applied, the latest first."""
    invoices: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for event in ledger.events.read(STREAM):
        if (as_of_ns is None or event.at_ns <= as_of_ns) and (number := event.body.get("invoice")):
            invoices[event.body["lease_id"]] += [(start, stop, number) for start, stop in event.body["spans"]]
    return {lease_id: spans[::-1] for lease_id, spans in invoices.items()}


def status_at(state: LeaseState, at_ns: int, spans: Sequence[tuple[int, int]]) -> str:
    """The status of a lease's cost at a moment. `spans`: the invoiced spans of the lease."""
    if any(start <= at_ns < stop for start, stop in spans):
        return "invoiced"
    return "estimated" if state.to_ns is None else "provisional"


def least_final(statuses: Iterable[str]) -> str:
    """The status of a sum: the least final of its parts."""
    return min(statuses, key=STATUSES.index)

"""How firm an amount is: `estimated` while its machine is held, `provisional` once it is given back, `invoiced` once a
bill was reconciled and applied.

Derived whenever it is asked for, from whether the lease is open and from which bills were applied; only those are kept.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from cost.ledger.journal import Journal
from cost.ledger.queries import canonical
from cost.records import LeaseState

STREAM = "invoices"
STATUSES = ("estimated", "provisional", "invoiced")
"""From the least firm to the firmest."""

Spans = Mapping[str, Sequence[tuple[int, int]]]
"""By lease: from and to, in nanoseconds UTC, of what a bill was about."""


def record_invoice(ledger: Journal, bill_sha256: str, spans: Spans, invoice: str = "") -> None:
    """A bill has been applied to these stretches of these leases. Again: nothing changes. `invoice`: its number."""
    for lease_id, mine in spans.items():
        found = sorted(set(mine))
        body = {"lease_id": lease_id, "bill": bill_sha256, "spans": [list(span) for span in found]}
        body |= {"invoice": invoice} if invoice else {}
        # What it is about is part of the key: the same bill may be applied again when the books know of more days.
        digest = hashlib.sha256(canonical(body).encode()).hexdigest()
        ledger.append_event(STREAM, "applied", body, digest)


def invoiced_spans(ledger: Journal, as_of_ns: int | None = None) -> dict[str, list[tuple[int, int]]]:
    """What bills were applied to, by a moment (None: by now)."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for event in ledger.events(STREAM):
        if as_of_ns is None or event.at_ns <= as_of_ns:
            found[event.body["lease_id"]] += [(start, stop) for start, stop in event.body["spans"]]
    return dict(found)


def invoice_numbers(ledger: Journal, as_of_ns: int | None = None) -> dict[str, list[tuple[int, int, str]]]:
    """By lease: from, to, and the number of the invoice that was applied to it, the latest first."""
    found: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for event in ledger.events(STREAM):
        if (as_of_ns is None or event.at_ns <= as_of_ns) and (number := event.body.get("invoice")):
            found[event.body["lease_id"]] += [(start, stop, number) for start, stop in event.body["spans"]]
    return {lease_id: spans[::-1] for lease_id, spans in found.items()}


def status_at(state: LeaseState, at_ns: int, spans: Sequence[tuple[int, int]]) -> str:
    """The status of what a lease cost at a moment."""
    if any(start <= at_ns < stop for start, stop in spans):
        return "invoiced"
    return "estimated" if state.to_ns is None else "provisional"


def least_final(statuses: Iterable[str]) -> str:
    """What a sum of several is."""
    return min(statuses, key=STATUSES.index)

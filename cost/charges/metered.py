"""Metered resources: storage by GiB and month, data transfer, requests, one-off fees, and the energy of own hardware.

A quantity is entered on a lease with a SKU of the price book. It is never changed, and it is charged at the prices in
force. Whether a disk is billed while its machine is stopped depends on the provider's billing rule. Metered energy is
not added to the cost of own hardware: it replaces the energy computed from the lease's watts (see `lease_charge`).

Only `add_resource` and `load_resources` access the ledger; the other functions are pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from decimal import Decimal
from itertools import pairwise

from cost.ledger.ledger import Ledger
from cost.ledger.machine_states import RUNNING, StateSpan
from cost.periods import instant_text, period_name
from cost.prices.billing import BillingRule, Segment, quantity_pico, rule_for, storage_pico
from cost.prices.book import MissingPriceError, PriceBook, PriceRow, add_command, in_force
from cost.records import IntegrityError, LedgerError

STREAM = "metered"
CATEGORY = {"gib_month": "storage", "gib": "egress", "request": "requests", "one_off": "fee"}
"""The category of a resource, by the unit of its price."""
ENERGY = "kwh"
"""The unit of the price of metered energy."""


@dataclass(frozen=True)
class MeteredResource:
    """A quantity of a SKU on a lease, in the unit of its price: GiB stored from `from_ns` to `to_ns`, GiB sent, ..."""

    name: str
    lease_id: str
    sku: str
    purchase: str
    region: str
    kind: str
    quantity: Decimal
    from_ns: int
    to_ns: int


def add_resource(ledger: Ledger, resource: MeteredResource, row: PriceRow, closed_months: Iterable[str]) -> bool:
    """Enter a metered resource, priced by `row`. Returns False if it was entered before.

    Raises:
        LedgerError: a field is invalid.
        IntegrityError: another resource has this name, the energy of this time was entered before, or the resource
            would change a closed month.
    """
    if row.per not in (*CATEGORY, ENERGY):
        raise LedgerError(
            f"SKU {row.sku!r} is priced per {row.per}; only SKUs priced per {', '.join(CATEGORY)} or {ENERGY} are "
            "metered"
        )
    if resource.quantity <= 0:
        raise LedgerError(f"the quantity must be above zero, not {resource.quantity}")
    lasts = row.per in ("gib_month", ENERGY)
    if resource.to_ns < resource.from_ns or (lasts and resource.to_ns == resource.from_ns):
        raise LedgerError("storage and energy need --from and a later --to")
    if resource.to_ns > ledger.now_ns():
        raise LedgerError(f"{resource.name} would end in the future; enter the quantity up to now")
    recorded = load_resources(ledger)
    for earlier in recorded.get(resource.lease_id, ()) if row.per == ENERGY else ():
        overlaps = max(earlier.from_ns, resource.from_ns) < min(earlier.to_ns, resource.to_ns)
        if earlier.name != resource.name and earlier.sku == resource.sku and overlaps:
            raise IntegrityError(
                f"{earlier.name} has the energy of a part of that time already: {earlier.quantity} kWh"
            )
    last_ns = max(resource.to_ns - 1, resource.from_ns)
    first, last = (period_name(ns, "month", UTC) for ns in (resource.from_ns, last_ns))
    for month in closed_months:
        if first <= month <= last:
            raise IntegrityError(f"{resource.name} would change {month}, which is closed; write a correction instead")
    for earlier in (earlier for resources in recorded.values() for earlier in resources):
        if earlier.name == resource.name and earlier != resource:
            span = f"from {instant_text(earlier.from_ns)} to {instant_text(earlier.to_ns)}"
            raise IntegrityError(
                f"{resource.name} was entered before as {earlier.quantity} of {earlier.sku} on lease "
                f"{earlier.lease_id}, {span}; choose another --id, or change its cost with `python -m cost correct`"
            )
    body = vars(resource) | {"quantity": str(resource.quantity)}
    return ledger.events.append(STREAM, "counted", body, resource.name)


def load_resources(ledger: Ledger, as_of_ns: int | None = None) -> dict[str, list[MeteredResource]]:
    """The metered resources by lease id, as recorded at a moment (None: now)."""
    resources: dict[str, list[MeteredResource]] = defaultdict(list)
    for event in ledger.events.read(STREAM):
        if as_of_ns is None or event.at_ns <= as_of_ns:
            resource = MeteredResource(**{**event.body, "quantity": Decimal(event.body["quantity"])})
            resources[resource.lease_id].append(resource)
    return dict(resources)


def metered_energy(resources: Sequence[MeteredResource], book: PriceBook) -> list[MeteredResource]:
    """The metered energy of own hardware among some resources."""
    return [resource for resource in resources if _is_energy(_price_series(resource, book))]


def _price_series(resource: MeteredResource, book: PriceBook) -> tuple[PriceRow, ...]:
    return book.series(resource.sku, purchase=resource.purchase, region=resource.region, kind=resource.kind)


def _is_energy(series: Sequence[PriceRow]) -> bool:
    return any(row.per == ENERGY for row in series)


def resource_segments(
    resources: Sequence[MeteredResource],
    machine_spans: Sequence[StateSpan],
    book: PriceBook,
    rules: Sequence[BillingRule],
) -> tuple[list[Segment], Mapping[str, PriceRow]]:
    """The charge for resources other than energy by segment, and the price rows of the segments by hash.

    Storage has one segment per price in force. `machine_spans`: the states of the machine during its lease.

    Raises:
        PriceError: a price or a billing rule is missing.
    """
    segments: list[Segment] = []
    rows: dict[str, PriceRow] = {}
    for resource in resources:
        series = _price_series(resource, book)
        if _is_energy(series):
            continue
        for start, stop, row in _priced_intervals(resource, machine_spans, series, rules):
            rows[row.hash] = row
            if row.per == "gib_month":
                rule = rule_for(rules, row.provider, row.purchase)
                pico = storage_pico(start, stop, row=row, gib=resource.quantity, rule=rule)
            else:
                pico = quantity_pico(row, resource.quantity)
            segments.append(Segment(start, stop, pico, CATEGORY[row.per], row.hash))
    return segments, rows


def _priced_intervals(
    resource: MeteredResource,
    machine_spans: Sequence[StateSpan],
    series: tuple[PriceRow, ...],
    rules: Sequence[BillingRule],
) -> list[tuple[int, int, PriceRow]]:
    """Start, end and price of each interval in which a resource is billed."""
    first = in_force(series, resource.from_ns)
    if first is None:
        raise MissingPriceError(
            f"no price for SKU {resource.sku!r} in force at {instant_text(resource.from_ns)}; add it with: "
            f"{add_command(resource.sku)}"
        )
    if first.per != "gib_month":
        # Only storage lasts; any other quantity is charged at the price of one moment.
        return [(resource.from_ns, resource.to_ns, first)]
    billed = [(resource.from_ns, resource.to_ns)]
    if rule_for(rules, first.provider, first.purchase).storage_rule == "while_running":
        running = [span for span in machine_spans if span.state == RUNNING]
        billed = [(max(resource.from_ns, span.from_ns), min(resource.to_ns, span.to_ns)) for span in running]
    intervals = []
    for start, stop in billed:
        edges = sorted({start, stop, *(row.from_ns for row in series if start < row.from_ns < stop)})
        for a, b in pairwise(edges) if start < stop else ():
            row = in_force(series, a)
            intervals.append((a, b, row if row is not None else intervals[-1][2] if intervals else first))
    return intervals

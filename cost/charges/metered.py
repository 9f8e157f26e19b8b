"""Metered resources: storage by GiB and month, data transfer, requests, one-off fees, and the energy of own hardware.

A quantity is entered on a lease with a SKU of the price book. It is never changed, and it is charged at the prices in
force. Whether a disk is billed while its machine is stopped depends on the provider's billing rule. Metered energy is
not added to the cost of own hardware: it replaces the energy computed from the lease's watts (see `lease_charge`).

Only `add_resource` and `load_resources` access the ledger; the other functions are pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from math import floor

from cost.ledger.ledger import Ledger
from cost.ledger.machine_states import RUNNING, StateSpan
from cost.periods import instant_text, period_edges, period_name, zone_of
from cost.prices.billing import BillingRule, Segment, exact_storage_pico, quantity_pico, rule_for
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
    to_ns: int | None
    """None: a disk that is stored until the lease ends."""


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
    lasts, now_ns = row.per in ("gib_month", ENERGY), ledger.now_ns()
    if resource.to_ns is None and row.per != "gib_month":
        raise LedgerError(f"only a disk is stored until its lease ends; SKU {row.sku!r} is priced per {row.per}")
    to_ns = max(now_ns, resource.from_ns + 1) if resource.to_ns is None else resource.to_ns
    if to_ns < resource.from_ns or (lasts and to_ns == resource.from_ns):
        raise LedgerError("storage and energy need --from and a later --to")
    if max(resource.from_ns, resource.to_ns or 0) > now_ns:
        raise LedgerError(f"{resource.name} would begin or end in the future; enter the quantity up to now")
    recorded = load_resources(ledger)
    for earlier in recorded.get(resource.lease_id, ()) if row.per == ENERGY else ():
        overlaps = max(earlier.from_ns, resource.from_ns) < min(earlier.to_ns or now_ns, to_ns)
        if earlier.name != resource.name and earlier.sku == resource.sku and overlaps:
            raise IntegrityError(
                f"{earlier.name} has the energy of a part of that time already: {earlier.quantity} kWh"
            )
    same_name = [one for resources in recorded.values() for one in resources if one.name == resource.name]
    if resource in same_name:
        return False
    ended = [one for one in same_name if one.to_ns is None and replace(resource, to_ns=None) == one != resource]
    # What ends an entry changes only the time after its end.
    change_ns = to_ns if ended else resource.from_ns
    first, last = (period_name(ns, "month", UTC) for ns in (change_ns, max(to_ns - 1, change_ns)))
    if ended:
        last = period_name(now_ns, "month", UTC)
    for month in closed_months:
        if first <= month <= last:
            raise IntegrityError(f"{resource.name} would change {month}, which is closed; write a correction instead")
    for earlier in same_name:
        if not ended:
            end = "the end of the lease" if earlier.to_ns is None else instant_text(earlier.to_ns)
            span = f"from {instant_text(earlier.from_ns)} to {end}"
            raise IntegrityError(
                f"{resource.name} was entered before as {earlier.quantity} of {earlier.sku} on lease "
                f"{earlier.lease_id}, {span}; choose another --id, or change its cost with `python -m cost correct`"
            )
    body = vars(resource) | {"quantity": str(resource.quantity)}
    return ledger.events.append(STREAM, "counted", body, f"{resource.name}:ended" if ended else resource.name)


def load_resources(ledger: Ledger, as_of_ns: int | None = None) -> dict[str, list[MeteredResource]]:
    """The metered resources by lease id, as recorded at a moment (None: now)."""
    by_name: dict[str, MeteredResource] = {}
    for event in ledger.events.read(STREAM):
        if as_of_ns is None or event.at_ns <= as_of_ns:
            # A later entry of the same name ends the earlier one.
            resource = MeteredResource(**{**event.body, "quantity": Decimal(event.body["quantity"])})
            by_name[resource.name] = resource
    resources: dict[str, list[MeteredResource]] = defaultdict(list)
    for resource in by_name.values():
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
    end_ns: int,
    book: PriceBook,
    rules: Sequence[BillingRule],
) -> tuple[list[Segment], Mapping[str, PriceRow]]:
    """The charge for resources other than energy by segment, and the price rows of the segments by hash.

    Storage has one segment per UTC month and price in force, so that the charge of a month is fixed once it is over. A
    provider that charges disks by whole days charges each day once, when the day begins, also where one entry of a disk
    continues another. `machine_spans`: the states of the machine. `end_ns`: the end of the lease, or now.

    Raises:
        PriceError: a price or a billing rule is missing.
    """
    segments: list[Segment] = []
    rows: dict[str, PriceRow] = {}
    ends = {(resource.sku, resource.to_ns) for resource in resources}
    for resource in resources:
        series = _price_series(resource, book)
        if _is_energy(series):
            continue
        first = in_force(series, resource.from_ns)
        if first is None:
            raise MissingPriceError(
                f"no price for SKU {resource.sku!r} in force at {instant_text(resource.from_ns)}; add it with: "
                f"{add_command(resource.sku)}"
            )
        to_ns = max(end_ns, resource.from_ns) if resource.to_ns is None else resource.to_ns
        if first.per != "gib_month":
            # Only storage lasts; any other quantity is charged at the price of one moment.
            rows[first.hash] = first
            pico = quantity_pico(first, resource.quantity)
            segments.append(Segment(resource.from_ns, to_ns, pico, CATEGORY[first.per], first.hash))
            continue
        rule = rule_for(rules, first.provider, first.purchase)
        continued = (resource.sku, resource.from_ns) in ends
        exact, floored = Fraction(0), 0
        for start, stop in _storage_intervals(
            resource.from_ns, to_ns, machine_spans, series, rule, continued=continued
        ):
            row = in_force(series, start) or first
            rows[row.hash] = row
            exact += exact_storage_pico(start, stop, row=row, gib=resource.quantity, rule=rule)
            pico, floored = floor(exact) - floored, floor(exact)
            # A whole day is due at once.
            last_ns = start if rule.storage_rule == "daily" else stop
            segments.append(Segment(start, last_ns, pico, CATEGORY[row.per], row.hash))
    return segments, rows


def _storage_intervals(
    from_ns: int,
    to_ns: int,
    machine_spans: Sequence[StateSpan],
    series: tuple[PriceRow, ...],
    rule: BillingRule,
    *,
    continued: bool,
) -> list[tuple[int, int]]:
    """The intervals in which a disk is charged at one price: by month, or by day of the provider's zone.

    `continued`: whether an earlier entry of the disk ends at `from_ns`.
    """
    if from_ns >= to_ns:
        return []
    if rule.storage_rule == "daily":
        midnights = period_edges(from_ns, to_ns - 1, "day", zone_of(rule.timezone))
        days = [(max(start, from_ns), min(stop, to_ns)) for start, stop in pairwise(midnights)]
        return days[1:] if continued and midnights[0] < from_ns else days
    billed = [(from_ns, to_ns)]
    if rule.storage_rule == "while_running":
        running = [span for span in machine_spans if span.state == RUNNING]
        billed = [(max(from_ns, span.from_ns), min(to_ns, span.to_ns)) for span in running]
    changes = {*period_edges(from_ns, to_ns, "month", UTC), *(row.from_ns for row in series)}
    intervals = []
    for start, stop in billed:
        if start < stop:
            intervals += pairwise(sorted({start, stop, *(edge for edge in changes if start < edge < stop)}))
    return intervals

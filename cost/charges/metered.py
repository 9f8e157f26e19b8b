"""Resources beside machine time, priced like it: disks by GiB and month, what was sent, requests, one-off fees.

What was counted is entered on a lease, with the price book's SKU, and never changed; it is charged at the prices in
force. A disk goes on costing while its machine is stopped, or not, by its provider's rule. The energy that a meter
counted for own hardware is no resource beside its time: it takes the place of what its watts would have come to. Pure
but for one journal.
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
"""The category of what is priced per such a unit."""
ENERGY = "kwh"


@dataclass(frozen=True)
class MeteredResource:
    """A counted resource of a lease: a quantity of what one price row is per (GiB kept from..to, GiB sent ...)."""

    name: str
    lease_id: str
    sku: str
    purchase: str
    region: str
    kind: str
    quantity: Decimal
    from_ns: int
    to_ns: int


def add_resource(ledger: Ledger, new: MeteredResource, row: PriceRow, frozen: Iterable[str]) -> bool:
    """Enter what was counted. Returns False where it was there already. `frozen`: months that are closed.

    Raises:
        LedgerError: a field is wrong.
        IntegrityError: something else has this name, or it would change a closed month.
    """
    if row.per not in (*CATEGORY, ENERGY):
        raise LedgerError(
            f"SKU {row.sku!r} is priced per {row.per}: only what is priced per {', '.join(CATEGORY)} or {ENERGY} "
            "counts here"
        )
    if new.quantity <= 0:
        raise LedgerError(f"a quantity of {new.quantity}: it should be above zero")
    if new.to_ns < new.from_ns or (row.per in ("gib_month", ENERGY) and new.to_ns == new.from_ns):
        raise LedgerError("what is kept for a time needs --from and a later --to")
    if new.to_ns > ledger.now_ns():
        raise LedgerError(f"{new.name} would end in the future: enter what has been, up to now")
    for other in load_resources(ledger).get(new.lease_id, ()) if row.per == ENERGY else ():
        if (
            other.name != new.name
            and other.sku == new.sku
            and max(other.from_ns, new.from_ns) < min(other.to_ns, new.to_ns)
        ):
            raise IntegrityError(f"{other.name} has the energy of a part of that time already: {other.quantity} kWh")
    first, last = (period_name(ns, "month", UTC) for ns in (new.from_ns, max(new.to_ns - 1, new.from_ns)))
    for month in frozen:
        if first <= month <= last:
            raise IntegrityError(f"{new.name} would change {month}, which is closed; write a correction instead")
    for other in (
        one for mine in load_resources(ledger).values() for one in mine if one.name == new.name and one != new
    ):
        span = f"from {instant_text(other.from_ns)} to {instant_text(other.to_ns)}"
        raise IntegrityError(
            f"{new.name} was entered before as {other.quantity} of {other.sku} on lease {other.lease_id}, {span}; "
            "choose another --id, or change what it cost with `python -m cost correct`"
        )
    return ledger.events.append(STREAM, "counted", vars(new) | {"quantity": str(new.quantity)}, new.name)


def load_resources(ledger: Ledger, as_of_ns: int | None = None) -> dict[str, list[MeteredResource]]:
    """What was counted, by lease, as it was known at a moment (None: now)."""
    found: dict[str, list[MeteredResource]] = defaultdict(list)
    for event in ledger.events.read(STREAM):
        if as_of_ns is None or event.at_ns <= as_of_ns:
            one = MeteredResource(**{**event.body, "quantity": Decimal(event.body["quantity"])})
            found[one.lease_id].append(one)
    return dict(found)


def metered_energy(counted: Sequence[MeteredResource], book: PriceBook) -> list[MeteredResource]:
    """Those that a meter counted of own hardware, in kWh."""
    return [one for one in counted if any(row.per == ENERGY for row in _series(one, book))]


def _series(one: MeteredResource, book: PriceBook) -> tuple[PriceRow, ...]:
    return book.series(one.sku, purchase=one.purchase, region=one.region, kind=one.kind)


def resource_segments(
    counted: Sequence[MeteredResource], parts: Sequence[StateSpan], book: PriceBook, rules: Sequence[BillingRule]
) -> tuple[list[Segment], Mapping[str, PriceRow]]:
    """What it costs, and the price rows by hash. A price that changes while something is kept splits it.

    `parts`: what its machine did while it was held.

    Raises:
        PriceError: a price or a billing rule is missing.
    """
    found: list[Segment] = []
    rows: dict[str, PriceRow] = {}
    for one in counted:
        series = _series(one, book)
        if any(row.per == ENERGY for row in series):
            continue  # in place of the watts of its machine's time: see `charging`
        for start, stop, row in _pieces(one, parts, series, rules):
            rows[row.hash] = row
            if row.per == "gib_month":
                rule = rule_for(rules, row.provider, row.purchase)
                pico = storage_pico(start, stop, row=row, gib=one.quantity, rule=rule)
            else:
                pico = quantity_pico(row, one.quantity)
            found.append(Segment(start, stop, pico, CATEGORY[row.per], row.hash))
    return found, rows


def _pieces(
    one: MeteredResource, parts: Sequence[StateSpan], series: tuple[PriceRow, ...], rules: Sequence[BillingRule]
) -> list[tuple[int, int, PriceRow]]:
    first = in_force(series, one.from_ns)
    if first is None:
        raise MissingPriceError(
            f"no price for SKU {one.sku!r} in force at {instant_text(one.from_ns)}; add it with: {add_command(one.sku)}"
        )
    if first.per != "gib_month":
        # What is counted and not kept is charged at one moment.
        return [(one.from_ns, one.to_ns, first)]
    kept = [(one.from_ns, one.to_ns)]
    if rule_for(rules, first.provider, first.purchase).storage_rule == "while_running":
        running = [part for part in parts if part.state == RUNNING]
        kept = [(max(one.from_ns, part.from_ns), min(one.to_ns, part.to_ns)) for part in running]
    pieces = []
    for start, stop in kept:
        edges = sorted({start, stop, *(row.from_ns for row in series if start < row.from_ns < stop)})
        for a, b in pairwise(edges) if start < stop else ():
            row = in_force(series, a)
            pieces.append((a, b, row if row is not None else pieces[-1][2] if pieces else first))
    return pieces

"""`python -m cost leases meter`: enter storage, data transfer, requests, fees or energy on a lease.

Tested in tests/cost/charges/test_metered.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cost.cli.common import DEFAULT_ROOT, Db, Pricing, Root, echo, open_ledger

if TYPE_CHECKING:
    from cost.charges.metered import MeteredResource
    from cost.prices.book import PriceRow
    from cost.records import LeaseState


def meter_lease(
    lease_id: str,
    sku: Annotated[
        str, typer.Option(help="SKU of the price book, priced per gib_month, gib, request, one_off or kwh.")
    ],
    quantity: Annotated[str, typer.Option(help="GiB stored, GiB sent, requests, number of fees, or kWh.")],
    since: Annotated[str | None, typer.Option("--from", help="Start (UTC); default: the start of the lease.")] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--to",
            help="End (UTC); default: the end of the lease; on an open lease now, and for a disk no end yet; for a fee "
            "the same as --from.",
        ),
    ] = None,
    region: Annotated[str, typer.Option(help="Region, if the price depends on it.")] = "",
    name: Annotated[
        str | None, typer.Option("--id", help="Id of the entry; the same id again changes nothing.")
    ] = None,
    root: Root = DEFAULT_ROOT,
    db: Db = None,
    pricing: Pricing = None,
) -> None:
    """Enter storage, traffic, requests, fees or energy. They are charged to the lease at the prices of the price book.
    Metered energy of own hardware replaces the energy computed from its watts. Prints the id of the entry."""
    from cost.charges.metered import MeteredResource, add_resource, load_resources
    from cost.money import exact_decimal
    from cost.periods import instant_ns
    from cost.prices.book import PriceBook

    with open_ledger(root, db, write=True) as ledger:
        state, now_ns = ledger.leases.get(lease_id), ledger.now_ns()
        end_ns = state.to_ns or now_ns
        entered = next((r for r in load_resources(ledger).get(lease_id, ()) if r.name == name), None)
        # Repeating an entry without --from or --to means the times of the entry, not those of the lease.
        default_from_ns, default_to_ns = (entered.from_ns, entered.to_ns) if entered else (state.from_ns, end_ns)
        from_ns = default_from_ns if since is None else instant_ns(since)
        row = PriceBook.load(pricing).in_force(sku, from_ns, region=region or None)
        if row.per == "one_off" and not entered:
            default_to_ns = from_ns
        elif row.per == "gib_month" and not entered and state.to_ns is None:
            default_to_ns = None
        resource = MeteredResource(
            name or f"{lease_id}:{sku}:{now_ns:x}",
            *(lease_id, sku, row.purchase, row.region, row.kind),
            quantity=exact_decimal(quantity, negative=False),
            from_ns=from_ns,
            to_ns=default_to_ns if until is None else instant_ns(until),
        )
        _check_fits_lease(resource, row, state, end_ns)
        with ledger.transaction():
            add_resource(ledger, resource, row, ledger.closed_months.names())
            ledger.price_archive.add([row])
    echo(resource.name)
    if resource.to_ns is None:
        echo(
            "The disk is charged until the lease ends. If it is deleted before: python -m cost leases meter "
            f"{lease_id} --sku {sku} --quantity {quantity} --id {resource.name} --to TIME",
            err=True,
        )


def _check_fits_lease(resource: MeteredResource, row: PriceRow, state: LeaseState, end_ns: int) -> None:
    """Raise LedgerError if currency, or the SKU and time of metered energy, differ from those of the lease."""
    from cost.periods import instant_text
    from cost.records import LedgerError

    lease = state.lease
    if row.currency != lease.currency:
        raise LedgerError(
            f"SKU {row.sku!r} is priced in {row.currency}, but lease {lease.lease_id} in {lease.currency}"
        )
    within_lease = state.from_ns <= resource.from_ns and (resource.to_ns or end_ns) <= end_ns
    if row.per == "kwh" and not (row.sku == lease.sku and within_lease):
        raise LedgerError(
            f"metered energy must have the SKU of its lease and lie within it: lease {lease.lease_id} has SKU "
            f"{lease.sku!r}, from {instant_text(state.from_ns)} to {instant_text(end_ns)}"
        )

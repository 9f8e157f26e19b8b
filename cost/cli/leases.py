"""`python -m cost leases ...`: list leases, and open, change and close the leases of machines that were rented by hand.

A provider charges a machine from its start, not from the start of a sweep. A machine that was rented by hand gets a
lease from the time of its start; sweeps on the machine attach to this lease.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cost.cli.common import DEFAULT_ROOT, Db, Json, Pricing, Root, echo, open_ledger, print_json
from cost.cli.lease_list import list_leases
from cost.cli.lease_metering import meter_lease

if TYPE_CHECKING:
    from cost.charges.chargeback import Chargeback
    from cost.ledger.ledger import Ledger

leases_app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="List leases of machines; open and close them by hand.",
)
leases_app.command("list")(list_leases)


@leases_app.command("open")
def open_lease(
    machine: Annotated[str, typer.Option(help="Name of the machine in conf/machine, such as h100x8.")],
    sku: Annotated[str, typer.Option(help="SKU that sets the price; `python -m cost prices list` shows all.")],
    cards: Annotated[int, typer.Option(help="Number of cards.")],
    instance: Annotated[
        str | None, typer.Option(help="Id of this one machine; default: HOST:MACHINE of this host.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--from", help="Start of the machine, such as 2026-11-29T08:00 (UTC); default: now.")
    ] = None,
    region: Annotated[str, typer.Option(help="Region, if the price depends on it.")] = "",
    purchase: Annotated[str | None, typer.Option(help="on_demand, spot, reserved, own ...")] = None,
    watts: Annotated[str | None, typer.Option(help="Power of own hardware under load.")] = None,
    resource: Annotated[str, typer.Option(help="The provider's id of the machine, as its bill shows it.")] = "",
    account: Annotated[str, typer.Option(help="The account that pays.")] = "",
    owner: Annotated[str, typer.Option(help="Person or team that the cost is charged to.")] = "",
    project: Annotated[str, typer.Option(help="Project that the cost is charged to.")] = "",
    commitment: Annotated[
        str, typer.Option(help="The commitment that covers the machine; `commitments list` shows all.")
    ] = "",
    tag: Annotated[list[str] | None, typer.Option(help="NAME=VALUE; may be repeated.")] = None,
    allow_unpriced: Annotated[bool, typer.Option(help="Open it without a price: reports show UNPRICED.")] = False,
    root: Root = DEFAULT_ROOT,
    db: Db = None,
    pricing: Pricing = None,
) -> None:
    """Open the lease of a machine that was rented by hand. Prints the id of the lease."""
    import socket

    from cost.charges.chargeback import Chargeback
    from cost.charges.commitments import TAG, find_commitment
    from cost.money import exact_decimal
    from cost.periods import instant_ns
    from cost.prices.billing import MissingRuleError, load_rules, rule_for
    from cost.prices.book import MissingPriceError, PriceBook, PriceError, pico_per_hour
    from cost.records import Lease, LedgerError

    with open_ledger(root, db, write=True, create=True) as ledger:
        from_ns = ledger.now_ns() if since is None else instant_ns(since)
        tags = dict(_name_and_value(text) for text in tag or []) | ({TAG: commitment} if commitment else {})
        bought = find_commitment(ledger, tags[TAG]) if TAG in tags else None
        power = None if watts is None else exact_decimal(watts, negative=False)
        book, rules = PriceBook.load(pricing), load_rules(pricing)
        try:
            row = book.in_force(sku, from_ns, purchase=purchase, region=region or None)
            # Raises PriceError if the price does not fit the number of cards or lacks the watts.
            pico_per_hour(row, cards, power or 0)
            rule_for(rules, row.provider, row.purchase)
        except (MissingPriceError, MissingRuleError) as error:
            if not allow_unpriced and bought is None:
                raise PriceError(f"{error}; or --allow-unpriced opens the lease UNPRICED") from error
            row = None
        if row is not None and bought is not None and row.currency != bought.price.currency:
            raise LedgerError(
                f"SKU {sku!r} is priced in {row.currency}, and commitment {bought.name} was paid in "
                f"{bought.price.currency}: one lease has one currency"
            )
        _check_required_names(ledger, Chargeback(owner, project, tags))
        instance_id = instance or f"{socket.gethostname()}:{machine}"
        lease = Lease(
            lease_id=f"{instance_id}-{from_ns:x}",
            instance_id=instance_id,
            machine=machine,
            sku=sku,
            provider=row.provider if row else bought.provider if bought else "",
            cards=cards,
            currency=row.currency if row else bought.price.currency if bought else "USD",
            price_hash=row.hash if row else None,
            account=account,
            resource_id=resource,
            region=region,
            purchase=bought.kind if bought else row.purchase if row else purchase or "on_demand",
            watts=power,
            owner=owner,
            project=project,
            tags=tags,
            opened_by="hand",
            from_ns=from_ns,
        )
        with ledger.transaction():
            ledger.leases.open(lease)
            ledger.price_archive.add([row] if row else [])
    echo(lease.lease_id)


@leases_app.command("close")
def close_lease(
    lease_id: str,
    at: Annotated[
        str | None, typer.Option(help="End of the machine, such as 2026-11-29T18:00 (UTC); default: now.")
    ] = None,
    how: Annotated[
        str, typer.Option(help="How the lease ended; `taken_back`: the provider took the machine back.")
    ] = "closed by hand",
    released: Annotated[bool, typer.Option(help="The provider has confirmed that the machine is released.")] = False,
    root: Root = DEFAULT_ROOT,
    db: Db = None,
) -> None:
    """Close a lease. Open attempts of dead drivers on it are closed first. With --released on a closed lease whose
    release was not confirmed: record the release, at its end or at --at."""
    from cost.periods import instant_ns
    from cost.reports import unaccounted

    with open_ledger(root, db, write=True) as ledger:
        ledger.usages.close_dead()
        at_ns = None if at is None else instant_ns(at)
        if released and lease_id in {gap.before.lease.lease_id for gap in unaccounted.unaccounted_times(ledger)}:
            unaccounted.record_release(ledger, lease_id, at_ns)
        else:
            ledger.leases.close(lease_id, how, at_ns=at_ns, released=released)


@leases_app.command("extend")
def extend_lease(lease_id: str, root: Root = DEFAULT_ROOT, db: Db = None) -> None:
    """Record that a machine still runs: a heartbeat by hand. For a closed lease whose release was not confirmed: open a
    lease from its end to now, or to the next lease of the machine, and print its id."""
    from cost.reports import unaccounted

    with open_ledger(root, db, write=True) as ledger:
        if ledger.leases.get(lease_id).to_ns is None:
            ledger.heartbeat(lease_id)
        else:
            echo(unaccounted.record_lease(ledger, lease_id))


@leases_app.command("stop")
def stop_lease(
    lease_id: str,
    at: Annotated[
        str | None, typer.Option(help="Time of the stop, such as 2026-11-29T18:00 (UTC); default: now.")
    ] = None,
    state: Annotated[
        str, typer.Option(help="The machine's state, as in billed_states of the provider's billing rule.")
    ] = "stopped",
    root: Root = DEFAULT_ROOT,
    db: Db = None,
    pricing: Pricing = None,
) -> None:
    """Record that a machine was stopped but not released. The provider's billing rule decides what a stopped machine
    costs: the same, only its storage, or nothing."""
    _set_state(lease_id, state, at, root, db, pricing)


@leases_app.command("start")
def start_lease(
    lease_id: str,
    at: Annotated[
        str | None, typer.Option(help="Time of the start, such as 2026-11-30T08:00 (UTC); default: now.")
    ] = None,
    root: Root = DEFAULT_ROOT,
    db: Db = None,
    pricing: Pricing = None,
) -> None:
    """Record that a stopped machine runs again. Some providers bill a minimum at every start."""
    _set_state(lease_id, "running", at, root, db, pricing)


leases_app.command("meter")(meter_lease)


@leases_app.command("require")
def require_names(
    names: Annotated[
        list[str] | None, typer.Argument(help="owner, project, cost_center or any tag; without names: show the list.")
    ] = None,
    nothing: Annotated[bool, typer.Option("--nothing", help="Require no names.")] = False,
    root: Root = DEFAULT_ROOT,
    db: Db = None,
    as_json: Json = False,
) -> None:
    """Set required names, so that every cost can be charged: sweeps and leases opened by hand must have them."""
    from cost.charges.chargeback import required_names, set_required_names
    from cost.records import LedgerError

    change = bool(names) or nothing
    with open_ledger(root, db, write=change, create=change) as ledger:
        if names and nothing:
            raise LedgerError("give names or --nothing, not both")
        if change:
            set_required_names(ledger, names or [])
        required = required_names(ledger)
    if as_json:
        print_json({"required": list(required)})
    else:
        echo(f"required: {', '.join(required) or 'nothing'}")


def _check_required_names(ledger: Ledger, chargeback: Chargeback) -> None:
    """Raise LedgerError if a name that the ledger requires is missing."""
    from cost.charges.chargeback import required_names
    from cost.records import LedgerError

    if missing := chargeback.missing(required_names(ledger)):
        options = (f"--{name} NAME" if name in ("owner", "project") else f"--tag {name}=VALUE" for name in missing)
        raise LedgerError(
            f"this ledger requires {', '.join(missing)} for every machine: add {' '.join(options)} "
            "(`python -m cost leases require` shows and changes what is required)"
        )


def _set_state(lease_id: str, state: str, at: str | None, root: Path, db: str | None, pricing: Path | None) -> None:
    from cost.charges.lease_charge import billing_rules
    from cost.ledger.machine_states import StateChange, set_state
    from cost.periods import instant_ns
    from cost.prices.book import PriceBook

    with open_ledger(root, db, write=True) as ledger:
        ledger.usages.close_dead()
        at_ns = ledger.now_ns() if at is None else instant_ns(at)
        set_state(ledger, StateChange(lease_id, state, at_ns), billing_rules(PriceBook.load(pricing)))


def _name_and_value(text: str) -> tuple[str, str]:
    from cost.records import LedgerError

    name, equals, value = text.partition("=")
    if not equals or not name:
        raise LedgerError(f"--tag {text!r}: write NAME=VALUE")
    return name, value

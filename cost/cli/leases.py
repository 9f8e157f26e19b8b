"""`python -m cost leases ...`: machines that are held, and machines that a hand opened.

The bill begins when the machine does, not when the sweep does: a box that was rented in the morning is opened here
with the hour it came up, and the sweeps of the day attach to it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cost.cli.common import DEFAULT_ROOT, Db, Json, Pricing, Root, open_ledger, print_json
from cost.reports.text_table import table_text

if TYPE_CHECKING:
    from cost.charges.chargeback import Chargeback
    from cost.ledger.ledger import Ledger
    from cost.reports.lease_status import LeaseStatus

leases_app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Machines held: list them; open, stop, start, close them by hand."
)


@leases_app.command("list")
def list_leases(
    root: Root = DEFAULT_ROOT,
    db: Db = None,
    pricing: Pricing = None,
    only_open: Annotated[bool, typer.Option("--open", help="Only those still held.")] = False,
    as_json: Json = False,
) -> None:
    """Every lease, oldest first, with what it has cost by now; then what is held with nobody looking after it, and what
    may have been held and is in no lease."""
    from textwrap import fill

    from cost.ledger.release_requests import UNCONFIRMED, unconfirmed_releases, unconfirmed_text
    from cost.money import rounded
    from cost.periods import instant_text
    from cost.prices.book import PriceBook
    from cost.reports import unaccounted
    from cost.reports.lease_status import lease_statuses
    from cost.reports.report import UNPRICED

    with open_ledger(root, db) as ledger:
        found = lease_statuses(ledger, PriceBook.load(pricing), ledger.now_ns(), only_open=only_open)
        going = unconfirmed_releases(ledger)
        unknown = unaccounted.describe(unaccounted.unaccounted_times(ledger), PriceBook.load(pricing), ledger.now_ns())
    if as_json:
        releases = {lease_id: f"{UNCONFIRMED}: {text}" for lease_id, text in going.items()}
        bodies = []
        for held in found:
            lease_id = held.state.lease.lease_id
            more = {"release": releases.get(lease_id), "unaccounted": unknown.get(lease_id)}
            bodies.append(_body(held) | more)
        print_json({"leases": bodies})
        return
    columns = ("lease", "machine", "sku", "from (UTC)", "until", "sweeps", "cost")
    rows = []
    for held in found:
        state, lease = held.state, held.state.lease
        held_word = UNCONFIRMED if lease.lease_id in going else _held_as(held)
        until = held_word if state.to_ns is None else instant_text(state.to_ns)[:16]
        cost = UNPRICED if held.cost is None else f"{rounded(held.cost.pico, 4)} {held.cost.currency}"
        sweeps = str(len(state.sweeps))
        rows.append((lease.lease_id, lease.machine, lease.sku, instant_text(state.from_ns)[:16], until, sweeps, cost))
    print(table_text(columns, rows, right=("cost", "sweeps")))
    for held in found:
        if text := going.get(held.state.lease.lease_id):
            typer.echo(unconfirmed_text(held.state.lease.lease_id, text))
        if held.alert:
            typer.echo(held.alert)
    for sentence in unknown.values():
        typer.echo(fill(sentence, 100, break_on_hyphens=False))


@leases_app.command("open")
def open_lease(
    machine: Annotated[str, typer.Option(help="Name of its configuration in conf/machine, such as h100x8.")],
    sku: Annotated[str, typer.Option(help="What it is priced as; `python -m cost prices list` shows those known.")],
    cards: Annotated[int, typer.Option(help="How many cards it has.")],
    instance: Annotated[str | None, typer.Option(help="Its own identity; default: HOST:MACHINE of this host.")] = None,
    since: Annotated[str | None, typer.Option("--from", help="When it came up: 2026-11-29T08:00 (UTC).")] = None,
    region: Annotated[str, typer.Option(help="Region, where the price depends on it.")] = "",
    purchase: Annotated[str | None, typer.Option(help="on_demand, spot, reserved, own ...")] = None,
    watts: Annotated[str | None, typer.Option(help="Power under load, for own hardware.")] = None,
    resource: Annotated[str, typer.Option(help="The provider's id of it, as it stands on the bill.")] = "",
    account: Annotated[str, typer.Option(help="The account that pays.")] = "",
    owner: Annotated[str, typer.Option(help="Who answers for it.")] = "",
    project: Annotated[str, typer.Option(help="What it is for.")] = "",
    commitment: Annotated[
        str, typer.Option(help="The commitment that pays for it; `commitments list` names them.")
    ] = "",
    tag: Annotated[list[str] | None, typer.Option(help="NAME=VALUE; may be repeated.")] = None,
    allow_unpriced: Annotated[bool, typer.Option(help="Open it though it has no price: UNPRICED in reports.")] = False,
    root: Root = DEFAULT_ROOT,
    db: Db = None,
    pricing: Pricing = None,
) -> None:
    """A machine that no sweep started is held from now, or from `--from`, on. Prints the lease's id."""
    import socket

    from cost.charges.chargeback import Chargeback
    from cost.charges.commitments import TAG, find_commitment
    from cost.money import exact_decimal
    from cost.periods import instant_ns
    from cost.prices.book import MissingPriceError, PriceBook, pico_per_hour
    from cost.records import Lease

    with open_ledger(root, db, write=True, create=True) as ledger:
        now = ledger.now_ns()
        from_ns = now if since is None else instant_ns(since)
        tags = dict(_pair(text) for text in tag or []) | ({TAG: commitment} if commitment else {})
        paid = [find_commitment(ledger, tags[TAG])] if TAG in tags else []
        try:
            row = PriceBook.load(pricing).in_force(sku, from_ns, purchase=purchase, region=region or None)
        except MissingPriceError:
            if not allow_unpriced and not paid:
                raise
            row = None
        power = None if watts is None else exact_decimal(watts, negative=False)
        if row is not None:
            pico_per_hour(row, cards, power or 0)
        _check_said(ledger, Chargeback(owner, project, tags))
        name = instance or f"{socket.gethostname()}:{machine}"
        lease = Lease(
            lease_id=f"{name}-{from_ns:x}",
            instance_id=name,
            machine=machine,
            sku=sku,
            provider=row.provider if row else paid[0].provider if paid else "",
            cards=cards,
            currency=row.currency if row else paid[0].price.currency if paid else "USD",
            price_hash=row.hash if row else None,
            account=account,
            resource_id=resource,
            region=region,
            purchase=paid[0].kind if paid else row.purchase if row else purchase or "on_demand",
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
    typer.echo(lease.lease_id)


@leases_app.command("require")
def require_names(
    names: Annotated[
        list[str] | None, typer.Argument(help="owner, project, cost_center or any tag; none: say what is required now.")
    ] = None,
    nothing: Annotated[bool, typer.Option("--nothing", help="Require nothing any more.")] = False,
    root: Root = DEFAULT_ROOT,
    db: Db = None,
    as_json: Json = False,
) -> None:
    """What every machine opened by hand, and every sweep, has to say of whom it is charged to. Kept in the ledger."""
    from cost.charges.chargeback import required_names, set_required_names
    from cost.records import LedgerError

    change = bool(names) or nothing
    with open_ledger(root, db, write=change, create=change) as ledger:
        if names and nothing:
            raise LedgerError("either names, or --nothing")
        if change:
            set_required_names(ledger, names or [])
        now = required_names(ledger)
    if as_json:
        print_json({"required": list(now)})
    else:
        typer.echo(f"required: {', '.join(now) or 'nothing'}")


@leases_app.command("stop")
def stop_lease(
    lease_id: str,
    at: Annotated[str | None, typer.Option(help="Since when: 2026-11-29T18:00 (UTC); default: now.")] = None,
    state: Annotated[
        str, typer.Option(help="What it is called in the provider's billed_states; others are not billed.")
    ] = "stopped",
    root: Root = DEFAULT_ROOT,
    db: Db = None,
    pricing: Pricing = None,
) -> None:
    """A machine does not run, and is kept: by its provider's rule that costs its disks, or all of it, or nothing."""
    _set_state(lease_id, state, at, root, db, pricing)


@leases_app.command("start")
def start_lease(
    lease_id: str,
    at: Annotated[str | None, typer.Option(help="Since when: 2026-11-30T08:00 (UTC); default: now.")] = None,
    root: Root = DEFAULT_ROOT,
    db: Db = None,
    pricing: Pricing = None,
) -> None:
    """A machine that was stopped runs again; providers bill a minimum at every start."""
    _set_state(lease_id, "running", at, root, db, pricing)


@leases_app.command("extend")
def extend_lease(lease_id: str, root: Root = DEFAULT_ROOT, db: Db = None) -> None:
    """Say that a machine is still held: a heartbeat by hand. One that a sweep has left was held on since then, to its
    next lease or to now, and goes on: prints the id of the lease for that time."""
    from cost.reports import unaccounted

    with open_ledger(root, db, write=True) as ledger:
        if ledger.leases.get(lease_id).to_ns is None:
            ledger.heartbeat(lease_id)
        else:
            typer.echo(unaccounted.record_lease(ledger, lease_id))


@leases_app.command("meter")
def meter_lease(
    lease_id: str,
    sku: Annotated[str, typer.Option(help="Its price in the price book: per gib_month, gib, request, one_off or kwh.")],
    quantity: Annotated[str, typer.Option(help="How much: GiB kept, GiB sent, requests, pieces, kWh.")],
    since: Annotated[str | None, typer.Option("--from", help="From when (UTC); default: the lease's start.")] = None,
    until: Annotated[
        str | None, typer.Option("--to", help="To when (UTC); default: the lease's end, or now; of a fee, --from.")
    ] = None,
    region: Annotated[str, typer.Option(help="Region, where the price depends on it.")] = "",
    name: Annotated[str | None, typer.Option("--id", help="Its id: the same one again changes nothing.")] = None,
    root: Root = DEFAULT_ROOT,
    db: Db = None,
    pricing: Pricing = None,
) -> None:
    """Enter a disk, what was sent, requests or a fee, charged at the price book's prices; or the kWh that a meter
    counted for own hardware, in place of its watts. Prints its id."""
    from cost.charges.metered import MeteredResource, add_resource, load_resources
    from cost.money import exact_decimal
    from cost.periods import instant_ns, instant_text
    from cost.prices.book import PriceBook
    from cost.records import LedgerError

    with open_ledger(root, db, write=True) as ledger:
        state, now = ledger.leases.get(lease_id), ledger.now_ns()
        # What is not said again is what was said before.
        known = next((one for one in load_resources(ledger).get(lease_id, ()) if one.name == name), None)
        first, last = (known.from_ns, known.to_ns) if known else (state.from_ns, state.to_ns or now)
        from_ns = first if since is None else instant_ns(since)
        row = PriceBook.load(pricing).in_force(sku, from_ns, region=region or None)
        # A fee is of one moment.
        last = from_ns if row.per == "one_off" and not known else last
        to_ns = last if until is None else instant_ns(until)
        if row.currency != state.lease.currency:
            raise LedgerError(
                f"SKU {sku!r} is priced in {row.currency}, and lease {lease_id} in {state.lease.currency}"
            )
        if row.per == "kwh" and (sku != state.lease.sku or from_ns < state.from_ns or to_ns > (state.to_ns or now)):
            raise LedgerError(
                f"kWh are counted for the time that a machine priced per kWh is held: lease {lease_id} is priced as "
                f"{state.lease.sku!r}, from {instant_text(state.from_ns)} to {instant_text(state.to_ns or now)}"
            )
        amount = exact_decimal(quantity, negative=False)
        kind = (row.purchase, row.region, row.kind)
        one = MeteredResource(name or f"{lease_id}:{sku}:{now:x}", lease_id, sku, *kind, amount, from_ns, to_ns)
        with ledger.transaction():
            add_resource(ledger, one, row, ledger.closed_months.names())
            ledger.price_archive.add([row])
    typer.echo(one.name)


@leases_app.command("close")
def close_lease(
    lease_id: str,
    at: Annotated[str | None, typer.Option(help="When it went: 2026-11-29T18:00 (UTC); default: now.")] = None,
    how: Annotated[str, typer.Option(help="How it ended; `taken_back`: its provider did it.")] = "closed by hand",
    released: Annotated[bool, typer.Option(help="The provider has confirmed that it is gone.")] = False,
    root: Root = DEFAULT_ROOT,
    db: Db = None,
) -> None:
    """A machine has been given back; attempts of dead drivers on it are ended first. Its bill ends here. One that a
    sweep has left went then, or with `--at` later: the time between is entered."""
    from cost.periods import instant_ns
    from cost.reports import unaccounted

    with open_ledger(root, db, write=True) as ledger:
        ledger.usages.close_dead()
        at_ns = None if at is None else instant_ns(at)
        if released and lease_id in {gap.before.lease.lease_id for gap in unaccounted.unaccounted_times(ledger)}:
            unaccounted.record_release(ledger, lease_id, at_ns)
        else:
            ledger.leases.close(lease_id, how, at_ns=at_ns, released=released)


def _check_said(ledger: Ledger, whom: Chargeback) -> None:
    from cost.charges.chargeback import required_names
    from cost.records import LedgerError

    if lacking := whom.missing(required_names(ledger)):
        options = (f"--{name} NAME" if name in ("owner", "project") else f"--tag {name}=VALUE" for name in lacking)
        raise LedgerError(
            f"these books require {', '.join(lacking)} of every machine: add {' '.join(options)} "
            "(`python -m cost leases require` says what is required, and changes it)"
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


def _held_as(held: LeaseStatus) -> str:
    return "held" if held.machine_state == "running" else f"held, {held.machine_state}"


def _body(held: LeaseStatus) -> dict[str, Any]:
    from cost.money import Money, pico_text
    from cost.periods import instant_text
    from cost.reports.report import UNPRICED

    def amount(money: Money | None) -> str:
        return UNPRICED if money is None else pico_text(money.pico)

    def moment(ns: int | None) -> str | None:
        return None if ns is None else instant_text(ns)

    state, lease = held.state, held.state.lease
    return {
        "lease_id": lease.lease_id,
        "instance_id": lease.instance_id,
        "machine": lease.machine,
        "sku": lease.sku,
        "provider": lease.provider,
        "cards": lease.cards,
        "purchase": lease.purchase,
        "owner": lease.owner,
        "project": lease.project,
        "tags": dict(lease.tags),
        "opened_by": lease.opened_by,
        "from": moment(state.from_ns),
        "to": moment(state.to_ns),
        "state": held.machine_state,
        "how": state.how,
        "released": state.released,
        "sweeps": list(state.sweeps),
        "currency": lease.currency,
        "cost": amount(held.cost),
        "cost_per_day": amount(held.per_day),
        "last_heartbeat": moment(state.last_heartbeat_ns),
        "unheard_since": moment(held.silent_since_ns),
        "idle_since": moment(held.idle_since_ns),
        "alert": held.alert,
    }


def _pair(text: str) -> tuple[str, str]:
    from cost.records import LedgerError

    name, equals, value = text.partition("=")
    if not equals or not name:
        raise LedgerError(f"--tag {text!r}: write NAME=VALUE")
    return name, value

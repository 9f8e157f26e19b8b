"""`python -m cost leases list`: every lease with its cost, and the machines that cost money without use.

Tested in tests/cost/cli/test_leases.py and tests/cost/reports/test_unaccounted.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cost.cli.common import DEFAULT_ROOT, Db, Json, Pricing, Root, echo, open_ledger, print_json
from cost.reports.text_table import WIDTH, table_text

if TYPE_CHECKING:
    from cost.money import Money
    from cost.reports.lease_status import LeaseStatus

COLUMNS = ("lease", "machine", "sku", "from (UTC)", "to (UTC)", "sweeps", "cost")


def list_leases(
    root: Root = DEFAULT_ROOT,
    db: Db = None,
    pricing: Pricing = None,
    only_open: Annotated[bool, typer.Option("--open", help="Only open leases.")] = False,
    as_json: Json = False,
) -> None:
    """List all leases, oldest first, with their cost. Below: open leases without use, and machines that were left
    without a confirmed release."""
    from textwrap import fill

    from cost.ledger.release_requests import unconfirmed_releases, unconfirmed_text
    from cost.prices.book import PriceBook
    from cost.reports import unaccounted
    from cost.reports.lease_status import lease_statuses

    with open_ledger(root, db) as ledger:
        book, now_ns = PriceBook.load(pricing), ledger.now_ns()
        statuses = lease_statuses(ledger, book, now_ns, only_open=only_open)
        unconfirmed = unconfirmed_releases(ledger)
        left_machines = unaccounted.describe(unaccounted.unaccounted_times(ledger), book, now_ns)
    if as_json:
        print_json({"leases": [_json_body(status, unconfirmed, left_machines) for status in statuses]})
        return
    echo(table_text(COLUMNS, [_cells(status, unconfirmed) for status in statuses], right=("cost", "sweeps")))
    for status in statuses:
        lease_id = status.state.lease.lease_id
        if status.problem:
            echo(f"lease {lease_id} is UNPRICED: {status.problem}")
        if lease_id in unconfirmed:
            echo(unconfirmed_text(lease_id, unconfirmed[lease_id]))
        if status.alert:
            echo(status.alert)
    for text in left_machines.values():
        echo(fill(text, WIDTH, break_on_hyphens=False))


def _cells(status: LeaseStatus, unconfirmed: dict[str, str]) -> tuple[str, ...]:
    from cost.ledger.machine_states import RUNNING
    from cost.ledger.release_requests import UNCONFIRMED
    from cost.money import rounded
    from cost.periods import instant_text
    from cost.reports.report import UNPRICED

    state, lease, cost = status.state, status.state.lease, status.cost
    if state.to_ns is not None:
        until = instant_text(state.to_ns)[:16]
    elif lease.lease_id in unconfirmed:
        until = UNCONFIRMED
    else:
        until = "open" if status.machine_state == RUNNING else f"open, {status.machine_state}"
    return (
        *(lease.lease_id, lease.machine, lease.sku, instant_text(state.from_ns)[:16], until, str(len(state.sweeps))),
        UNPRICED if cost is None else f"{rounded(cost.pico, 4)} {cost.currency}",
    )


def _json_body(status: LeaseStatus, unconfirmed: dict[str, str], left_machines: dict[str, str]) -> dict[str, Any]:
    from cost.ledger.release_requests import UNCONFIRMED
    from cost.money import pico_text
    from cost.periods import instant_text
    from cost.reports.report import UNPRICED

    def amount_text(money: Money | None) -> str:
        return UNPRICED if money is None else pico_text(money.pico)

    def optional_instant_text(at_ns: int | None) -> str | None:
        return None if at_ns is None else instant_text(at_ns)

    state, lease = status.state, status.state.lease
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
        "from": instant_text(state.from_ns),
        "to": optional_instant_text(state.to_ns),
        "state": status.machine_state,
        "how": state.how,
        "released": state.released,
        "sweeps": list(state.sweeps),
        "currency": lease.currency,
        "cost": amount_text(status.cost),
        "cost_per_day": amount_text(status.per_day),
        "last_heartbeat": optional_instant_text(state.last_heartbeat_ns),
        "unheard_since": optional_instant_text(status.silent_since_ns),
        "idle_since": optional_instant_text(status.idle_since_ns),
        "alert": status.alert,
        "problem": status.problem,
        "release": f"{UNCONFIRMED}: {unconfirmed[lease.lease_id]}" if lease.lease_id in unconfirmed else None,
        "unaccounted": left_machines.get(lease.lease_id),
    }

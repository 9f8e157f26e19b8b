"""`python -m cost reconcile BILL.csv`: compare a bill with the ledger, and correct the ledger.

Tested in tests/cost/bills/test_reconcile.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cost.cli.common import DEFAULT_ROOT, Db, Json, Pricing, Root, echo, open_ledger, print_json
from cost.reports.text_table import table_text

if TYPE_CHECKING:
    from cost.bills.differences import Reconciliation

SHOWN = 20
"""Number of missing resources that the terminal shows."""


def reconcile(
    bill: Annotated[Path, typer.Argument(help="The provider's bill, as CSV.")],
    column_map: Annotated[
        str, typer.Option("--map", help="Column map in conf/pricing/bills; default: the one that fits.")
    ] = "",
    apply: Annotated[bool, typer.Option("--apply", help="Correct the ledger to the bill.")] = False,
    over_hand: Annotated[
        bool, typer.Option("--over-hand", help="With --apply: also cancel entries made with `cost correct`.")
    ] = False,
    root: Root = DEFAULT_ROOT,
    db: Db = None,
    pricing: Pricing = None,
    as_json: Json = False,
) -> None:
    """Compare a provider's bill with the ledger, per lease and day, and explain the differences.

    Exits 0 if they agree or the ledger was corrected, 1 if they differ.
    """
    from cost.bills import reconcile as rec
    from cost.bills import true_up
    from cost.bills.column_map import load_maps
    from cost.bills.reader import read_bill
    from cost.money import pico_text
    from cost.prices.book import PriceBook
    from cost.prices.fx import load_rates
    from cost.records import LedgerError

    with open_ledger(root, db, write=apply) as ledger:
        read = read_bill(bill, load_maps(pricing), name=column_map)
        book = PriceBook.load(pricing)
        now = ledger.now_ns()
        done = rec.reconcile(ledger, book, read, now, rates=load_rates(pricing))
        against = rec.manual_conflicts(done)
        if apply and against and not over_hand:
            named = ", ".join(f"{c.lease.lease_id} {c.when} {c.kind} {pico_text(c.by_hand_pico)}" for c in against)
            raise LedgerError(
                f"nothing was written: entries made with `cost correct` are not on this bill in that amount ({named}). "
                "Cancel them with --over-hand, or wait for the bill that has them"
            )
        written = true_up.apply(ledger, book, done, now) if apply else []
    if as_json:
        print_json(body(done, written))
    else:
        _print(done, len(written), apply)
    # A missing commitment or price must be entered by hand: no correction replaces it.
    unsettled = any(not c.settled for c in done.comparisons)
    open_points = bool(done.missing or done.unbilled or unsettled)
    if open_points or (not apply and not done.agrees):
        raise typer.Exit(1)


def body(done: Reconciliation, written: list) -> dict[str, Any]:
    """The reconciliation as JSON, with exact amounts as decimal texts."""
    from cost.bills.differences import sums_by_resource
    from cost.bills.reader import summary
    from cost.money import pico_text

    return {
        "bill": summary(done.bill),
        "comparisons": [
            {
                "lease": c.lease.lease_id,
                "when": c.when,
                "kind": c.kind,
                "currency": c.lease.currency,
                "bill": pico_text(c.bill_pico),
                "ledger": pico_text(c.ledger_pico),
                "ledger_by_hand": pico_text(c.by_hand_pico),
                "ledger_idle": pico_text(c.idle_pico),
                "difference": pico_text(c.difference),
                "causes": [{"cause": x.name, "amount": pico_text(x.pico), "text": x.text} for x in c.causes],
            }
            for c in done.comparisons
        ],
        "missing_leases": [
            {"resource": m.resource, "kind": m.kind, "amount": pico_text(m.pico), "currency": m.currency, "at": m.where}
            for m in done.missing
        ],
        "unrelated": [
            {
                "resource": line.resource or line.description or line.kind,
                "lines": count,
                "amount": pico_text(amount.pico),
                "currency": amount.currency,
            }
            for line, count, amount in sums_by_resource(done.unrelated)
        ],
        "not_on_the_bill": [
            {"lease": lease.lease_id, "amount": pico_text(pico), "currency": lease.currency}
            for lease, pico in done.unbilled
        ],
        "rates": list(done.notes),
        "corrections_written": len(written),
        "agrees": done.agrees,
    }


def _print(done: Reconciliation, written: int, applied: bool) -> None:
    from cost.bills.differences import sums_by_resource
    from cost.bills.reader import summary
    from cost.money import Money, money_text, rounded

    read = summary(done.bill)
    echo(f"{read['path']}: {read['lines']} lines from {read['from']} to {read['to']}, read as {read['map']}")
    rows = []
    for c in done.comparisons:
        amounts = [str(rounded(pico, 4)) for pico in (c.bill_pico, c.ledger_pico, c.difference)]
        why = "; ".join(f"{x.name} {rounded(x.pico, 4)}" for x in c.causes)
        rows.append((c.lease.lease_id, c.when, c.kind, *amounts, c.lease.currency, why))
    columns = ("lease", "when", "what", "bill", "ledger", "difference", "", "causes")
    echo(table_text(columns, rows, right=("bill", "ledger", "difference")).rstrip("\n"))
    for c in done.comparisons:
        for x in c.causes:
            echo(f"  {c.lease.lease_id} {c.when}: {x.name} {rounded(x.pico, 6)} {c.lease.currency}: {x.text}")
    missing = sums_by_resource(done.missing)
    for line, count, amount in missing[:SHOWN]:
        what = line.resource or line.description or line.kind
        lines = f"{line.where}, {count} lines" if count > 1 else line.where
        total = f"{rounded(amount.pico, 4)} {amount.currency}"
        echo(f"  missing lease: {what} for {total} ({lines}); enter it with: python -m cost leases open")
    if len(missing) > SHOWN:
        echo(f"  missing lease: {len(missing) - SHOWN} more resources; --json lists them")
    if done.unrelated:
        amounts = ", ".join(map(money_text, Money.sums(Money(x.pico, x.currency) for x in done.unrelated)))
        resources = len({line.resource for line in done.unrelated} - {""})
        echo(
            f"  not ours: {len(done.unrelated)} lines of {resources} resources that no lease names, {amounts} (--json "
            "lists them)"
        )
    for lease, pico in done.unbilled:
        what = (
            lease.lease_id.replace(":", " ", 1)
            if lease.lease_id.startswith("commitment:")
            else f"lease {lease.lease_id}"
        )
        echo(f"  not on the bill: {what}, {rounded(pico, 4)} {lease.currency} in the ledger")
    for note in done.notes:
        echo(f"  rate: {note}")
    if applied:
        echo(f"{written} corrections written")
    elif done.agrees:
        echo("bill and ledger agree")
    elif any(c.difference for c in done.comparisons):
        echo("correct the ledger with: python -m cost reconcile BILL --apply")

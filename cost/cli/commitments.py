"""`python -m cost commitments ...`: enter capacity that was bought for a time, and show how much of it is used.

Tested in tests/cost/charges/test_commitments.py.
"""

from __future__ import annotations

from typing import Annotated

import typer

from cost.cli.common import DEFAULT_ROOT, Db, Json, Pricing, Root, echo, open_ledger, print_json
from cost.reports.text_table import table_text

commitments_app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Capacity that was bought for a time: enter it, show its use.",
)


@commitments_app.command("add")
def add_commitment(
    name: Annotated[str, typer.Argument(help="Name, such as the provider's id. Leases refer to it.")],
    price: Annotated[str, typer.Option(help="The whole price, such as '20000 USD'.")],
    cards: Annotated[int, typer.Option(help="Number of cards.")],
    since: Annotated[str, typer.Option("--from", help="Start: 2026-11-01 or 2026-11-01T08:00 (UTC).")],
    until: Annotated[str, typer.Option("--to", help="End (UTC).")],
    sku: Annotated[str, typer.Option(help="What was bought; any text, shown in reports.")],
    provider: Annotated[str, typer.Option(help="The provider.")],
    kind: Annotated[str, typer.Option(help="reserved, capacity_block or savings_plan.")] = "reserved",
    owner: Annotated[str, typer.Option(help="Person or team that unused capacity is charged to.")] = "",
    project: Annotated[str, typer.Option(help="Project that unused capacity is charged to.")] = "",
    root: Root = DEFAULT_ROOT,
    db: Db = None,
) -> None:
    """Enter a commitment. The same again changes nothing. Leases that it covers carry the tag commitment=NAME."""
    from cost.charges.commitments import Commitment, add_commitment
    from cost.money import Money
    from cost.periods import instant_ns

    with open_ledger(root, db, write=True, create=True) as ledger:
        start, stop = (instant_ns(text) for text in (since, until))
        paid = Money.parse(price)
        add_commitment(
            ledger,
            Commitment(name, kind, provider, sku, cards, paid, start, stop, owner, project),
            ledger.closed_months.names(),
        )


@commitments_app.command("list")
def list_commitments(root: Root = DEFAULT_ROOT, db: Db = None, pricing: Pricing = None, as_json: Json = False) -> None:
    """List commitments with their price, split into used, unused and still to come."""
    from cost.charges.commitments import commitment_usage, load_commitments
    from cost.money import pico_text, rounded
    from cost.periods import instant_text
    from cost.prices.book import PriceBook

    with open_ledger(root, db) as ledger:
        commitments, now_ns = load_commitments(ledger), ledger.now_ns()
        usage = commitment_usage(commitments, ledger.leases.find(), now_ns, book=PriceBook.load(pricing))
    shown = []
    for commitment in commitments:
        unused_pico = sum(span.pico for span in usage.unused if span.commitment == commitment)
        elapsed_pico = commitment.amortised(now_ns)
        amounts = {
            "paid": commitment.price.pico,
            "used": elapsed_pico - unused_pico,
            "unused": unused_pico,
            "to_come": commitment.price.pico - elapsed_pico,
        }
        shown.append((commitment, amounts))
    if as_json:
        bodies = [
            {"name": c.name, "kind": c.kind, "sku": c.sku, "provider": c.provider, "cards": c.cards}
            | {"from": instant_text(c.from_ns), "to": instant_text(c.to_ns), "currency": c.price.currency}
            | {name: pico_text(pico) for name, pico in amounts.items()}
            for c, amounts in shown
        ]
        print_json({"commitments": bodies})
        return
    columns = ("commitment", "cards", "from (UTC)", "to", "paid", "used", "unused", "to come", "")
    rows = [
        (
            *(c.name, str(c.cards), instant_text(c.from_ns)[:16], instant_text(c.to_ns)[:16]),
            *(str(rounded(pico, 2)) for pico in amounts.values()),
            c.price.currency,
        )
        for c, amounts in shown
    ]
    echo(table_text(columns, rows, right=("cards", "paid", "used", "unused", "to come")))

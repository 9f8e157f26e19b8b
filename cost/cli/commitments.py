"""`python -m cost commitments ...`: capacity that was bought for a time, and what became of it."""

from __future__ import annotations

from typing import Annotated

import typer

from cost.cli.common import DEFAULT_ROOT, Db, Json, Pricing, Root, open_ledger, print_json
from cost.reports.text_table import table_text

commitments_app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Capacity that was bought for a time (reserved, capacity block, savings plan): enter it, see its use.",
)


@commitments_app.command("add")
def add_commitment(
    name: Annotated[str, typer.Argument(help="Its name, such as the provider's id of it. Leases name it.")],
    price: Annotated[str, typer.Option(help="What was paid for all of it: '20000 USD'.")],
    cards: Annotated[int, typer.Option(help="How many cards it is for.")],
    since: Annotated[str, typer.Option("--from", help="When it begins: 2026-11-01 or 2026-11-01T08:00 (UTC).")],
    until: Annotated[str, typer.Option("--to", help="When it is over (UTC).")],
    sku: Annotated[str, typer.Option(help="What was bought; free text, shown in reports.")],
    provider: Annotated[str, typer.Option(help="From whom.")],
    kind: Annotated[str, typer.Option(help="reserved, capacity_block or savings_plan.")] = "reserved",
    owner: Annotated[str, typer.Option(help="Who answers for what nobody uses.")] = "",
    project: Annotated[str, typer.Option(help="What it is for.")] = "",
    root: Root = DEFAULT_ROOT,
    db: Db = None,
) -> None:
    """Enter what was bought; the same again changes nothing. Leases on it carry the tag commitment=NAME."""
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
    """Each with what was paid, and what of it has been used, has gone unused, and is still to come."""
    from cost.charges.commitments import commitment_usage, load_commitments
    from cost.money import pico_text, rounded
    from cost.periods import instant_text
    from cost.prices.book import PriceBook

    with open_ledger(root, db) as ledger:
        bought, now = load_commitments(ledger), ledger.now_ns()
        used = commitment_usage(bought, ledger.leases.find(), now, book=PriceBook.load(pricing))
    body = []
    for one in bought:
        unused = sum(rest.pico for rest in used.unused if rest.commitment == one)
        so_far = one.amortised(now)
        amounts = {
            "paid": one.price.pico,
            "used": so_far - unused,
            "unused": unused,
            "to_come": one.price.pico - so_far,
        }
        times = {"from": instant_text(one.from_ns), "to": instant_text(one.to_ns)}
        facts = {"name": one.name, "kind": one.kind, "sku": one.sku, "provider": one.provider, "cards": one.cards}
        body.append((facts | times | {"currency": one.price.currency}, amounts))
    if as_json:
        print_json({"commitments": [facts | {k: pico_text(v) for k, v in amounts.items()} for facts, amounts in body]})
        return
    columns = ("commitment", "cards", "from (UTC)", "to", "paid", "used", "unused", "to come", "")
    rows = [
        (
            *(f["name"], str(f["cards"]), f["from"][:16], f["to"][:16]),
            *(str(rounded(v, 2)) for v in amounts.values()),
            f["currency"],
        )
        for f, amounts in body
    ]
    typer.echo(table_text(columns, rows, right=("cards", "paid", "used", "unused", "to come")))

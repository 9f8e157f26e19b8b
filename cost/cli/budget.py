"""`python -m cost budget`: set limits, and show what is spent and reserved under them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from cost.cli.common import DEFAULT_ROOT, Db, Json, Pricing, Root, echo, open_ledger, print_json
from cost.reports.text_table import table_text

if TYPE_CHECKING:
    from cost.money import Money


def budget(
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Set a limit for all sweeps: 'month=500 USD', 'stage:multi=200 USD' or 'sweep:NAME=200 USD'; "
            "'month=none' removes it. May be repeated.",
        ),
    ] = None,
    root: Root = DEFAULT_ROOT,
    db: Db = None,
    pricing: Pricing = None,
    as_json: Json = False,
) -> None:
    """Set and show spending limits. Rows: this month, and every stage and sweep with a limit. Reserved money is what
    running trials may still cost.

    Sweeps obey these limits and those of their own configuration (budget.sweep_limit and others): a trial that does not
    fit is not started, and at a limit the sweep stops or pauses.
    """
    from cost.budgets.budget import budgets, parse_setting, set_limit
    from cost.prices.book import PriceBook

    with (
        open_ledger(root, db, write=bool(settings), create=bool(settings)) as ledger,
        # One transaction: a limit that cannot be shown (an exchange rate is missing) is not set.
        ledger.transaction() if settings else nullcontext(),
    ):
        for text in settings or []:
            set_limit(ledger, *parse_setting(text))
        rows, notes = budgets(ledger, PriceBook.load(pricing), ledger.now_ns())
    columns = ("limit", "reserved", "spent", "free")
    if as_json:
        bodies = [
            {"scope": row.scope, "name": row.name, "simulated": row.simulated}
            | {name: None if getattr(row, name) is None else str(getattr(row, name)) for name in columns}
            for row in rows
        ]
        print_json({"budgets": bodies, "notes": list(notes)})
        return
    cells = [(row.name, *map(_amount_text, (row.limit, row.reserved, row.spent, row.free))) for row in rows]
    echo(table_text(("budget", *columns), cells, right=columns))
    for note in notes:
        echo(note)


def _amount_text(amount: Money | None) -> str:
    """With two decimal places, or with as many as a small amount needs to differ from zero."""
    from cost.money import rounded

    if amount is None:
        return "-"
    places = next((places for places in (2, 4, 6, 9) if abs(amount.pico) >= 5 * 10 ** (12 - places)), 2)
    return f"{rounded(amount.pico, places)} {amount.currency}"

"""`python -m cost prices ...`: show, check and extend the price book.

A command that fails prints one message and exits 2. `lint` prints its findings and exits 1, or prints nothing and
exits 0.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cost.cli.common import Json, echo, exit_on_error, print_json
from cost.cli.price_imports import import_app
from cost.cli.price_options import DryRun, Folder, ValidFrom, now_text, row_body, today_utc
from cost.prices.book import DEFAULT_FOLDER, TIME_UNITS, PriceBook, hourly, price_instant, read_row
from cost.reports.text_table import table_text

prices_app = typer.Typer(
    name="prices",
    help="The price book: list, show, lint and add prices, import price lists.",
    no_args_is_help=True,
    add_completion=False,
)
prices_app.add_typer(import_app, name="import")


@prices_app.command("list")
def list_prices(
    sku: Annotated[str, typer.Option(help="Only SKUs that contain this text.")] = "",
    provider: Annotated[str, typer.Option(help="Only this provider.")] = "",
    folder: Folder = DEFAULT_FOLDER,
    as_json: Json = False,
) -> None:
    """List all price rows. `--json` and `show` include their sources."""
    with exit_on_error():
        rows = [r for r in PriceBook.load(folder).rows if sku in r.sku and provider in ("", r.provider)]
    rows.sort(key=lambda r: (r.sku, r.purchase, r.region, r.from_ns))
    if as_json:
        print_json([row_body(r) for r in rows])
        return
    columns = ("SKU", "price", "per", "cards", "purchase", "region", "from", "to")
    table = [
        (
            *(r.sku, f"{r.price} {r.currency}", r.per, str(r.cards) if r.cards else "any"),
            *(r.purchase, r.region, r.valid_from[:10], r.valid_to[:10]),
        )
        for r in rows
    ]
    kept = [i for i in range(len(columns)) if any(line[i] for line in table)]
    echo(table_text([columns[i] for i in kept], [[line[i] for i in kept] for line in table], right=("price", "cards")))


@prices_app.command("show")
def show_price(
    sku: Annotated[str, typer.Argument(help="SKU, as in conf/machine.")],
    at: Annotated[
        str, typer.Option("--at", help="Moment, such as 2026-11-29 or 2026-11-29T08:00:00Z; default: now.")
    ] = "",
    purchase: Annotated[
        str, typer.Option(help="on_demand, spot, reserved, ...; default: the one that the SKU has a price for.")
    ] = "",
    region: Annotated[str, typer.Option(help="Region; default: the only one.")] = "",
    cards: Annotated[int, typer.Option(help="Number of cards, to show the price of an hour of the machine.")] = 0,
    watts: Annotated[int, typer.Option(help="Power of the machine in watts, for prices per kWh.")] = 0,
    folder: Folder = DEFAULT_FOLDER,
    as_json: Json = False,
) -> None:
    """Show the price of a SKU that is in force at a moment, with its source."""
    with exit_on_error():
        at_ns = price_instant(at, "--at") if at else time.time_ns()
        row = PriceBook.load(folder).in_force(sku, at_ns, purchase=purchase or None, region=region or None)
        cards = cards or row.cards
        machine = ""
        if (row.per in TIME_UNITS and row.per != "kwh" and (cards or row.per == "machine_hour")) or (
            row.per == "kwh" and watts
        ):
            machine = str(hourly(row, cards, watts))
    body = row_body(row) | ({"machine_hour": machine} if machine else {})
    if as_json:
        print_json(body)
        return
    for name, value in body.items():
        if value != "":
            echo(f"{name:13} {value}")


@prices_app.command("lint")
def lint_prices(
    max_price_age_days: Annotated[int, typer.Option(help="Report prices that were read longer ago.")] = 180,
    folder: Folder = DEFAULT_FOLDER,
    machines: Annotated[
        Path,
        typer.Option(
            help="Folder of the machine files; each SKU in them must have a price.", show_default="conf/machine"
        ),
    ] = DEFAULT_FOLDER.parents[1] / "conf" / "machine",
    as_json: Json = False,
) -> None:
    """Check the price book for errors. Prints nothing and exits 0 if there are none."""
    from cost.prices.billing import load_rules
    from cost.prices.lint import lint

    with exit_on_error():
        findings = lint(
            PriceBook.load(folder),
            today=today_utc(),
            max_age_days=max_price_age_days,
            rules=load_rules(folder),
            machine_folder=machines,
        )
    if as_json:
        print_json([asdict(f) for f in findings])
    else:
        for finding in findings:
            echo(finding)
    if findings:
        raise typer.Exit(1)


@prices_app.command("add")
def add_price(
    sku: Annotated[str, typer.Argument(help="SKU: <provider>-<card>, with x8 for a machine of eight cards.")],
    provider: Annotated[str, typer.Option(help="The provider that sends the bill.")],
    per: Annotated[str, typer.Option(help="card_hour, machine_hour, gib_month, gib, request, kwh or one_off.")],
    currency: Annotated[str, typer.Option(help="Three-letter code.")],
    price: Annotated[str, typer.Option(help="Digits and a point, such as 2.99.")],
    source: Annotated[str, typer.Option(help="The page that states the price.")],
    valid_from: ValidFrom = "",
    valid_to: Annotated[
        str, typer.Option(help="First day on which the price no longer applies; default: until the next row.")
    ] = "",
    cards: Annotated[int, typer.Option(help="Number of cards of the priced machine; 0 for any number.")] = 0,
    purchase: Annotated[
        str, typer.Option(help="on_demand, spot, reserved, capacity_block, savings_plan, own.")
    ] = "on_demand",
    region: Annotated[str, typer.Option(help="Region in which the price applies.")] = "",
    kind: Annotated[str, typer.Option(help="list, contracted or effective.")] = "list",
    tax_included: Annotated[bool, typer.Option("--tax-included", help="The price includes tax.")] = False,
    tax_rate: Annotated[str, typer.Option(help="Tax rate as a share, such as 0.19 for 19 %.")] = "0",
    depreciation: Annotated[
        str, typer.Option(help="For own hardware priced per kWh: depreciation of the machine per hour, such as 0.05.")
    ] = "",
    note: Annotated[str, typer.Option(help="A note for readers.")] = "",
    folder: Folder = DEFAULT_FOLDER,
    dry_run: DryRun = False,
) -> None:
    """Add one price row to added.yaml in the price book. Existing rows are not changed."""
    from cost.prices.add import add_row

    today = today_utc().isoformat()
    raw = {"provider": provider, "sku": sku, "region": region, "per": per, "cards": cards, "purchase": purchase}
    raw |= {"currency": currency, "price": price, "tax_included": tax_included, "tax_rate": tax_rate}
    raw |= {"valid_from": valid_from or today, "valid_to": valid_to, "source": source, "day_read": today}
    raw |= {"note": note, "kind": kind, "depreciation": depreciation or None, "added": now_text()}
    with exit_on_error():
        row = read_row(raw, "the new row")
        if dry_run:
            print_json(row_body(row))
            return
        echo(f"added to {add_row(folder, row)}")


@prices_app.command("add-rate")
def add_exchange_rate(
    base: Annotated[str, typer.Argument(help="Currency of which one unit is priced, such as EUR.")],
    quote: Annotated[str, typer.Argument(help="Currency of the rate, such as USD.")],
    rate: Annotated[str, typer.Argument(help="Units of the second currency for one of the first, such as 1.1761.")],
    source: Annotated[str, typer.Option(help="The page that states the rate.")],
    day: Annotated[str, typer.Option(help="Day of the rate (UTC); default: today.")] = "",
    folder: Folder = DEFAULT_FOLDER,
    dry_run: DryRun = False,
) -> None:
    """Add one exchange rate to fx.yaml in the price book. Existing rates are not changed."""
    from cost.money import checked_currency
    from cost.periods import day_text
    from cost.prices.add import add_rate
    from cost.prices.book import parse_price, price_instant
    from cost.prices.fx import Rate

    today = today_utc().isoformat()
    with exit_on_error():
        first, second = checked_currency(base), checked_currency(quote)
        of_day = day_text(price_instant(day, "--day")) if day else today
        row = Rate(first, second, parse_price(rate, "rate"), of_day, source, today)
        if dry_run:
            print_json({name: str(value) for name, value in vars(row).items()})
            return
        echo(f"added to {add_rate(folder, row)}")

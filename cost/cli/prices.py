"""`python -m cost prices ...`: look at the price book, check it, add to it, import into it.

Commands only: every rule is in the modules they call. A command that fails says what is wrong and exits 2; `lint`
prints its findings and exits 1, or prints nothing and exits 0.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from cost.periods import instant_text
from cost.prices.book import (
    DEFAULT_FOLDER,
    TIME_UNITS,
    PriceBook,
    PriceError,
    PriceRow,
    as_mapping,
    hourly,
    price_instant,
    read_row,
)
from cost.reports.text_table import table_text

prices_app = typer.Typer(
    name="prices", help="The price book: list, show, lint, add, import.", no_args_is_help=True, add_completion=False
)
import_app = typer.Typer(
    help="Import a price list as a dated snapshot beside the price book.", no_args_is_help=True, add_completion=False
)
prices_app.add_typer(import_app, name="import")

FolderOption = Annotated[Path, typer.Option("--pricing", help="Folder of the price book.", show_default="conf/pricing")]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be written; write nothing.")]
FromOption = Annotated[str, typer.Option("--valid-from", help="Day from which the prices hold; default: today.")]
ROOT = DEFAULT_FOLDER.parents[1]


@contextmanager
def exit_on_error() -> Iterator[None]:
    """A price error is a message and exit code 2, not a traceback."""
    try:
        yield
    except PriceError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from error


def _today() -> date:
    return datetime.now(UTC).date()


def _now() -> str:
    return instant_text(time.time_ns())


def _plain(row: PriceRow) -> dict[str, Any]:
    return as_mapping(row) | {"hash": row.hash}


@prices_app.command("list")
def list_prices(
    sku: Annotated[str, typer.Option(help="Only SKUs that contain this text.")] = "",
    provider: Annotated[str, typer.Option(help="Only this provider.")] = "",
    folder: FolderOption = DEFAULT_FOLDER,
    as_json: JsonOption = False,
) -> None:
    """Every price row: SKU, price, per what, from when; `--json` and `show` say from where, too."""
    with exit_on_error():
        rows = [r for r in PriceBook.load(folder).rows if sku in r.sku and provider in ("", r.provider)]
    rows.sort(key=lambda r: (r.sku, r.purchase, r.region, r.from_ns))
    if as_json:
        print(json.dumps([_plain(r) for r in rows], indent=1))
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
    print(table_text([columns[i] for i in kept], [[line[i] for i in kept] for line in table], right=("price", "cards")))


@prices_app.command("show")
def show_price(
    sku: Annotated[str, typer.Argument(help="SKU, as in conf/machine.")],
    at: Annotated[
        str, typer.Option("--at", help="Moment, such as 2026-11-29 or 2026-11-29T08:00:00Z; default: now.")
    ] = "",
    purchase: Annotated[str, typer.Option(help="on_demand, spot, reserved, ...; default: the usual one.")] = "",
    region: Annotated[str, typer.Option(help="Region; default: the only one.")] = "",
    cards: Annotated[int, typer.Option(help="Cards of the machine, for the price of an hour of it.")] = 0,
    watts: Annotated[int, typer.Option(help="Watts of the machine, for prices per kWh.")] = 0,
    folder: FolderOption = DEFAULT_FOLDER,
    as_json: JsonOption = False,
) -> None:
    """The price of a SKU in force at a moment, and where it comes from."""
    with exit_on_error():
        at_ns = price_instant(at, "--at") if at else time.time_ns()
        row = PriceBook.load(folder).in_force(sku, at_ns, purchase=purchase or None, region=region or None)
        cards = cards or row.cards
        machine = ""
        if (row.per in TIME_UNITS and row.per != "kwh" and (cards or row.per == "machine_hour")) or (
            row.per == "kwh" and watts
        ):
            machine = str(hourly(row, cards, watts))
    body = _plain(row) | ({"machine_hour": machine} if machine else {})
    if as_json:
        print(json.dumps(body, indent=1))
        return
    for name, value in body.items():
        if value != "":
            print(f"{name:13} {value}")


@prices_app.command("lint")
def lint_prices(
    max_price_age_days: Annotated[int, typer.Option(help="Prices read longer ago than this are reported.")] = 180,
    folder: FolderOption = DEFAULT_FOLDER,
    machines: Annotated[
        Path, typer.Option(help="Folder of machine files whose SKUs must have a price.", show_default="conf/machine")
    ] = ROOT / "conf" / "machine",
    as_json: JsonOption = False,
) -> None:
    """What is wrong in the price book; silent when nothing is."""
    from cost.prices.billing import load_rules
    from cost.prices.lint import lint

    with exit_on_error():
        findings = lint(
            PriceBook.load(folder),
            today=_today(),
            max_age_days=max_price_age_days,
            rules=load_rules(folder),
            machine_folder=machines,
        )
    if as_json:
        print(json.dumps([asdict(f) for f in findings], indent=1))
    else:
        for finding in findings:
            print(finding)
    if findings:
        raise typer.Exit(1)


@prices_app.command("add")
def add_price(
    sku: Annotated[str, typer.Argument(help="SKU: <provider>-<card>, with x8 for a machine of eight.")],
    provider: Annotated[str, typer.Option(help="Who sends the bill.")],
    per: Annotated[str, typer.Option(help="card_hour, machine_hour, gib_month, gib, request, kwh or one_off.")],
    currency: Annotated[str, typer.Option(help="Three-letter code.")],
    price: Annotated[str, typer.Option(help="Digits and a point, such as 2.99.")],
    source: Annotated[str, typer.Option(help="The page the price stands on.")],
    valid_from: FromOption = "",
    valid_to: Annotated[str, typer.Option(help="Day from which it no longer holds; default: until the next row.")] = "",
    cards: Annotated[int, typer.Option(help="Cards of the machine priced; 0 for any number.")] = 0,
    purchase: Annotated[
        str, typer.Option(help="on_demand, spot, reserved, capacity_block, savings_plan, own.")
    ] = "on_demand",
    region: Annotated[str, typer.Option(help="Region in which it holds.")] = "",
    kind: Annotated[str, typer.Option(help="list, contracted or effective.")] = "list",
    tax_included: Annotated[bool, typer.Option("--tax-included", help="The price contains tax.")] = False,
    tax_rate: Annotated[str, typer.Option(help="Share of tax, such as 0.19.")] = "0",
    depreciation: Annotated[
        str, typer.Option(help="Own hardware per kWh: what the machine loses in an hour, such as 0.05.")
    ] = "",
    note: Annotated[str, typer.Option(help="What a reader should know.")] = "",
    folder: FolderOption = DEFAULT_FOLDER,
    dry_run: DryRunOption = False,
) -> None:
    """Adds one price row to added.yaml in the price book; rows that are there are not changed."""
    from cost.prices.add import add_row

    today = _today().isoformat()
    raw = {"provider": provider, "sku": sku, "region": region, "per": per, "cards": cards, "purchase": purchase}
    raw |= {"currency": currency, "price": price, "tax_included": tax_included, "tax_rate": tax_rate}
    raw |= {"valid_from": valid_from or today, "valid_to": valid_to, "source": source, "day_read": today}
    raw |= {"note": note, "kind": kind, "depreciation": depreciation or None, "added": _now()}
    with exit_on_error():
        row = read_row(raw, "the new row")
        if dry_run:
            print(json.dumps(_plain(row), indent=1))
            return
        print(f"added to {add_row(folder, row)}")


@import_app.command("skypilot")
def import_skypilot(
    path: Annotated[Path, typer.Argument(help="A catalogue file, such as verda_vms.csv.")],
    provider: Annotated[str, typer.Option(help="Provider, where the path does not say it.")] = "",
    version: Annotated[str, typer.Option(help="Version of the catalogue, such as v8 or a commit.")] = "",
    valid_from: FromOption = "",
    folder: FolderOption = DEFAULT_FOLDER,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Prices of one provider from a SkyPilot catalogue."""
    from cost.prices.importers import skypilot

    with exit_on_error():
        snapshot = skypilot.read(
            path, day_read=_today().isoformat(), valid_from=valid_from, provider=provider, version=version
        )
        _finish([snapshot], folder, dry_run, as_json)


@import_app.command("gpuhunt")
def import_gpuhunt(
    catalogue: Annotated[Path, typer.Argument(help="Folder of an unpacked gpuhunt catalogue.")],
    version: Annotated[str, typer.Option(help="Version, where the folder has no file `version`.")] = "",
    valid_from: FromOption = "",
    folder: FolderOption = DEFAULT_FOLDER,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Prices of every provider in a gpuhunt catalogue."""
    from cost.prices.importers import gpuhunt

    with exit_on_error():
        snapshots = gpuhunt.read(catalogue, day_read=_today().isoformat(), valid_from=valid_from, version=version)
        _finish(list(snapshots), folder, dry_run, as_json)


@import_app.command("aws")
def import_aws(
    instances: Annotated[list[str], typer.Argument(help="Instance types, such as p5.48xlarge.")],
    region: Annotated[str, typer.Option(help="AWS region.")] = "us-east-1",
    folder: FolderOption = DEFAULT_FOLDER,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """On-demand Linux prices from AWS's price list."""
    from cost.prices.importers import aws

    with exit_on_error():
        snapshot = aws.on_demand(
            instances, region=region, day_read=_today().isoformat(), pricing=aws.client("pricing", "us-east-1")
        )
        _finish([snapshot], folder, dry_run, as_json)


@import_app.command("aws-spot")
def import_aws_spot(
    instance: Annotated[str, typer.Argument(help="Instance type, such as p5.48xlarge.")],
    zone: Annotated[str, typer.Option(help="Zone, such as us-east-1f.")],
    cards: Annotated[int, typer.Option(help="Cards of the instance.")],
    start: Annotated[datetime, typer.Option(help="Start of the lease, UTC.")],
    end: Annotated[datetime, typer.Option(help="End of the lease, UTC.")],
    folder: FolderOption = DEFAULT_FOLDER,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """The spot prices of a zone over a span of time, with the one in force at its start."""
    from cost.prices.importers import aws

    with exit_on_error():
        snapshot = aws.spot_history(
            instance,
            cards=cards,
            zone=zone,
            start=start.replace(tzinfo=UTC),
            end=end.replace(tzinfo=UTC),
            day_read=_today().isoformat(),
            ec2=aws.client("ec2", zone.rstrip("abcdefghijklmnopqrstuvwxyz")),
        )
        _finish([snapshot], folder, dry_run, as_json)


def _finish(snapshots: list, folder: Path, dry_run: bool, as_json: bool) -> None:
    """Prints what was read and left out, and writes it unless this is a dry run."""
    from cost.prices.importers.snapshot import write

    summaries = []
    for found in snapshots:
        snapshot = replace(found, rows=tuple(replace(row, added=_now()) for row in found.rows))
        file = None if dry_run else write(snapshot, folder)
        state = "dry run" if dry_run else (str(file) if file else "already there")
        summary = {"name": snapshot.name, "source": snapshot.source, "version": snapshot.version}
        summary |= {"sha256": snapshot.sha256, "written": state, "reports": list(snapshot.reports)}
        summaries.append(summary | {"rows": [_plain(r) for r in snapshot.rows]})
    if as_json:
        print(json.dumps(summaries, indent=1))
        return
    for summary in summaries:
        print(f"{summary['name']}: {len(summary['rows'])} prices from {summary['source']} ({summary['written']})")
        print(f"  version {summary['version']}, sha256 {summary['sha256']}")
        for report in summary["reports"]:
            print(f"  {report}")
        for row in summary["rows"]:
            place = f"{row['sku']:32} {row['region']:16} {row['purchase']:10}"
            print(f"  {place} {row['price']:>10} {row['currency']}  {row['cards']} x {row['card'] or 'card'}")

"""`python -m cost prices import ...`: import price lists as dated snapshots beside the price book.

Tested in tests/cost/cli/test_prices.py.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from cost.cli.common import Json, echo, exit_on_error, print_json
from cost.cli.price_options import DryRun, Folder, ValidFrom, now_text, row_body, today_utc
from cost.prices.book import DEFAULT_FOLDER

import_app = typer.Typer(
    help="Import a price list as a dated snapshot beside the price book.", no_args_is_help=True, add_completion=False
)


@import_app.command("skypilot")
def import_skypilot(
    path: Annotated[Path, typer.Argument(help="A catalogue file, such as verda_vms.csv.")],
    provider: Annotated[str, typer.Option(help="Provider; default: from the name of the file.")] = "",
    version: Annotated[str, typer.Option(help="Version of the catalogue, such as v8 or a commit.")] = "",
    valid_from: ValidFrom = "",
    folder: Folder = DEFAULT_FOLDER,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Import the prices of one provider from a SkyPilot catalogue."""
    from cost.prices.importers import skypilot

    with exit_on_error():
        snapshot = skypilot.read(
            path, day_read=today_utc().isoformat(), valid_from=valid_from, provider=provider, version=version
        )
        _write_and_print([snapshot], folder, dry_run, as_json)


@import_app.command("gpuhunt")
def import_gpuhunt(
    catalogue: Annotated[Path, typer.Argument(help="Folder of an unpacked gpuhunt catalogue.")],
    version: Annotated[
        str, typer.Option(help="Version; default: the content of the file `version` in the folder.")
    ] = "",
    valid_from: ValidFrom = "",
    folder: Folder = DEFAULT_FOLDER,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Import the prices of all providers in a gpuhunt catalogue."""
    from cost.prices.importers import gpuhunt

    with exit_on_error():
        snapshots = gpuhunt.read(catalogue, day_read=today_utc().isoformat(), valid_from=valid_from, version=version)
        _write_and_print(list(snapshots), folder, dry_run, as_json)


@import_app.command("aws")
def import_aws(
    instances: Annotated[list[str], typer.Argument(help="Instance types, such as p5.48xlarge.")],
    region: Annotated[str, typer.Option(help="AWS region.")] = "us-east-1",
    folder: Folder = DEFAULT_FOLDER,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Import on-demand Linux prices from the price list of AWS."""
    from cost.prices.importers import aws

    with exit_on_error():
        snapshot = aws.on_demand(
            instances, region=region, day_read=today_utc().isoformat(), pricing=aws.client("pricing", "us-east-1")
        )
        _write_and_print([snapshot], folder, dry_run, as_json)


@import_app.command("aws-spot")
def import_aws_spot(
    instance: Annotated[str, typer.Argument(help="Instance type, such as p5.48xlarge.")],
    zone: Annotated[str, typer.Option(help="Zone, such as us-east-1f.")],
    cards: Annotated[int, typer.Option(help="Number of cards of the instance.")],
    start: Annotated[datetime, typer.Option(help="Start of the lease, UTC.")],
    end: Annotated[datetime, typer.Option(help="End of the lease, UTC.")],
    folder: Folder = DEFAULT_FOLDER,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Import the spot prices of a zone from one moment to another, with the price in force at the start."""
    from cost.prices.importers import aws

    with exit_on_error():
        snapshot = aws.spot_history(
            instance,
            cards=cards,
            zone=zone,
            start=start.replace(tzinfo=UTC),
            end=end.replace(tzinfo=UTC),
            day_read=today_utc().isoformat(),
            ec2=aws.client("ec2", zone.rstrip("abcdefghijklmnopqrstuvwxyz")),
        )
        _write_and_print([snapshot], folder, dry_run, as_json)


def _write_and_print(snapshots: list, folder: Path, dry_run: bool, as_json: bool) -> None:
    """Write the snapshots unless this is a dry run, and print their rows and what was left out."""
    from cost.prices.billing import load_rules
    from cost.prices.importers.snapshot import write
    from cost.prices.lint import without_rule

    rules, summaries = load_rules(folder), []
    for found in snapshots:
        snapshot = replace(found, rows=tuple(replace(row, added=now_text()) for row in found.rows))
        file = None if dry_run else write(snapshot, folder)
        state = "dry run" if dry_run else (str(file) if file else "already there")
        summary = {"name": snapshot.name, "source": snapshot.source, "version": snapshot.version}
        summary |= {"sha256": snapshot.sha256, "written": state, "reports": list(snapshot.reports)}
        summary["reports"] += [
            f"{finding.message}: leases of this provider are refused until then"
            for finding in without_rule(snapshot.rows, rules)
        ]
        summaries.append(summary | {"rows": [row_body(r) for r in snapshot.rows]})
    if as_json:
        print_json(summaries)
        return
    for summary in summaries:
        echo(f"{summary['name']}: {len(summary['rows'])} prices from {summary['source']} ({summary['written']})")
        echo(f"  version {summary['version']}, sha256 {summary['sha256']}")
        for report in summary["reports"]:
            echo(f"  {report}")
        for row in summary["rows"]:
            place = f"{row['sku']:32} {row['region']:16} {row['purchase']:10}"
            echo(f"  {place} {row['price']:>10} {row['currency']}  {row['cards']} x {row['card'] or 'card'}")

"""`python -m cost backup` and `python -m cost restore`: copies of the ledger in a file or in S3."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from cost.cli.common import (
    DEFAULT_ROOT,
    Db,
    Pricing,
    Root,
    echo,
    exit_on_error,
    ledger_location,
    open_ledger,
)

Endpoint = Annotated[str, typer.Option(help="URL of an S3 server other than AWS; default: boto3's own settings.")]
Region = Annotated[str, typer.Option(help="Region of the bucket; default: boto3's own settings.")]


def backup(
    to: Annotated[
        str | None, typer.Option("--to", help="Also upload ledger and price book to s3://bucket/prefix.")
    ] = None,
    endpoint_url: Endpoint = "",
    region: Region = "",
    root: Root = DEFAULT_ROOT,
    db: Db = None,
    pricing: Pricing = None,
) -> None:
    """Copy the ledger to a file beside it. One copy per day is kept. Works while sweeps run. Prints the path."""
    from cost.copies.s3 import parse_s3_url
    from cost.copies.s3_snapshot import upload_snapshot

    with open_ledger(root, db) as ledger:
        copy = ledger.backup()
        echo(copy or "This ledger is in a database server: use the backup of that server, or --to.")
        if to is not None:
            location = parse_s3_url(to, endpoint_url=endpoint_url, region=region)
            echo(upload_snapshot(ledger, location, pricing=pricing))


def restore(
    copy: Annotated[Path | None, typer.Argument(help="The copy to restore: a file ending in .bak.")] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", help="Restore from S3: s3://bucket/prefix for the latest copy, or .../VERSION."),
    ] = None,
    endpoint_url: Endpoint = "",
    region: Region = "",
    root: Root = DEFAULT_ROOT,
    db: Db = None,
) -> None:
    """Restore the ledger from a copy. The previous ledger file is kept under another name; the database of a server
    (`--db postgresql://...`) must be empty."""
    from cost.copies.restore import restore_ledger
    from cost.copies.s3 import parse_s3_url
    from cost.copies.s3_snapshot import restore_snapshot
    from cost.ledger.database import shown_place
    from cost.records import LedgerError

    price_folder, target = None, ledger_location(root, db)
    with exit_on_error():
        if (copy is None) == (source is None):
            raise LedgerError("name one copy: a file ending in .bak, or --from s3://bucket/prefix")
        if source is not None:
            location = parse_s3_url(source, endpoint_url=endpoint_url, region=region)
            restored, previous, price_folder = restore_snapshot(location, target, root)
        else:
            assert copy is not None
            restored, previous = str(copy), restore_ledger(copy, target)
    kept = f" The previous ledger is kept as {previous}." if previous else ""
    echo(f"Restored {shown_place(target)} from {restored}.{kept}")
    if price_folder is not None:
        echo(f"Its price book is in {price_folder}; use it with --pricing {shlex.quote(str(price_folder))}")

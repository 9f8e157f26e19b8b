"""The commands that move a sweep to another machine and back: push, pack, unpack, merge.

Tested in tests/sweeps/storage/test_pack.py and tests/sweeps/storage/test_uploads.py.
"""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cost.commands import command_text
from sweeps.cli.common import (
    DEFAULT_ROOT,
    Db,
    Endpoint,
    Json,
    Region,
    Root,
    Sweep,
    chosen,
    echo,
    exit_on_error,
    ledger_location,
    open_ledger,
    print_json,
)

if TYPE_CHECKING:
    from cost.copies.merge import MergeResult
    from cost.ledger.ledger import Ledger

Cache = Annotated[Path | None, typer.Option(help="Converted models (paths.cache); default: ROOT/cache.")]


def add_to(app: typer.Typer) -> None:
    """Add the four commands to `app`."""
    for command, example in (
        (push, "python -m sweeps push last"),
        (pack, "python -m sweeps pack --out box.tar  |  python -m sweeps pack --out s3://team/box.tar --no-cache"),
        (unpack, "python -m sweeps unpack box.tar  |  python -m sweeps unpack s3://team/box.tar --take-prices"),
        (merge, "python -m sweeps merge box.tar  |  python -m sweeps merge /mnt/box/runs/ledger.db --dry-run"),
    ):
        app.command(epilog=f"Examples:  {example}")(command)


def push(
    sweep: Sweep = "last",
    to: Annotated[str | None, typer.Option(help="s3://bucket/prefix; default: as the sweep was configured.")] = None,
    endpoint_url: Endpoint = "",
    region: Region = "",
    root: Root = DEFAULT_ROOT,
    db: Db = None,
) -> None:
    """Upload a sweep's checkpoints, artifacts and a snapshot of the ledger to its bucket, now. Repeatable."""
    import dataclasses

    from cost.copies.s3 import parse_s3_url
    from cost.copies.s3_snapshot import upload_snapshot
    from cost.records import LedgerError
    from sweeps.config.overrides import CONF_DIR
    from sweeps.journal.journal import load
    from sweeps.storage.sweep_bucket import bucket_of as bucket_of_storage
    from sweeps.storage.sweep_bucket import storage_of
    from sweeps.storage.uploads import push as upload
    from sweeps.storage.uploads import unsaved_text

    with open_ledger(root, db) as ledger:
        sweep_id = chosen(ledger, sweep)
        storage = storage_of(load(ledger, sweep_id))
        if to is not None:
            at = parse_s3_url(to, endpoint_url=endpoint_url, region=region)
            where = {"bucket": at.name, "prefix": at.prefix, "endpoint_url": endpoint_url, "region": region}
            storage = dataclasses.replace(storage, **where)
        if storage.bucket is None:
            raise LedgerError(f"{sweep_id} was run with storage=local: name a bucket with --to s3://bucket/prefix")
        left = upload(storage, ledger, sweep_id, root / sweep_id, lambda text: echo(text, err=True))
        upload_snapshot(ledger, bucket_of_storage(storage), pricing=CONF_DIR / "pricing")
    if left:
        echo(unsaved_text(sweep_id, left, ledger.place), err=True)
        raise typer.Exit(1)
    echo(f"{sweep_id}: everything is uploaded to {bucket_of_storage(storage).url}")


def pack(
    out: Annotated[str, typer.Option(help="The archive: a file, or s3://bucket/NAME.tar.")] = "box.tar",
    cache: Cache = None,
    with_cache: Annotated[bool, typer.Option("--with-cache/--no-cache", help="Include converted models.")] = True,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints/--no-checkpoints", help="Include each trial's newest checkpoint.")
    ] = True,
    endpoint_url: Endpoint = "",
    region: Region = "",
    root: Root = DEFAULT_ROOT,
    db: Db = None,
) -> None:
    """Write one archive for another machine: ledger, configurations, checkpoints, caches, price book."""
    from sweeps.storage.pack import pack as write

    with open_ledger(root, db, write=True) as ledger:
        folder = cache or root / "cache"
        packed = write(
            ledger,
            root,
            out,
            cache=folder if with_cache and folder.is_dir() else None,
            with_checkpoints=checkpoints,
            endpoint_url=endpoint_url,
            region=region,
        )
    what = f"{len(packed.sweeps)} sweeps, {packed.checkpoints} checkpoints, {packed.size_bytes / 2**20:.1f} MiB"
    echo(f"{packed.place}: {what}")
    for note in packed.notes:
        echo(f"  {note}")
    archive = packed.place if "://" in out else Path(out).name
    echo(f"On the other machine:  {shlex.join(['python', '-m', 'sweeps', 'unpack', archive])}")


def unpack(
    archive: Annotated[str, typer.Argument(help="An archive of `sweeps pack`: a file, or s3://bucket/NAME.tar.")],
    cache: Cache = None,
    take_prices: Annotated[
        bool, typer.Option("--take-prices", help="Replace this machine's price book with the archive's.")
    ] = False,
    endpoint_url: Endpoint = "",
    region: Region = "",
    root: Root = DEFAULT_ROOT,
    db: Db = None,
) -> None:
    """Unpack an archive on this machine, so that the next stage finds its open gate. Repeatable."""
    from sweeps.config.suggestions import quoted_text
    from sweeps.storage import unpack as unpacking

    with exit_on_error(), unpacking.open_archive(archive, root, endpoint_url=endpoint_url, region=region) as source:
        done = unpacking.unpack(
            source,
            root,
            ledger_location(root, db),
            cache=cache or root / "cache",
            take_prices=take_prices,
            name=archive,
        )
    echo(f"{root}: {len(done.sweeps)} sweeps, {done.files} files put in place")
    for path in done.not_replaced:
        echo(f"  not replaced, since it differs here: {path}")
    if done.prices is not None and not take_prices:
        names = ", ".join(done.differing_prices)
        echo(f"  the archive's price book differs ({names}): it is in {done.prices}; --take-prices uses it here")
    with open_ledger(root, db) as ledger:
        stage = _stage_above(ledger)
    status = command_text("sweeps", "status", place=ledger.place)
    place = "" if root == DEFAULT_ROOT else f" {quoted_text('paths.root', str(root))}"
    plan = f"  |  python sweep.py +stage={stage}{place} dry_run=true" if stage else ""
    echo(f"Next:  {status}{plan}")


def merge(
    source: Annotated[
        str,
        typer.Argument(help="An archive of `sweeps pack`, a ledger's file or URL, or a snapshot s3://bucket/prefix."),
    ],
    lost: Annotated[bool, typer.Option("--lost", help="That machine is gone: close its open attempts.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be added, and change nothing.")] = False,
    endpoint_url: Endpoint = "",
    region: Region = "",
    root: Root = DEFAULT_ROOT,
    db: Db = None,
    as_json: Json = False,
) -> None:
    """Merge the ledger and journal of another machine into this one, without duplicates, in one transaction."""
    from cost.copies.merge import merge_ledger
    from sweeps.storage import unpack as unpacking

    with open_ledger(root, db, write=True) as ledger, ExitStack() as stack:
        if source.endswith(".tar"):
            archive = stack.enter_context(
                unpacking.open_archive(source, root, endpoint_url=endpoint_url, region=region)
            )
            done = unpacking.merge_archive(ledger, archive, root, lost=lost, dry=dry_run)
        else:
            other: str | Path = source
            if source.startswith("s3://"):
                at = unpacking.open_snapshot(source, root, endpoint_url=endpoint_url, region=region)
                other = stack.enter_context(at)
            done = merge_ledger(ledger, other, lost=lost, dry=dry_run)
    _print_merged(done, ledger.place, dry_run, as_json)


def _print_merged(done: MergeResult, place: str, dry: bool, as_json: bool) -> None:
    if as_json:
        print_json({"added": dict(done.added), "streams": list(done.streams), "dry_run": dry})
        return
    if not done.added:
        echo("Nothing to add: this ledger has everything.")
        return
    rows = ", ".join(f"{count} {table}" for table, count in sorted(done.added.items()))
    echo(f"{'Would be added' if dry else 'Added'}: {rows}")
    for stream in done.streams:
        echo(f"  {stream}")
    if done.closed_as_lost:
        echo(f"  {done.closed_as_lost} open attempts were closed at their last heartbeat")
    if done.estimates_dropped:
        echo(f"  {done.estimates_dropped} estimated ends were skipped: the exact ends are known here")
    if not dry:
        check, track = command_text("cost", "check", place=place), command_text("sweeps", "track", "all", place=place)
        echo(f"Next:  {check}  |  {track}")


def _stage_above(ledger: Ledger) -> str:
    """The stage after the newest open gate; empty: no gate is open, or it is the last stage's."""
    from sweeps.journal.journal import decisions, replay, sweep_ids

    for sweep_id in reversed(sweep_ids(ledger)):
        record = replay(sweep_id, decisions(ledger, sweep_id))
        if record.gate is not None and record.gate.open:
            return record.config["stage"]["next_stage"]
    return ""

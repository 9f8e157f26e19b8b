"""The ledger and the price book as versioned snapshots in an S3 bucket, and the way back from one.

A snapshot is a folder of its own: the ledger as a SQLite file, the price book as it was, and, last, `manifest.json`
with the size and sha256 of each, which is never overwritten. Without a manifest there is no snapshot. Nothing is ever
deleted there.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any

from cost.clock import SystemClock
from cost.copies.s3 import Bucket, BucketError, put_if_absent, s3_client, sha256_of
from cost.ledger.ledger import Ledger
from cost.periods import instant_text
from cost.prices.book import DEFAULT_FOLDER

LEDGER, MANIFEST, PRICES = "ledger.db", "manifest.json", "pricing"
_NAME = re.compile(rf"{re.escape(LEDGER)}|{PRICES}(/[\w.-]+)+\.yaml")


def upload_snapshot(ledger: Ledger, place: Bucket, *, pricing: str | Path | None = None, tries: int = 2) -> str:
    """Put a snapshot of the ledger and of the price book in a bucket; returns its URL.

    Each holds everything, so that one that failed is made good by the next. `tries`: how often each request is made;
    a person who waits for a sweep's end need not wait for more than one.

    Raises:
        BucketError: the bucket does not answer, or refuses.
        StoreError: the ledger cannot be copied.
    """
    with tempfile.TemporaryDirectory(prefix="ledger-archive-") as folder:
        files = {LEDGER: ledger.copy_to(Path(folder) / LEDGER)}
        prices = Path(pricing) if pricing is not None else DEFAULT_FOLDER
        files |= {f"{PRICES}/{p.relative_to(prices).as_posix()}": p for p in sorted(prices.rglob("*.yaml"))}
        listed = [{"name": name, "bytes": p.stat().st_size, "sha256": sha256_of(p)} for name, p in files.items()]
        # The world's time, not the ledger's: a simulated sweep is ahead of it, and the latest snapshot has to be last.
        made_at = instant_text(SystemClock().utc_ns())
        content = hashlib.sha256(json.dumps(listed).encode()).hexdigest()
        version = f"{re.sub('[-:]', '', made_at)}-{content[:12]}"
        manifest = {"version": version, "made_at": made_at, "files": listed}
        with s3_client(place, tries) as client:
            for name, path in files.items():
                client.upload_file(str(path), place.name, place.key(version, name))
            put_if_absent(client, place, place.key(version, MANIFEST), json.dumps(manifest, indent=1).encode())
    return f"{place.url}/{version}"


def download_snapshot(place: Bucket, folder: Path) -> tuple[str, Path, Path]:
    """Bring the snapshot at a place, or the latest below it, into a folder.

    Returns its version, the ledger's file and the price book's folder.

    Raises:
        BucketError: there is none, a file of it is missing or not what the manifest says, or the bucket refuses.
    """
    with s3_client(place) as client:
        key = _manifest_key(client, place)
        manifest = _read_manifest(client, place, key)
        for file in manifest["files"]:
            target = folder / file["name"]
            target.parent.mkdir(parents=True, exist_ok=True)
            source = str(PurePosixPath(key).parent / file["name"])
            client.download_file(place.name, source, str(target))
            if target.stat().st_size != file["bytes"] or sha256_of(target) != file["sha256"]:
                raise BucketError(
                    f"s3://{place.name}/{source} is not the file that its manifest names; take another version"
                )
    return manifest["version"], folder / LEDGER, folder / PRICES


def restore_snapshot(place: Bucket, ledger: str | Path, beside: Path) -> tuple[str, Path | None, Path]:
    """Put a snapshot's ledger in a ledger's place (a file's, or an empty database's on a server), and its price book
    in the folder `beside`.

    Returns the version, where the ledger went that stood there (None: there was none), and the price book's folder.

    Raises:
        BucketError: as `download_snapshot`.
        StoreError: it is no whole ledger, a driver is writing to the ledger now, or the database is not empty.
    """
    from cost.copies.restore import restore_ledger as put_back

    with tempfile.TemporaryDirectory(prefix="ledger-restore-") as folder:
        version, copy, prices = download_snapshot(place, Path(folder))
        aside = put_back(copy, ledger)
        target = beside / f"{PRICES}-{version}"
        if not target.exists():
            beside.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
            shutil.copytree(prices, partial)
            os.replace(partial, target)
    return version, aside, target


def _manifest_key(client: Any, place: Bucket) -> str:
    """The manifest of the place itself, or of the latest version right below it; nothing else there counts."""
    below = f"{place.prefix.strip('/')}/" if place.prefix.strip("/") else ""
    folders = [below]
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=place.name, Prefix=below, Delimiter="/"):
        folders += [found["Prefix"] for found in page.get("CommonPrefixes", [])]
    for folder in (folders[0], *sorted(folders[1:], reverse=True)):
        key = f"{folder}{MANIFEST}"
        found = client.list_objects_v2(Bucket=place.name, Prefix=key, MaxKeys=1).get("Contents", [])
        if found and found[0]["Key"] == key:
            return key
    raise BucketError(f"there is no snapshot at {place.url}; `python -m cost backup --to {place.url}` makes one")


def _read_manifest(client: Any, place: Bucket, key: str) -> dict[str, Any]:
    where = f"s3://{place.name}/{key}"
    try:
        manifest = json.loads(client.get_object(Bucket=place.name, Key=key)["Body"].read())
        names = [file["name"] for file in manifest["files"]]
        whole = all(isinstance(f["bytes"], int) and len(f["sha256"]) == 64 for f in manifest["files"])
        version = manifest["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise BucketError(f"{where} is no manifest of a snapshot: {error!r}") from error
    # A name decides where a file is written: nothing but what `upload_snapshot` writes is believed.
    odd = [n for n in names if not _NAME.fullmatch(n) or ".." in n.split("/")]
    if odd or not whole or LEDGER not in names or not re.fullmatch(r"[\w-]+", version):
        raise BucketError(f"{where} is no manifest of a snapshot" + (f": {odd[0]!r} is no file of one" if odd else ""))
    return manifest

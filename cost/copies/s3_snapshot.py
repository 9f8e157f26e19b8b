"""Versioned snapshots of ledger and price book in an S3 bucket: upload, download and restore.

A snapshot is a folder with the ledger as a SQLite file, the price book, and `manifest.json` with the size and sha256 of
each file. The manifest is written last and never overwritten; a folder without a manifest is not a snapshot. Nothing is
ever deleted.
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


def upload_snapshot(ledger: Ledger, location: Bucket, *, pricing: str | Path | None = None, tries: int = 2) -> str:
    """Upload a snapshot of ledger and price book. Returns its URL.

    Every snapshot is complete, so the next one makes up for a failed upload. `tries`: attempts per request; with fewer
    tries the upload ends earlier if the bucket does not answer.

    Raises:
        BucketError: the bucket does not answer, or refuses.
        StoreError: the ledger cannot be copied.
    """
    with tempfile.TemporaryDirectory(prefix="ledger-archive-") as folder:
        files = {LEDGER: ledger.copy_to(Path(folder) / LEDGER)}
        prices = Path(pricing) if pricing is not None else DEFAULT_FOLDER
        files |= {f"{PRICES}/{p.relative_to(prices).as_posix()}": p for p in sorted(prices.rglob("*.yaml"))}
        listed = [{"name": name, "bytes": p.stat().st_size, "sha256": sha256_of(p)} for name, p in files.items()]
        # Real time, because versions are ordered by it; the time of a simulated sweep is ahead of real time.
        made_at = instant_text(SystemClock().utc_ns())
        content = hashlib.sha256(json.dumps(listed).encode()).hexdigest()
        version = f"{re.sub('[-:]', '', made_at)}-{content[:12]}"
        manifest = {"version": version, "made_at": made_at, "files": listed}
        with s3_client(location, tries) as client:
            for name, path in files.items():
                client.upload_file(str(path), location.name, location.key(version, name))
            put_if_absent(client, location, location.key(version, MANIFEST), json.dumps(manifest, indent=1).encode())
    return f"{location.url}/{version}"


def download_snapshot(location: Bucket, folder: Path) -> tuple[str, Path, Path]:
    """Download the snapshot at a location, or the latest one below it, into a folder.

    Returns the version, the file of the ledger and the folder of the price book.

    Raises:
        BucketError: there is no snapshot, a file is missing or differs from the manifest, or the bucket refuses.
    """
    with s3_client(location) as client:
        key = _manifest_key(client, location)
        manifest = _read_manifest(client, location, key)
        for file in manifest["files"]:
            target = folder / file["name"]
            target.parent.mkdir(parents=True, exist_ok=True)
            source = str(PurePosixPath(key).parent / file["name"])
            client.download_file(location.name, source, str(target))
            if target.stat().st_size != file["bytes"] or sha256_of(target) != file["sha256"]:
                raise BucketError(f"s3://{location.name}/{source} differs from its manifest; choose another version")
    return manifest["version"], folder / LEDGER, folder / PRICES


def restore_snapshot(location: Bucket, ledger: str | Path, folder_of_prices: Path) -> tuple[str, Path | None, Path]:
    """Restore the ledger of a snapshot to a file or to the empty database of a server, and its price book to a new
    folder in `folder_of_prices`.

    Returns the version, the new path of the previous ledger file (None: there was none), and the price book's folder.

    Raises:
        BucketError: as `download_snapshot`.
        StoreError: as `cost.copies.restore.restore_ledger`.
    """
    from cost.copies.restore import restore_ledger

    with tempfile.TemporaryDirectory(prefix="ledger-restore-") as folder:
        version, copy, prices = download_snapshot(location, Path(folder))
        previous = restore_ledger(copy, ledger)
        target = folder_of_prices / f"{PRICES}-{version}"
        if not target.exists():
            folder_of_prices.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
            shutil.copytree(prices, partial)
            os.replace(partial, target)
    return version, previous, target


def _manifest_key(client: Any, location: Bucket) -> str:
    """The key of the manifest at the location itself, or of the latest version one level below."""
    below = f"{location.prefix.strip('/')}/" if location.prefix.strip("/") else ""
    folders = [below]
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=location.name, Prefix=below, Delimiter="/"):
        folders += [found["Prefix"] for found in page.get("CommonPrefixes", [])]
    for folder in (folders[0], *sorted(folders[1:], reverse=True)):
        key = f"{folder}{MANIFEST}"
        found = client.list_objects_v2(Bucket=location.name, Prefix=key, MaxKeys=1).get("Contents", [])
        if found and found[0]["Key"] == key:
            return key
    raise BucketError(
        f"there is no snapshot at {location.url}; create one with: python -m cost backup --to {location.url}"
    )


def _read_manifest(client: Any, location: Bucket, key: str) -> dict[str, Any]:
    where = f"s3://{location.name}/{key}"
    try:
        manifest = json.loads(client.get_object(Bucket=location.name, Key=key)["Body"].read())
        names = [file["name"] for file in manifest["files"]]
        complete = all(isinstance(f["bytes"], int) and len(f["sha256"]) == 64 for f in manifest["files"])
        version = manifest["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise BucketError(f"{where} is not the manifest of a snapshot: {error!r}") from error
    # A name decides where a file is written, so only names that `upload_snapshot` writes are accepted.
    unexpected = [n for n in names if not _NAME.fullmatch(n) or ".." in n.split("/")]
    if unexpected or not complete or LEDGER not in names or not re.fullmatch(r"[\w-]+", version):
        raise BucketError(
            f"{where} is not the manifest of a snapshot"
            + (f": unexpected file {unexpected[0]!r}" if unexpected else "")
        )
    return manifest

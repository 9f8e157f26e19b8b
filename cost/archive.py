"""The ledger and the price book as versioned snapshots in an S3 bucket, and the way back from one.

A snapshot is a folder of its own: the ledger as a SQLite file, the price book as it was, and, last, `manifest.json`
with the size and sha256 of each, which is never overwritten. Without a manifest there is no snapshot. Nothing is ever
deleted there. Credentials are boto3's own business: none is asked for, kept or printed here.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from cost.clock import SystemClock
from cost.driver import Driver
from cost.prices import DEFAULT_FOLDER, instant_text
from cost.records import LedgerError

LEDGER, MANIFEST, PRICES = "ledger.db", "manifest.json", "pricing"
_URL = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(?P<prefix>.*))?")
_NAME = re.compile(rf"{re.escape(LEDGER)}|{PRICES}(/[\w.-]+)+\.yaml")
_CONNECT_SECONDS, _READ_SECONDS, _TRIES = 5, 30, 2


class ArchiveError(LedgerError):
    """The bucket cannot be reached or refuses, or what lies there is no whole snapshot."""


@dataclass(frozen=True)
class Bucket:
    """Where snapshots lie. An empty endpoint is AWS itself; an empty region is boto3's own choice."""

    name: str
    prefix: str = ""
    endpoint_url: str = ""
    region: str = ""

    @property
    def url(self) -> str:
        return "s3://" + "/".join(filter(None, (self.name, self.prefix.strip("/"))))

    def key(self, *parts: str) -> str:
        return "/".join(filter(None, (self.prefix.strip("/"), *parts)))


def bucket_of(url: str, *, endpoint_url: str = "", region: str = "") -> Bucket:
    """The place that `s3://bucket/prefix` names. Raises ArchiveError."""
    found = _URL.fullmatch(url)
    if found is None:
        raise ArchiveError(f"{url!r} is no place in S3; write s3://bucket/prefix")
    return Bucket(found["bucket"], (found["prefix"] or "").strip("/"), endpoint_url, region)


def archive(ledger: Driver, place: Bucket, *, pricing: str | Path | None = None) -> str:
    """Put a snapshot of the ledger and of the price book in a bucket; returns its URL.

    Each holds everything, so that one that failed is made good by the next.

    Raises:
        ArchiveError: the bucket does not answer, or refuses.
        StoreError: the ledger cannot be copied.
    """
    with tempfile.TemporaryDirectory(prefix="ledger-archive-") as folder:
        files = {LEDGER: ledger.copy_to(Path(folder) / LEDGER)}
        prices = Path(pricing) if pricing is not None else DEFAULT_FOLDER
        files |= {f"{PRICES}/{p.relative_to(prices).as_posix()}": p for p in sorted(prices.rglob("*.yaml"))}
        listed = [{"name": name, "bytes": p.stat().st_size, "sha256": _sha256(p)} for name, p in files.items()]
        # The world's time, not the ledger's: a simulated sweep is ahead of it, and the latest snapshot has to be last.
        made_at = instant_text(SystemClock().utc_ns())
        content = hashlib.sha256(json.dumps(listed).encode()).hexdigest()
        version = f"{re.sub('[-:]', '', made_at)}-{content[:12]}"
        manifest = {"version": version, "made_at": made_at, "files": listed}
        with _asking(place) as client:
            for name, path in files.items():
                client.upload_file(str(path), place.name, place.key(version, name))
            _put_new(client, place, place.key(version, MANIFEST), json.dumps(manifest, indent=1).encode())
    return f"{place.url}/{version}"


def _put_new(client: Any, place: Bucket, key: str, body: bytes) -> None:
    """Write what must not be there yet. Of two that were made at once, of the same content, one is enough."""
    from botocore.exceptions import ClientError

    try:
        client.put_object(Bucket=place.name, Key=key, Body=body, IfNoneMatch="*")
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") not in ("PreconditionFailed", "412"):
            raise
        if client.get_object(Bucket=place.name, Key=key)["Body"].read() != body:
            raise ArchiveError(
                f"{place.url}: {key} is there already, with another content; it was left alone"
            ) from error


def fetch(place: Bucket, folder: Path) -> tuple[str, Path, Path]:
    """Bring the snapshot at a place, or the latest below it, into a folder.

    Returns its version, the ledger's file and the price book's folder.

    Raises:
        ArchiveError: there is none, a file of it is missing or not what the manifest says, or the bucket refuses.
    """
    with _asking(place) as client:
        key = _manifest_key(client, place)
        manifest = _read_manifest(client, place, key)
        for file in manifest["files"]:
            target = folder / file["name"]
            target.parent.mkdir(parents=True, exist_ok=True)
            source = str(PurePosixPath(key).parent / file["name"])
            client.download_file(place.name, source, str(target))
            if target.stat().st_size != file["bytes"] or _sha256(target) != file["sha256"]:
                raise ArchiveError(
                    f"s3://{place.name}/{source} is not the file that its manifest names; take another version"
                )
    return manifest["version"], folder / LEDGER, folder / PRICES


def restore(place: Bucket, ledger: Path) -> tuple[str, Path | None, Path]:
    """Put a snapshot's ledger in a ledger's place, and its price book beside it.

    Returns the version, where the ledger went that stood there (None: there was none), and the price book's folder.

    Raises:
        ArchiveError: as `fetch`.
        StoreError: it is no whole ledger, or a driver is writing to the ledger now.
    """
    from cost.backup import restore as put_back

    with tempfile.TemporaryDirectory(prefix="ledger-restore-") as folder:
        version, copy, prices = fetch(place, Path(folder))
        aside = put_back(copy, ledger)
        target = ledger.parent / f"{PRICES}-{version}"
        if not target.exists():
            partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
            shutil.copytree(prices, partial)
            os.replace(partial, target)
    return version, aside, target


def _manifest_key(client: Any, place: Bucket) -> str:
    """The manifest of the place itself, or of the latest version below it."""
    below = place.key("")
    found = []
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=place.name, Prefix=below):
        found += [o["Key"] for o in page.get("Contents", []) if o["Key"].endswith(f"/{MANIFEST}")]
    depth = len(PurePosixPath(below).parts)
    versions = sorted(key for key in found if len(PurePosixPath(key).parts) in (depth + 1, depth + 2))
    own = place.key(MANIFEST)
    if own in versions:
        return own
    if not versions:
        raise ArchiveError(f"there is no snapshot at {place.url}; `python -m cost backup --to {place.url}` makes one")
    return versions[-1]


def _read_manifest(client: Any, place: Bucket, key: str) -> dict[str, Any]:
    where = f"s3://{place.name}/{key}"
    try:
        manifest = json.loads(client.get_object(Bucket=place.name, Key=key)["Body"].read())
        names = [file["name"] for file in manifest["files"]]
        whole = all(isinstance(f["bytes"], int) and len(f["sha256"]) == 64 for f in manifest["files"])
        version = manifest["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise ArchiveError(f"{where} is no manifest of a snapshot: {error!r}") from error
    # A name decides where a file is written: nothing but what `archive` writes is believed.
    odd = [n for n in names if not _NAME.fullmatch(n) or ".." in n.split("/")]
    if odd or not whole or LEDGER not in names or not re.fullmatch(r"[\w-]+", version):
        raise ArchiveError(f"{where} is no manifest of a snapshot" + (f": {odd[0]!r} is no file of one" if odd else ""))
    return manifest


@contextmanager
def _asking(place: Bucket) -> Iterator[Any]:
    """A client of the bucket; what it refuses is an ArchiveError."""
    from boto3 import Session
    from boto3.exceptions import Boto3Error
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    config = Config(
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        retries={"total_max_attempts": _TRIES},
        # Other servers than AWS know neither host names per bucket nor AWS's newer checksums: the manifest has its own.
        s3={"addressing_style": "path" if place.endpoint_url else "auto"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    try:
        client = Session().client(
            "s3", endpoint_url=place.endpoint_url or None, region_name=place.region or None, config=config
        )
        yield client
    except NoCredentialsError as error:
        raise ArchiveError(
            f"{place.url}: there are no credentials; give them as boto3 expects them (AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or the machine's role)"
        ) from error
    except (BotoCoreError, ClientError, Boto3Error, ValueError) as error:
        raise ArchiveError(f"{place.url}: {error}") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""A location in an S3 bucket: its name, and a client that raises BucketError. The content is not known here.

boto3 finds the credentials; none is asked for, stored or printed. Connections, reads and tries have time limits.

Tested in tests/cost/copies/test_s3_snapshot.py.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from cost.records import LedgerError

_URL = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(?P<prefix>.*))?")
_CONNECT_SECONDS, _READ_SECONDS = 3, 30


class BucketError(LedgerError):
    """The bucket does not answer or refuses, or its content is not as expected."""


@dataclass(frozen=True)
class Bucket:
    """A bucket and a prefix. An empty endpoint means AWS; an empty region means boto3's configured region."""

    name: str
    prefix: str = ""
    endpoint_url: str = ""
    region: str = ""

    @property
    def url(self) -> str:
        return "s3://" + "/".join(filter(None, (self.name, self.prefix.strip("/"))))

    def key(self, *parts: str) -> str:
        return "/".join(filter(None, (self.prefix.strip("/"), *parts)))


def parse_s3_url(url: str, *, endpoint_url: str = "", region: str = "") -> Bucket:
    """The location that `s3://bucket/prefix` names. Raises BucketError."""
    found = _URL.fullmatch(url)
    if found is None:
        raise BucketError(f"{url!r} is not a location in S3; write s3://bucket/prefix")
    return Bucket(found["bucket"], (found["prefix"] or "").strip("/"), endpoint_url, region)


@contextmanager
def s3_client(place: Bucket, tries: int = 2) -> Iterator[Any]:
    """A client of the bucket. Each request is tried `tries` times with growing waits; errors become BucketError."""
    from boto3 import Session
    from boto3.exceptions import Boto3Error
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    config = Config(
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        retries={"total_max_attempts": tries, "mode": "standard"},
        # Servers other than AWS support neither host names per bucket nor AWS's newer checksums.
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
        raise BucketError(
            f"{place.url}: there are no credentials; give them as boto3 expects them (AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or the machine's role)"
        ) from error
    except (BotoCoreError, ClientError, Boto3Error, ValueError) as error:
        raise BucketError(f"{place.url}: {error}") from error


def object_sizes(client: Any, place: Bucket, *parts: str) -> dict[str, int]:
    """Every object below a prefix, by its key after it, with its size in bytes; in order of key."""
    below = place.key(*parts) + "/"
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=place.name, Prefix=below)
    return {o["Key"].removeprefix(below): o["Size"] for page in pages for o in page.get("Contents", [])}


def put_if_absent(client: Any, place: Bucket, key: str, body: bytes) -> None:
    """Write an object that must not exist yet. If it exists with the same content, nothing is written.

    Raises:
        BucketError: it exists with other content.
    """
    from botocore.exceptions import ClientError

    try:
        client.put_object(Bucket=place.name, Key=key, Body=body, IfNoneMatch="*")
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") not in ("PreconditionFailed", "412"):
            raise
        if client.get_object(Bucket=place.name, Key=key)["Body"].read() != body:
            raise BucketError(f"{place.url}: {key} exists with other content and was not changed") from error


def sha256_of(file: Path | BinaryIO) -> str:
    """The sha256 of a file, or of an open file from its current position to its end."""
    if isinstance(file, Path):
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]

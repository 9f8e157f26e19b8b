"""The S3 bucket of a sweep: its location and retention from the configuration, and requests with retries.

Tested in tests/sweeps/storage/test_uploads.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from cost.copies.s3 import Bucket, BucketError, s3_client
from rl.codec import from_json
from sweeps.config.types import StorageConfig
from sweeps.journal.journal import SweepRecord
from sweeps.storage.s3_checkpoints import Place, Retention

T = TypeVar("T")

REQUEST_TRIES = 5
"""Tries of one request by boto3, with growing pauses."""
MAX_FAILURES = 3
"""Failures in a row after which an operation gives up, while a command waits for it."""


def bucket_of(storage: StorageConfig) -> Bucket:
    assert storage.bucket is not None
    return Bucket(storage.bucket, storage.prefix, storage.endpoint_url, storage.region)


def place_of(storage: StorageConfig, sweep_id: str) -> Place:
    return Place(bucket_of(storage), sweep_id)


def retention_of(storage: StorageConfig) -> Retention:
    return Retention(storage.keep_last, storage.keep_best, storage.keep_first)


def storage_of(record: SweepRecord) -> StorageConfig:
    """As the sweep was configured."""
    return from_json(StorageConfig, record.config["storage"])


def check_bucket(storage: StorageConfig) -> None:
    """Check that the bucket exists and accepts the credentials. A bucket that does not answer now is no error.

    Raises:
        BucketError: the bucket refuses access, or there are no credentials.
    """
    from botocore.exceptions import ClientError, NoCredentialsError

    if storage.bucket is None:
        return
    try:
        with s3_client(bucket_of(storage), 1) as client:
            client.list_objects_v2(Bucket=storage.bucket, MaxKeys=1)
    except BucketError as error:
        cause = error.__cause__
        status = cause.response["ResponseMetadata"]["HTTPStatusCode"] if isinstance(cause, ClientError) else 0
        if isinstance(cause, NoCredentialsError) or 400 <= status < 500:
            raise


def with_retries(bucket: Bucket, operation: Callable[[Any], T]) -> T:
    """The result of an operation with an S3 client, repeated after failures with growing pauses.

    Raises:
        BucketError: it failed `MAX_FAILURES` times in a row.
    """
    for failures in range(1, MAX_FAILURES):
        try:
            with s3_client(bucket, REQUEST_TRIES) as client:
                return operation(client)
        except BucketError:
            time.sleep(2.0**failures)
    with s3_client(bucket, REQUEST_TRIES) as client:
        return operation(client)

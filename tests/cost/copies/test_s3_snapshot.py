"""Snapshots in S3, on a real server."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from typer.testing import CliRunner

from cost.cli.main import app
from cost.copies.s3 import Bucket, BucketError, parse_s3_url, put_if_absent, s3_client
from cost.copies.s3_snapshot import download_snapshot, restore_snapshot, upload_snapshot
from cost.ledger.ledger import Ledger
from cost.records import UsageKey
from tests.servers import BUCKET, SECRET, free_port


def objects(client, bucket: Bucket) -> list[str]:
    return [o["Key"] for o in client.list_objects_v2(Bucket=bucket.name, Prefix=bucket.prefix).get("Contents", [])]


@pytest.fixture
def small_ledger(ledger, make_lease) -> Ledger:
    ledger.leases.open(make_lease())
    ledger.leases.attach("L1", "s1")
    ledger.usages.start(UsageKey("L1", "t1", 1), "s1", Decimal("0.5"), {"stage": "smoke"})
    ledger.events.append("s1", "planned", {"trials": 1}, "planned")
    return ledger


def test_a_snapshot_is_restored_with_its_journal_and_its_price_book(any_database, small_ledger, bucket, tmp_path):
    url = upload_snapshot(small_ledger, bucket)
    version, aside, prices = restore_snapshot(
        parse_s3_url(url, endpoint_url=bucket.endpoint_url), tmp_path / "new" / "ledger.db", tmp_path / "new"
    )
    assert (url, aside) == (f"{bucket.url}/{version}", None)
    with Ledger.open(tmp_path / "new" / "ledger.db", read_only=True) as found:
        assert found.usages.find() == small_ledger.usages.find()
        assert found.leases.find() == small_ledger.leases.find()
        assert [e.body for e in found.events.read("s1")] == [{"trials": 1}]
    assert (prices / "billing.yaml").exists()
    assert (prices / "bills" / "focus.yaml").exists()


def test_each_snapshot_has_keys_of_its_own_and_the_latest_is_restored(small_ledger, bucket, client, tmp_path):
    first = upload_snapshot(small_ledger, bucket)
    small_ledger.events.append("s1", "later", {}, "later")
    second = upload_snapshot(small_ledger, bucket)
    assert first != second
    assert sum(key.endswith("/manifest.json") for key in objects(client, bucket)) == 2
    # Of two snapshots of one second the order is by content: the later one is made later here.
    newest = max(first, second)
    assert newest == f"{bucket.url}/{download_snapshot(bucket, tmp_path / 'a')[0]}"
    old = parse_s3_url(first, endpoint_url=bucket.endpoint_url)
    assert first == f"{bucket.url}/{download_snapshot(old, tmp_path / 'b')[0]}"
    with Ledger.open(tmp_path / "b" / "ledger.db", read_only=True) as found:
        assert [e.kind for e in found.events.read("s1")] == ["planned"]


def test_snapshots_of_other_prefixes_and_deeper_levels_are_ignored(small_ledger, bucket, client, tmp_path):
    mine = upload_snapshot(small_ledger, bucket)
    upload_snapshot(small_ledger, Bucket(bucket.name, f"{bucket.prefix}-of-others", bucket.endpoint_url))
    for key in ("sweeps/s1/checkpoints/t1/0001/manifest.json", "zzz/no-manifest"):
        client.put_object(Bucket=bucket.name, Key=bucket.key(key), Body=b"{}")
    assert f"{bucket.url}/{download_snapshot(bucket, tmp_path)[0]}" == mine


def test_a_folder_without_a_manifest_is_not_a_snapshot(small_ledger, bucket, client, tmp_path):
    url = upload_snapshot(small_ledger, bucket)
    manifest = next(key for key in objects(client, bucket) if key.endswith("/manifest.json"))
    client.delete_object(Bucket=bucket.name, Key=manifest)
    with pytest.raises(BucketError, match="there is no snapshot at"):
        download_snapshot(bucket, tmp_path / "a")
    with pytest.raises(BucketError, match="there is no snapshot at"):
        download_snapshot(parse_s3_url(url, endpoint_url=bucket.endpoint_url), tmp_path / "a")


def test_a_file_that_differs_from_the_manifest_is_not_restored(small_ledger, bucket, client, tmp_path):
    upload_snapshot(small_ledger, bucket)
    key = next(key for key in objects(client, bucket) if key.endswith("ledger.db"))
    client.put_object(Bucket=bucket.name, Key=key, Body=b"another")
    with pytest.raises(BucketError, match="differs from its manifest"):
        restore_snapshot(bucket, tmp_path / "new" / "ledger.db", tmp_path / "new")
    assert not (tmp_path / "new" / "ledger.db").exists()


def test_a_manifest_is_never_overwritten(bucket, client):
    key = bucket.key("v", "manifest.json")
    with s3_client(bucket) as asked:
        put_if_absent(asked, bucket, key, b"one")
        put_if_absent(asked, bucket, key, b"one")
        with pytest.raises(BucketError, match="exists with other content and was not changed"):
            put_if_absent(asked, bucket, key, b"two")
    assert client.get_object(Bucket=bucket.name, Key=key)["Body"].read() == b"one"


@pytest.mark.parametrize("name", ["../../escaped", "/etc/passwd", "pricing/../../x.yaml", "other.db"])
def test_a_manifest_cannot_write_elsewhere(bucket, client, tmp_path, name):
    body = {"version": "v", "files": [{"name": n, "bytes": 1, "sha256": "0" * 64} for n in ("ledger.db", name)]}
    client.put_object(Bucket=bucket.name, Key=bucket.key("v", "manifest.json"), Body=json.dumps(body).encode())
    with pytest.raises(BucketError, match="unexpected file"):
        download_snapshot(bucket, tmp_path)


def test_backup_and_restore_on_the_command_line(small_ledger, bucket, tmp_path, caplog):
    caplog.set_level("DEBUG")
    runner, at = CliRunner(), ["--endpoint-url", bucket.endpoint_url]
    made = runner.invoke(app, ["backup", "--root", str(tmp_path), "--to", bucket.url, *at], catch_exceptions=False)
    assert made.exit_code == 0, made.output
    assert made.output.splitlines()[-1].startswith(bucket.url)
    other = ["--root", str(tmp_path / "other")]
    back = runner.invoke(app, ["restore", *other, "--from", bucket.url, *at], catch_exceptions=False)
    assert back.exit_code == 0, back.output
    assert "Its price book is in" in back.output
    again = runner.invoke(app, ["restore", *other, "--from", bucket.url, *at], catch_exceptions=False)
    assert "The previous ledger is kept as" in again.output
    assert (tmp_path / "other" / "ledger.db.aside1").exists()
    with Ledger.open(tmp_path / "other" / "ledger.db", read_only=True) as found:
        assert found.usages.find() == small_ledger.usages.find()
    assert SECRET not in made.output + back.output
    stored = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    assert SECRET.encode() not in stored


def test_a_server_that_does_not_answer_is_an_error_with_its_cause(small_ledger, keys):
    with pytest.raises(BucketError, match="s3://books-of-ours: Could not connect"):
        upload_snapshot(small_ledger, Bucket("books-of-ours", endpoint_url=f"http://127.0.0.1:{free_port()}"))


@pytest.mark.parametrize("tries", [1, 2])
def test_a_failing_server_is_tried_only_as_often_as_requested(small_ledger, bucket, faulty, tries):
    faulty.fault = lambda method, path: "503"
    away = Bucket(bucket.name, bucket.prefix, faulty.url)
    with pytest.raises(BucketError, match="SlowDown"):
        upload_snapshot(small_ledger, away, tries=tries)
    assert faulty.seen["503"] == tries


def test_a_missing_bucket_and_wrong_keys_are_errors(small_ledger, s3, keys, monkeypatch):
    with pytest.raises(BucketError, match=r"NoSuchBucket|does not exist"):
        upload_snapshot(small_ledger, Bucket("not-there", endpoint_url=s3))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    with pytest.raises(BucketError, match=r"InvalidAccessKeyId|does not exist"):
        upload_snapshot(small_ledger, Bucket(BUCKET, endpoint_url=s3))


def test_missing_credentials_are_an_error_that_names_their_sources(small_ledger, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    with pytest.raises(BucketError, match="there are no credentials; give them as boto3 expects them"):
        upload_snapshot(small_ledger, Bucket("books", endpoint_url="http://127.0.0.1:9", region="us-east-1"))


@pytest.mark.parametrize("url", ["books", "https://books", "s3://", "s3://B", "s3://../x"])
def test_what_is_no_place_in_s3_is_refused(url):
    with pytest.raises(BucketError, match="is not a location in S3"):
        parse_s3_url(url)


def test_a_sweep_leaves_a_snapshot_and_goes_on_without_one_when_the_server_is_away(bucket, tmp_path, capsys):
    from sweeps.config.build import compose
    from sweeps.driver.driver import run

    common = ["+stage=smoke", "trainer=simulated", f"paths.root={tmp_path / 'runs'}", "storage=s3"]
    common += [f"storage.bucket={bucket.name}", f"storage.prefix={bucket.prefix}"]
    away = compose([*common, f"storage.endpoint_url=http://127.0.0.1:{free_port()}", "storage.wait_seconds=0"])
    code = run(away)
    assert "no snapshot of the ledger was written" in capsys.readouterr().out
    here = compose([*common, f"storage.endpoint_url={bucket.endpoint_url}", "resume=never"])
    assert run(here) == code
    assert "no snapshot" not in capsys.readouterr().out
    _, copy, _ = download_snapshot(Bucket(bucket.name, here.storage.prefix, bucket.endpoint_url), tmp_path / "back")
    with Ledger.open(copy, read_only=True) as found:
        assert len({usage.sweep_id for usage in found.usages.find()}) == 2, (
            "what could not be sent came with the next one"
        )

"""Checkpoints in a bucket, on a real S3 server: layout, retention, and checks of fetched files."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from cost.copies.s3 import BucketError, object_sizes, s3_client
from sweeps.storage import s3_checkpoints
from sweeps.storage.s3_checkpoints import CheckpointId, IncompleteCheckpointError, Place, Retention


def at(attempt: int, sequence: int, step: int) -> CheckpointId:
    return CheckpointId(attempt, sequence, step)


def a_checkpoint(folder: Path, name: str, size: int = 100) -> Path:
    made = folder / name
    (made / "shards").mkdir(parents=True)
    (made / "model.safetensors").write_bytes(os.urandom(size))
    (made / "shards" / "0.distcp").write_bytes(b"shard")
    (made / "complete.json").write_text("{}")
    return made


def files_of(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def place(bucket) -> Place:
    return Place(bucket, "smoke-1")


@pytest.fixture
def opened(bucket):
    with s3_client(bucket) as client:
        yield client


def fetched(client, place: Place, folder: Path) -> tuple[tuple[CheckpointId, Path], list[str]]:
    warnings: list[str] = []
    found = s3_checkpoints.fetch_newest(client, place, "t1", folder, warnings.append)
    assert found is not None, warnings
    return found, warnings


@pytest.mark.parametrize("size", [100, 2 * s3_checkpoints.PART_BYTES + 7], ids=["small", "multipart"])
def test_a_checkpoint_is_fetched_as_it_was_uploaded(opened, place, tmp_path, size):
    folder = a_checkpoint(tmp_path, "step-000010-01", size)
    s3_checkpoints.save(opened, place, "t1", at(1, 12, 10), folder)
    (ident, back), warnings = fetched(opened, place, tmp_path / "other")
    assert (ident, back.name, warnings) == (at(1, 12, 10), "step-000010-01", [])
    assert files_of(back) == files_of(folder)
    assert s3_checkpoints.stored(opened, place) == ({"t1": {at(1, 12, 10)}}, {"t1": set()})


def test_the_manifest_is_uploaded_last_and_deleted_first(faulty, bucket, client, keys, tmp_path):
    there = Place(type(bucket)(bucket.name, bucket.prefix, faulty.url), "smoke-1")
    order: list[tuple[str, str]] = []
    faulty.before = lambda method, path: order.append((method, path.partition("?")[0].rpartition("/")[2]))
    folder = a_checkpoint(tmp_path, "step-000010-01")
    with s3_client(there.bucket) as asked:
        s3_checkpoints.save(asked, there, "t1", at(1, 12, 10), folder)
        s3_checkpoints.delete(asked, there, "t1", at(1, 12, 10))
    written = [name for method, name in order if method == "PUT"]
    deleted = [name for method, name in order if method == "DELETE"]
    assert written[-1] == deleted[0] == "manifest.json"
    assert sorted(written) == sorted(deleted) == ["0.distcp", "complete.json", "manifest.json", "model.safetensors"]
    assert object_sizes(client, bucket, "sweeps") == {}


def test_without_a_manifest_there_is_no_checkpoint(opened, client, place, tmp_path):
    s3_checkpoints.save(opened, place, "t1", at(1, 12, 10), a_checkpoint(tmp_path, "step-000010-01"))
    s3_checkpoints.save(opened, place, "t1", at(1, 24, 20), a_checkpoint(tmp_path, "step-000020-01"))
    newest = place.parts("checkpoints", "t1", at(1, 24, 20).name, "manifest.json")
    client.delete_object(Bucket=place.bucket.name, Key=place.bucket.key(*newest))
    assert s3_checkpoints.stored(opened, place) == ({"t1": {at(1, 12, 10)}}, {"t1": {at(1, 24, 20)}})
    (ident, _), warnings = fetched(opened, place, tmp_path / "other")
    assert ident == at(1, 12, 10)
    assert "has no manifest.json" in warnings[0]


@pytest.mark.parametrize("harm", ["truncated", "altered", "missing"])
def test_a_checkpoint_that_differs_from_its_manifest_is_skipped_for_the_one_before(
    opened, client, place, tmp_path, harm
):
    s3_checkpoints.save(opened, place, "t1", at(1, 12, 10), a_checkpoint(tmp_path, "step-000010-01"))
    newest = a_checkpoint(tmp_path, "step-000020-01")
    s3_checkpoints.save(opened, place, "t1", at(1, 24, 20), newest)
    body = (newest / "model.safetensors").read_bytes()
    where = {"Bucket": place.bucket.name}
    where["Key"] = place.bucket.key(*place.parts("checkpoints", "t1", at(1, 24, 20).name, "model.safetensors"))
    if harm == "missing":
        client.delete_object(**where)
    else:
        client.put_object(**where, Body=body[:50] if harm == "truncated" else body[:-1] + bytes([body[-1] ^ 1]))
    (ident, back), warnings = fetched(opened, place, tmp_path / "other")
    assert (ident, back.name) == (at(1, 12, 10), "step-000010-01")
    assert len(warnings) == 1
    assert "the checkpoint before it is used" in warnings[0]
    assert os.listdir(tmp_path / "other") == ["step-000010-01"], "no incomplete folder is left"


@pytest.mark.parametrize("name", ["../../escaped", "/etc/passwd", "a/../../b", "", ".", "a\nb"])
def test_a_manifest_cannot_write_elsewhere(opened, client, place, tmp_path, name):
    s3_checkpoints.save(opened, place, "t1", at(1, 12, 10), a_checkpoint(tmp_path, "step-000010-01"))
    key = place.bucket.key(*place.parts("checkpoints", "t1", at(1, 12, 10).name, "manifest.json"))
    body = json.loads(client.get_object(Bucket=place.bucket.name, Key=key)["Body"].read())
    body["files"].append({"name": name, "bytes": 1, "sha256": "0" * 64})
    client.put_object(Bucket=place.bucket.name, Key=key, Body=json.dumps(body).encode())
    warnings: list[str] = []
    assert s3_checkpoints.fetch_newest(opened, place, "t1", tmp_path / "other", warnings.append) is None
    assert "is no manifest of a checkpoint" in warnings[0]


def test_a_checkpoint_pruned_during_the_upload_arrives_complete(faulty, bucket, keys, tmp_path):
    there = Place(type(bucket)(bucket.name, bucket.prefix, faulty.url), "smoke-1")
    folder = a_checkpoint(tmp_path, "step-000010-01")
    was = files_of(folder)

    def prune(method: str, path: str) -> None:
        shutil.rmtree(folder, ignore_errors=True)

    faulty.before = prune
    with s3_client(there.bucket) as client:
        s3_checkpoints.save(client, there, "t1", at(1, 12, 10), folder)
        (_, back), _ = fetched(client, there, tmp_path / "other")
    assert files_of(back) == was


@pytest.mark.parametrize("left", [[], ["model.safetensors"]], ids=["gone", "half gone"])
def test_a_checkpoint_pruned_before_the_upload_is_not_uploaded(opened, client, place, tmp_path, left):
    folder = a_checkpoint(tmp_path, "step-000010-01")
    for name in {"model.safetensors", "complete.json"} - set(left):
        (folder / name).unlink()
    with pytest.raises(FileNotFoundError):
        s3_checkpoints.save(opened, place, "t1", at(1, 12, 10), folder)
    assert object_sizes(client, place.bucket, "sweeps") == {}


def test_busy_responses_and_broken_connections_are_retried(faulty, bucket, keys, tmp_path):
    there = Place(type(bucket)(bucket.name, bucket.prefix, faulty.url), "smoke-1")
    folder = a_checkpoint(tmp_path, "step-000010-01")
    once_each = {"503", "dropped"}
    faulty.fault = lambda method, path: once_each.pop() if method == "PUT" and once_each else None
    with s3_client(there.bucket, 5) as client:
        s3_checkpoints.save(client, there, "t1", at(1, 12, 10), folder)
        short_once = ["truncated"]
        faulty.fault = lambda method, path: (
            short_once.pop() if method == "GET" and path.endswith(".safetensors") and short_once else None
        )
        (_, back), warnings = fetched(client, there, tmp_path / "other")
    assert (files_of(back), warnings) == (files_of(folder), [])
    assert (faulty.seen["503"], faulty.seen["dropped"], faulty.seen["truncated"]) == (1, 1, 1)


def test_a_server_that_truncates_every_response_is_an_error(faulty, bucket, keys, tmp_path):
    there = Place(type(bucket)(bucket.name, bucket.prefix, faulty.url), "smoke-1")
    faulty.fault = lambda method, path: "truncated" if method == "GET" and path.endswith(".safetensors") else None
    folder = a_checkpoint(tmp_path, "step-000010-01")

    def there_and_back() -> None:
        with s3_client(there.bucket) as client:
            s3_checkpoints.save(client, there, "t1", at(1, 12, 10), folder)
            fetched(client, there, tmp_path / "other")

    with pytest.raises(BucketError) as raised:
        there_and_back()
    assert not isinstance(raised.value, IncompleteCheckpointError)
    assert not list((tmp_path / "other").iterdir())


def test_a_folder_of_the_same_name_is_not_overwritten(opened, place, tmp_path):
    mine = a_checkpoint(tmp_path / "other", "step-000010-01")
    was = files_of(mine)
    s3_checkpoints.save(opened, place, "t1", at(1, 12, 10), a_checkpoint(tmp_path, "step-000010-01"))
    (_, back), _ = fetched(opened, place, tmp_path / "other")
    assert back != mine
    assert files_of(mine) == was


CHECKPOINTS = [at(1, 10, 10), at(1, 20, 20), at(1, 30, 30), at(2, 5, 25), at(2, 15, 35)]


@pytest.mark.parametrize(
    ("retention", "kept"),
    [
        (Retention(1, False, False), {35}),
        (Retention(2, False, False), {25, 35}),
        (Retention(1, True, False), {20, 35}),
        (Retention(1, False, True), {10, 35}),
        (Retention(2, True, True), {10, 20, 25, 35}),
    ],
)
def test_last_best_and_first_stay(retention, kept):
    accuracy = {10: 0.1, 20: 0.5, 30: 0.5, 35: 0.2, 99: 0.9}
    assert {c.step for c in retention.keep(CHECKPOINTS, accuracy | {30: 0.4})} == kept


def test_of_equal_accuracies_the_later_stays_and_a_single_checkpoint_always_stays():
    assert at(1, 30, 30) in Retention(1, True, False).keep(CHECKPOINTS, {20: 0.5, 30: 0.5})
    assert Retention(1, False, False).keep([at(1, 1, 1)], {}) == {at(1, 1, 1)}
    assert Retention(1, True, True).keep([], {}) == set()


def test_names_sort_in_the_order_of_the_reports():
    names = [c.name for c in CHECKPOINTS]
    assert names == sorted(names)
    assert [CheckpointId.of(name) for name in names] == CHECKPOINTS
    assert CheckpointId.of("20261129T204500Z-3f9c0a52d1e7") is None

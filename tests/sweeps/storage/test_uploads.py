"""Whole sweeps that upload to a bucket and restore from it: real driver, real S3 server, simulated trainer."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from cost.copies.s3 import Bucket, s3_client
from cost.ledger.ledger import Ledger
from sweeps.config.build import compose
from sweeps.config.types import ConfigError, SweepConfig
from sweeps.driver.controller import SweepController
from sweeps.driver.driver import EXIT_INTERRUPTED, run
from sweeps.journal.journal import SweepRecord, load, sweep_ids
from sweeps.journal.trial_reports import steps_of
from sweeps.storage import sweep_bucket, uploads
from sweeps.storage.s3_checkpoints import CheckpointId, Place, stored

STEPS = 20
ONE_TRIAL = ("search.prompts_per_step=[4]", "search.lr_scaling=[hold]")


@pytest.fixture(autouse=True)
def _fast_retries(monkeypatch, keys) -> None:
    """One try per request, and no pauses between the tries of an operation."""
    monkeypatch.setattr(sweep_bucket, "REQUEST_TRIES", 1)
    monkeypatch.setattr(sweep_bucket.time, "sleep", lambda seconds: None)


def config(root: Path, bucket: Bucket, *overrides: str, endpoint: str = "", storage: str = "s3") -> SweepConfig:
    common = ["+stage=smoke", "trainer=simulated", f"paths.root={root}", *ONE_TRIAL]
    common += ["tracking.uri=http://127.0.0.1:9"]  # no MLflow server: these tests do not need one
    common += ["trainer.checkpoint_every_steps=5", "evaluation.every_steps=5", f"storage={storage}"]
    if storage == "s3":
        common += [f"storage.bucket={bucket.name}", f"storage.prefix={bucket.prefix}"]
        common += [f"storage.endpoint_url={endpoint or bucket.endpoint_url}"]
    return compose([*common, *overrides])


def interrupted_after(monkeypatch, messages: int) -> None:
    """Raise KeyboardInterrupt, as Ctrl-C does, at the n-th trainer message."""
    seen = []
    on_message = SweepController.on_message

    def counted(self, *args: Any) -> Any:
        seen.append(args)
        if len(seen) == messages:
            raise KeyboardInterrupt
        return on_message(self, *args)

    monkeypatch.setattr(SweepController, "on_message", counted)


def the_sweep(database: str | Path) -> tuple[str, SweepRecord]:
    with Ledger.open(database, create=False, read_only=True) as ledger:
        (sweep_id,) = sweep_ids(ledger)
        return sweep_id, load(ledger, sweep_id)


def in_bucket(bucket: Bucket, sweep_id: str) -> dict[str, set[CheckpointId]]:
    with s3_client(bucket) as client:
        return stored(client, Place(bucket, sweep_id))[0]


def steps_in_bucket(bucket: Bucket, sweep_id: str) -> list[int]:
    (found,) = in_bucket(bucket, sweep_id).values()
    return sorted(c.step for c in found)


def left_of(cfg: SweepConfig, sweep_id: str) -> list[str]:
    root = Path(cfg.paths.root)
    with Ledger.open(cfg.storage.database_url or root / "ledger.db", create=False, read_only=True) as ledger:
        return uploads.unsaved(cfg.storage, ledger, sweep_id, root / sweep_id)


def test_at_the_end_of_a_sweep_everything_is_uploaded(tmp_path, bucket, client, capsys):
    cfg = config(tmp_path, bucket, "storage.keep_best=false", "storage.keep_last=1", "trainer.keep_checkpoints=9")
    run(cfg)
    assert "On this machine only" not in capsys.readouterr().out
    sweep_id, _ = the_sweep(tmp_path / "ledger.db")
    assert steps_in_bucket(bucket, sweep_id) == [5, STEPS], "the first and the last"
    assert left_of(cfg, sweep_id) == []
    listed = client.list_objects_v2(Bucket=bucket.name, Prefix=bucket.key("sweeps", sweep_id, "artifacts"))
    names = {o["Key"].rpartition("/")[2] for o in listed["Contents"]}
    assert {"config.yaml", "cost.csv", "manifest.json"} <= names
    kept = client.get_object(Bucket=bucket.name, Key=bucket.key("sweeps", sweep_id, "artifacts", "cost.csv"))
    assert kept["Body"].read() == (tmp_path / sweep_id / "cost.csv").read_bytes()


def test_with_one_checkpoint_on_the_disk_the_newest_is_uploaded(tmp_path, bucket):
    cfg = config(tmp_path, bucket, "trainer.keep_checkpoints=1")
    run(cfg)
    sweep_id, _ = the_sweep(tmp_path / "ledger.db")
    assert STEPS in steps_in_bucket(bucket, sweep_id)
    assert left_of(cfg, sweep_id) == []


def test_after_an_outage_push_uploads_everything(tmp_path, bucket, faulty, capsys):
    faulty.close()
    cfg = config(tmp_path, bucket, "storage.wait_seconds=0", "trainer.keep_checkpoints=9", endpoint=faulty.url)
    run(cfg)
    output = capsys.readouterr().out
    sweep_id, _ = the_sweep(tmp_path / "ledger.db")
    assert f"python -m sweeps push {sweep_id}" in output
    assert f"at step {STEPS}:" in output
    assert in_bucket(bucket, sweep_id) == {}
    down = left_of(cfg, sweep_id)
    assert "Could not connect" in down[0]
    assert any(f"at step {STEPS}" in line for line in down)
    faulty.open()
    assert left_of(cfg, sweep_id) == down[1:]
    faulty.fault = lambda method, path: "503" if faulty.seen["503"] < 1 else None
    with Ledger.open(tmp_path / "ledger.db", read_only=True) as ledger:
        assert uploads.push(cfg.storage, ledger, sweep_id, tmp_path / sweep_id, print) == []
    assert faulty.seen["503"] == 1
    assert {5, 15, STEPS} <= set(steps_in_bucket(bucket, sweep_id))
    assert left_of(cfg, sweep_id) == []


def test_the_end_waits_for_a_bucket_that_recovers(tmp_path, bucket, faulty):
    """The first requests at the end of the sweep fail, and later ones succeed."""
    faulty.fault = lambda method, path: "503" if faulty.seen["503"] < 3 else None
    cfg = config(tmp_path, bucket, endpoint=faulty.url)
    run(cfg)
    sweep_id, _ = the_sweep(tmp_path / "ledger.db")
    assert faulty.seen["503"] == 3
    assert left_of(cfg, sweep_id) == []


def test_a_hanging_bucket_does_not_delay_the_sweep(tmp_path, bucket, faulty, capsys):
    answer = threading.Event()
    faulty.before = lambda method, path: answer.wait(60) if "/sweeps/" in path and method == "PUT" else None
    cfg = config(tmp_path, bucket, "storage.wait_seconds=0", endpoint=faulty.url)
    try:
        run(cfg)
        assert "On this machine only" in capsys.readouterr().out
    finally:
        answer.set()


def test_incomplete_uploads_of_a_killed_driver_are_repeated_or_deleted(tmp_path, bucket, client):
    cfg = config(tmp_path, bucket, "storage.keep_first=false", "storage.keep_best=false")
    run(cfg)
    sweep_id, record = the_sweep(tmp_path / "ledger.db")
    (trial,) = record.trials
    newest = max(in_bucket(bucket, sweep_id)[trial])
    below = bucket.key("sweeps", sweep_id, "checkpoints", trial)
    client.delete_object(Bucket=bucket.name, Key=f"{below}/{newest.name}/manifest.json")
    client.put_object(Bucket=bucket.name, Key=f"{below}/{CheckpointId(1, 2, 3).name}/state.json", Body=b"{")
    assert left_of(cfg, sweep_id) != []
    with Ledger.open(tmp_path / "ledger.db", read_only=True) as ledger:
        assert uploads.push(cfg.storage, ledger, sweep_id, tmp_path / sweep_id, print) == []
    assert newest in in_bucket(bucket, sweep_id)[trial]
    keys = [o["Key"] for o in client.list_objects_v2(Bucket=bucket.name, Prefix=below)["Contents"]]
    assert not [key for key in keys if CheckpointId(1, 2, 3).name in key]


def test_without_a_bucket_everything_is_on_this_machine_only(tmp_path, bucket):
    cfg = config(tmp_path, bucket, storage="local")
    run(cfg)
    sweep_id, record = the_sweep(tmp_path / "ledger.db")
    (trial,) = record.trials.values()
    left = left_of(cfg, sweep_id)
    assert f"checkpoint of trial {trial.trial_id} at step {STEPS}" in left[0]
    assert [Path(line).name for line in left[1:]] == ["config.yaml", "cost.csv"]


def test_a_damaged_checkpoint_in_the_bucket_counts_as_not_uploaded(tmp_path, bucket, client):
    cfg = config(tmp_path, bucket)
    run(cfg)
    sweep_id, record = the_sweep(tmp_path / "ledger.db")
    (trial,) = record.trials
    newest = max(in_bucket(bucket, sweep_id)[trial])
    key = bucket.key("sweeps", sweep_id, "checkpoints", trial, newest.name, "state.json")
    client.delete_object(Bucket=bucket.name, Key=key)
    (line,) = left_of(cfg, sweep_id)
    assert "state.json is missing" in line


@pytest.fixture
def interrupted(tmp_path, bucket, postgres, monkeypatch) -> SweepConfig:
    """An interrupted sweep whose machine is gone: only the bucket and the database are left."""
    on_server = f"storage.database_url='{postgres}'"
    with monkeypatch.context() as patch:
        interrupted_after(patch, 18)
        assert run(config(tmp_path / "a", bucket, on_server, "trainer.keep_checkpoints=9")) == EXIT_INTERRUPTED
    shutil.rmtree(tmp_path / "a")
    return config(tmp_path / "b", bucket, on_server)


def test_another_machine_answer_with_the_bucket_and_the_database_alone(interrupted, bucket, postgres, capsys):
    sweep_id, before = the_sweep(postgres)
    (trial,) = before.trials.values()
    assert trial.checkpoint is not None
    step = trial.checkpoint.step
    assert 0 < step < STEPS
    capsys.readouterr()
    assert run(interrupted) != EXIT_INTERRUPTED
    output = capsys.readouterr().out
    assert f"resumes from step {step}, restored from {bucket.url}/sweeps/{sweep_id}" in output
    assert "starts from the beginning" not in output
    again, after = the_sweep(postgres)
    assert again == sweep_id, "the same sweep was resumed"
    (trial,) = after.trials.values()
    assert [a.from_step for a in trial.attempts] == [0, step]
    with Ledger.open(postgres, create=False, read_only=True) as ledger:
        assert sorted(steps_of(ledger, sweep_id, trial.trial_id)) == list(range(1, STEPS + 1))
    assert STEPS in steps_in_bucket(bucket, sweep_id)
    assert left_of(interrupted, sweep_id) == []


@pytest.mark.parametrize("harm", ["truncated", "removed"])
def test_a_damaged_checkpoint_is_skipped_for_the_one_before(interrupted, bucket, client, postgres, capsys, harm):
    sweep_id, record = the_sweep(postgres)
    (trial,) = record.trials
    known = sorted(in_bucket(bucket, sweep_id)[trial])
    key = bucket.key("sweeps", sweep_id, "checkpoints", trial, known[-1].name, "state.json")
    if harm == "truncated":
        client.put_object(Bucket=bucket.name, Key=key, Body=b"{")
    else:
        client.delete_object(Bucket=bucket.name, Key=key)
    run(interrupted)
    output = capsys.readouterr().out
    assert "the checkpoint before it is used" in output
    _, after = the_sweep(postgres)
    assert after.trials[trial].attempts[-1].from_step == known[-2].step


def test_a_resume_without_an_answer_from_the_bucket_fails_before_anything_is_billed(interrupted, bucket, postgres):
    with Ledger.open(postgres, create=False, read_only=True) as ledger:
        leases = ledger.leases.find()
    gone = config(
        Path(interrupted.paths.root), bucket, f"storage.database_url='{postgres}'", endpoint="http://127.0.0.1:9"
    )
    with pytest.raises(ConfigError, match="try again when the bucket answers"):
        run(gone)
    with Ledger.open(postgres, create=False, read_only=True) as ledger:
        assert ledger.leases.find() == leases


@pytest.mark.parametrize("wrong", ["bucket", "keys", "no keys"])
def test_a_bucket_that_refuses_access_is_found_before_anything_is_written(tmp_path, bucket, monkeypatch, wrong):
    overrides = ["storage.bucket=not-there"] if wrong == "bucket" else []
    if wrong == "keys":
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "unknown")
    elif wrong == "no keys":
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
            monkeypatch.delenv(name, raising=False)
        for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
            monkeypatch.setenv(name, str(tmp_path / "none"))
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(ConfigError, match=r"storage.bucket=.*(does not exist|InvalidAccessKeyId|no credentials)"):
        run(config(tmp_path / "runs", bucket, *overrides))
    assert not (tmp_path / "runs" / "ledger.db").exists()


def test_a_checkpoint_from_an_archive_is_uploaded(tmp_path, bucket):
    run(config(tmp_path / "a", bucket, storage="local"))
    shutil.move(tmp_path / "a", tmp_path / "b")
    cfg = config(tmp_path / "b", bucket)
    sweep_id, _ = the_sweep(tmp_path / "b" / "ledger.db")
    assert f"at step {STEPS}: {tmp_path / 'b'}" in left_of(cfg, sweep_id)[0]
    with Ledger.open(tmp_path / "b" / "ledger.db", read_only=True) as ledger:
        assert uploads.push(cfg.storage, ledger, sweep_id, tmp_path / "b" / sweep_id, print) == []
    assert STEPS in steps_in_bucket(bucket, sweep_id)


def test_a_checkpoint_in_the_sweeps_own_folder_is_found(tmp_path, bucket, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        interrupted_after(patch, 18)
        run(config(tmp_path / "a", bucket, storage="local"))
    shutil.move(tmp_path / "a", tmp_path / "b")
    run(config(tmp_path / "b", bucket, storage="local"))
    assert "starts from the beginning" not in capsys.readouterr().out
    _, record = the_sweep(tmp_path / "b" / "ledger.db")
    (trial,) = record.trials.values()
    assert trial.attempts[-1].from_step > 0

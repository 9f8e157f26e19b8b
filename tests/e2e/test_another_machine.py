"""A real trial whose machine is lost: another one goes on with what lies in the bucket and in the database alone."""

from __future__ import annotations

import shutil

import psutil
import pytest

from cost.copies.s3 import s3_client
from cost.ledger.ledger import Ledger
from sweeps.journal.journal import load, sweep_ids
from sweeps.journal.trial_reports import steps_of
from sweeps.storage.s3_checkpoints import Place, stored
from tests.e2e.test_real_sweep import ONE, hold, start, writers

STEPS = 30


@pytest.mark.slow  # two starts of Ray and of torch: a minute and a half; simulated trials prove the same in seconds
def test_a_real_trial_resumes_on_another_machine_after_its_machine_is_lost(
    tmp_path, tmp_path_factory, bucket, postgres, keys
):
    cache = tmp_path_factory.mktemp("cache")
    more = [*ONE, f"stage.steps={STEPS}", "storage=s3"]
    more += [f"storage.bucket={bucket.name}", f"storage.prefix={bucket.prefix}", f"storage.database_url='{postgres}'"]
    more += [f"storage.endpoint_url={bucket.endpoint_url}"]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    lost = start(tmp_path / "a", cache, *more)
    assert lost.stdout is not None
    for line in lost.stdout:
        if f"/{STEPS} " in line and in_bucket(bucket, postgres):
            break
    hold(lost, "a checkpoint is in the bucket")
    processes = writers(lost, tmp_path / "a")
    lost.kill()
    lost.wait(timeout=30)
    psutil.wait_procs(processes, timeout=60)
    shutil.rmtree(tmp_path / "a")

    found = start(tmp_path / "b", cache, *more)
    output, _ = found.communicate(timeout=300)
    assert found.returncode == 0, output
    assert "restored from s3://" in output, output
    assert "starts from the beginning" not in output
    with Ledger.open(postgres, create=False, read_only=True) as ledger:
        (sweep_id,) = sweep_ids(ledger)
        (trial,) = load(ledger, sweep_id).trials.values()
        assert sorted(steps_of(ledger, sweep_id, trial.trial_id)) == list(range(1, STEPS + 1)), output
    assert trial.attempts[-1].from_step > 0
    assert trial.attempts[-1].outcome == "completed"


def in_bucket(bucket, postgres: str) -> bool:
    """Whether a checkpoint has arrived."""
    with Ledger.open(postgres, create=False, read_only=True) as ledger:
        (sweep_id,) = sweep_ids(ledger)
    with s3_client(bucket) as client:
        return bool(stored(client, Place(bucket, sweep_id))[0])

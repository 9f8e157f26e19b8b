"""MLflow as a view of the journal: complete, repairable, and never in the way. Real MLflow on SQLite."""

from __future__ import annotations

from pathlib import Path

import pytest

from cost.ledger import Ledger
from sweeps.tracking import CURSOR_TAG, Delivery, Tracker, default_uri
from tests.sweeps.in_process import Sweep, a_sweep

EIGHT_CURVES = ("reward", "acc", "ratio_mean", "clip_frac", "kl", "entropy", "response_length", "grad_norm")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, Sweep]:
    folder = tmp_path_factory.mktemp("tracked")
    return folder, a_sweep(folder).run()


def runs_of(folder: Path, experiment_id: str):
    from mlflow import MlflowClient

    runs = MlflowClient(default_uri(folder)).search_runs([experiment_id])
    parents = [r for r in runs if "mlflow.parentRunId" not in r.data.tags]
    return parents, [r for r in runs if r not in parents]


def test_a_parent_run_and_a_child_per_trial_with_the_eight_curves_each(finished):
    folder, sweep = finished
    delivery = Delivery(default_uri(folder), "test", folder / "artifacts", "smoke-test-1")
    delivery.deliver(sweep.ledger)
    parents, children = runs_of(folder, delivery.experiment_id)
    assert len(parents) == 1
    assert {c.data.tags["trial_id"] for c in children} == set(sweep.journal.record.trials)
    for child in children:
        assert child.data.tags["mlflow.parentRunId"] == parents[0].info.run_id
        assert child.info.status == "FINISHED"
        assert child.data.params["lr"]
        for curve in EIGHT_CURVES:
            assert curve in child.data.metrics


def test_delivering_again_from_the_start_changes_nothing(finished):
    from mlflow import MlflowClient

    folder, sweep = finished
    delivery = Delivery(default_uri(folder), "test", folder / "artifacts", "smoke-test-1")
    delivery.deliver(sweep.ledger)
    parents, children = runs_of(folder, delivery.experiment_id)
    client = MlflowClient(default_uri(folder))
    before = client.get_metric_history(children[0].info.run_id, "reward")
    client.set_tag(parents[0].info.run_id, CURSOR_TAG, "0")
    Delivery(default_uri(folder), "test", folder / "artifacts", "smoke-test-1").deliver(sweep.ledger)
    after = client.get_metric_history(children[0].info.run_id, "reward")
    assert len(before) == 20
    assert after == before
    assert len(runs_of(folder, delivery.experiment_id)[1]) == len(children)


def test_no_mlruns_folder_appears(finished, monkeypatch, tmp_path):
    folder, sweep = finished
    monkeypatch.chdir(tmp_path)
    Delivery(default_uri(folder), "elsewhere", folder / "artifacts", "smoke-test-1").deliver(sweep.ledger)
    assert not list(tmp_path.iterdir())


def test_a_server_that_does_not_answer_is_said_once_and_delays_only_the_view(finished):
    folder, _ = finished
    said: list[str] = []
    tracker = Tracker(
        uri="http://127.0.0.1:9",
        experiment="test",
        artifacts=folder / "artifacts",
        open_ledger=lambda: Ledger.open(folder / "ledger.db", create=False, read_only=True),
        sweep_id="smoke-test-1",
        warn=said.append,
    )
    tracker.start()
    assert tracker.close(timeout_seconds=60) is False
    assert len(said) == 1
    assert "does not answer" in said[0]
    assert "goes on" in said[0]

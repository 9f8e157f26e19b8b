"""The journal in MLflow: complete, repeatable, and without delaying a sweep. Real MLflow on SQLite."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cost.ledger.ledger import Ledger
from sweeps.journal.events import GAIN, DriverEnd, DriverEnded, DriverStarted, GateCheck, GateVerdict
from sweeps.journal.journal import sweep_events
from sweeps.report import mlflow_sync
from sweeps.report.mlflow_store import default_uri
from sweeps.report.mlflow_sync import CURSOR_TAG, MlflowSync
from sweeps.report.mlflow_tracker import MlflowTracker
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


def test_a_sweep_has_a_parent_run_and_a_child_run_per_trial_with_the_eight_curves(finished):
    folder, sweep = finished
    sync = MlflowSync(default_uri(folder), "test", folder / "artifacts", "smoke-test-1")
    sync.deliver(sweep.ledger)
    parents, children = runs_of(folder, sync.experiment_id)
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
    sync = MlflowSync(default_uri(folder), "test", folder / "artifacts", "smoke-test-1")
    sync.deliver(sweep.ledger)
    parents, children = runs_of(folder, sync.experiment_id)
    client = MlflowClient(default_uri(folder))
    before = client.get_metric_history(children[0].info.run_id, "reward")
    client.set_tag(parents[0].info.run_id, CURSOR_TAG, "0")
    MlflowSync(default_uri(folder), "test", folder / "artifacts", "smoke-test-1").deliver(sweep.ledger)
    after = client.get_metric_history(children[0].info.run_id, "reward")
    assert len(before) == 20
    assert after == before
    assert len(runs_of(folder, sync.experiment_id)[1]) == len(children)


def test_proposed_trials_have_their_values_in_any_delivery(finished, tmp_path):
    from mlflow import MlflowClient

    varied = ("search.space.rollout.temperature=[0.8]", "search.space.algorithm.lr={low:1e-6,high:1e-4,log:true}")
    sweep = a_sweep(tmp_path, "search=optuna", "search.trials=2", *varied, "stage.steps=2")
    where = (default_uri(finished[0]), "search", finished[0] / "artifacts", "smoke-test-1")
    MlflowSync(*where).deliver(sweep.ledger)  # only the plan, no trial yet
    sweep.run()
    sync = MlflowSync(*where)
    sync.deliver(sweep.ledger)
    runs = MlflowClient(where[0]).search_runs([sync.experiment_id])
    children = {r.data.tags["trial_id"]: r for r in runs if "mlflow.parentRunId" in r.data.tags}
    assert children.keys() == sweep.journal.record.trials.keys()
    for trial_id, run in children.items():
        planned = sweep.journal.record.trials[trial_id].planned
        assert run.data.params["rollout.temperature"] == "0.8"
        assert float(run.data.params["algorithm.lr"]) == planned.point["algorithm.lr"]
        assert "temperature=0.8" in (run.info.run_name or "")


def test_an_adjusted_learning_rate_is_one_parameter_and_a_curve(tmp_path):
    from mlflow import MlflowClient

    sweep = a_sweep(tmp_path, "search.lr_scaling=[clip_frac]", "search.prompts_per_step=[2]").run()
    sync = MlflowSync(default_uri(tmp_path), "test", tmp_path / "artifacts", "smoke-test-1")
    sync.deliver(sweep.ledger)
    (trial,) = sweep.journal.record.trials.values()
    (child,) = runs_of(tmp_path, sync.experiment_id)[1]
    assert float(child.data.params["lr"]) == trial.planned.lr
    history = MlflowClient(default_uri(tmp_path)).get_metric_history(child.info.run_id, "lr")
    by_step = {metric.step: metric.value for metric in history}
    moved_after = min(trial.lr_changes)
    assert by_step[moved_after] == trial.planned.lr
    assert by_step[moved_after + 1] == trial.lr_changes[moved_after] != trial.planned.lr


def test_two_sweeps_that_create_the_store_at_once_both_deliver_to_it(tmp_path):
    sweeps = [a_sweep(tmp_path / name, "search.prompts_per_step=[2]").run() for name in ("one", "other")]
    uri = default_uri(tmp_path)
    code = (
        "import sys; from pathlib import Path; from cost.ledger.ledger import Ledger\n"
        "from sweeps.report.mlflow_sync import MlflowSync\n"
        "folder = Path(sys.argv[2])\n"
        "with Ledger.open(folder / 'ledger.db', create=False, read_only=True) as ledger:\n"
        "    MlflowSync(sys.argv[1], folder.name, folder / 'artifacts', 'smoke-test-1').deliver(ledger)\n"
    )
    root = Path(__file__).resolve().parents[3]
    started = [
        subprocess.Popen([sys.executable, "-c", code, uri, str(tmp_path / name)], cwd=root, stderr=subprocess.PIPE)
        for name in ("one", "other")
    ]
    for process in started:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors.decode()
    for name, sweep in zip(("one", "other"), sweeps, strict=True):
        sync = MlflowSync(uri, name, tmp_path / "artifacts", "smoke-test-1")
        assert len(runs_of(tmp_path, sync.experiment_id)[1]) == len(sweep.journal.record.trials)
    assert not list(tmp_path.glob("*.partial"))


def test_no_mlruns_folder_appears(finished, monkeypatch, tmp_path):
    folder, sweep = finished
    monkeypatch.chdir(tmp_path)
    MlflowSync(default_uri(folder), "elsewhere", folder / "artifacts", "smoke-test-1").deliver(sweep.ledger)
    assert not list(tmp_path.iterdir())


def test_a_server_that_does_not_answer_gives_one_warning(finished):
    folder, _ = finished
    warnings: list[str] = []
    tracker = MlflowTracker(
        uri="http://127.0.0.1:9",
        experiment="test",
        artifacts=folder / "artifacts",
        open_ledger=lambda: Ledger.open(folder / "ledger.db", create=False, read_only=True),
        sweep_id="smoke-test-1",
        warn=warnings.append,
    )
    tracker.start()
    assert tracker.close(timeout_seconds=60) is False
    assert len(warnings) == 1
    assert "does not answer" in warnings[0]
    assert "continues without it" in warnings[0]


def test_a_long_journal_is_delivered_in_parts(tmp_path, monkeypatch):
    from mlflow import MlflowClient

    sweep = a_sweep(tmp_path, "search.prompts_per_step=[2]").run()
    monkeypatch.setattr("sweeps.report.mlflow_sync.MAX_PENDING_METRICS", 100)
    sync = MlflowSync(default_uri(tmp_path), "test", tmp_path / "artifacts", "smoke-test-1")
    moved: list[str] = []
    set_tag = sync._client.set_tag
    monkeypatch.setattr(
        sync._client,
        "set_tag",
        lambda run, key, value: (moved.append(value) if key == CURSOR_TAG else None, set_tag(run, key, value))[1],
    )
    sync.deliver(sweep.ledger)
    assert len(moved) > 1
    assert list(map(int, moved)) == sorted(map(int, moved))
    assert int(moved[-1]) == max(e.sequence for e in sweep_events(sweep.ledger, "smoke-test-1"))
    (child,) = runs_of(tmp_path, sync.experiment_id)[1]
    reward = MlflowClient(default_uri(tmp_path)).get_metric_history(child.info.run_id, "reward")
    assert sorted(m.step for m in reward) == list(range(1, 21))


def test_a_child_run_starts_with_its_first_attempt_and_a_trial_that_never_started_has_none(finished, tmp_path):
    folder, sweep = finished
    sync = MlflowSync(default_uri(folder), "times", folder / "artifacts", "smoke-test-1")
    sync.deliver(sweep.ledger)
    _, children = runs_of(folder, sync.experiment_id)
    for child in children:
        (attempt,) = sweep.journal.record.trials[child.data.tags["trial_id"]].attempts
        (usage,) = [u for u in sweep.ledger.usages.find() if u.key.trial_id == child.data.tags["trial_id"]]
        assert child.info.start_time == usage.from_ns // 1_000_000
        assert attempt.outcome is not None
    planned = a_sweep(tmp_path, "search.prompts_per_step=[2]")
    sync = MlflowSync(default_uri(folder), "planned", folder / "artifacts", "smoke-test-1")
    sync.deliver(planned.ledger)
    parents, children = runs_of(folder, sync.experiment_id)
    assert len(parents) == 1
    assert children == []


def test_the_parent_run_is_running_again_after_a_resume(finished, tmp_path):
    folder, _ = finished
    sweep = a_sweep(tmp_path, "search.prompts_per_step=[2]")
    sync = MlflowSync(default_uri(folder), "resumed", folder / "artifacts", "smoke-test-1")
    states = []
    for event in (DriverEnded(DriverEnd.BUDGET, "limit"), DriverStarted("lease-1", pid=2)):
        sweep.journal.append(event)
        sync.deliver(sweep.ledger)
        states.append(runs_of(folder, sync.experiment_id)[0][0].info.status)
    assert states == ["KILLED", "RUNNING"]


def test_the_parent_run_shows_accuracy_trials_and_verdict_of_the_sweep(finished, tmp_path):
    folder, _ = finished
    sweep = a_sweep(tmp_path, "search.prompts_per_step=[2,4]", "search.lr_scaling=[hold]").run()
    gate = GateVerdict("metric", (GateCheck("accuracy kept", True, ""), GateCheck(GAIN, None, "")), simulated=True)
    sweep.journal.append(gate)
    sweep.journal.append(DriverEnded(DriverEnd.DONE))
    sync = MlflowSync(default_uri(folder), "summary", folder / "artifacts", "smoke-test-1")
    sync.deliver(sweep.ledger)
    (parent,), children = runs_of(folder, sync.experiment_id)
    trials = sweep.journal.record.trials.values()
    best = max(trials, key=lambda trial: trial.summary.acc or 0.0)
    first = best.summary.first_evaluation
    assert first is not None
    expected = {"best_acc": best.summary.acc, "start_acc": first.accuracy, "trials": 2, "trials_completed": 2}
    assert parent.data.metrics == pytest.approx(expected)
    assert parent.data.tags["verdict"] == "inconclusive"
    assert parent.data.tags["currency"] == "UNPRICED"  # and there is no cost of 0
    assert parent.data.tags["simulated"] == "true"
    assert parent.info.run_name == "smoke-test-1 (simulated)"
    assert all((child.info.run_name or "").endswith("(simulated)") for child in children)


def test_runs_and_experiments_deleted_by_hand_are_made_anew_with_everything(finished):
    from mlflow import MlflowClient

    folder, sweep = finished
    where = (default_uri(folder), "deleted", folder / "artifacts", "smoke-test-1")
    sync, client = MlflowSync(*where), MlflowClient(default_uri(folder))
    sync.deliver(sweep.ledger)
    parents, children = runs_of(folder, sync.experiment_id)
    client.delete_run(children[0].info.run_id)
    client.set_tag(parents[0].info.run_id, CURSOR_TAG, "1")
    MlflowSync(*where).deliver(sweep.ledger)
    assert len(runs_of(folder, sync.experiment_id)[1]) == len(children)
    client.delete_run(parents[0].info.run_id)
    MlflowSync(*where).deliver(sweep.ledger)
    assert len(runs_of(folder, sync.experiment_id)[0]) == 1
    client.delete_experiment(sync.experiment_id)
    again = MlflowSync(*where)
    again.deliver(sweep.ledger)
    parents, children = runs_of(folder, again.experiment_id)
    assert client.get_experiment(again.experiment_id).name == "deleted-2"
    assert len(parents) == 1
    assert {c.data.tags["trial_id"] for c in children} == set(sweep.journal.record.trials)


def test_a_metric_name_that_mlflow_refuses_is_cleaned(finished, monkeypatch):
    folder, sweep = finished
    step_metrics = mlflow_sync.step_metrics
    monkeypatch.setattr(mlflow_sync, "step_metrics", lambda *given: step_metrics(*given) | {"len@10": 1.0})
    sync = MlflowSync(default_uri(folder), "names", folder / "artifacts", "smoke-test-1")
    sync.deliver(sweep.ledger)
    assert sync.refused == {}
    assert all("len_10" in child.data.metrics for child in runs_of(folder, sync.experiment_id)[1])


def test_a_value_that_mlflow_refuses_for_good_is_left_out_and_reported(finished, monkeypatch):
    folder, sweep = finished
    monkeypatch.setattr(mlflow_sync, "clean_name", lambda name: "bad@name" if name == "kl" else name)
    sync = MlflowSync(default_uri(folder), "refused", folder / "artifacts", "smoke-test-1")
    sync.deliver(sweep.ledger)
    assert list(sync.refused) == ["bad@name"]
    assert "\n" not in sync.refused["bad@name"]
    for child in runs_of(folder, sync.experiment_id)[1]:
        assert "reward" in child.data.metrics
        assert "kl" not in child.data.metrics


def test_the_next_sweep_delivers_what_a_killed_driver_has_not_delivered(finished, tmp_path):
    sweep = a_sweep(tmp_path, "search.prompts_per_step=[2]").run()
    tracker = MlflowTracker(
        uri=default_uri(finished[0]),
        experiment="of the next sweep",
        artifacts=tmp_path / "artifacts",
        open_ledger=lambda: Ledger.open(tmp_path / "ledger.db", create=False, read_only=True),
        sweep_id="smoke-next-1",
        warn=lambda text: None,
    )
    with Ledger.open(tmp_path / "ledger.db", create=False, read_only=True) as ledger:
        tracker._deliver_earlier(ledger)
    experiment = sweep.cfg.tracking.experiment
    sync = MlflowSync(default_uri(finished[0]), experiment, tmp_path / "artifacts", "smoke-test-1")
    assert sync.is_complete(sweep.ledger)

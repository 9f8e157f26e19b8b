"""Faults around a sweep: repeated calls, a stepped clock, a locked database, a full disk, MLflow without answer."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from cost.ledger import queries
from cost.ledger.ledger import Ledger
from rl.spec import Command, Event
from sweeps.executors import Attempt
from sweeps.journal.event_codec import messages_in
from sweeps.journal.journal import REPORT_KINDS, load, sweep_events
from sweeps.journal.outcomes import AttemptOutcome
from sweeps.report.mlflow_tracker import MlflowTracker
from tests.chaos.broken import break_and_resume
from tests.chaos.mlflow_server import a_server
from tests.sweeps.in_process import Sweep, a_sweep

HOUR_NS = 3600 * 10**9

SMALL = ("stage.steps=6", "trainer.checkpoint_every_steps=2", "task.eval_questions=4", "search.lr_scaling=[hold]")


# Repeated calls -------------------------------------------------------------------------------------------------------


class RepeatedCalls:
    """Repeats every call to a controller, and all messages of an attempt once more after its end."""

    def __init__(self, controller: Any) -> None:
        self._controller = controller
        self._messages: dict[str, list[tuple[int, Event]]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._controller, name)

    def on_granted(self, attempt: Attempt) -> None:
        self._controller.on_granted(attempt)
        self._controller.on_granted(attempt)

    def on_message(self, attempt: Attempt, sequence: int, message: Event) -> Command:
        self._messages.setdefault(str(attempt), []).append((sequence, message))
        answer = self._controller.on_message(attempt, sequence, message)
        assert self._controller.on_message(attempt, sequence, message) == answer
        return answer

    def on_ended(self, attempt: Attempt, outcome: AttemptOutcome, message: str) -> None:
        self._controller.on_ended(attempt, outcome, message)
        self._controller.on_ended(attempt, outcome, message)

    def on_released(self, attempt: Attempt, released: bool) -> None:
        self._controller.on_released(attempt, released)
        self._controller.on_released(attempt, released)
        self._controller.on_granted(attempt)
        for sequence, message in self._messages[str(attempt)]:
            self._controller.on_message(attempt, sequence, message)
        self._controller.on_ended(attempt, AttemptOutcome.CRASHED, "reported late")


@pytest.mark.parametrize(
    "overrides",
    [
        ("search.prompts_per_step=[2,4]",),
        ("machine=h100x8", "search.prompts_per_step=[2,4]", "trainer.simulated.preempt_at_step=4"),
        ("search.prompts_per_step=[2]", "trainer.simulated.crash_at_step=3"),
        ("search.prompts_per_step=[2]", "search.lr_scaling=[clip_frac]", "stage.steps=12"),
    ],
    ids=["plain", "preempted", "crashed", "learning rate moved"],
)
def test_a_repeated_call_counts_once_in_the_record_and_in_the_ledger(tmp_path, overrides):
    folders = tmp_path / "once", tmp_path / "twice"
    once, twice = (a_sweep(folder, *SMALL, *overrides) for folder in folders)
    once.run()
    controller: Any = RepeatedCalls(twice.controller)
    twice.executor.run(controller)
    assert what_happened(twice, folders[1]) == what_happened(once, folders[0])
    assert load(twice.ledger, "smoke-test-1") == twice.journal.record


def what_happened(sweep: Sweep, folder: Path) -> Any:
    """Everything in the journal and the ledger, without folder names and the grouping of messages into events."""
    events = [e for e in sweep_events(sweep.ledger, "smoke-test-1") if e.kind != "sweep_planned"]
    decisions = [(e.kind, e.key, e.at_ns, e.body) for e in events if e.kind not in REPORT_KINDS]
    messages = [(m.key, m.at_ns, m.body) for e in events for m in messages_in(e)]
    with sweep.ledger.read() as connection:
        phases = queries.phase_totals(connection)
    return str((decisions, messages)).replace(str(folder), ""), sweep.ledger.usages.find(), phases


# The clock ------------------------------------------------------------------------------------------------------------


class AtMessage:
    """Calls `event` before the n-th message reaches the controller."""

    def __init__(self, controller: Any, number: int, event: Callable[[], None]) -> None:
        self._controller, self._left, self._event = controller, number, event

    def __getattr__(self, name: str) -> Any:
        return getattr(self._controller, name)

    def on_message(self, attempt: Attempt, sequence: int, message: Event) -> Command:
        self._left -= 1
        if self._left == 0:
            self._event()
        return self._controller.on_message(attempt, sequence, message)


@pytest.mark.parametrize("step_ns", [HOUR_NS, -HOUR_NS], ids=["forward", "back"])
def test_a_wall_clock_set_by_an_hour_in_the_middle_changes_nothing_and_is_recorded(tmp_path, step_ns: int):
    folders = tmp_path / "steady", tmp_path / "stepped"
    steady, stepped = (a_sweep(folder, *SMALL) for folder in folders)
    steady.run()
    controller: Any = AtMessage(stepped.controller, 7, lambda: stepped.clock.step_wall(step_ns))
    stepped.executor.run(controller)
    assert what_happened(stepped, folders[1]) == what_happened(steady, folders[0])
    with stepped.ledger.read() as connection:
        assert [row.step_ns for row in connection.exec_driver_sql("SELECT step_ns FROM clock_step")] == [step_ns]


# Database and disk ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def worker() -> Iterator[ProcessPoolExecutor]:
    """A process of one thread, from which drivers can be forked."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


def test_a_database_that_is_locked_for_a_second_only_delays_the_sweep(worker, tmp_path):
    found = worker.submit(break_and_resume, "locked a while", tmp_path).result()
    assert found.code == 0, found.output
    assert "Stopped" not in found.output
    assert found.wrong == []


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("locked for good", "locked by another program"),
        ("disk full", "is full"),
        ("files may not grow", "disk I/O error"),
    ],
)
def test_a_ledger_that_cannot_be_written_ends_the_sweep_with_a_remedy_and_it_can_be_resumed(
    worker, tmp_path, fault: str, reason: str
):
    found = worker.submit(break_and_resume, fault, tmp_path).result()
    assert found.code == 1, found.output
    assert "Stopped: the " in found.output
    assert reason in found.output
    assert "continue with:  python sweep.py +stage=smoke" in found.output
    assert "Traceback" not in found.output
    assert found.code_after == 0, found.output_after
    assert "resuming" in found.output_after
    assert found.wrong == []


# MLflow ---------------------------------------------------------------------------------------------------------------


class Warnings(threading.Event):
    """Set by the first warning; keeps all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def __call__(self, text: str) -> None:
        self.texts.append(text)
        self.set()


def a_tracker(folder: Path, uri: str, warnings: Warnings) -> MlflowTracker:
    return MlflowTracker(
        uri=uri,
        experiment="test",
        artifacts=folder / "artifacts",
        open_ledger=lambda: Ledger.open(folder / "ledger.db", create=False, read_only=True),
        sweep_id="smoke-test-1",
        warn=warnings,
    )


def assert_mlflow_has_everything_once(uri: str, sweep: Sweep) -> None:
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("test")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    children = {run.data.tags["trial_id"]: run for run in runs if "trial_id" in run.data.tags}
    assert len(runs) == 1 + len(children)
    assert children.keys() == sweep.journal.record.trials.keys()
    for child in children.values():
        assert child.info.status == "FINISHED"
        assert child.data.params["lr"]
        history = client.get_metric_history(child.info.run_id, "reward")
        assert sorted(metric.step for metric in history) == [1, 2, 3, 4, 5, 6]


def test_an_mlflow_store_without_answer_receives_the_backlog_later(tmp_path):
    place = tmp_path / "mounted later"
    place.touch()
    uri, warnings = f"sqlite:///{place / 'mlflow.db'}", Warnings()
    sweep = a_sweep(tmp_path, *SMALL)
    tracker = a_tracker(tmp_path, uri, warnings)
    tracker.start()
    assert warnings.wait(60)
    sweep.run()
    place.unlink()
    place.mkdir()
    assert tracker.close(120)
    assert len(warnings.texts) == 1
    assert_mlflow_has_everything_once(uri, sweep)


@pytest.mark.slow  # MLflow's server takes a quarter of a minute to import
def test_an_mlflow_server_that_fails_in_the_middle_has_everything_once_in_the_end(tmp_path):
    sweep, warnings = a_sweep(tmp_path, *SMALL).run(), Warnings()
    with a_server(tmp_path) as server:
        server.away = range(20, 22)  # a request and its repetition
        tracker = a_tracker(tmp_path, server.uri, warnings)
        tracker.start()
        assert warnings.wait(60)
        assert tracker.close(120)
        assert_mlflow_has_everything_once(server.uri, sweep)
    assert len(warnings.texts) == 1

"""MLflow as a view of the journal, for people: a parent run per sweep, a child run per trial.

A `Tracker` reads the journal from where MLflow last was and delivers what came since, in a thread of its own. MLflow
may be slow, down or gone: training does not notice, nothing is lost, and the next delivery starts from the cursor that
lies in MLflow itself (tag `journal.sequence` of the parent run). Delivering the same event twice changes nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl.spec import EvalReport, Started, StepReport
from sweeps.journal.event_codec import decode
from sweeps.journal.events import (
    AttemptEnded,
    AttemptStarted,
    DriverEnd,
    DriverEnded,
    GateVerdict,
    MessagesReported,
    SweepPlanned,
    TrialProposed,
)
from sweeps.journal.journal import OUTCOME_STATES, TrialState, sweep_events
from sweeps.journal.messages import RecordedMessage
from sweeps.journal.metrics import step_metrics
from sweeps.planning.plan import PlannedTrial

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from cost.ledger.ledger import Ledger
    from cost.records import StoredEvent

CURSOR_TAG = "journal.sequence"
MAX_METRICS_PER_BATCH = 900
MOST_WAITING_METRICS = 50_000
"""So many are held in memory at most, beside those of one event: a long journal is delivered part by part."""
POLL_SECONDS = 2.0
MAX_BACKOFF_SECONDS = 60.0

_SQLITE = "sqlite:///"
_STATUS = {TrialState.COMPLETED: "FINISHED", TrialState.PRUNED: "FINISHED", TrialState.FAILED: "FAILED"}


def default_uri(root: Path) -> str:
    return f"sqlite:///{root.absolute() / 'mlflow.db'}"


class Tracker:
    """Delivers one sweep's journal to MLflow in the background, until `close`."""

    def __init__(
        self,
        *,
        uri: str,
        experiment: str,
        artifacts: Path,
        open_ledger: Callable[[], Ledger],
        sweep_id: str,
        warn: Callable[[str], None],
    ) -> None:
        self._uri, self._experiment, self._artifacts = uri, experiment, artifacts
        self._open_ledger, self._sweep_id, self._warn = open_ledger, sweep_id, warn
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mlflow", daemon=True)
        self.delivered = False
        """Everything that was in the journal when `close` was called is in MLflow."""
        self.experiment_id: str | None = None

    def start(self) -> None:
        # Before the thread imports MLflow, which does: the driver's statements must not meet half of this module.
        import sqlalchemy.orm  # noqa: F401

        self._thread.start()

    def close(self, timeout_seconds: float) -> bool:
        """Deliver what is left, for at most this long; whether all of it arrived."""
        self._closing.set()
        self._thread.join(timeout_seconds)
        return self.delivered

    def _run(self) -> None:
        # A server that does not answer should cost seconds, not MLflow's default of minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        delivery: Delivery | None = None
        warned, wait = False, POLL_SECONDS
        with self._open_ledger() as ledger:
            while True:
                last_round = self._closing.is_set()
                try:
                    if delivery is None:
                        delivery = Delivery(self._uri, self._experiment, self._artifacts, self._sweep_id)
                        self.experiment_id = delivery.experiment_id
                    delivery.deliver(ledger)
                    wait = POLL_SECONDS
                    if last_round:
                        self.delivered = True
                        return
                except Exception as error:
                    if not warned:
                        warned = True
                        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                        self._warn(
                            f"MLflow at {self._uri} does not answer ({reason[:160]}); the sweep goes on without it"
                        )
                    if last_round:
                        return
                    wait = min(wait * 2, MAX_BACKOFF_SECONDS)
                self._closing.wait(wait)


class Delivery:
    """What is known of one sweep in MLflow: its runs and how far the journal was delivered."""

    def __init__(self, uri: str, experiment: str, artifacts: Path, sweep_id: str) -> None:
        self._client = _client(uri)
        self.experiment_id = _experiment_id(self._client, experiment, uri, artifacts)
        self._sweep_id = sweep_id
        self._runs: dict[str, str] = {}
        self._cards: dict[str, int] = {}
        self._evaluated: dict[str, set[int]] = {}
        self._parent: str | None = None
        self._cursor = 0
        for run in self._client.search_runs([self.experiment_id], f"tags.sweep_id = '{sweep_id}'", max_results=50_000):
            trial_id = run.data.tags.get("trial_id")
            if trial_id:
                self._runs[trial_id] = run.info.run_id
                self._cards[trial_id] = int(run.data.tags.get("cards", "1"))
            else:
                self._parent = run.info.run_id
                self._cursor = int(run.data.tags.get(CURSOR_TAG, "0"))

    def deliver(self, ledger: Ledger) -> None:
        """Everything since the cursor, a part at a time; the cursor moves once a part is all there.

        Raises:
            Exception: whatever MLflow raises; the cursor stands, so the same events come again.
        """
        metrics: dict[str, list[Any]] = {}
        last = self._cursor
        try:
            for event in sweep_events(ledger, self._sweep_id, after=self._cursor):
                self._take(ledger, event, metrics)
                last = event.sequence
                if sum(map(len, metrics.values())) >= MOST_WAITING_METRICS:
                    self._settle(last, metrics)
            self._settle(last, metrics)
        except BaseException:
            self._evaluated.clear()  # of what was to be delivered, nobody knows what arrived
            raise

    def _settle(self, last: int, metrics: dict[str, list[Any]]) -> None:
        """Deliver what waits: all up to event `last` is there."""
        for run_id in list(metrics):
            self._flush(run_id, metrics)
        if last > self._cursor and self._parent is not None:
            self._client.set_tag(self._parent, CURSOR_TAG, str(last))
            self._cursor = last

    def _take(self, ledger: Ledger, stored: StoredEvent, metrics: dict[str, list[Any]]) -> None:
        at_ms = _ms(stored.at_ns)
        match event := decode(stored):
            case MessagesReported():
                for recorded in event.messages:
                    self._message(recorded, metrics)
            case SweepPlanned():
                self._plan(event, at_ms)
            case TrialProposed():
                self._trial(self._read_plan(ledger), event.trial, at_ms)
            case AttemptStarted():
                run_id = self._runs[event.trial_id]
                self._client.update_run(run_id, "RUNNING")
                self._client.set_tag(run_id, "attempts", str(event.attempt))
            case AttemptEnded():
                run_id, state = self._runs[event.trial_id], OUTCOME_STATES[event.outcome]
                self._flush(run_id, metrics)
                self._client.set_tag(run_id, "state", str(state))
                if event.message:
                    self._client.set_tag(run_id, "message", event.message[:4000])
                self._client.set_terminated(run_id, _STATUS.get(state, "KILLED"), at_ms)
            case GateVerdict():
                assert self._parent is not None
                self._client.set_tag(self._parent, f"gate.{event.gate}", "open" if event.open else "closed")
            case DriverEnded():
                assert self._parent is not None
                status = {DriverEnd.DONE: "FINISHED", DriverEnd.FAILED: "FAILED"}.get(event.end, "KILLED")
                self._client.set_terminated(self._parent, status, at_ms)

    def _read_plan(self, ledger: Ledger) -> SweepPlanned:
        first = decode(next(sweep_events(ledger, self._sweep_id)))
        assert isinstance(first, SweepPlanned)
        return first

    def _plan(self, plan: SweepPlanned, at_ms: int) -> None:
        if self._parent is None:
            tags = _tags(self._sweep_id, plan)
            run = self._client.create_run(self.experiment_id, at_ms, tags, run_name=self._sweep_id)
            self._parent = run.info.run_id
        # Also for a run that exists: the process that created it may have died before it set them.
        self._params(self._parent, _flat(plan.config))
        for trial in plan.trials:
            self._trial(plan, trial, at_ms)

    def _trial(self, plan: SweepPlanned, planned: PlannedTrial, at_ms: int) -> None:
        """The run of a trial that was planned or proposed, with the configuration at its point."""
        if planned.trial_id not in self._runs:
            tags = {**_tags(self._sweep_id, plan), "trial_id": planned.trial_id, "state": "PLANNED"}
            tags["mlflow.parentRunId"] = self._parent or ""
            name = f"{planned.label} {planned.trial_id[:6]}"
            run = self._client.create_run(self.experiment_id, at_ms, tags, run_name=name)
            self._runs[planned.trial_id] = run.info.run_id
        point = {k: getattr(planned, k) for k in ("prompts_per_step", "group_size", "lr", "lr_scaling", "seed")}
        recipe = _flat({k: plan.config[k] for k in ("model", "task", "algorithm")})
        self._params(self._runs[planned.trial_id], point | recipe | dict(planned.overrides))

    def _message(self, recorded: RecordedMessage, metrics: dict[str, list[Any]]) -> None:
        run_id, trial_id, at_ms = self._runs[recorded.trial_id], recorded.trial_id, _ms(recorded.at_ns)
        match recorded.message:
            case Started() as started:
                self._cards[trial_id] = started.cards
                for key in ("cards", "engine", "device", "parameters"):
                    self._client.set_tag(run_id, key, str(getattr(started, key)))
            case StepReport(replay=False) as report:
                self._add(run_id, step_metrics(report, self._cards.get(trial_id, 1)), report.step, at_ms, metrics)
            case EvalReport() as report:
                accuracy = report.accuracy
                if accuracy is not None and report.step not in self._evaluated_steps(run_id):
                    self._evaluated_steps(run_id).add(report.step)
                    self._add(run_id, {"eval_acc": accuracy}, report.step, at_ms, metrics)

    def _evaluated_steps(self, run_id: str) -> set[int]:
        """Steps whose evaluation is there: one that is taken again, after a restart from the beginning, adds none."""
        if run_id not in self._evaluated:
            known = self._client.get_metric_history(run_id, "eval_acc")
            self._evaluated[run_id] = {metric.step for metric in known}
        return self._evaluated[run_id]

    def _add(
        self, run_id: str, values: Mapping[str, float], step: int, at_ms: int, metrics: dict[str, list[Any]]
    ) -> None:
        from mlflow.entities import Metric

        metrics.setdefault(run_id, []).extend(Metric(name, value, at_ms, step) for name, value in values.items())

    def _flush(self, run_id: str, metrics: dict[str, list[Any]]) -> None:
        pending = metrics.pop(run_id, [])
        for start in range(0, len(pending), MAX_METRICS_PER_BATCH):
            self._client.log_batch(run_id, metrics=pending[start : start + MAX_METRICS_PER_BATCH])

    def _params(self, run_id: str, values: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        params = [Param(key, str(value)) for key, value in values.items()]
        for start in range(0, len(params), 100):
            self._client.log_batch(run_id, params=params[start : start + 100])


def _tags(sweep_id: str, plan: SweepPlanned) -> dict[str, str]:
    tags = {"sweep_id": sweep_id, "stage": plan.stage, "machine": plan.machine}
    return tags | {"simulated": "true"} if plan.config["trainer"]["name"] == "simulated" else tags


def _client(uri: str) -> MlflowClient:
    import logging

    # MLflow tells of its own table migrations at INFO; a person who runs a sweep did not ask.
    for name in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(name).setLevel(logging.WARNING)
    from mlflow import MlflowClient

    if uri.startswith(_SQLITE) and not (path := Path(uri.removeprefix(_SQLITE))).exists():
        _make_store(path)
    return MlflowClient(tracking_uri=uri)


def _make_store(path: Path) -> None:
    """A SQLite store, whole or not there at all: MLflow cannot go on with one whose first migration was killed."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        SqlAlchemyStore(f"{_SQLITE}{partial}", str(path.parent / "mlartifacts")).engine.dispose()
        with suppress(FileExistsError):  # another sweep's driver was faster, and its store may be in use
            os.link(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _experiment_id(client: MlflowClient, name: str, uri: str, artifacts: Path) -> str:
    if experiment := client.get_experiment_by_name(name):
        return experiment.experiment_id
    # Without a place of its own, a local store would put artifacts under ./mlruns of wherever one stands.
    local = uri.startswith("sqlite:")
    return client.create_experiment(name, artifacts.absolute().as_uri() if local else None)


def _ms(at_ns: int) -> int:
    return at_ns // 1_000_000


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            flat |= _flat(inner, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = inner
    return flat

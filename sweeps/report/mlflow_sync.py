"""Copies a sweep's journal into MLflow: a parent run per sweep, a child run per trial.

MLflow is a view for people, not the truth. The position in the journal is stored in MLflow itself (tag
`journal.sequence` of the parent run), so an interrupted delivery continues there, and delivering an event twice changes
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl.spec import EvalReport, Started, StepReport
from sweeps.journal.event_codec import decode
from sweeps.journal.events import (
    AttemptEnded,
    AttemptStarted,
    DriverEnded,
    GateVerdict,
    MessagesReported,
    SweepPlanned,
    TrialProposed,
)
from sweeps.journal.journal import OUTCOME_STATES, TrialState, sweep_events
from sweeps.journal.messages import RecordedMessage
from sweeps.journal.metrics import step_metrics
from sweeps.journal.outcomes import DriverEnd
from sweeps.planning.plan import PlannedTrial
from sweeps.report.mlflow_store import experiment_id_of, open_client

if TYPE_CHECKING:
    from cost.ledger.ledger import Ledger
    from cost.records import StoredEvent

CURSOR_TAG = "journal.sequence"
MAX_METRICS_PER_BATCH = 900
MAX_PENDING_METRICS = 50_000
"""A long journal is delivered in parts of about this many metrics, to bound the memory."""
_STATUS = {TrialState.COMPLETED: "FINISHED", TrialState.PRUNED: "FINISHED", TrialState.FAILED: "FAILED"}


class MlflowSync:
    """One sweep in MLflow: its runs, and the position in the journal up to which they are complete."""

    def __init__(self, uri: str, experiment: str, artifacts: Path, sweep_id: str) -> None:
        self._client = open_client(uri)
        self.experiment_id = experiment_id_of(self._client, experiment, uri, artifacts)
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
        """Deliver all events since the cursor, in parts. The cursor moves after each complete part.

        Raises:
            Exception: any error of MLflow. The cursor stays, so the next call repeats the part.
        """
        metrics: dict[str, list[Any]] = {}
        last = self._cursor
        try:
            for event in sweep_events(ledger, self._sweep_id, after=self._cursor):
                self._apply(ledger, event, metrics)
                last = event.sequence
                if sum(map(len, metrics.values())) >= MAX_PENDING_METRICS:
                    self._finish_part(last, metrics)
            self._finish_part(last, metrics)
        except BaseException:
            self._evaluated.clear()  # it is unknown which metrics have arrived
            raise

    def _finish_part(self, last: int, metrics: dict[str, list[Any]]) -> None:
        """Send pending metrics and move the cursor to event `last`."""
        for run_id in list(metrics):
            self._flush(run_id, metrics)
        if last > self._cursor and self._parent is not None:
            self._client.set_tag(self._parent, CURSOR_TAG, str(last))
            self._cursor = last

    def _apply(self, ledger: Ledger, stored: StoredEvent, metrics: dict[str, list[Any]]) -> None:
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
        """Steps whose evaluation MLflow has. An evaluation repeated after a restart adds no second value."""
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

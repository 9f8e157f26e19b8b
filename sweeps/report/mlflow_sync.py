"""Copies a sweep's journal into MLflow: a parent run per sweep, a child run per trial.

MLflow is a view for people, not the truth. The position in the journal is stored in MLflow itself (tag
`journal.sequence` of the parent run), so an interrupted delivery continues there, and delivering an event twice changes
nothing.

A trial's run is created when its first attempt starts, with that time. A run or experiment that a person deleted is
created again. A value that MLflow refuses for good is left out and reported in `refused`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost.secrets import mask_secrets
from rl.spec import EvalReport, Started, StepReport
from sweeps.journal.event_codec import decode
from sweeps.journal.events import (
    AttemptEnded,
    AttemptStarted,
    DriverEnded,
    DriverStarted,
    GateVerdict,
    MessagesReported,
    RuleStopped,
    RunImported,
    SweepPlanned,
    TrialProposed,
)
from sweeps.journal.journal import OUTCOME_STATES, TrialState, decisions, sweep_events
from sweeps.journal.messages import RecordedMessage
from sweeps.journal.metrics import step_metrics
from sweeps.journal.outcomes import DriverEnd
from sweeps.planning.plan import PlannedTrial
from sweeps.report.mlflow_store import experiment_id_of, open_client
from sweeps.report.mlflow_summary import RunSummary, run_summary

if TYPE_CHECKING:
    from cost.ledger.ledger import Ledger
    from cost.records import StoredEvent

CURSOR_TAG = "journal.sequence"
MAX_METRICS_PER_BATCH = 900
MAX_PARAM_CHARS = 6000
"""MLflow refuses longer values."""
MAX_PENDING_METRICS = 50_000
"""A long journal is delivered in parts of about this many metrics, to bound the memory."""
_STATUS = {TrialState.COMPLETED: "FINISHED", TrialState.PRUNED: "FINISHED", TrialState.FAILED: "FAILED"}


class MlflowSync:
    """One sweep in MLflow: its runs, and the position in the journal up to which they are complete."""

    def __init__(self, uri: str, experiment: str, artifacts: Path, sweep_id: str) -> None:
        self._client = open_client(uri)
        self._where = (experiment, uri, artifacts)
        self._sweep_id = sweep_id
        self.refused: dict[str, str] = {}
        """Names of values that MLflow refuses for good, and why."""
        self._find_runs()

    def _find_runs(self) -> None:
        """Find the experiment and the runs of the sweep, and the position up to which they are complete."""
        self.experiment_id = experiment_id_of(self._client, *self._where)
        self._runs: dict[str, str] = {}
        self._cards: dict[str, int] = {}
        self._started: set[str] = set()
        """Trials whose run has all its parameters."""
        self._evaluated: dict[str, set[int]] = {}
        self._parent: str | None = None
        self._cursor = 0
        sweep_id = self._sweep_id
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

        Where a run was deleted, everything is delivered from the start, which creates the run again.

        Raises:
            Exception: any error of MLflow. The cursor stays, so the next call repeats the part.
        """
        try:
            self._deliver(ledger)
        except Exception as error:
            if not _is_deleted(error):
                raise
            self._find_runs()
            self._cursor = 0
            self._deliver(ledger)

    def is_complete(self, ledger: Ledger) -> bool:
        """Whether MLflow has every event of the journal."""
        return next(sweep_events(ledger, self._sweep_id, after=self._cursor), None) is None

    def _deliver(self, ledger: Ledger) -> None:
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
            case RunImported():
                self._import(event, at_ms, metrics)
            case DriverStarted():
                self._client.update_run(self._parent_run(), "RUNNING")
            case AttemptStarted():
                run_id = self._trial(ledger, event.trial_id, at_ms)
                self._client.update_run(run_id, "RUNNING")
                self._client.set_tag(run_id, "attempts", str(event.attempt))
            case AttemptEnded():
                run_id, state = self._run(event.trial_id), OUTCOME_STATES[event.outcome]
                self._flush(run_id, metrics)
                self._client.set_tag(run_id, "state", str(state))
                if event.message:
                    self._client.set_tag(run_id, "message", event.message[:4000])
                self._client.set_terminated(run_id, _STATUS.get(state, "KILLED"), at_ms)
            case RuleStopped():
                tags = {"stopped_by_rule": event.rule, "stop_reason": event.text[:4000], "not_run": event.summary}
                for name, value in tags.items():
                    self._client.set_tag(self._run(event.trial_id), name, value)
            case GateVerdict():
                for check in event.checks:
                    state = {True: "ok", False: "failed", None: "warning" if check.warning else "not judged"}[check.ok]
                    name = re.sub(r"[^\w./ -]", "_", check.name)
                    self._client.set_tag(
                        self._parent_run(), f"gate.{event.gate}.{name}", f"{state}: {check.reason}"[:4000]
                    )
                self._client.set_tag(self._parent_run(), f"gate.{event.gate}", "open" if event.open else "closed")
                self._client.set_tag(self._parent_run(), "verdict", event.status)
            case DriverEnded():
                self._summarise(run_summary(ledger, self._sweep_id, stored.at_ns), at_ms)
                status = {DriverEnd.DONE: "FINISHED", DriverEnd.FAILED: "FAILED"}.get(event.end, "KILLED")
                self._client.set_terminated(self._parent_run(), status, at_ms)

    def _summarise(self, summary: RunSummary, at_ms: int) -> None:
        from mlflow.entities import Metric

        run_id = self._parent_run()
        for name, value in summary.tags.items():
            self._client.set_tag(run_id, name, value)
        self._log(run_id, "metrics", [Metric(name, value, at_ms, 0) for name, value in summary.metrics.items()])

    def _parent_run(self) -> str:
        if self._parent is None:
            raise _RunDeletedError(self._sweep_id)
        return self._parent

    def _run(self, trial_id: str) -> str:
        """The run of a trial that has started. Only a person can have removed that run."""
        if trial_id not in self._runs:
            raise _RunDeletedError(trial_id)
        return self._runs[trial_id]

    def _read_plan(self, ledger: Ledger, trial_id: str) -> tuple[SweepPlanned, PlannedTrial]:
        """The plan of the sweep, and that of one of its trials."""
        plan: SweepPlanned | None = None
        for stored in decisions(ledger, self._sweep_id):
            match event := decode(stored):
                case SweepPlanned():
                    plan = event
                    found = next((t for t in event.trials if t.trial_id == trial_id), None)
                case TrialProposed():
                    found = event.trial if event.trial.trial_id == trial_id else None
                case _:
                    found = None
            if plan is not None and found is not None:
                return plan, found
        raise AssertionError(f"{trial_id} was never planned")

    def _plan(self, plan: SweepPlanned, at_ms: int) -> None:
        if self._parent is None:
            tags = _tags(self._sweep_id, plan)
            run = self._client.create_run(self.experiment_id, at_ms, tags, run_name=_run_name(self._sweep_id, plan))
            self._parent = run.info.run_id
        # Also for a run that exists: the process that created it may have died before it set them.
        self._params(self._parent, _flat(plan.config))

    def _import(self, event: RunImported, at_ms: int, metrics: dict[str, list[Any]]) -> None:
        """The run of another trainer: one MLflow run with the curves of the steps that count."""
        run = event.run
        if self._parent is None:
            tags = {"sweep_id": self._sweep_id, "stage": "imported", "trainer": run.trainer, "source": event.source}
            created = self._client.create_run(self.experiment_id, at_ms, tags, run_name=self._sweep_id)
            self._parent = created.info.run_id
        self._params(self._parent, run.facts.known())
        for row in run.lineage:
            self._add(self._parent, row.curves(), row.step, at_ms, metrics)
        for evaluation in run.evaluations:
            self._add(self._parent, {f"eval_{evaluation.name}": evaluation.value}, evaluation.step, at_ms, metrics)

    def _trial(self, ledger: Ledger, trial_id: str, at_ms: int) -> str:
        """The run of a trial that starts at `at_ms`, with the configuration at its point; the run's id."""
        if trial_id not in self._started:
            plan, planned = self._read_plan(ledger, trial_id)
            self._create_run(plan, planned, at_ms)
            self._started.add(trial_id)
        return self._runs[trial_id]

    def _create_run(self, plan: SweepPlanned, planned: PlannedTrial, at_ms: int) -> None:
        if planned.trial_id not in self._runs:
            tags = {**_tags(self._sweep_id, plan), "trial_id": planned.trial_id, "state": "PLANNED"}
            tags["mlflow.parentRunId"] = self._parent or ""
            name = _run_name(f"{planned.label} {planned.trial_id[:6]}", plan)
            run = self._client.create_run(self.experiment_id, at_ms, tags, run_name=name)
            self._runs[planned.trial_id] = run.info.run_id
        point = {k: getattr(planned, k) for k in ("prompts_per_step", "group_size", "lr", "lr_scaling", "seed")}
        recipe = _flat({k: plan.config[k] for k in ("model", "task", "algorithm")})
        self._params(self._runs[planned.trial_id], point | recipe | dict(planned.overrides))

    def _message(self, recorded: RecordedMessage, metrics: dict[str, list[Any]]) -> None:
        run_id, trial_id, at_ms = self._run(recorded.trial_id), recorded.trial_id, _ms(recorded.at_ns)
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

        metrics.setdefault(run_id, []).extend(
            Metric(clean_name(name), value, at_ms, step) for name, value in values.items()
        )

    def _flush(self, run_id: str, metrics: dict[str, list[Any]]) -> None:
        pending = metrics.pop(run_id, [])
        for start in range(0, len(pending), MAX_METRICS_PER_BATCH):
            self._log(run_id, "metrics", pending[start : start + MAX_METRICS_PER_BATCH])

    def _params(self, run_id: str, values: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        params = [Param(clean_name(key), str(value)[:MAX_PARAM_CHARS]) for key, value in values.items()]
        for start in range(0, len(params), 100):
            self._log(run_id, "params", params[start : start + 100])

    def _log(self, run_id: str, kind: str, entries: list[Any]) -> None:
        """Log a batch. Where MLflow refuses it for good, its entries are logged singly, and refused ones left out."""

        def batch(some: list[Any]) -> dict[str, Any]:
            return {kind: some}

        try:
            self._client.log_batch(run_id, **batch(entries))
        except Exception as error:
            if not _is_refused(error):
                raise
            for entry in entries:
                try:
                    self._client.log_batch(run_id, **batch([entry]))
                except Exception as single:
                    if not _is_refused(single):
                        raise
                    self.refused[entry.key] = first_line(single)


IMPORTED_TRACKING: Mapping[str, Any] = {"uri": None, "experiment": "grpo-ladder"}
"""Where imported runs go: they have no configuration of their own."""


def tracking_of(ledger: Ledger, sweep_id: str) -> Mapping[str, Any]:
    """The configuration's `tracking` of a sweep, from its first event."""
    first = decode(next(sweep_events(ledger, sweep_id)))
    if isinstance(first, RunImported):
        return IMPORTED_TRACKING
    assert isinstance(first, SweepPlanned)
    return first.config["tracking"]


class _RunDeletedError(Exception):
    """A run that was created is not in MLflow any more."""


def clean_name(name: str) -> str:
    """A name that every MLflow store takes: other characters become `_`."""
    return re.sub(r"[^\w.\-:/ ]", "_", name, flags=re.ASCII).strip("/") or "_"


def first_line(error: BaseException) -> str:
    """The first line of an error's text, for a message of one line."""
    return mask_secrets(next(iter(str(error).strip().splitlines()), type(error).__name__))[:160]


def _is_deleted(error: Exception) -> bool:
    """Whether a run or an experiment is not there any more."""
    code, text = getattr(error, "error_code", ""), str(error)
    gone = code == "RESOURCE_DOES_NOT_EXIST" or "must be in the 'active' state" in text or "must be in 'active'" in text
    return isinstance(error, _RunDeletedError) or gone


def _is_refused(error: Exception) -> bool:
    """Whether MLflow will never take what was sent, however often it is repeated."""
    return getattr(error, "error_code", "") in ("INVALID_PARAMETER_VALUE", "BAD_REQUEST") and not _is_deleted(error)


def _is_simulated(plan: SweepPlanned) -> bool:
    return plan.config["trainer"]["name"] == "simulated"


def _run_name(name: str, plan: SweepPlanned) -> str:
    return f"{name} (simulated)" if _is_simulated(plan) else name


def _tags(sweep_id: str, plan: SweepPlanned) -> dict[str, str]:
    tags = {"sweep_id": sweep_id, "stage": plan.stage, "machine": plan.machine}
    return tags | {"simulated": "true"} if _is_simulated(plan) else tags


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

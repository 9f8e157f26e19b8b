"""What the journal knows of a sweep and its trials: the state that the replay of its events gives.

Takes in one event after another, reads and writes nothing. `sweeps.journal` keeps the events, and gives these out.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from rl.codec import from_json, message_from_json
from rl.spec import CheckpointWritten, Event, SetLr, Started, Stop, StopKind
from sweeps.journal.events import AttemptOutcome, DriverEnd
from sweeps.journal.messages import WORDS, RecordedMessage, words_in
from sweeps.journal.trial_summary import TrialSummary
from sweeps.planning.plan import PlannedTrial

if TYPE_CHECKING:
    from cost.records import StoredEvent


class TrialState(StrEnum):
    """Where a trial stands. Pruned is not completed, preempted is not failed."""

    PLANNED = "PLANNED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    PRUNED = "PRUNED"
    FAILED = "FAILED"
    PREEMPTED = "PREEMPTED"
    BUDGET_STOPPED = "BUDGET_STOPPED"
    CANCELLED = "CANCELLED"


UNFINISHED = frozenset({TrialState.PLANNED, TrialState.RUNNING, TrialState.PREEMPTED, TrialState.BUDGET_STOPPED})
"""A resume goes on with these."""

OUTCOME_STATES: Mapping[AttemptOutcome, TrialState] = {
    AttemptOutcome.COMPLETED: TrialState.COMPLETED,
    AttemptOutcome.CRASHED: TrialState.FAILED,
    AttemptOutcome.HUNG: TrialState.FAILED,
    AttemptOutcome.OUT_OF_MEMORY: TrialState.FAILED,
    AttemptOutcome.BAD_CONFIGURATION: TrialState.FAILED,
    AttemptOutcome.PREEMPTED: TrialState.PREEMPTED,
    AttemptOutcome.INTERRUPTED: TrialState.PREEMPTED,
    AttemptOutcome.LOST: TrialState.PREEMPTED,
    AttemptOutcome.PRUNED: TrialState.PRUNED,
    AttemptOutcome.BUDGET: TrialState.BUDGET_STOPPED,
    AttemptOutcome.CANCELLED: TrialState.CANCELLED,
}
"""The state of a trial whose last attempt ended in this way, unless the trial is retried."""


@dataclass
class AttemptRecord:
    """One try at a trial."""

    attempt: int
    lease_id: str
    started_ns: int
    from_step: int
    outcome: AttemptOutcome | None = None
    """None: the attempt runs, or its driver died."""
    message: str = ""
    ended_ns: int | None = None


@dataclass
class TrialRecord:
    """What the journal knows of one trial."""

    planned: PlannedTrial
    attempts: list[AttemptRecord] = field(default_factory=list)
    summary: TrialSummary = field(default_factory=TrialSummary)
    """What its words add up to."""
    retry_not_before_ns: int | None = None
    """It waits to be tried again, until this moment at least; None: it does not."""
    attempts_forgiven: int = 0
    """Attempts that do not count against the retries any more: somebody asked for a new start after them."""
    lr_told: dict[int, float] = field(default_factory=dict)
    """Learning rates that the driver set, by the step after which it did."""
    cancelled: str | None = None
    """Why a person does not want it any more; None: nobody said so."""
    pruned: str | None = None
    """Why it was told to end early; None: it was not. It ends so, however its attempt does."""
    micro_batch_tokens: int | None = None
    """What a retry made of `trainer.micro_batch_tokens`; None: as configured."""
    messages: int = 0
    """Trainer messages of the current attempt so far: the next one's sequence number."""

    @property
    def trial_id(self) -> str:
        return self.planned.trial_id

    @property
    def state(self) -> TrialState:
        if not self.attempts:
            return TrialState.PLANNED if self.cancelled is None else TrialState.CANCELLED
        outcome = self.attempts[-1].outcome
        if outcome is None:
            return TrialState.RUNNING
        state = OUTCOME_STATES[outcome]
        if self.pruned is not None and state is not TrialState.COMPLETED:
            return TrialState.PRUNED
        if self.cancelled is not None and (state in UNFINISHED or self.retry_not_before_ns is not None):
            return TrialState.CANCELLED
        return TrialState.PLANNED if state is TrialState.FAILED and self.retry_not_before_ns is not None else state

    @property
    def lr(self) -> float:
        """The learning rate in force, before schedule."""
        return self.lr_told[max(self.lr_told)] if self.lr_told else self.planned.lr

    @property
    def lr_was_raised(self) -> bool:
        rates = [self.planned.lr, *(self.lr_told[step] for step in sorted(self.lr_told))]
        return any(after > before for before, after in itertools.pairwise(rates))

    @property
    def started(self) -> Started | None:
        return self.summary.started

    @property
    def checkpoint(self) -> CheckpointWritten | None:
        return self.summary.checkpoint

    def hear(self, said: RecordedMessage, message: Event) -> None:
        """Take in a word of the attempt that runs."""
        self.messages = said.sequence + 1
        self.summary.add(message)


@dataclass
class SweepRecord:
    """What the journal knows of one sweep."""

    sweep_id: str
    stage: str = ""
    machine: str = ""
    plan_digest: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    planned_ns: int = 0
    trials: dict[str, TrialRecord] = field(default_factory=dict)
    proposals: int = 0
    """Trials that the search proposes in all; 0 where the whole plan was known."""
    gate: Mapping[str, Any] | None = None
    lease_ids: list[str] = field(default_factory=list)
    ended: DriverEnd | None = None
    """How the last driver ended; None while a driver is at work, or where it died."""
    ended_ns: int | None = None
    last_ns: int = 0
    """Of the newest event."""
    read_up_to: int = field(default=0, compare=False)
    """Number of the newest event that was taken in; those after it are new to it."""
    operator_commands: int = 0
    """How many a person has given."""
    stop_wanted: str | None = None
    """Why a person wants the driver at work to stop; None: nobody does."""
    unreleased: list[str] = field(default_factory=list)
    """Attempts whose processes or cards were still held after they ended, `trial/attempt`."""

    @property
    def simulated(self) -> bool:
        return self.config.get("trainer", {}).get("name") == "simulated"

    @property
    def unfinished(self) -> list[TrialRecord]:
        return [t for t in self.trials.values() if t.state in UNFINISHED]

    @property
    def to_propose(self) -> int:
        """Trials that the search has yet to propose."""
        return max(0, self.proposals - len(self.trials))

    @property
    def left(self) -> int:
        """Trials that have yet to run, or to go on."""
        return len(self.unfinished) + self.to_propose

    @property
    def closed(self) -> bool:
        """Nothing is left to do: every trial is over, the gate has judged them, and a driver has closed the books."""
        return not self.left and self.gate is not None and self.ended is not None

    def apply(self, event: StoredEvent) -> None:
        """Take in one event.

        Raises:
            ValueError: an event of a kind this version does not know; a newer version wrote it.
        """
        self.read_up_to = event.sequence
        if event.kind == WORDS:
            for said in words_in(event):
                self.hear(said, said.message)
            return
        handler = getattr(self, f"_on_{event.kind}", None)
        if handler is None:
            raise ValueError(
                f"the journal of {self.sweep_id} has an event of kind {event.kind!r} that this version does not know: "
                "it was written by a newer one; update this installation"
            )
        handler(event.body, event.at_ns)
        self.last_ns = max(self.last_ns, event.at_ns)

    def _on_sweep_planned(self, body: Mapping[str, Any], at_ns: int) -> None:
        self.stage, self.machine, self.config = body["stage"], body["machine"], body["config"]
        self.plan_digest, self.planned_ns = body["plan_digest"], at_ns
        self.proposals = body.get("proposals", 0)
        for row in body["trials"]:
            self._add(row)

    def _on_trial_planned(self, body: Mapping[str, Any], at_ns: int) -> None:
        self._add(body["trial"])

    def _on_search_ended(self, body: Mapping[str, Any], at_ns: int) -> None:
        self.proposals = len(self.trials)

    def _add(self, row: Mapping[str, Any]) -> None:
        planned = from_json(PlannedTrial, row)
        self.trials[planned.trial_id] = TrialRecord(planned)

    def _on_driver_started(self, body: Mapping[str, Any], at_ns: int) -> None:
        self.ended = self.ended_ns = self.stop_wanted = None
        if body["lease_id"] not in self.lease_ids:
            self.lease_ids.append(body["lease_id"])

    def _on_attempt_started(self, body: Mapping[str, Any], at_ns: int) -> None:
        trial = self.trials[body["trial_id"]]
        trial.messages, trial.retry_not_before_ns = 0, None
        trial.attempts.append(AttemptRecord(body["attempt"], body["lease_id"], at_ns, body["from_step"]))

    def hear(self, said: RecordedMessage, message: Event) -> None:
        """Take in a word, before or after it is written down."""
        self.trials[said.trial_id].hear(said, message)
        self.last_ns = max(self.last_ns, said.at_ns)

    def _on_summary(self, body: Mapping[str, Any], at_ns: int) -> None:
        trial = self.trials[body["trial_id"]]
        trial.summary, trial.messages = from_json(TrialSummary, body["summary"]), body["messages"]

    def _on_command(self, body: Mapping[str, Any], at_ns: int) -> None:
        trial, command = self.trials[body["trial_id"]], message_from_json(body["command"])
        if isinstance(command, SetLr):
            trial.lr_told[body.get("step", trial.summary.step)] = command.lr
        if isinstance(command, Stop) and command.kind is StopKind.PRUNED:
            trial.pruned = command.text

    def _on_operator(self, body: Mapping[str, Any], at_ns: int) -> None:
        self.operator_commands += 1
        if body["command"] == "stop":
            self.stop_wanted = body["reason"]
        for trial_id in body["trials"]:
            self.trials[trial_id].cancelled = body["reason"]

    def _on_checkpoint_moved(self, body: Mapping[str, Any], at_ns: int) -> None:
        """It lies elsewhere than where it was written: it came in an archive, or from a bucket, maybe an older one."""
        summary = self.trials[body["trial_id"]].summary
        if summary.checkpoint is not None:
            summary.checkpoint = replace(summary.checkpoint, step=body["step"], path=body["path"])

    def _on_attempt_ended(self, body: Mapping[str, Any], at_ns: int) -> None:
        attempt = self.trials[body["trial_id"]].attempts[-1]
        attempt.outcome = AttemptOutcome(body["outcome"])
        attempt.message, attempt.ended_ns = body["message"], at_ns

    def _on_retry(self, body: Mapping[str, Any], at_ns: int) -> None:
        trial = self.trials[body["trial_id"]]
        trial.retry_not_before_ns = body["not_before_ns"]
        trial.micro_batch_tokens = body["micro_batch_tokens"] or trial.micro_batch_tokens
        if body["forgive"]:
            trial.attempts_forgiven = len(trial.attempts)

    def _on_released(self, body: Mapping[str, Any], at_ns: int) -> None:
        if not body["released"]:
            self.unreleased.append(f"{body['trial_id']}/{body['attempt']}")

    def _on_gate(self, body: Mapping[str, Any], at_ns: int) -> None:
        self.gate = body

    def _on_warning(self, body: Mapping[str, Any], at_ns: int) -> None:
        pass

    def _on_driver_ended(self, body: Mapping[str, Any], at_ns: int) -> None:
        self.ended, self.ended_ns = DriverEnd(body["how"]), at_ns

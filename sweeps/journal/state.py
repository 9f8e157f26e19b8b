"""The state of a sweep and its trials: what the replay of the journal's events gives.

Applies one event after another; reads and writes nothing. `sweeps.journal.journal` keeps the events.

Tested in tests/sweeps/journal/test_journal.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from rl.spec import CheckpointWritten, Event, SetLr, Started, Stop, StopKind
from sweeps.journal.event_codec import decode
from sweeps.journal.events import (
    AttemptEnded,
    AttemptStarted,
    CardsReleased,
    CheckpointMoved,
    CommandSent,
    DriverEnded,
    DriverStarted,
    GateVerdict,
    JournalEvent,
    MessagesReported,
    OperatorRequest,
    RetryPlanned,
    RuleStopped,
    RunImported,
    SearchEnded,
    SweepPlanned,
    TrialProposed,
    TrialSummarised,
    WarningIssued,
)
from sweeps.journal.messages import RecordedMessage
from sweeps.journal.outcomes import AttemptOutcome, DriverEnd
from sweeps.journal.trial_summary import TrialSummary
from sweeps.planning.plan import PlannedTrial

if TYPE_CHECKING:
    from cost.records import StoredEvent


class TrialState(StrEnum):
    """The state of a trial. Pruned is not completed, preempted is not failed."""

    PLANNED = "PLANNED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    PRUNED = "PRUNED"
    FAILED = "FAILED"
    PREEMPTED = "PREEMPTED"
    BUDGET_STOPPED = "BUDGET_STOPPED"
    CANCELLED = "CANCELLED"


UNFINISHED = frozenset({TrialState.PLANNED, TrialState.RUNNING, TrialState.PREEMPTED, TrialState.BUDGET_STOPPED})
"""A resume continues these."""

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
    """Details of the outcome, for a person."""
    ended_ns: int | None = None


@dataclass
class TrialRecord:
    """What the journal records of one trial."""

    planned: PlannedTrial
    attempts: list[AttemptRecord] = field(default_factory=list)
    summary: TrialSummary = field(default_factory=TrialSummary)
    """What the trial's messages add up to."""
    retry_not_before_ns: int | None = None
    """The trial waits for a retry, until this moment at least (UTC nanoseconds); None: no retry is planned."""
    attempts_forgiven: int = 0
    """Attempts that no longer count against the retries: a person asked for a new start after them."""
    lr_changes: dict[int, float] = field(default_factory=dict)
    """Learning rates that the driver set, by the step after which it did."""
    cancelled: str | None = None
    """Why a person cancelled the trial; None: the trial is not cancelled."""
    pruned: str | None = None
    """Why the search or a gate rule ended the trial early; None: it was not. A pruned trial stays pruned, however its
    attempt ends."""
    rule_stop: RuleStopped | None = None
    """The gate rule that ended the trial early; None: none did."""
    micro_batch_tokens: int | None = None
    """`trainer.micro_batch_tokens` after a retry changed it; None: as configured."""
    next_sequence: int = 0
    """Number of the next trainer message of the current attempt."""

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
        return self.lr_changes[max(self.lr_changes)] if self.lr_changes else self.planned.lr

    @property
    def lr_was_raised(self) -> bool:
        rates = [self.planned.lr, *(self.lr_changes[step] for step in sorted(self.lr_changes))]
        return any(after > before for before, after in itertools.pairwise(rates))

    @property
    def started(self) -> Started | None:
        return self.summary.started

    @property
    def checkpoint(self) -> CheckpointWritten | None:
        return self.summary.checkpoint


@dataclass
class SweepRecord:
    """What the journal records of one sweep."""

    sweep_id: str
    stage: str = ""
    machine: str = ""
    plan_digest: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    planned_ns: int = 0
    trials: dict[str, TrialRecord] = field(default_factory=dict)
    proposals: int = 0
    """Trials that the search proposes in all; 0 where the whole plan was known from the start."""
    imported: RunImported | None = None
    """The run of another trainer; such a sweep has no plan, no trials and no gate. None: the sweep is one of ours."""
    gate: GateVerdict | None = None
    lease_ids: list[str] = field(default_factory=list)
    ended: DriverEnd | None = None
    """How the last driver ended; None while a driver is at work, or where it died."""
    ended_ns: int | None = None
    last_ns: int = 0
    """Time of the newest event."""
    read_up_to: int = field(default=0, compare=False)
    """Number of the newest event that was applied."""
    operator_requests: int = 0
    """How many requests of a person are in the journal."""
    stop_requested: str | None = None
    """Why a person asked the running driver to stop; None: there is no such request."""
    unreleased: list[str] = field(default_factory=list)
    """Attempts whose processes or cards were still in use after they ended, `trial/attempt`."""

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
        """Trials that have yet to run, or to be continued."""
        return len(self.unfinished) + self.to_propose

    @property
    def finished(self) -> bool:
        """Nothing is left to do: every trial is over, the gate was judged, and a driver ended in order."""
        return not self.left and self.gate is not None and self.ended is not None

    def apply(self, stored: StoredEvent) -> JournalEvent:
        """Apply one event of the journal, and return it decoded.

        Raises:
            ValueError: an event that this version does not know; a newer version wrote it.
        """
        self.read_up_to = stored.sequence
        event = decode(stored)
        if isinstance(event, MessagesReported):
            for recorded in event.messages:
                self.add_message(recorded, recorded.message)
            return event
        self._apply(event, stored.at_ns)
        self.last_ns = max(self.last_ns, stored.at_ns)
        return event

    def add_message(self, recorded: RecordedMessage, message: Event) -> None:
        """Apply a trainer message; a driver applies it before it is written."""
        trial = self.trials[recorded.trial_id]
        trial.next_sequence = recorded.sequence + 1
        trial.summary.add(message)
        self.last_ns = max(self.last_ns, recorded.at_ns)

    def _apply(self, event: JournalEvent, at_ns: int) -> None:
        match event:
            case AttemptStarted():
                trial = self.trials[event.trial_id]
                trial.next_sequence, trial.retry_not_before_ns = 0, None
                trial.attempts.append(AttemptRecord(event.attempt, event.lease_id, at_ns, event.from_step))
            case AttemptEnded():
                attempt = self.trials[event.trial_id].attempts[-1]
                attempt.outcome, attempt.message, attempt.ended_ns = event.outcome, event.message, at_ns
            case TrialSummarised():
                trial = self.trials[event.trial_id]
                trial.summary, trial.next_sequence = event.summary, event.messages
            case CardsReleased():
                if not event.released:
                    self.unreleased.append(f"{event.trial_id}/{event.attempt}")
            case CommandSent():
                self._apply_command(event)
            case RuleStopped():
                self.trials[event.trial_id].rule_stop = event
            case RetryPlanned():
                trial = self.trials[event.trial_id]
                trial.retry_not_before_ns = event.not_before_ns
                trial.micro_batch_tokens = event.micro_batch_tokens or trial.micro_batch_tokens
                if event.forgive:
                    trial.attempts_forgiven = len(trial.attempts)
            case CheckpointMoved():
                summary = self.trials[event.trial_id].summary
                if summary.checkpoint is not None:
                    summary.checkpoint = replace(summary.checkpoint, step=event.step, path=event.path)
            case SweepPlanned():
                self.stage, self.machine, self.config = event.stage, event.machine, event.config
                self.plan_digest, self.planned_ns, self.proposals = event.plan_digest, at_ns, event.proposals
                self.trials |= {trial.trial_id: TrialRecord(trial) for trial in event.trials}
            case RunImported():
                self.imported, self.planned_ns = event, at_ns
                self.stage, self.machine = "imported", event.machine
            case TrialProposed():
                self.trials[event.trial.trial_id] = TrialRecord(event.trial)
            case SearchEnded():
                self.proposals = len(self.trials)
            case DriverStarted():
                self.ended = self.ended_ns = self.stop_requested = None
                if event.lease_id not in self.lease_ids:
                    self.lease_ids.append(event.lease_id)
            case DriverEnded():
                self.ended, self.ended_ns = event.end, at_ns
            case OperatorRequest():
                self.operator_requests += 1
                if event.request == "stop":
                    self.stop_requested = event.reason
                for trial_id in event.trials:
                    self.trials[trial_id].cancelled = event.reason
            case GateVerdict():
                self.gate = event
            case WarningIssued():
                pass

    def _apply_command(self, event: CommandSent) -> None:
        trial = self.trials[event.trial_id]
        match event.command:
            case SetLr(lr):
                trial.lr_changes[event.step] = lr
            case Stop(StopKind.PRUNED, text):
                trial.pruned = text

"""Every kind of event in the journal of a sweep: one dataclass each, with its fields and units.

A sweep's journal is one stream of the ledger's `event` table. Each entry there has a number, a `kind`, a time (UTC
nanoseconds), the driver that wrote it, and a JSON body: the fields of the dataclass of that kind, encoded by
`sweeps.journal.event_codec`. Events are appended once and never changed; `sweeps.journal.state` replays them.

`key` names what an event is about. Writing the same event twice under one key changes nothing; another content under
the same key is an integrity error. An event without a key of its own can happen any number of times.

Tested in tests/sweeps/journal/test_event_codec.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from cost.money import Money, money_text
from rl.spec import Command
from rl.trainers.logs.run import ImportedRun
from sweeps.journal.messages import RecordedMessage
from sweeps.journal.outcomes import AttemptOutcome, DriverEnd
from sweeps.journal.trial_summary import TrialSummary
from sweeps.planning.plan import PlannedTrial

if TYPE_CHECKING:
    from sweeps.planning.plan import Plan

# ---------------------------------------------------------------------------------------------------------------------
# The plan
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SweepPlanned:
    """The whole plan. Comes once, before the first trial."""

    kind: ClassVar[str] = "sweep_planned"
    stage: str
    machine: str
    """Name of the machine's configuration, e.g. `h100x8`."""
    plan_digest: str
    """Equal for two sweeps that run the same trials by the same rules."""
    points: int
    """Points of the search space, before those that resolve to the same trial were merged."""
    trials: tuple[PlannedTrial, ...]
    """Trials that are known from the start, in the order in which they start."""
    proposals: int
    """Trials that the search proposes while the sweep runs; 0: all trials are known."""
    config: Mapping[str, Any]
    """As `sweeps.config.build.canonical` gives it."""

    @property
    def key(self) -> str:
        return "plan"

    @staticmethod
    def from_plan(plan: Plan, stage: str, machine: str, config: Mapping[str, Any]) -> SweepPlanned:
        return SweepPlanned(stage, machine, plan.digest, plan.points, plan.trials, plan.proposals, config)


@dataclass(frozen=True)
class TrialProposed:
    """The search added a trial to the plan."""

    kind: ClassVar[str] = "trial_proposed"
    trial: PlannedTrial

    @property
    def key(self) -> str:
        return f"trial_proposed:{self.trial.trial_id}"


@dataclass(frozen=True)
class SearchEnded:
    """The search proposes no more trials: its space has no further point, or a person ended it."""

    kind: ClassVar[str] = "search_ended"
    trials: int
    """How many trials the sweep has."""

    @property
    def key(self) -> str:
        return f"search_ended:{self.trials}"


@dataclass(frozen=True)
class RunImported:
    """The log of a run that another trainer made, as its only content: such a sweep has no plan and no trials."""

    kind: ClassVar[str] = "run_imported"
    source: str
    """Name of the file."""
    content_hash: str
    """SHA-256 of the file's bytes."""
    machine: str
    """Name of the machine's configuration; empty: not given."""
    run: ImportedRun

    key: ClassVar[str] = "run_imported"


# ---------------------------------------------------------------------------------------------------------------------
# Drivers and operators
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DriverStarted:
    """A driver works on the sweep from now on."""

    kind: ClassVar[str] = "driver_started"
    lease_id: str
    """The lease that its attempts use."""
    pid: int
    """Process id, on the driver's host."""
    machine: Mapping[str, Any] | None = None
    """The configuration's `machine`; it may differ from the plan's. None: as in the plan."""
    storage: Mapping[str, Any] | None = None
    """The configuration's `storage`; None: as in the plan."""

    key: ClassVar[str] = ""


@dataclass(frozen=True)
class DriverEnded:
    """A driver ended its work in order; after a kill this event is missing."""

    kind: ClassVar[str] = "driver_ended"
    end: DriverEnd
    text: str = ""
    """Details for a person."""

    key: ClassVar[str] = ""


@dataclass(frozen=True)
class OperatorRequest:
    """A person asked the running driver for something (`python -m sweeps stop`, `cancel`)."""

    kind: ClassVar[str] = "operator"
    request: Literal["stop", "cancel"]
    """stop: end the driver. cancel: give these trials up for good."""
    reason: str
    trials: tuple[str, ...] = ()
    """Ids of the trials to cancel."""

    key: ClassVar[str] = ""


@dataclass(frozen=True)
class WarningIssued:
    """A person should know this."""

    kind: ClassVar[str] = "warning"
    text: str

    key: ClassVar[str] = ""


# ---------------------------------------------------------------------------------------------------------------------
# Attempts
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AttemptStarted:
    """An attempt has its cards. Its reservation and its usage are written in the same transaction."""

    kind: ClassVar[str] = "attempt_started"
    trial_id: str
    attempt: int
    """1 for a trial's first attempt."""
    lease_id: str
    from_step: int
    """Steps done by the checkpoint that the attempt resumes from; 0: it starts from the beginning."""
    reserved: Money | None = None
    """Money reserved for the attempt; None: none."""
    reserved_by: str = ""
    """What the reserved amount was computed from."""

    @property
    def key(self) -> str:
        return f"attempt_started:{self.trial_id}/{self.attempt}"


@dataclass(frozen=True)
class MessagesReported:
    """Trainer messages, of any number of trials, in the order in which the driver received them."""

    kind: ClassVar[str] = "messages"
    messages: tuple[RecordedMessage, ...]

    @property
    def key(self) -> str:
        return f"messages:{self.messages[0].key}"


@dataclass(frozen=True)
class CommandSent:
    """The driver replied to a trainer message with a command other than `Continue`."""

    kind: ClassVar[str] = "command"
    trial_id: str
    attempt: int
    sequence: int
    """Number of the message that the command replies to."""
    step: int
    """Steps done when the command was sent."""
    command: Command

    @property
    def key(self) -> str:
        return f"command:{self.trial_id}/{self.attempt}:{self.sequence}"


@dataclass(frozen=True)
class RuleStopped:
    """A gate rule of severity `stop` ended a trial. Written with the command that stops its trainer."""

    kind: ClassVar[str] = "rule_stopped"
    trial_id: str
    attempt: int
    rule: str
    text: str
    """The numbers on which the rule failed."""
    step: int
    """Steps done."""
    steps_not_run: int
    not_spent: Money | None
    """What the steps that are not run would have cost, at the trial's mean seconds per step so far; None: unpriced."""

    @property
    def key(self) -> str:
        return f"rule_stopped:{self.trial_id}"

    @property
    def summary(self) -> str:
        """For people: where the trial stopped, and what that saves."""
        saved = "UNPRICED" if self.not_spent is None else money_text(self.not_spent)
        return f"stopped after step {self.step}; {self.steps_not_run} steps not run, {saved} not spent"


@dataclass(frozen=True)
class AttemptEnded:
    """An attempt is over; its processes may still be ending."""

    kind: ClassVar[str] = "attempt_ended"
    trial_id: str
    attempt: int
    outcome: AttemptOutcome
    message: str
    """Details for a person."""
    step: int
    """Highest step of the trial that was reported."""
    acc: float | None
    """Accuracy of the trial's newest evaluation, 0 to 1."""

    @property
    def key(self) -> str:
        return f"attempt_ended:{self.trial_id}/{self.attempt}"


@dataclass(frozen=True)
class TrialSummarised:
    """What all messages of a trial add up to at the end of an attempt, so that readers need not read the messages."""

    kind: ClassVar[str] = "summary"
    trial_id: str
    attempt: int
    messages: int
    """Trainer messages of this attempt."""
    summary: TrialSummary

    @property
    def key(self) -> str:
        return f"summary:{self.trial_id}/{self.attempt}"


@dataclass(frozen=True)
class RetryPlanned:
    """The trial is retried."""

    kind: ClassVar[str] = "retry"
    trial_id: str
    after_attempt: int
    """The attempt that failed."""
    not_before_ns: int
    """UTC nanoseconds; 0: as soon as cards are free."""
    reason: str
    micro_batch_tokens: int | None = None
    """`trainer.micro_batch_tokens` of the next attempt; None: unchanged."""
    forgive: bool = False
    """The attempts so far no longer count against the trial's retries."""

    @property
    def key(self) -> str:
        return f"retry:{self.trial_id}:{self.after_attempt}"


@dataclass(frozen=True)
class CardsReleased:
    """An attempt's processes have ended and its cards are returned, or not in time."""

    kind: ClassVar[str] = "released"
    trial_id: str
    attempt: int
    released: bool
    """False: processes or cards were still in use after the wait."""

    @property
    def key(self) -> str:
        return f"released:{self.trial_id}/{self.attempt}"


@dataclass(frozen=True)
class CheckpointMoved:
    """The trial's checkpoint was copied: it came in an archive or from a bucket, and may be an older one."""

    kind: ClassVar[str] = "checkpoint_moved"
    trial_id: str
    attempts: int
    """Attempts of the trial so far."""
    step: int
    path: str
    """Where the checkpoint is now."""
    source: str
    """Where it was copied from."""

    @property
    def key(self) -> str:
        return f"checkpoint_moved:{self.trial_id}:{self.attempts}:{self.step}:{self.path}"


# ---------------------------------------------------------------------------------------------------------------------
# The gate
# ---------------------------------------------------------------------------------------------------------------------


GAIN = "gain proven"
"""Name of the check without which an open gate is inconclusive: nothing shows that the stage learned something."""


@dataclass(frozen=True)
class GateCheck:
    """One check of a gate. `ok` is None where there was nothing to judge."""

    name: str
    ok: bool | None
    reason: str
    warning: bool = False
    """The check found something that closes nothing, and that a person should read."""


@dataclass(frozen=True)
class GateVerdict:
    """A gate was judged. It is open when no check fails, or when a person forces it."""

    kind: ClassVar[str] = "gate"
    gate: str
    checks: tuple[GateCheck, ...]
    simulated: bool
    """The trials were simulated: the verdict opens simulated stages only."""
    forced: str = ""
    """Why a person passes a closed gate; empty: the gate is not forced."""

    key: ClassVar[str] = ""

    @property
    def healthy(self) -> bool:
        return all(check.ok is not False for check in self.checks)

    @property
    def open(self) -> bool:
        return self.healthy or bool(self.forced)

    @property
    def inconclusive(self) -> bool:
        """Nothing is wrong, and nothing shows that a trial learned something."""
        return self.healthy and any(check.name == GAIN and check.ok is None for check in self.checks)

    @property
    def status(self) -> Literal["open", "inconclusive", "open by force", "closed"]:
        """`inconclusive` opens the next stage too: the evaluation was too small to tell, or the stage too short."""
        if self.healthy:
            return "inconclusive" if self.inconclusive else "open"
        return "open by force" if self.forced else "closed"


JournalEvent = (
    SweepPlanned
    | TrialProposed
    | SearchEnded
    | RunImported
    | DriverStarted
    | DriverEnded
    | OperatorRequest
    | WarningIssued
    | AttemptStarted
    | MessagesReported
    | CommandSent
    | RuleStopped
    | AttemptEnded
    | TrialSummarised
    | RetryPlanned
    | CardsReleased
    | CheckpointMoved
    | GateVerdict
)

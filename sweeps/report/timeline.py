"""The timeline of one sweep for people: its events in time order, as short texts with their costs.

Costs come from the ledger at today's price book: an ended attempt has its own cost, an ended driver the cost of the
sweep so far. Reads only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cost.money import Money, money_text
from rl.spec import (
    CheckpointWritten,
    Command,
    EvalReport,
    Event,
    Finished,
    RoleRestarted,
    SetLr,
    Started,
    StepReport,
    Stop,
)
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
from sweeps.journal.journal import OUTCOME_STATES, SweepRecord, TrialState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cost.charges.attribution import CostLine
    from cost.ledger.ledger import Ledger
    from cost.records import StoredEvent

UNPRICED = "UNPRICED"


@dataclass(frozen=True)
class TimelineRow:
    """One line of the timeline."""

    at_ns: int
    kind: str
    text: str
    money: str = ""
    """The cost; empty where the event has none."""
    style: str = ""
    """The colour of the line on a terminal; empty for most events."""


class Costs:
    """The cost of a sweep's attempts, and of the sweep up to a moment.

    Args:
        lines: the cost lines of the sweep, cut at each moment that `until` is called with.
        show: formats an amount.
    """

    def __init__(self, lines: Iterable[CostLine], show: Callable[[Money], str]) -> None:
        self._show = show
        self._lines = list(lines)
        self._by_attempt: dict[tuple[str, int], list[CostLine]] = defaultdict(list)
        for line in self._lines:
            if line.trial_id:
                self._by_attempt[line.trial_id, line.attempt].append(line)

    def of_attempt(self, trial_id: str, attempt: int) -> str:
        return self._sum(self._by_attempt.get((trial_id, attempt), []))

    def until(self, at_ns: int) -> str:
        """The cost up to a moment. A billing increment, after the end of a lease, counts from that end."""
        increment = "billing_increment"
        return self._sum([n for n in self._lines if (n.from_ns if n.category == increment else n.to_ns) <= at_ns])

    def _sum(self, lines: list[CostLine]) -> str:
        """One amount per currency."""
        if any(line.unpriced for line in lines):
            return UNPRICED
        totals: dict[str, int] = defaultdict(int)
        for line in lines:
            totals[line.lease.currency] += line.pico
        return " + ".join(self._show(Money(pico, currency)) for currency, pico in sorted(totals.items()))


def read_costs(ledger: Ledger, sweep_id: str, moments: list[int], now_ns: int, show: Callable[[Money], str]) -> Costs:
    """The costs of a sweep, from the ledger and the installed price book.

    Raises:
        PriceError: the price book lacks a price or a billing rule of a lease.
    """
    from cost.charges.attribution import attribute
    from cost.prices.book import PriceBook
    from sweeps.config.overrides import CONF_DIR

    book = PriceBook.load(CONF_DIR / "pricing")
    found = attribute(ledger, book, now_ns, sweep_id=sweep_id, cuts=sorted(set(moments)), by_phase=False)
    return Costs((line for line in found.lines if line.sweep_id == sweep_id), show)


def timeline(events: Iterable[StoredEvent], costs: Costs | None = None) -> Iterator[TimelineRow]:
    """A row for each of these events, and for each trainer message in them."""
    for stored in events:
        match event := decode(stored):
            case MessagesReported():
                for recorded in event.messages:
                    text = _message_text(f"{recorded.trial_id}/{recorded.attempt}", recorded.message)
                    yield TimelineRow(recorded.at_ns, "message", text)
            case TrialSummarised():
                pass  # repeats the trainer messages
            case _:
                money = _money(event, stored.at_ns, costs)
                yield TimelineRow(stored.at_ns, stored.kind, event_text(event), money, _style(event))


def still_running(record: SweepRecord, costs: Costs, now_ns: int) -> Iterator[TimelineRow]:
    """A row with the cost so far for each attempt that has not ended."""
    for trial in record.trials.values():
        if trial.state is TrialState.RUNNING:
            attempt = trial.attempts[-1].attempt
            text = f"{trial.trial_id}/{attempt} has not ended, or its driver died"
            yield TimelineRow(now_ns, "running", text, f"{costs.of_attempt(trial.trial_id, attempt)} so far".strip())


def event_text(event: JournalEvent) -> str:
    """An event as a short text."""
    match event:
        case SweepPlanned():
            count = len(event.trials) + event.proposals
            return f"planned: {count} trials of stage {event.stage} on {event.machine}"
        case RunImported():
            run = event.run
            return f"imported {event.source}: {run.format}, names of {run.trainer}, {run.steps} steps"
        case TrialProposed():
            trial = event.trial
            return f"proposed: {trial.prompts_per_step}x{trial.group_size} {','.join(trial.names)}, lr {trial.lr:.3g}"
        case SearchEnded():
            return f"the search ended with {event.trials} trials"
        case DriverStarted():
            return f"driver started (process {event.pid}), lease {event.lease_id}"
        case AttemptStarted():
            resumed = f" from step {event.from_step}" if event.from_step else ""
            reserved = (
                f", reserved {money_text(event.reserved)} ({event.reserved_by})" if event.reserved is not None else ""
            )
            return f"{_attempt(event)} started{resumed}{reserved}"
        case CommandSent():
            return f"{_attempt(event)} received: {_command_text(event.command)}"
        case AttemptEnded():
            step = f" at step {event.step}" if event.step else ""
            acc = f", acc {event.acc:.3f}" if event.acc is not None else ""
            return f"{_attempt(event)} {event.outcome}{step}{acc}" + (f": {event.message}" if event.message else "")
        case RetryPlanned():
            return f"{event.trial_id} is retried: {event.reason}"
        case OperatorRequest():
            trials = f" {len(event.trials)} trials" if event.trials else ""
            return f"operator request: {event.request}{trials} ({event.reason})"
        case CheckpointMoved():
            return f"{event.trial_id} resumes from step {event.step}, found in {event.source}"
        case CardsReleased():
            return f"{_attempt(event)} " + ("cards returned" if event.released else "CARDS OR PROCESSES STILL IN USE")
        case RuleStopped():
            return f"{_attempt(event)} fails the gate rule {event.rule!r} ({event.text}): {event.summary}"
        case GateVerdict():
            return f"{event.gate} gate {event.status}" + (f": {event.forced}" if event.forced else "")
        case WarningIssued():
            return f"warning: {event.text}"
        case DriverEnded():
            return f"driver ended: {event.end}" + (f" ({event.text})" if event.text else "")
        case MessagesReported() | TrialSummarised():
            return event.kind


def _attempt(event: AttemptStarted | AttemptEnded | CommandSent | CardsReleased | RuleStopped) -> str:
    return f"{event.trial_id}/{event.attempt}"


def _money(event: JournalEvent, at_ns: int, costs: Costs | None) -> str:
    match event:
        case AttemptEnded() if costs is not None:
            return costs.of_attempt(event.trial_id, event.attempt)
        case DriverEnded() if costs is not None:
            total = costs.until(at_ns)
            return f"{total} in all" if total else ""
        case _:
            return ""


def _style(event: JournalEvent) -> str:
    match event:
        case AttemptEnded():
            state = OUTCOME_STATES[event.outcome]
            return {TrialState.COMPLETED: "green", TrialState.FAILED: "red"}.get(state, "yellow")
        case GateVerdict():
            return "green" if event.open else "red"
        case WarningIssued() | RuleStopped() | CardsReleased(released=False):
            return "yellow"
        case _:
            return ""


def _message_text(attempt: str, message: Event) -> str:
    match message:
        case Started():
            return f"{attempt} ready after step {message.step}"
        case StepReport():
            return f"{attempt} did step {message.step}" + (" again" if message.replay else "")
        case EvalReport():
            acc = "" if message.accuracy is None else f": acc {message.accuracy:.3f}"
            return f"{attempt} evaluated after step {message.step}{acc}"
        case RoleRestarted():
            return f"{attempt} restarted {message.role} {message.index}: {message.reason}"
        case CheckpointWritten() | Finished():
            return f"{attempt} {message.type} step {message.step}"


def _command_text(command: Command) -> str:
    match command:
        case SetLr():
            return f"lr {command.lr:.3g}"
        case Stop():
            return f"stop ({command.kind}: {command.text})" if command.text else f"stop ({command.kind})"
        case _:
            return command.type

"""The story of one sweep for a person: its events in time order, each in a few words, and what they had cost.

Money comes from the ledger at today's price book: of each attempt that ended what it cost, of each driver that ended
what its sweep had cost until then. Pure but for reading; nothing here decides or writes.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cost.money import Money
from rl.codec import message_from_json
from sweeps.journal.events import AttemptOutcome
from sweeps.journal.journal import OUTCOME_STATES, SweepRecord, TrialState
from sweeps.journal.messages import SUMMARY, words_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cost.charges.attribution import CostLine
    from cost.ledger.ledger import Ledger
    from cost.records import StoredEvent

UNPRICED = "UNPRICED"


@dataclass(frozen=True)
class TimelineRow:
    """One line of the story."""

    at_ns: int
    kind: str
    text: str
    money: str = ""
    """What it cost, or had cost by then; empty where the event says nothing of money."""
    style: str = ""
    """A colour for what a person looks for first."""


class Costs:
    """What a sweep cost, by attempt and up to a moment.

    Args:
        lines: of the sweep, cut at every moment that is asked for.
        show: makes an amount a text.
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
        """What a provider bills beyond the end of a lease is owed at that end."""
        owed = "billing_increment"
        return self._sum([n for n in self._lines if (n.from_ns if n.category == owed else n.to_ns) <= at_ns])

    def _sum(self, lines: list[CostLine]) -> str:
        """Amounts in several currencies stand beside each other."""
        if any(line.unpriced for line in lines):
            return UNPRICED
        totals: dict[str, int] = defaultdict(int)
        for line in lines:
            totals[line.lease.currency] += line.pico
        return " + ".join(self._show(Money(pico, currency)) for currency, pico in sorted(totals.items()))


def read_costs(ledger: Ledger, sweep_id: str, moments: list[int], now_ns: int, show: Callable[[Money], str]) -> Costs:
    """From the ledger and the price book that comes with this installation.

    Raises:
        PriceError: the price book lacks a price or a rule that a lease was opened with.
    """
    from cost.charges.attribution import attribute
    from cost.prices.book import PriceBook
    from sweeps.config.overrides import CONF_DIR

    book = PriceBook.load(CONF_DIR / "pricing")
    found = attribute(ledger, book, now_ns, sweep_id=sweep_id, cuts=sorted(set(moments)), by_phase=False)
    return Costs((line for line in found.lines if line.sweep_id == sweep_id), show)


def story(events: Iterable[StoredEvent], costs: Costs | None = None) -> Iterator[TimelineRow]:
    """The lines of some events; of every word that a trainer said, where the events have them."""
    for event in events:
        said = False
        for word in words_in(event):
            said = True
            yield TimelineRow(word.at_ns, "message", _said(f"{word.trial_id}/{word.attempt}", word.body))
        if not said and event.kind != SUMMARY:
            text, money, style = told(event.kind, event.body), _money(event, costs), _style(event.kind, event.body)
            yield TimelineRow(event.at_ns, event.kind, text, money, style)


def still_running(record: SweepRecord, costs: Costs, now_ns: int) -> Iterator[TimelineRow]:
    """A line for each attempt that has not ended: what it has cost so far."""
    for trial in record.trials.values():
        if trial.state is TrialState.RUNNING:
            attempt = trial.attempts[-1].attempt
            text = f"{trial.trial_id}/{attempt} has not ended, or nobody was there to see it"
            yield TimelineRow(now_ns, "running", text, f"{costs.of_attempt(trial.trial_id, attempt)} so far".strip())


def told(kind: str, body: Mapping[str, Any]) -> str:
    """An event in a few words."""
    who = f"{body['trial_id']}/{body['attempt']}" if "attempt" in body else body.get("trial_id", "")
    match kind:
        case "sweep_planned":
            count = len(body["trials"]) + body.get("proposals", 0)
            return f"planned: {count} trials of stage {body['stage']} on {body['machine']}"
        case "trial_planned":
            trial = body["trial"]
            size = f"{trial['prompts_per_step']}x{trial['group_size']}"
            return f"proposed: {size} {'='.join(trial['names'])}, lr {trial['lr']:.3g}"
        case "search_ended":
            return f"the search proposes no more than {body['trials']} trials"
        case "driver_started":
            return f"driver started (process {body['pid']}), lease {body['lease_id']}"
        case "attempt_started":
            aside = f", {body['reserved']} set aside ({body['reserved_by']})" if body.get("reserved") else ""
            return f"{who} started" + (f" from step {body['from_step']}" if body["from_step"] else "") + aside
        case "command":
            return f"{who} told: {_command(body['command'])}"
        case "attempt_ended":
            step = f" at step {body['step']}" if body.get("step") else ""
            acc = f", acc {body['acc']:.3f}" if body.get("acc") is not None else ""
            return f"{who} {body['outcome']}{step}{acc}" + (f": {body['message']}" if body["message"] else "")
        case "retry":
            return f"{who} will be tried again: {body['reason']}"
        case "operator":
            which = f" {len(body['trials'])} trials" if body["trials"] else ""
            return f"somebody said: {body['command']}{which} ({body['reason']})"
        case "checkpoint_moved":
            return f"{who} goes on from step {body['step']}, found in {body['source']}"
        case "released":
            return f"{who} cards are back" if body["released"] else f"{who} CARDS OR PROCESSES STILL HELD"
        case "gate":
            return f"{body['gate']} gate {gate_word(body)}" + (f": {body['forced']}" if body["forced"] else "")
        case "warning":
            return f"warning: {body['text']}"
        case "driver_ended":
            return f"driver ended: {body['how']}" + (f" ({body['why']})" if body.get("why") else "")
        case _:
            return f"{who} {kind}".strip()


def gate_word(gate: Mapping[str, Any]) -> str:
    return "closed" if not gate["open"] else "open" if gate["healthy"] else "open by force"


def _money(event: StoredEvent, costs: Costs | None) -> str:
    if costs is None:
        return ""
    if event.kind == "attempt_ended":
        return costs.of_attempt(event.body["trial_id"], event.body["attempt"])
    if event.kind == "driver_ended":
        return f"{costs.until(event.at_ns)} in all".strip()
    return ""


def _style(kind: str, body: Mapping[str, Any]) -> str:
    match kind:
        case "attempt_ended":
            state = OUTCOME_STATES[AttemptOutcome(body["outcome"])]
            return {TrialState.COMPLETED: "green", TrialState.FAILED: "red"}.get(state, "yellow")
        case "gate":
            return "green" if body["open"] else "red"
        case "released":
            return "" if body["released"] else "yellow"
        case "warning":
            return "yellow"
        case _:
            return ""


def _said(who: str, message: Mapping[str, Any]) -> str:
    step = f" step {message['step']}" if "step" in message else ""
    match message["type"]:
        case "started":
            return f"{who} ready after{step}"
        case "step":
            return f"{who} did{step}" + (" again" if message["replay"] else "")
        case "eval":
            accuracy = message_from_json(message).accuracy
            acc = "" if accuracy is None else f": acc {accuracy:.3f}"
            return f"{who} evaluated after{step}{acc}"
        case kind:
            return f"{who} {kind}{step}"


def _command(command: Mapping[str, Any]) -> str:
    match command["type"]:
        case "set_lr":
            return f"lr {command['lr']:.3g}"
        case "stop":
            return f"stop ({command['kind']}: {command['text']})" if command["text"] else f"stop ({command['kind']})"
        case _:
            return json.dumps(command)

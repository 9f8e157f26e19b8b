"""The decisions of a running sweep: which attempt is next, what a trainer is told, what an end means for its trial.

Sits between an executor, which runs attempts and knows nothing, and the books: the journal (what happened) and the
ledger (who held which cards). Everything that is decided here is written down in one transaction with what it costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Protocol

from cost.ledger.ledger import HEARTBEAT_NS, Ledger
from cost.records import UsageKey
from rl.spec import (
    CheckpointWritten,
    Command,
    Continue,
    EvalReport,
    Event,
    Finished,
    SetLr,
    StepReport,
    Stop,
    StopKind,
)
from rl.tasks.evaluation import average_at_k
from sweeps.config.points import with_values
from sweeps.config.types import SweepConfig
from sweeps.executors import Attempt
from sweeps.journal.events import (
    AttemptOutcome,
    AttemptStarted,
    CardsReleased,
    CommandSent,
    RetryPlanned,
    WarningIssued,
)
from sweeps.journal.journal import OUTCOME_STATES, Journal, TrialRecord, TrialState
from sweeps.planning.plan import PlannedTrial, trial_spec
from sweeps.protocol.lr_rule import WINDOW_STEPS, advise
from sweeps.scheduling.budget_controller import BudgetController
from sweeps.scheduling.queue import TrialQueue
from sweeps.scheduling.retries import retry_after
from sweeps.search.proposals import Proposer
from sweeps.search.pruning import Pruner


class View(Protocol):
    """What shows a sweep to a person while it runs."""

    def changed(self, trial: TrialRecord, message: Event | None) -> None:
        """Something was said by, or happened to, this trial."""
        ...

    def warn(self, text: str) -> None:
        """Something a person should know now."""
        ...

    def tick(self) -> None:
        """Time has passed."""
        ...


@dataclass
class _Held:
    attempt: Attempt
    key: UsageKey
    granted: bool = False
    ended: bool = False
    phases: dict[str, int] = field(default_factory=dict)
    """Card-nanoseconds that were reported since its newest checkpoint and are not in the ledger yet."""
    phases_before: list[tuple[int, dict[str, int]]] = field(default_factory=list)
    """Those up to a checkpoint, with the number of its message."""
    last_word: int = -1
    """Number of its newest message."""
    checkpoint_in_flush: int | None = None
    """The flush that writes down its newest checkpoint, of those that the journal counts."""


class SweepController:
    """Decides for one sweep, as the executor's `sweeps.executors.Controller`. A repeated call changes nothing."""

    def __init__(
        self,
        cfg: SweepConfig,
        *,
        ledger: Ledger,
        journal: Journal,
        lease_id: str,
        sweep_dir: Path,
        view: View,
        cards: int,
        purse: BudgetController | None = None,
        forecast: Callable[[PlannedTrial], Mapping[str, str]] | None = None,
        notice: Callable[[], str | None] = lambda: None,
        still_held: Callable[[], None] = lambda: None,
    ) -> None:
        self._cfg, self._ledger, self._journal, self._view = cfg, ledger, journal, view
        self._lease_id, self._sweep_dir, self._cards = lease_id, sweep_dir, cards
        self._purse, self._forecast = purse, forecast
        if purse is not None:
            purse.tell = self.warn
        self._pruner, self._proposer = Pruner(cfg, journal.record), Proposer(cfg)
        self._waiting = TrialQueue()
        for trial in journal.record.unfinished:
            self._waiting.put(trial.trial_id, trial.retry_not_before_ns or 0)
        self._held: dict[str, _Held] = {}
        self._running = 0
        """Of what is held, the attempts that have not ended."""
        self._notice, self._still_held = notice, still_held
        idle = cfg.machine.max_idle
        self._idle_limit_ns = None if idle is None else round(idle.seconds * 1e9)
        self._last_heartbeat_ns = ledger.now_ns()
        self._busy_ns: int | None = None
        """When something last ran; from the first tick on, since starting Ray is nobody's idleness."""
        self._stop: Stop | None = None
        self._requests_read = 0

    # What the executor asks and tells

    def next_attempt(self) -> Attempt | None:
        if self._stop or self._running >= self._cfg.search.trials_at_once(self._cards):
            return None
        if not self._waiting.ready(self._ledger.now_ns()):
            for trial_id in self._proposer.propose(self._journal):
                self._waiting.put(trial_id)
        if not self._waiting.ready(self._ledger.now_ns()):
            return None
        trial_id = self._purse.choose(self._waiting) if self._purse else self._waiting.take()
        if trial_id is None:
            self._heed_purse()
            return None
        trial = self._journal.record.trials[trial_id]
        number = len(trial.attempts) + 1
        spec = trial_spec(
            self._cfg,
            trial.planned,
            attempt=number,
            sweep_dir=self._sweep_dir,
            micro_batch_tokens=trial.micro_batch_tokens,
        )
        checkpoint = Path(trial.checkpoint.path) if trial.checkpoint else None
        if checkpoint is not None and not checkpoint.is_dir():
            self.warn(f"the checkpoint of {trial.trial_id} at {checkpoint} is gone: the trial starts afresh")
            checkpoint = None
        attempt = Attempt(spec, checkpoint)
        self._held[str(attempt)] = _Held(attempt, UsageKey(self._lease_id, trial.trial_id, number))
        self._running += 1
        return attempt

    def done(self) -> bool:
        nothing_waits = not self._waiting and not self._journal.record.to_propose
        return not self._running and (bool(self._stop) or nothing_waits)

    def on_granted(self, attempt: Attempt) -> None:
        held = self._held.get(str(attempt))
        if held is None or held.granted:
            return
        trial = self._journal.record.trials[attempt.trial_id]
        from_step = trial.checkpoint.step if trial.checkpoint and attempt.checkpoint else 0
        event = AttemptStarted(attempt.trial_id, attempt.number, self._lease_id, from_step)
        sweep_id, cards = self._journal.record.sweep_id, Decimal(attempt.spec.cards)
        with self._journal.transaction():
            if self._purse and (aside := self._purse.reserve(held.key)):
                event = replace(event, reserved=aside.amount, reserved_by=aside.source)
            self._journal.append(event)
            self._ledger.usages.start(held.key, sweep_id, cards, self._labels(trial))
        held.granted = True
        self._view.changed(trial, None)

    def on_message(self, attempt: Attempt, sequence: int, message: Event) -> Command:
        held = self._held.get(str(attempt))
        if held is None:
            return Continue()  # its end was told before
        trial = self._journal.record.trials[attempt.trial_id]
        if isinstance(message, StepReport) and message.step <= trial.summary.step:
            # The journal decides: what the trainer said before may have died on its way here.
            message = replace(message, replay=True)
        if not self._journal.add_message(attempt.trial_id, attempt.number, sequence, message):
            return self._decide(trial, message)  # it came twice
        if isinstance(message, EvalReport):
            self._pruner.add(trial)
        held.last_word = sequence
        for kind, card_ns in message.phase_card_ns.items():
            held.phases[kind] = held.phases.get(kind, 0) + card_ns
        if isinstance(message, CheckpointWritten):
            held.phases_before.append((sequence, held.phases))
            held.phases = {}
        command = self._decide(trial, message)
        if isinstance(message, EvalReport) or self._must_be_kept(held, message):
            with self._journal.transaction():
                self._journal.flush()
                self._post_phases([held])
                if isinstance(message, EvalReport) and message.step > 0:
                    self._ledger.usages.set_labels(held.key, _accuracy_labels(message))
                self._write_down(attempt, sequence, message, command)
        else:
            self._write_down(attempt, sequence, message, command)
            if self._journal.flush_is_due:
                self._journal.flush()
        self._view.changed(trial, message)
        return command

    def _write_down(self, attempt: Attempt, sequence: int, message: Event, command: Command) -> None:
        """What a trainer is told, with what it is told for: a restart finds both or neither."""
        if not isinstance(command, Continue):
            done = self._journal.record.trials[attempt.trial_id].summary.step
            step = message.step if isinstance(message, StepReport) else done
            self._journal.append(CommandSent(attempt.trial_id, attempt.number, sequence, step, command))

    def on_ended(self, attempt: Attempt, outcome: AttemptOutcome, message: str) -> None:
        held = self._held.get(str(attempt))
        if held is None or held.ended:
            return
        trial = self._journal.record.trials[attempt.trial_id]
        if trial.pruned is not None and outcome is not AttemptOutcome.COMPLETED:
            outcome, message = AttemptOutcome.PRUNED, message or trial.pruned
        state = OUTCOME_STATES[outcome]
        micro_batch_tokens = attempt.spec.trainer.micro_batch_tokens
        retry = None if self._stop else retry_after(trial, outcome, self._cfg.retry, micro_batch_tokens)
        not_before_ns = self._ledger.now_ns() + round(retry.wait_seconds * 1e9) if retry else 0
        with self._journal.transaction():
            self._journal.end_attempt(attempt.trial_id, attempt.number, outcome, message)
            self._post_phases([held])
            if retry:
                planned = (not_before_ns, retry.reason, retry.micro_batch_tokens)
                self._journal.append(RetryPlanned(attempt.trial_id, attempt.number, *planned))
            self._ledger.usages.set_labels(held.key, {"state": str(state), "steps": str(trial.summary.step)})
        held.ended = True
        self._running -= 1
        goes_on = (
            outcome is AttemptOutcome.BUDGET
            and not self._stop
            and self._purse
            and self._purse.goes_on(attempt.trial_id)
        )
        if retry or goes_on:
            self._waiting.put(attempt.trial_id, not_before_ns)
        self._view.changed(trial, None)

    def on_released(self, attempt: Attempt, released: bool) -> None:
        held = self._held.pop(str(attempt), None)
        if held is None:
            return
        outcome = self._journal.record.trials[attempt.trial_id].attempts[-1].outcome or AttemptOutcome.LOST
        with self._journal.transaction():
            self._journal.append(CardsReleased(attempt.trial_id, attempt.number, released))
            self._ledger.usages.end(held.key, str(OUTCOME_STATES[outcome]))
        if self._purse:
            self._purse.release(attempt.trial_id)
        self._view.tick()

    def on_cards(self, cards: int) -> None:
        per_trial = self._cfg.search.cards_per_trial
        text = f"trials can use {cards} cards now, {self._cards} before"
        if cards < self._cards and self._cfg.machine.purchase != "own":
            text += (
                ". The lease goes on at the price of the whole cluster. Where a node is gone and its provider charges "
                f"no more for it: python -m cost correct {self._lease_id} --amount '-5.00 USD' --reason WHY"
            )
        self.warn(text)
        self._cards = cards
        if cards < per_trial:
            self.stop(
                Stop(StopKind.NO_CARDS, f"a trial needs {per_trial} cards of one machine, and there are none left")
            )

    def stopping(self) -> bool:
        return self._stop is not None

    def on_tick(self) -> None:
        now_ns = self._ledger.now_ns()
        self._watch_idleness(now_ns)
        if notice := self._notice():
            self.stop(Stop(StopKind.MACHINE_TAKEN, f"preemption notice: {notice}"))
        if now_ns - self._last_heartbeat_ns >= HEARTBEAT_NS:
            self._last_heartbeat_ns = now_ns
            self._still_held()
            granted = [held for held in self._held.values() if held.granted]
            with self._journal.transaction():
                self._ledger.heartbeat(self._lease_id, [held.key for held in granted])
                self._journal.flush()
                self._post_phases(granted)
            self._listen()
            self._watch_budget()
        elif self._journal.flush_is_due:
            self._journal.flush()
        self._view.tick()

    # What the command around it asks

    @property
    def stopped(self) -> Stop | None:
        return self._stop

    def stop(self, command: Stop) -> None:
        """Start nothing more; running trials receive `command` at their next message. The first stop counts."""
        self._stop = self._stop or command

    def abandon(self, outcome: AttemptOutcome, message: str) -> None:
        """Close the books of everything that still runs: its processes were ended from outside."""
        for name, held in list(self._held.items()):
            if not held.granted:
                del self._held[name]
                self._running -= 1
                continue
            if not held.ended:
                self.on_ended(held.attempt, outcome, message)
            self.on_released(held.attempt, True)

    def warn(self, text: str) -> None:
        self._view.warn(text)
        self._journal.append(WarningIssued(text))

    # Decisions

    def _decide(self, trial: TrialRecord, message: Event) -> Command:
        if isinstance(message, Finished):
            return Continue()
        if self._stop:
            return self._stop
        if trial.cancelled is not None:
            return Stop(StopKind.CANCELLED, trial.cancelled)
        if self._purse and (stop := self._purse.verdict(trial.trial_id)):
            return stop
        if isinstance(message, EvalReport):
            reason = trial.pruned or self._pruner.reason(trial, message.step)
            return Stop(StopKind.PRUNED, reason) if reason else Continue()
        if isinstance(message, StepReport) and trial.planned.adaptive_lr and message.step < self._cfg.stage.steps:
            return self._move_lr(trial, message)
        return Continue()

    def _must_be_kept(self, held: _Held, message: Event) -> bool:
        """Whether a word has to be on the books before it is answered.

        After the answer the trainer removes all but its newest `keep_checkpoints`; one that the journal knows has to be
        among those that stay.
        """
        if not isinstance(message, CheckpointWritten):
            return False
        before, held.checkpoint_in_flush = held.checkpoint_in_flush, self._journal.flushes
        return self._cfg.trainer.keep_checkpoints < 2 or before == self._journal.flushes

    def _post_phases(self, reported: Sequence[_Held]) -> None:
        """What these attempts reported since the last time, into the ledger: a sum up to each checkpoint, so that it is
        known what came after the last one, and one of what came since."""
        sums = [
            (held.key, number, phases)
            for held in reported
            for number, phases in [*held.phases_before, (held.last_word, held.phases)]
            if phases
        ]
        self._ledger.usages.add_phase_reports(sums)
        for held in reported:
            held.phases, held.phases_before = {}, []

    def _listen(self) -> None:
        """Hear what a person wants, from another process, through the journal."""
        self._journal.catch_up()
        record = self._journal.record
        if record.operator_requests == self._requests_read:
            return
        self._requests_read = record.operator_requests
        if record.stop_requested is not None:
            self.stop(Stop(StopKind.REQUESTED, record.stop_requested))
        for trial_id in self._waiting.all():
            if record.trials[trial_id].state is TrialState.CANCELLED:
                self._waiting.remove(trial_id)

    def _move_lr(self, trial: TrialRecord, message: StepReport) -> Command:
        """The `clip_frac` rule at work: lowered as often as it takes, raised at most once per stage.

        A step done again after a restore is answered as it was the first time.
        """
        if message.step in trial.lr_changes:
            return SetLr(trial.lr_changes[message.step])
        if message.replay or message.step - max(trial.lr_changes, default=0) < WINDOW_STEPS:
            return Continue()
        advice = advise(trial.summary, with_values(self._cfg, trial.planned.overrides).algorithm)
        if advice.factor == 1.0 or (advice.action == "raise" and trial.lr_was_raised):
            return Continue()
        return SetLr(trial.lr * advice.factor)

    def _watch_idleness(self, now_ns: int) -> None:
        if self._busy_ns is None or any(h.granted and not h.ended for h in self._held.values()):
            self._busy_ns = now_ns
        elif self._idle_limit_ns is not None and now_ns - self._busy_ns >= self._idle_limit_ns:
            text = f"nothing has run for machine.max_idle={self._cfg.machine.max_idle}"
            self.stop(Stop(StopKind.IDLE, text))

    def _watch_budget(self) -> None:
        if self._purse and not self._stop:
            self._purse.watch()
            self._heed_purse()

    def _heed_purse(self) -> None:
        if self._purse and self._purse.over:
            self.stop(Stop(StopKind.BUDGET, self._purse.over))

    def _labels(self, trial: TrialRecord) -> dict[str, str]:
        planned = trial.planned
        return {
            "stage": self._cfg.stage.name,
            "state": str(TrialState.RUNNING),
            "prompts_per_step": str(planned.prompts_per_step),
            "group_size": str(planned.group_size),
            "lr": f"{planned.lr:g}",
            "lr_scaling": "=".join(planned.names),
            "seed": str(planned.seed),
            "varied": planned.varied,
            "trainer": self._cfg.trainer.name,
            **(self._forecast(planned) if self._forecast else {}),
        }


def _accuracy_labels(report: EvalReport) -> dict[str, str]:
    estimate = average_at_k(report.results)
    return {
        "acc": f"{estimate.value:.4f}",
        "acc_ci_low": f"{estimate.low:.4f}",
        "acc_ci_high": f"{estimate.high:.4f}",
    }

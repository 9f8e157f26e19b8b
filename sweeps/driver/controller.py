"""The decisions of a running sweep: which attempt starts next, which command a trainer receives, what an end means.

Between an executor, which runs attempts and decides nothing, and the records of the sweep: the journal (what happened)
and the ledger (who used which cards). Every decision is written in one transaction with what it costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Protocol

from cost.commands import command_text
from cost.ledger.ledger import HEARTBEAT_NS, Ledger
from cost.money import Money
from cost.records import UsageKey
from rl.spec import Checkpoint, Command, Continue, EvalReport, Event, Finished, SetLr, StepReport, Stop, StopKind
from sweeps.config.points import with_values
from sweeps.config.types import SweepConfig
from sweeps.driver.labels import accuracy_labels, start_labels
from sweeps.driver.running_attempt import RunningAttempt
from sweeps.executors import Attempt
from sweeps.journal.events import (
    AttemptStarted,
    CardsReleased,
    CommandSent,
    RetryPlanned,
    RuleStopped,
    WarningIssued,
)
from sweeps.journal.journal import (
    OUTCOME_STATES,
    UNFINISHED,
    Journal,
    TrialRecord,
    TrialState,
    sweep_events,
)
from sweeps.journal.outcomes import AttemptOutcome
from sweeps.planning.plan import PlannedTrial, trial_spec
from sweeps.protocol.gate_rules import Rule, RuleResult
from sweeps.protocol.lr_rule import next_lr
from sweeps.protocol.trial_rules import TrialRules
from sweeps.scheduling.budget_controller import BudgetController
from sweeps.scheduling.queue import TrialQueue
from sweeps.scheduling.retries import retry_after
from sweeps.search.proposals import Proposer
from sweeps.search.pruning import Pruner


class View(Protocol):
    """Shows a sweep to a person while it runs."""

    def changed(self, trial: TrialRecord, message: Event | None) -> None:
        """The trial sent this message, or its state changed (None)."""
        ...

    def warn(self, text: str) -> None:
        """Show a warning now."""
        ...

    def tick(self) -> None:
        """Time has passed."""
        ...


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
        budget: BudgetController | None = None,
        forecast: Callable[[PlannedTrial], Mapping[str, str]] = lambda _: {},
        preemption_notice: Callable[[], str | None] = lambda: None,
        keep_lock: Callable[[], None] = lambda: None,
        rules: Sequence[Rule] = (),
        cost_of_cards: Callable[[int], Money | None] = lambda _: None,
    ) -> None:
        """
        Args:
            cards: how many trials can use.
            budget: None: no limits.
            forecast: labels for what a trial is expected to cost.
            preemption_notice: what the machine's provider announced; None: nothing.
            keep_lock: called at every heartbeat; raises where another driver has the sweep's lock.
            rules: the gate rules of the stage.
            cost_of_cards: what card-nanoseconds cost; None: unpriced.
        """
        self._cfg, self._ledger, self._journal, self._view = cfg, ledger, journal, view
        self._lease_id, self._sweep_dir, self._cards = lease_id, sweep_dir, cards
        self._budget, self._forecast = budget, forecast
        if budget is not None:
            budget.warn = self.warn
        self._pruner, self._proposer = Pruner(cfg, journal.record), Proposer(cfg)
        self.trial_rules = TrialRules(rules)
        """The gate rules on every step so far, those of earlier drivers included."""
        self._add_earlier_steps()
        self._cost_of_cards = cost_of_cards
        self._queue = TrialQueue()
        for trial in journal.record.unfinished:
            self._queue.add(trial.trial_id, trial.retry_not_before_ns or 0)
        self._attempts: dict[str, RunningAttempt] = {}
        self._running = 0
        """Attempts that have not ended."""
        self._preemption_notice, self._keep_lock = preemption_notice, keep_lock
        max_idle = cfg.machine.max_idle
        self._max_idle_ns = None if max_idle is None else round(max_idle.seconds * 1e9)
        self._last_heartbeat_ns = ledger.now_ns()
        self._last_busy_ns: int | None = None
        """When an attempt last ran. Counts from the first tick on: starting Ray is not idleness."""
        self._stop: Stop | None = None
        self._requests_read = 0

    # Called by the executor

    def next_attempt(self) -> Attempt | None:
        if self._stop or self._running >= self._cfg.search.trials_at_once(self._cards):
            return None
        if not self._queue.has_due(self._ledger.now_ns()):
            for trial_id in self._proposer.propose(self._journal):
                self._queue.add(trial_id)
        if not self._queue.has_due(self._ledger.now_ns()):
            return None
        trial_id = self._budget.choose(self._queue) if self._budget else self._queue.pop()
        if trial_id is None:
            self._stop_if_over_budget()
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
        attempt = Attempt(spec, self._checkpoint_of(trial))
        self._attempts[str(attempt)] = RunningAttempt(attempt, UsageKey(self._lease_id, trial_id, number))
        self._running += 1
        return attempt

    def done(self) -> bool:
        nothing_waits = not self._queue and not self._journal.record.to_propose
        return not self._running and (bool(self._stop) or nothing_waits)

    def on_granted(self, attempt: Attempt) -> None:
        running = self._attempts.get(str(attempt))
        if running is None or running.granted:
            return
        trial = self._journal.record.trials[attempt.trial_id]
        from_step = trial.checkpoint.step if trial.checkpoint and attempt.checkpoint else 0
        started = AttemptStarted(attempt.trial_id, attempt.number, self._lease_id, from_step)
        sweep_id, cards = self._journal.record.sweep_id, Decimal(attempt.spec.cards)
        with self._journal.transaction():
            if self._budget and (reservation := self._budget.reserve(running.key, from_step)):
                started = replace(started, reserved=reservation.amount, reserved_by=reservation.source)
            self._journal.append(started)
            labels = start_labels(self._cfg, trial.planned, self._forecast(trial.planned))
            self._ledger.usages.start(running.key, sweep_id, cards, labels)
        running.granted = True
        self._view.changed(trial, None)

    def on_message(self, attempt: Attempt, sequence: int, message: Event) -> Command:
        running = self._attempts.get(str(attempt))
        if running is None:
            return Continue()  # the attempt has ended before
        trial = self._journal.record.trials[attempt.trial_id]
        if isinstance(message, StepReport) and message.step <= trial.summary.step:
            message = replace(message, replay=True)  # the journal decides: the trainer cannot know what arrived
        if not self._journal.add_message(attempt.trial_id, attempt.number, sequence, message):
            return self._command(trial, message)  # the same message came before
        if isinstance(message, EvalReport):
            self._pruner.add(trial)
        elif isinstance(message, StepReport):
            self.trial_rules.add(trial.trial_id, message, attempt.spec.cards)
        running.add_phases(sequence, message)
        command = self._command(trial, message)
        running.stop_sent = running.stop_sent or isinstance(command, Stop)
        keep = self._cfg.trainer.keep_checkpoints
        if running.checkpoint_must_be_written(message, self._journal.flushes, keep) or isinstance(message, EvalReport):
            with self._journal.transaction():
                self._journal.flush()
                self._write_phases([running])
                if isinstance(message, EvalReport) and message.step > 0:
                    self._ledger.usages.set_labels(running.key, accuracy_labels(message))
                self._write_command(attempt, sequence, message, command)
        else:
            self._write_command(attempt, sequence, message, command)
            if self._journal.flush_is_due:
                self._journal.flush()
        self._view.changed(trial, message)
        return command

    def on_ended(self, attempt: Attempt, outcome: AttemptOutcome, message: str) -> None:
        running = self._attempts.get(str(attempt))
        if running is None or running.ended:
            return
        trial = self._journal.record.trials[attempt.trial_id]
        if trial.pruned is not None and outcome is not AttemptOutcome.COMPLETED:
            outcome, message = AttemptOutcome.PRUNED, message or trial.pruned
        micro_batch_tokens = attempt.spec.trainer.micro_batch_tokens
        retry = None if self._stop else retry_after(trial, outcome, self._cfg.retry, micro_batch_tokens)
        not_before_ns = self._ledger.now_ns() + round(retry.wait_seconds * 1e9) if retry else 0
        with self._journal.transaction():
            self._journal.end_attempt(attempt.trial_id, attempt.number, outcome, message)
            self._write_phases([running])
            if retry:
                planned = (not_before_ns, retry.reason, retry.micro_batch_tokens)
                self._journal.append(RetryPlanned(attempt.trial_id, attempt.number, *planned))
            state, steps = str(OUTCOME_STATES[outcome]), str(trial.summary.step)
            self._ledger.usages.set_labels(running.key, {"state": state, "steps": steps})
        running.ended = True
        self._running -= 1
        if retry or self._continues_within_budget(attempt.trial_id, outcome):
            self._queue.add(attempt.trial_id, not_before_ns)
        elif trial.state not in UNFINISHED:
            self.trial_rules.end(attempt.trial_id)
        self._view.changed(trial, None)

    def on_released(self, attempt: Attempt, released: bool) -> None:
        running = self._attempts.pop(str(attempt), None)
        if running is None:
            return
        outcome = self._journal.record.trials[attempt.trial_id].attempts[-1].outcome or AttemptOutcome.LOST
        with self._journal.transaction():
            self._journal.append(CardsReleased(attempt.trial_id, attempt.number, released))
            self._ledger.usages.end(running.key, str(OUTCOME_STATES[outcome]))
        if self._budget:
            self._budget.release(attempt.trial_id)
        self._view.tick()

    def on_cards(self, cards: int) -> None:
        per_trial = self._cfg.search.cards_per_trial
        text = f"trials can use {cards} cards now, {self._cards} before"
        if cards < self._cards and self._cfg.machine.purchase != "own":
            example = ("--amount", "-5.00 USD", "--reason", "WHY")
            text += (
                ". The lease stays open at the price of the whole cluster. If the provider charges less for a lost "
                f"node: {command_text('cost', 'correct', self._lease_id, *example, place=self._ledger.place)}"
            )
        self.warn(text)
        self._cards = cards
        if cards < per_trial:
            self.stop(Stop(StopKind.NO_CARDS, f"a trial needs {per_trial} cards of one machine, and none are left"))

    def stopping(self) -> bool:
        return self._stop is not None

    def stops_at_once(self) -> Mapping[str, Stop]:
        stops = self._budget.stops_at_once() if self._budget else {}
        return {
            name: stops[running.attempt.trial_id]
            for name, running in (self._attempts.items() if stops else ())
            if running.attempt.trial_id in stops and not running.ended and not running.stop_sent
        }

    def on_tick(self) -> None:
        now_ns = self._ledger.now_ns()
        self._stop_if_idle(now_ns)
        if notice := self._preemption_notice():
            self.stop(Stop(StopKind.MACHINE_TAKEN, f"preemption notice: {notice}"))
        if now_ns - self._last_heartbeat_ns >= HEARTBEAT_NS:
            self._last_heartbeat_ns = now_ns
            self._keep_lock()
            granted = [running for running in self._attempts.values() if running.granted]
            with self._journal.transaction():
                self._ledger.heartbeat(self._lease_id, [running.key for running in granted])
                self._journal.flush()
                self._write_phases(granted)
            self._read_operator_requests()
            self._watch_budget()
        elif self._journal.flush_is_due:
            self._journal.flush()
        self._view.tick()

    # Called by the driver

    @property
    def stopped(self) -> Stop | None:
        """Why the sweep stops early; None: it does not."""
        return self._stop

    def stop(self, command: Stop) -> None:
        """Start nothing more; running trials receive `command` at their next message. The first stop counts."""
        self._stop = self._stop or command

    def end_all(self, outcome: AttemptOutcome, message: str) -> None:
        """End every attempt in the journal and the ledger: the executor has ended the processes."""
        for name, running in list(self._attempts.items()):
            if not running.granted:
                del self._attempts[name]
                self._running -= 1
                continue
            if not running.ended:
                self.on_ended(running.attempt, outcome, message)
            self.on_released(running.attempt, True)

    def warn(self, text: str) -> None:
        """Show a warning, and write it into the journal."""
        self._view.warn(text)
        self._journal.append(WarningIssued(text))

    # Decisions

    def _checkpoint_of(self, trial: TrialRecord) -> Path | None:
        """Where the trial's next attempt resumes from."""
        if trial.checkpoint is None:
            return None
        path = Path(trial.checkpoint.path)
        if path.is_dir():
            return path
        self.warn(f"the checkpoint of {trial.trial_id} at {path} is gone: the trial starts from the beginning")
        return None

    def _command(self, trial: TrialRecord, message: Event) -> Command:
        """The reply to a message that the journal has."""
        if isinstance(message, Finished):
            return Continue()
        if self._budget:
            self._budget.observe(trial.trial_id, message)
            self._stop_if_over_budget()
        if self._stop:
            return self._stop
        if trial.cancelled is not None:
            return Stop(StopKind.CANCELLED, trial.cancelled)
        if self._budget and (stop := self._budget.stop_for(trial.trial_id)):
            return stop
        if isinstance(message, StepReport) and (failed := self._failed_stop_rule(trial, message)):
            return Stop(StopKind.PRUNED, f"gate rule {failed.rule!r}: {failed.text}")
        if isinstance(message, EvalReport):
            reason = trial.pruned or self._pruner.reason(trial, message.step)
            return Stop(StopKind.PRUNED, reason) if reason else Continue()
        if isinstance(message, StepReport) and trial.planned.adaptive_lr and message.step < self._cfg.stage.steps:
            lr = next_lr(trial, message, with_values(self._cfg, trial.planned.overrides).algorithm)
            if lr is not None:
                return SetLr(lr)
        return Checkpoint() if self._budget and self._budget.needs_checkpoint(message) else Continue()

    def _continues_within_budget(self, trial_id: str, outcome: AttemptOutcome) -> bool:
        """Whether a trial that its budget stopped is continued by this driver once there is room."""
        if outcome is not AttemptOutcome.BUDGET or self._stop or self._budget is None:
            return False
        return self._budget.may_run_again(trial_id)

    def _write_command(self, attempt: Attempt, sequence: int, message: Event, command: Command) -> None:
        """Write a command in the same transaction as the message that it answers."""
        if isinstance(command, Continue):
            return
        done = self._journal.record.trials[attempt.trial_id].summary.step
        step = message.step if isinstance(message, StepReport) else done
        trial = self._journal.record.trials[attempt.trial_id]
        failed = self._failed_stop_rule(trial, message) if isinstance(message, StepReport) else None
        with self._journal.transaction():
            if failed and isinstance(command, Stop) and command.kind is StopKind.PRUNED:
                self._write_rule_stop(attempt, trial, failed)
            self._journal.append(CommandSent(attempt.trial_id, attempt.number, sequence, step, command))

    def _failed_stop_rule(self, trial: TrialRecord, message: StepReport) -> RuleResult | None:
        """The gate rule that ends the trial after this step. The last step is never stopped: nothing would be saved."""
        return self.trial_rules.failed_stop(trial.trial_id) if message.step < self._cfg.stage.steps else None

    def _write_rule_stop(self, attempt: Attempt, trial: TrialRecord, failed: RuleResult) -> None:
        summary, steps = trial.summary, self._cfg.stage.steps
        card_ns = summary.wall_ns * (steps - summary.step) * attempt.spec.cards // summary.step
        self._journal.append(
            RuleStopped(
                trial.trial_id,
                attempt.number,
                failed.rule,
                failed.text,
                summary.step,
                steps - summary.step,
                self._cost_of_cards(card_ns),
            )
        )

    def _add_earlier_steps(self) -> None:
        """Replay the steps of earlier drivers, so that a resumed trial is judged by all of its rows."""
        record = self._journal.record
        if any(trial.attempts for trial in record.trials.values()):
            events = sweep_events(self._ledger, record.sweep_id)
            self.trial_rules.add_reports(events, self._cfg.search.cards_per_trial)
            for trial in record.trials.values():
                if trial.state not in UNFINISHED:
                    self.trial_rules.end(trial.trial_id)

    def _write_phases(self, attempts: Sequence[RunningAttempt]) -> None:
        """Write what these attempts reported since the last time into the ledger."""
        self._ledger.usages.add_phase_reports([row for running in attempts for row in running.take_phases()])

    def _read_operator_requests(self) -> None:
        """Follow requests that another process wrote into the journal (`sweeps stop`, `sweeps cancel`)."""
        self._journal.catch_up()
        record = self._journal.record
        if record.operator_requests == self._requests_read:
            return
        self._requests_read = record.operator_requests
        if record.stop_requested is not None:
            self.stop(Stop(StopKind.REQUESTED, record.stop_requested))
        for trial_id in self._queue.trial_ids():
            if record.trials[trial_id].state is TrialState.CANCELLED:
                self._queue.remove(trial_id)

    def _stop_if_idle(self, now_ns: int) -> None:
        busy = any(running.granted and not running.ended for running in self._attempts.values())
        if self._last_busy_ns is None or busy:
            self._last_busy_ns = now_ns
        elif self._max_idle_ns is not None and now_ns - self._last_busy_ns >= self._max_idle_ns:
            self.stop(Stop(StopKind.IDLE, f"nothing has run for machine.max_idle={self._cfg.machine.max_idle}"))

    def _watch_budget(self) -> None:
        if self._budget and not self._stop:
            self._budget.heartbeat()
            self._stop_if_over_budget()

    def _stop_if_over_budget(self) -> None:
        if self._budget and self._budget.stop_reason:
            self.stop(Stop(StopKind.BUDGET, self._budget.stop_reason))

"""Keeps a running sweep within its limits: which trial may start, what is reserved for it, what happens at a limit.

The controller takes a snapshot of the ledger (`budget_readings`) and what an attempt needs (`attempt_bounds`), lets
`budget_decisions` decide, and carries the decision out. A reservation is written in the transaction that starts its
attempt, while no other driver of the database can reserve: two sweeps cannot both take what is left. Spending is read
at every heartbeat. Where nothing is known about the cost of a trial, the first one runs alone, with all that is free
reserved for it, until its steps are measured.

A trainer that has work to save cannot be stopped between two reports. So no attempt starts, and no evaluation begins,
that is known to end after a limit is spent, and at a limit an attempt without unsaved steps is ended at once. Beyond a
limit, a sweep costs the time until the next heartbeat and that of a step and a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from math import floor

from cost.budgets.snapshot import BudgetSnapshot, CardsInUse
from cost.ledger.ledger import Ledger
from cost.ledger.reservations import Reservation
from cost.money import Money, money_text
from cost.prices.book import hourly
from cost.records import Lease, UsageKey
from rl.spec import CheckpointWritten, EvalReport, Event, Started, StepReport, Stop, StopKind
from sweeps.config.types import SweepConfig
from sweeps.forecast.step_time import StepTime
from sweeps.journal.journal import SweepRecord, TrialRecord
from sweeps.machines.pricing import Pricing
from sweeps.scheduling import budget_decisions as decisions
from sweeps.scheduling.attempt_bounds import AttemptBounds
from sweeps.scheduling.budget_decisions import BudgetReason
from sweeps.scheduling.budget_readings import BudgetReadings
from sweeps.scheduling.cost_bound import UNKNOWN, CostBound, StepTimeForecast, TrialForecast
from sweeps.scheduling.measured_phases import MeasuredPhases
from sweeps.scheduling.queue import TrialQueue

EVALUATION_MARGIN = 3
"""A trial writes a checkpoint before an evaluation that would outlast a limit at this many times the longest so far."""


@dataclass
class _RunningAttempt:
    key: UsageKey
    from_step: int
    cards: CardsInUse
    unsaved: bool = False
    """It has reported steps that are not in a checkpoint yet."""
    evaluated_step: int = -1
    """The last step that this attempt has evaluated."""


class BudgetController:
    """The budget of one sweep. All calls come from its driver's thread."""

    def __init__(
        self,
        cfg: SweepConfig,
        ledger: Ledger,
        record: SweepRecord,
        pricing: Pricing,
        time: StepTime | None,
        *,
        forecast: TrialForecast | None = None,
        wait: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            time: step times from earlier sweeps or the machine's data sheet.
            forecast: how long attempts take; None: by `time` and the step times of this sweep.
            wait: called at every heartbeat of a pause; a simulated sweep waits in it, since its clock does not.

        Raises:
            ConfigError: a limit on a machine without a price, or without an exchange rate to its currency.
        """
        self._cfg, self._ledger, self._record, self._row = cfg, ledger, record, pricing.row
        self._wait = wait
        self.warn: Callable[[str], None] = lambda _: None
        """Receives warnings for a person."""
        self.stop_reason: str | None = None
        """Why the sweep must stop; None: it may go on."""
        self._trial_limit = cfg.budget.trial_limit
        self._readings = BudgetReadings(cfg, ledger, record.sweep_id, pricing)
        self.notes = self._readings.check_limits()
        """The exchange rates at which limits in other currencies are compared, one sentence each."""
        forecast = forecast or StepTimeForecast(cfg, record, time)
        self._bounds = AttemptBounds(cfg, record, pricing, self._readings, forecast)
        self._phases = MeasuredPhases(cfg, record)
        self._lease: Lease | None = None
        self._chosen: dict[str, CostBound | None] = {}
        """Attempts that were chosen and do not have their cards yet, and what to reserve for them."""
        self._running: dict[str, _RunningAttempt] = {}
        self._denied: dict[str, str] = {}
        """Running attempts without a reservation: another sweep took what was left. By trial, why they must stop."""
        self._over_trial_limit: dict[str, str] = {}
        self._paused: str | None = None
        self._released = 0
        self._nothing_fits = False
        """No waiting trial fits, until an attempt ends or the next heartbeat."""
        self._warnings_stream = f"budget:{record.sweep_id}"
        self._warnings_given = {event.key for event in ledger.events.read(self._warnings_stream)}
        self._problems_reported: set[str] = set()

    # Decisions for the driver

    def refusal(self, *, machine_acquired: bool) -> str | None:
        """Why not even one trial fits; None: a trial does. Asked before a machine is acquired.

        `machine_acquired`: the sweep has a machine already, so that its first moment costs nothing more.
        """
        snapshot = self._readings.read(exact=True)
        reasons = [self._trial_limit_reached(snapshot, t.trial_id) for t in self._record.unfinished]
        if reasons and all(reasons) and not self._record.to_propose:
            return f"no trial is started: {reasons[0]}"
        row = self._row
        if not snapshot.limits or row is None:
            return None
        need = self._smallest_need()
        least = 0 if machine_acquired else self._bounds.least_charge(self._ledger.now_ns())
        if least > need.pico:
            need = replace(need, pico=least, basis="the least that the machine is charged for")
        tax = Fraction(0) if row.tax_included else Fraction(row.tax_rate)
        need = replace(need, pico=floor(need.pico * (1 + tax)))
        found = decisions.limit_without_room(snapshot, need, row.currency, lease_id=None)
        return f"no trial is started: {found.text}" if found else None

    def use_lease(self, lease: Lease) -> None:
        """From now on attempts run on this lease."""
        self._lease = lease
        self._bounds.use_lease(lease)
        self._readings.update()

    def choose(self, waiting: TrialQueue) -> str | None:
        """Take the first waiting trial that fits out of `waiting`; None: no trial may start now."""
        now_ns = self._ledger.now_ns()
        if not waiting.has_due(now_ns) or self._paused or self._nothing_fits:
            return None
        self._readings.refresh()
        trials, too_much = self._record.trials, None

        def fits(trial_id: str) -> bool:
            nonlocal too_much
            trial = trials[trial_id]
            if self._cannot_start(trial):
                return False
            need = self._bounds.need(trial)
            if too_much is not None and need.pico >= too_much:
                return False  # Most waiting trials cost alike: not each of them is compared with every limit.
            if self._no_room_for(need) is None:
                return True
            too_much = need.pico
            return False

        chosen = waiting.pop_first(now_ns, fits)
        if chosen is not None:
            self._chosen[chosen] = self._bounds.of(trials[chosen])
            return chosen
        self._nothing_fits = True
        if not self._running and not self._chosen and waiting.all_due(now_ns):
            self._stop_for_want_of_room([trials[trial_id] for trial_id in waiting.trial_ids()])
        return None

    def reserve(self, key: UsageKey, from_step: int) -> Reservation | None:
        """Reserve the bound of an attempt, in the transaction that starts it.

        Where another sweep has reserved the money since the trial was chosen, nothing is reserved, and the attempt must
        stop at its first report.
        """
        trial_id = key.trial_id
        bound = self._chosen.pop(trial_id, None)
        cards = CardsInUse(key.lease_id, self._ledger.now_ns(), self._cfg.search.cards_per_trial)
        self._running[trial_id] = _RunningAttempt(key, from_step, cards)
        row = self._row
        if row is None or (bound is None and not self._readings.snapshot.limits):
            return None
        with self._ledger.reservations.exclusive():
            if self._readings.snapshot.limits:
                self._readings.update()
                need, chosen_pico = bound or self._bounds.unknown(), self._chosen_pico()
                found = self._readings.confirmed(
                    lambda snapshot: decisions.limit_without_room(
                        snapshot, need, row.currency, lease_id=key.lease_id, chosen_pico=chosen_pico
                    )
                )
                if found is not None:
                    self._denied[trial_id] = f"another sweep reserved the money first: {found.text}"
                    return None
            return self._write_reservation(key, bound or self._all_that_is_free())

    def observe(self, trial_id: str, message: Event) -> None:
        """Take in a message of an attempt: how long starts and evaluations take, and whether an evaluation is next."""
        running = self._running.get(trial_id)
        if running is None:
            return
        if isinstance(message, StepReport | CheckpointWritten):
            running.unsaved = isinstance(message, StepReport)
        if isinstance(message, EvalReport):
            self._phases.add_evaluation(message.wall_ns)
            running.evaluated_step = message.step
        elif isinstance(message, Started | StepReport | CheckpointWritten):
            if isinstance(message, Started):
                self._phases.add_start(self._ledger.now_ns() - running.cards.from_ns)
            if message.step != running.evaluated_step and self._phases.is_evaluated(message.step):
                self._stop_if_evaluation_does_not_fit()

    def needs_checkpoint(self, message: Event) -> bool:
        """Whether an attempt has to write a checkpoint before its next evaluation.

        A limit may be reached during the evaluation. An attempt without unsaved steps is ended at once there; with
        unsaved steps it would first finish the evaluation.
        """
        next_is_evaluation = isinstance(message, StepReport) and self._phases.is_evaluated(message.step)
        if not self._readings.snapshot.limits or not next_is_evaluation:
            return False
        if not self._phases.evaluation_ns:
            return True
        duration_ns = EVALUATION_MARGIN * self._phases.evaluation_ns
        return self._reached_within(self._readings.snapshot, duration_ns, "an evaluation") is not None

    def stop_for(self, trial_id: str) -> Stop | None:
        """The command for a running attempt that has to stop; None: it may go on."""
        of_trial = self._over_trial_limit.get(trial_id) or self._denied.get(trial_id)
        reason = of_trial or self._paused or self.stop_reason
        return Stop(StopKind.BUDGET, reason) if reason else None

    def stops_at_once(self) -> dict[str, Stop]:
        """Running attempts that must stop and have no work to save, by trial: ending them now saves what the rest of
        their start, evaluation or step would cost."""
        if not (self.stop_reason or self._paused or self._denied or self._over_trial_limit):
            return {}
        attempts = self._running.items()
        return {t: stop for t, attempt in attempts if not attempt.unsaved and (stop := self.stop_for(t))}

    def may_run_again(self, trial_id: str) -> bool:
        """Whether a trial that its budget stopped runs again within this sweep, once there is room."""
        if trial_id in self._over_trial_limit:
            return False
        return trial_id in self._denied or self._cfg.budget.at_limit == "pause"

    def release(self, trial_id: str) -> None:
        """The usage of an attempt has ended, and with it its reservation."""
        self._running.pop(trial_id, None)
        self._denied.pop(trial_id, None)
        self._nothing_fits = False
        self._released += 1
        if self._released & (self._released - 1) == 0:  # At the first, and at each doubling: it looks at all trials.
            self._bounds.update()

    def heartbeat(self) -> None:
        """Read what is spent, warn, and stop or pause the sweep at a limit."""
        self._nothing_fits = False
        changed = self._bounds.update()
        self._readings.update()
        for problem in self._readings.limit_problems:
            if problem not in self._problems_reported:
                self._problems_reported.add(problem)
                self.warn(f"budget: a limit is not applied: {problem}")
        if changed:
            self._reserve_again()
        self._check_trial_limits()
        self._give_warnings()
        reached = self._readings.confirmed(decisions.limit_reached)
        if problem := self._price_lost():
            self.stop_reason = problem
        if self._paused:
            self._resume_if_there_is_room(reached)
        elif reached:
            self._stop_or_pause(reached.text)

    # What an attempt needs

    def _smallest_need(self) -> CostBound:
        """The smallest need of the trials that are left."""
        left = [t for t in self._record.unfinished if t.trial_id not in self._running]
        may_start = [t for t in left if not self._trial_limit_reached(self._readings.snapshot, t.trial_id)]
        known = [bound for t in may_start if (bound := self._bounds.of(t))]
        return min(known, key=lambda bound: bound.pico, default=self._bounds.unknown())

    def _all_that_is_free(self) -> CostBound:
        assert self._lease is not None
        assert self._row is not None
        free = decisions.free_amount(self._readings.snapshot, self._row.currency)
        return CostBound(free, Decimal(self._lease.cards), UNKNOWN)

    # Starting

    def _cannot_start(self, trial: TrialRecord) -> bool:
        """Whether a trial cannot start now, even if the money for it is free."""
        if self._trial_limit is not None and trial.attempts and not self._readings.snapshot.exact:
            self._readings.update(exact=True)  # An attempt that has just ended counts too.
        if self._trial_limit_reached(self._readings.snapshot, trial.trial_id):
            return True
        unknown = self._readings.snapshot.limits and self._bounds.of(trial) is None
        return bool(unknown and (self._running or self._chosen))  # The first one runs alone.

    def _no_room_for(self, need: CostBound) -> BudgetReason | None:
        """The first limit without room for one more attempt."""
        if self._row is None:
            return None
        currency, lease_id = self._row.currency, self._lease.lease_id if self._lease else None
        chosen_pico = self._chosen_pico()
        return self._readings.confirmed(
            lambda snapshot: (
                decisions.limit_without_room(snapshot, need, currency, lease_id=lease_id, chosen_pico=chosen_pico)
                or self._reached_within(snapshot, self._phases.start_ns, "the start of a trial")
            )
        )

    def _chosen_pico(self) -> int:
        """Bounds of attempts that were chosen and do not have their cards yet."""
        return sum(bound.pico for bound in self._chosen.values() if bound)

    def _trial_limit_reached(
        self, snapshot: BudgetSnapshot, trial_id: str, running: CardsInUse | None = None
    ) -> str | None:
        if self._trial_limit is None:
            return None
        found = decisions.trial_limit_reached(snapshot, self._record.sweep_id, trial_id, self._trial_limit, running)
        return found.text if found else None

    def _write_reservation(self, key: UsageKey, bound: CostBound) -> Reservation:
        assert self._row is not None
        amount, sweep_id = Money(bound.pico, self._row.currency), self._record.sweep_id
        reservation = Reservation(key, sweep_id, self._cfg.stage.name, amount, bound.cards, bound.basis)
        self._ledger.reservations.add(reservation)
        self._readings.add_reservation(reservation, self._running[key.trial_id].cards.from_ns)
        return reservation

    def _reserve_again(self) -> None:
        """The forecast has changed: running attempts get reservations by the new one."""
        if self._row is None:
            return
        with self._ledger.reservations.exclusive():
            for trial_id, running in self._running.items():
                bound = self._bounds.of(self._record.trials[trial_id], running.from_step)
                if bound is not None and trial_id not in self._denied:
                    self._write_reservation(running.key, bound)

    # Stopping

    def _stop_if_evaluation_does_not_fit(self) -> None:
        """Stop or pause the sweep where a limit would be spent before an evaluation ends."""
        if self._paused or self.stop_reason or not self._phases.evaluation_ns:
            return
        duration_ns = self._phases.evaluation_ns
        found = self._readings.confirmed(lambda snapshot: self._reached_within(snapshot, duration_ns, "an evaluation"))
        if found is not None:
            self._stop_or_pause(found.text)

    def _reached_within(self, snapshot: BudgetSnapshot, duration_ns: int, work: str) -> BudgetReason | None:
        return decisions.limit_reached_within(snapshot, self._ledger.now_ns(), duration_ns, work)

    def _check_trial_limits(self) -> None:
        for trial_id, running in self._running.items():
            why = self._trial_limit_reached(self._readings.snapshot, trial_id, running.cards)
            if why and trial_id not in self._over_trial_limit:
                self._over_trial_limit[trial_id] = why
                self.warn(f"budget: {why}: the trial is stopped")

    def _give_warnings(self) -> None:
        given = self._warnings_given
        for warning in self._readings.confirmed(lambda snapshot: decisions.due_warnings(snapshot, given)):
            for percent, key in warning.percents.items():
                body = {"scope": warning.limit.scope, "limit": str(warning.limit.amount), "percent": percent}
                self._ledger.events.append(self._warnings_stream, "warned", body, key)
                given.add(key)
            self.warn(f"budget: {warning.text}")

    def _stop_for_want_of_room(self, waiting: list[TrialRecord]) -> None:
        """Nothing runs, and none of the waiting trials can start."""
        may_start = [t for t in waiting if not self._trial_limit_reached(self._readings.snapshot, t.trial_id)]
        if not may_start:  # Waiting would not help.
            reached = self._trial_limit_reached(self._readings.snapshot, waiting[0].trial_id)
            self.stop_reason = f"no trial that is left fits: {reached}"
            return
        found = self._no_room_for(self._bounds.need(may_start[0]))
        self._stop_or_pause(f"no trial that is left fits: {found.text if found else UNKNOWN}")

    def _price_lost(self) -> str | None:
        """Why the spending of this sweep is unknown: its machine had a price, and its lease cannot be priced now.

        An unknown cost is not zero: no limit can be kept with it.
        """
        if self._row is None or self._lease is None or not (self._readings.snapshot.limits or self._trial_limit):
            return None
        problem = self._readings.snapshot.unpriced.get(self._lease.lease_id)
        return f"the cost of lease {self._lease.lease_id} is unknown: {problem}" if problem else None

    def _stop_or_pause(self, why: str) -> None:
        if self._cfg.budget.at_limit == "stop":
            self.stop_reason = why
            return
        self._paused = why
        self.warn(
            f"budget: paused: {why}. Running trials write a checkpoint and stop; {self._cost_while_paused()}. "
            "The sweep goes on once there is room: when a limit is raised with python -m cost budget --set, when a "
            "reservation of another sweep ends, or with the next month. To raise a limit of the configuration, end the "
            "sweep (Ctrl-C) and start it again with a higher one"
        )

    def _resume_if_there_is_room(self, reached: BudgetReason | None) -> None:
        self._wait()
        if reached or self._chosen or self._no_room_for(self._smallest_need()):
            return
        self._paused = None
        self.warn("budget: there is room again, the sweep goes on")

    def _cost_while_paused(self) -> str:
        if self._lease is None or self._row is None:
            return "no machine is acquired"
        watts = self._lease.watts or Decimal(0)
        return f"the machine goes on costing {money_text(hourly(self._row, self._lease.cards, watts))} an hour"

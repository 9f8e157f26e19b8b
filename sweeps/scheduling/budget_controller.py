"""Keeps a running sweep within its limits: which trial may start, what is reserved for it, what happens at a limit.

The controller reads a snapshot of the ledger, lets `budget_decisions` decide, and carries the decision out. A
reservation is written in the transaction that starts its attempt, while no other driver of the database can reserve:
two sweeps cannot both take what is left. Spending is read at every heartbeat. Where nothing is known about the cost of
a trial, the first one runs alone, with all that is free reserved for it, until its steps are measured.

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
from typing import TypeVar

from cost.budgets.reader import BudgetReader
from cost.budgets.snapshot import BudgetSnapshot, CardsInUse
from cost.charges.lease_charge import billing_rules
from cost.clock import NS_PER_SECOND
from cost.ledger.ledger import Ledger
from cost.ledger.reservations import Reservation
from cost.money import Money, money_text
from cost.periods import utc_day
from cost.prices.billing import charge, rule_for, total
from cost.prices.book import hourly, pico_per_hour
from cost.prices.fx import convert, load_rates, rate_notes
from cost.records import Lease, UsageKey
from rl.spec import CheckpointWritten, EvalReport, Event, Started, StepReport, Stop, StopKind
from sweeps.config.types import ConfigError, SweepConfig
from sweeps.forecast.step_time import StepTime
from sweeps.journal.journal import SweepRecord, TrialRecord
from sweeps.machines.pricing import Pricing
from sweeps.scheduling import budget_decisions as decisions
from sweeps.scheduling.budget_decisions import BudgetReason
from sweeps.scheduling.cost_bound import (
    UNKNOWN,
    CostBound,
    StepTimeForecast,
    TrialForecast,
    cost_bound,
)
from sweeps.scheduling.limits import applicable_limits, configured_limits, in_machine_currency, scopes_of
from sweeps.scheduling.queue import TrialQueue

_T = TypeVar("_T")
FRESH_NS = NS_PER_SECOND
"""A snapshot is read again before a decision when it is older than this."""
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
        self._cfg, self._ledger, self._record, self._row, self._book = cfg, ledger, record, pricing.row, pricing.book
        self._wait = wait
        self.warn: Callable[[str], None] = lambda _: None
        """Receives warnings for a person."""
        self.stop_reason: str | None = None
        """Why the sweep must stop; None: it may go on."""
        self._trial_limit = cfg.budget.trial_limit
        self._rates = load_rates(pricing.book.folder)
        self._reader = self._make_reader(cfg, ledger, record.sweep_id)
        self._limit_problems: tuple[str, ...] = ()
        self._snapshot = self._read()
        self.notes = self._check_limits()
        """The exchange rates at which limits in other currencies are compared, one sentence each."""
        self._bound_pico: int | None = None
        if cfg.budget.trial_bound is not None and self._row is not None:
            self._bound_pico = self._in_own(cfg.budget.trial_bound, "budget.trial_bound")
        self._pico_per_hour = Fraction(0)
        if self._row is not None:
            self._pico_per_hour = pico_per_hour(self._row, cfg.machine.cards, Decimal(str(cfg.machine.watts)))
        self._forecast = forecast or StepTimeForecast(cfg, record, time)
        self._trials_left = record.left
        self._start_ns, self._evaluation_ns = _longest_phases_ns(record)
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
        snapshot = self._read(exact=True)
        reasons = [self._trial_limit_reached(snapshot, t.trial_id) for t in self._record.unfinished]
        if reasons and all(reasons) and not self._record.to_propose:
            return f"no trial is started: {reasons[0]}"
        row = self._row
        if not snapshot.limits or row is None:
            return None
        need = self._smallest_need()
        least = 0 if machine_acquired else self._least_charge()
        if least > need.pico:
            need = replace(need, pico=least, basis="the least that the machine is charged for")
        tax = Fraction(0) if row.tax_included else Fraction(row.tax_rate)
        need = replace(need, pico=floor(need.pico * (1 + tax)))
        found = decisions.limit_without_room(snapshot, need, row.currency, lease_id=None)
        return f"no trial is started: {found.text}" if found else None

    def use_lease(self, lease: Lease) -> None:
        """From now on attempts run on this lease."""
        self._lease = lease
        if self._row is not None:
            # A lease of own hardware may have measured watts.
            self._pico_per_hour = pico_per_hour(self._row, lease.cards, lease.watts or 0)
        self._snapshot = self._read()

    def choose(self, waiting: TrialQueue) -> str | None:
        """Take the first waiting trial that fits out of `waiting`; None: no trial may start now."""
        now_ns = self._ledger.now_ns()
        if not waiting.has_due(now_ns) or self._paused or self._nothing_fits:
            return None
        self._refresh()
        trials, too_much = self._record.trials, None

        def fits(trial_id: str) -> bool:
            nonlocal too_much
            trial = trials[trial_id]
            if self._cannot_start(trial):
                return False
            need = self._need(trial)
            if too_much is not None and need.pico >= too_much:
                return False  # Most waiting trials cost alike: not each of them is compared with every limit.
            if self._no_room_for(need) is None:
                return True
            too_much = need.pico
            return False

        chosen = waiting.pop_first(now_ns, fits)
        if chosen is not None:
            self._chosen[chosen] = self._bound(trials[chosen])
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
        if row is None or (bound is None and not self._snapshot.limits):
            return None
        with self._ledger.reservations.exclusive():
            if self._snapshot.limits:
                self._snapshot = self._read()
                need, chosen_pico = bound or self._unknown_need(), self._chosen_pico()
                found = self._confirmed(
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
            self._evaluation_ns = max(self._evaluation_ns, message.wall_ns)
            running.evaluated_step = message.step
        elif isinstance(message, Started | StepReport | CheckpointWritten):
            if isinstance(message, Started):
                self._start_ns = max(self._start_ns, self._ledger.now_ns() - running.cards.from_ns)
            if message.step != running.evaluated_step and self._is_evaluated(message.step):
                self._stop_if_evaluation_does_not_fit()

    def needs_checkpoint(self, message: Event) -> bool:
        """Whether an attempt has to write a checkpoint before its next evaluation.

        A limit may be reached during the evaluation. An attempt without unsaved steps is ended at once there; with
        unsaved steps it would first finish the evaluation.
        """
        if not self._snapshot.limits or not isinstance(message, StepReport) or not self._is_evaluated(message.step):
            return False
        if not self._evaluation_ns:
            return True
        duration_ns = EVALUATION_MARGIN * self._evaluation_ns
        return self._reached_within(self._snapshot, duration_ns, "an evaluation") is not None

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
            self._update_forecast()

    def heartbeat(self) -> None:
        """Read what is spent, warn, and stop or pause the sweep at a limit."""
        self._nothing_fits = False
        changed = self._update_forecast()
        self._snapshot = self._read()
        for problem in self._limit_problems:
            if problem not in self._problems_reported:
                self._problems_reported.add(problem)
                self.warn(f"budget: a limit is not applied: {problem}")
        if changed:
            self._reserve_again()
        self._check_trial_limits()
        self._give_warnings()
        reached = self._confirmed(decisions.limit_reached)
        if problem := self._price_lost():
            self.stop_reason = problem
        if self._paused:
            self._resume_if_there_is_room(reached)
        elif reached:
            self._stop_or_pause(reached.text)

    # Reading

    def _make_reader(self, cfg: SweepConfig, ledger: Ledger, sweep_id: str) -> BudgetReader:
        return BudgetReader(
            ledger,
            self._book,
            scopes_of(cfg, sweep_id),
            configured=configured_limits(cfg, sweep_id),
            always=[f"sweep:{sweep_id}"] if cfg.budget.trial_limit else [],
            simulated=cfg.simulated,
            stages={sweep_id: cfg.stage.name},
        )

    def _read(self, *, exact: bool = False) -> BudgetSnapshot:
        """A snapshot of this moment, with the limits that can be applied to the machine."""
        now_ns = self._ledger.now_ns()
        snapshot = self._reader.read(now_ns, exact=exact)
        limits, self._limit_problems = applicable_limits(snapshot.limits, self._row, utc_day(now_ns), self._rates)
        return replace(snapshot, limits=limits)

    def _refresh(self) -> None:
        if self._ledger.now_ns() - self._snapshot.at_ns >= FRESH_NS:
            self._snapshot = self._read()

    def _confirmed(self, decide: Callable[[BudgetSnapshot], _T]) -> _T:
        """A decision by the present snapshot. Where an estimate gives a reason, an exact reading has to confirm it: an
        estimate may be too high."""
        found = decide(self._snapshot)
        if not found or self._snapshot.exact:
            return found
        self._snapshot = self._read(exact=True)
        return decide(self._snapshot)

    def _check_limits(self) -> tuple[str, ...]:
        if self._limit_problems:
            raise ConfigError(self._limit_problems[0])
        given = {limit.source: limit.amount for limit in self._snapshot.limits}
        given |= {"budget.trial_limit": self._trial_limit} if self._trial_limit else {}
        for source, amount in given.items():
            self._in_own(amount, source)
        if self._row is None:
            return ()
        currency, day = self._row.currency, utc_day(self._ledger.now_ns())
        return rate_notes(convert(1, currency, amount.currency, day, self._rates) for amount in given.values())

    # What an attempt needs

    def _bound(self, trial: TrialRecord, from_step: int | None = None) -> CostBound | None:
        """What to reserve for an attempt of a trial; None: nothing is known. `from_step`: None: its checkpoint's."""
        if from_step is None:
            from_step = trial.checkpoint.step if trial.checkpoint else 0
        cards = Decimal(self._cfg.search.cards_per_trial)
        expected = None
        if self._bound_pico is not None:
            expected = CostBound(self._bound_pico, cards, "budget.trial_bound")
        elif seconds := self._forecast(trial, from_step):
            at_once = max(1, min(self._cfg.search.trials_at_once(self._cfg.machine.cards), self._trials_left))
            expected = cost_bound(seconds, self._pico_per_hour, self._cfg.machine.cards, at_once)
        return decisions.amount_to_reserve(expected, self._left_of_trial_limit(trial.trial_id), cards)

    def _need(self, trial: TrialRecord) -> CostBound:
        return self._bound(trial) or self._unknown_need()

    def _unknown_need(self) -> CostBound:
        """The least that an attempt of unknown cost needs."""
        return CostBound(1, Decimal(self._cfg.search.cards_per_trial), UNKNOWN)

    def _smallest_need(self) -> CostBound:
        """The smallest need of the trials that are left."""
        left = [t for t in self._record.unfinished if t.trial_id not in self._running]
        may_start = [t for t in left if not self._trial_limit_reached(self._snapshot, t.trial_id)]
        known = [bound for t in may_start if (bound := self._bound(t))]
        return min(known, key=lambda bound: bound.pico, default=self._unknown_need())

    def _all_that_is_free(self) -> CostBound:
        assert self._lease is not None
        assert self._row is not None
        free = decisions.free_amount(self._snapshot, self._row.currency)
        return CostBound(free, Decimal(self._lease.cards), UNKNOWN)

    def _left_of_trial_limit(self, trial_id: str) -> int | None:
        """What `budget.trial_limit` leaves for a trial that is about to start; None: there is no such limit."""
        if self._trial_limit is None or self._row is None:
            return None
        spent = self._snapshot.trial_spent(self._record.sweep_id, trial_id, self._trial_limit.currency)
        return max(0, self._snapshot.convert(self._trial_limit - spent, self._row.currency).pico)

    def _least_charge(self) -> int:
        """What a machine costs that is released at once: the first granule, or the minimum."""
        row, now_ns = self._row, self._ledger.now_ns()
        assert row is not None
        rule = rule_for(billing_rules(self._book), row.provider, row.purchase)
        watts = Decimal(str(self._cfg.machine.watts))
        return total(charge(now_ns, now_ns + 1, rule=rule, prices=(row,), cards=self._cfg.machine.cards, watts=watts))

    def _in_own(self, amount: Money, source: str) -> int:
        return in_machine_currency(amount, self._row, source, utc_day(self._ledger.now_ns()), self._rates)

    # Starting

    def _cannot_start(self, trial: TrialRecord) -> bool:
        """Whether a trial cannot start now, even if the money for it is free."""
        if self._trial_limit is not None and trial.attempts and not self._snapshot.exact:
            self._snapshot = self._read(exact=True)  # An attempt that has just ended counts too.
        if self._trial_limit_reached(self._snapshot, trial.trial_id):
            return True
        unknown = self._snapshot.limits and self._bound(trial) is None
        return bool(unknown and (self._running or self._chosen))  # The first one runs alone.

    def _no_room_for(self, need: CostBound) -> BudgetReason | None:
        """The first limit without room for one more attempt."""
        if self._row is None:
            return None
        currency, lease_id = self._row.currency, self._lease.lease_id if self._lease else None
        chosen_pico = self._chosen_pico()
        return self._confirmed(
            lambda snapshot: (
                decisions.limit_without_room(snapshot, need, currency, lease_id=lease_id, chosen_pico=chosen_pico)
                or self._reached_within(snapshot, self._start_ns, "the start of a trial")
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
        if key.lease_id in self._snapshot.leases:
            from_ns = self._running[key.trial_id].cards.from_ns
            self._snapshot = self._snapshot.with_reservation(replace(reservation, from_ns=from_ns))
        return reservation

    def _reserve_again(self) -> None:
        """The forecast has changed: running attempts get reservations by the new one."""
        if self._row is None:
            return
        with self._ledger.reservations.exclusive():
            for trial_id, running in self._running.items():
                bound = self._bound(self._record.trials[trial_id], running.from_step)
                if bound is not None and trial_id not in self._denied:
                    self._write_reservation(running.key, bound)

    def _update_forecast(self) -> bool:
        self._trials_left = self._record.left
        return self._forecast.update()

    # Stopping

    def _stop_if_evaluation_does_not_fit(self) -> None:
        """Stop or pause the sweep where a limit would be spent before an evaluation ends."""
        if self._paused or self.stop_reason or not self._evaluation_ns:
            return
        found = self._confirmed(lambda snapshot: self._reached_within(snapshot, self._evaluation_ns, "an evaluation"))
        if found is not None:
            self._stop_or_pause(found.text)

    def _is_evaluated(self, step: int) -> bool:
        """Whether trainers evaluate after this step."""
        every = self._cfg.evaluation.every_steps
        return step in (0, self._cfg.stage.steps) or (every > 0 and step % every == 0)

    def _reached_within(self, snapshot: BudgetSnapshot, duration_ns: int, work: str) -> BudgetReason | None:
        return decisions.limit_reached_within(snapshot, self._ledger.now_ns(), duration_ns, work)

    def _check_trial_limits(self) -> None:
        for trial_id, running in self._running.items():
            why = self._trial_limit_reached(self._snapshot, trial_id, running.cards)
            if why and trial_id not in self._over_trial_limit:
                self._over_trial_limit[trial_id] = why
                self.warn(f"budget: {why}: the trial is stopped")

    def _give_warnings(self) -> None:
        given = self._warnings_given
        for warning in self._confirmed(lambda snapshot: decisions.due_warnings(snapshot, given)):
            for percent, key in warning.percents.items():
                body = {"scope": warning.limit.scope, "limit": str(warning.limit.amount), "percent": percent}
                self._ledger.events.append(self._warnings_stream, "warned", body, key)
                given.add(key)
            self.warn(f"budget: {warning.text}")

    def _stop_for_want_of_room(self, waiting: list[TrialRecord]) -> None:
        """Nothing runs, and none of the waiting trials can start."""
        may_start = [t for t in waiting if not self._trial_limit_reached(self._snapshot, t.trial_id)]
        if not may_start:  # Waiting would not help.
            reached = self._trial_limit_reached(self._snapshot, waiting[0].trial_id)
            self.stop_reason = f"no trial that is left fits: {reached}"
            return
        found = self._no_room_for(self._need(may_start[0]))
        self._stop_or_pause(f"no trial that is left fits: {found.text if found else UNKNOWN}")

    def _price_lost(self) -> str | None:
        """Why the spending of this sweep is unknown: its machine had a price, and its lease cannot be priced now.

        An unknown cost is not zero: no limit can be kept with it.
        """
        if self._row is None or self._lease is None or not (self._snapshot.limits or self._trial_limit):
            return None
        problem = self._snapshot.unpriced.get(self._lease.lease_id)
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


def _longest_phases_ns(record: SweepRecord) -> tuple[int, int]:
    """The longest start and the longest mean evaluation of the trials so far; 0 where there was none."""
    starts, evaluations = [0], [0]
    for trial in record.trials.values():
        summary = trial.summary
        if summary.started is not None:
            starts.append(sum(summary.started.phase_card_ns.values()) // summary.started.cards)
        if summary.accuracies:
            evaluations.append(summary.evaluation_wall_ns // len(summary.accuracies))
    return max(starts), max(evaluations)

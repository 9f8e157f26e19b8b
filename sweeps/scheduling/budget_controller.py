"""A sweep's money while it runs: which trial there is room for, what is set aside for it, what happens at a limit.

Before an attempt starts, its bound is set aside in the transaction that starts it, in a turn that all drivers of one
database take, so that two sweeps cannot both take what is left. What was spent is looked at with every heartbeat. Where
nothing tells what a trial may cost, the first one runs alone, with all that is free set aside for it, until its steps
tell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import floor

from cost.budgets.spending import Holding
from cost.charges.lease_charge import billing_rules
from cost.ledger.ledger import Ledger
from cost.ledger.reservations import Reservation
from cost.money import Money, money_text
from cost.prices.billing import charge, rule_for, total
from cost.prices.book import hourly, pico_per_hour
from cost.records import Lease, UsageKey
from rl.spec import Stop, StopKind
from sweeps.config.types import SweepConfig
from sweeps.forecast.step_time import StepTime
from sweeps.journal.journal import SweepRecord, TrialRecord
from sweeps.machines.pricing import Pricing
from sweeps.scheduling.cost_bound import Bound, Bounds, MeasuredBounds
from sweeps.scheduling.limits import SweepLimits
from sweeps.scheduling.queue import TrialQueue

NOTHING_KNOWN = "nothing tells yet what a trial costs"


@dataclass(frozen=True)
class _Running:
    key: UsageKey
    holding: Holding


class BudgetController:
    """One sweep's. All calls come from its driver's thread."""

    def __init__(
        self,
        cfg: SweepConfig,
        ledger: Ledger,
        record: SweepRecord,
        pricing: Pricing,
        time: StepTime | None,
        *,
        bounds: Bounds | None = None,
        wait: Callable[[], None] = lambda: None,
    ) -> None:
        """`time`: of earlier sweeps, or the data sheet's. `bounds`: in place of those by time.

        `wait`: called at every heartbeat of a pause, for where no real time passes between two of them.

        Raises:
            ConfigError: a limit on a machine without a price, or without an exchange rate to its currency.
        """
        self._cfg, self._ledger, self._record, self._row, self._book = cfg, ledger, record, pricing.row, pricing.book
        self._wait = wait
        self.tell: Callable[[str], None] = lambda _: None
        """Where warnings go."""
        self.over: str | None = None
        """Why the sweep must stop; None: it may go on."""
        self._limits = SweepLimits(cfg, ledger, record.sweep_id, pricing)
        self.notes = self._limits.notes
        """The exchange rates by which limits in other currencies are held, in words."""
        configured = cfg.budget.trial_bound
        amount = None
        if configured is not None and pricing.row is not None:
            amount = self._limits.into_own(configured, "budget.trial_bound")
        per_hour = Fraction(0)
        if pricing.row is not None:
            per_hour = pico_per_hour(pricing.row, cfg.machine.cards, Decimal(str(cfg.machine.watts)))
        self._bounds = bounds or MeasuredBounds(cfg, record, time, per_hour, amount)
        self._lease: Lease | None = None
        self._handed_out: dict[str, Bound | None] = {}
        self._running: dict[str, _Running] = {}
        self._denied: dict[str, str] = {}
        self._too_dear: dict[str, str] = {}
        self._told: set[str] = set()
        self._paused: str | None = None
        self._released = 0
        self._tight = False
        """Nothing that waits fits, until something ends or time has passed."""

    def refusal(self, held: bool) -> str | None:
        """Why not even one trial fits, before a machine is held for it; None: one does.

        `held`: the machine is, already, so that its first moment costs nothing more.
        """
        row = self._row
        dear = [self._limits.trial_reached(t.trial_id, None, full=True) for t in self._record.unfinished]
        if dear and all(dear) and not self._record.to_propose:
            return f"no trial is started: {dear[0]}"
        if not self._limits or row is None:
            return None
        self._limits.look(full=True)
        bound = self._cheapest()
        needed, source = (bound.pico, bound.source) if bound else (1, NOTHING_KNOWN)
        least = 0 if held else self._least_of_a_lease()
        if least > needed:
            needed, source = least, "the least that the machine is charged for"
        tax = Fraction(0) if row.tax_included else Fraction(row.tax_rate)
        lacking = self._limits.lacking(floor(needed * (1 + tax)), source, None)
        return f"no trial is started: {lacking}" if lacking else None

    def hold(self, lease: Lease) -> None:
        """The machine is held; attempts run on it from now on."""
        self._lease = lease
        if self._row is not None and isinstance(self._bounds, MeasuredBounds):
            self._bounds.per_hour = pico_per_hour(self._row, lease.cards, lease.watts or 0)
        self._limits.forget()

    def choose(self, waiting: TrialQueue) -> str | None:
        """The first waiting trial that there is room for, taken out of `waiting`; None: nothing for now."""
        now_ns = self._ledger.now_ns()
        if not waiting.ready(now_ns) or self._paused or self._tight:
            return None
        self._limits.look()
        trials, too_much = self._record.trials, None

        def fits(trial_id: str) -> bool:
            nonlocal too_much
            trial = trials[trial_id]
            if self._why_not_now(trial):
                return False
            bound = self._bound(trial)
            needed = bound.pico if bound else 1
            if too_much is not None and needed >= too_much:
                return False  # most trials that wait cost alike: not each is held against every limit
            if self._lacks(bound) is None:
                return True
            too_much = needed
            return False

        chosen = waiting.take_first(now_ns, fits)
        if chosen is not None:
            self._handed_out[chosen] = self._bound(trials[chosen])
            return chosen
        self._tight = True
        if not self._running and not self._handed_out and waiting.all_ready(now_ns):
            self._reach_for_want_of_room([trials[trial_id] for trial_id in waiting.all()])
        return None

    def reserve(self, key: UsageKey) -> Reservation | None:
        """Set an attempt's bound aside, in the transaction that starts it.

        Where another sweep has taken the money since the trial was chosen, nothing is set aside, and the attempt is to
        stop at its first word.
        """
        trial_id = key.trial_id
        bound = self._handed_out.pop(trial_id, None)
        cards = self._cfg.search.cards_per_trial
        self._running[trial_id] = _Running(key, Holding(key.lease_id, self._ledger.now_ns(), cards))
        if self._row is None or (bound is None and not self._limits):
            return None
        with self._ledger.reservations.exclusive():
            if self._limits:
                self._limits.look()
                self._limits.look_at_reservations()
                beside = self._promised()
                needed, source = (bound.pico, bound.source) if bound else (1, NOTHING_KNOWN)
                if lacking := self._limits.lacking(needed, source, key.lease_id, beside):
                    self._denied[trial_id] = f"another sweep was quicker: {lacking}"
                    return None
            return self._set_aside(key, bound or self._all_that_is_free())

    def verdict(self, trial_id: str) -> Stop | None:
        """What an attempt that runs must be told; None: it may go on."""
        reason = self._too_dear.get(trial_id) or self._denied.get(trial_id) or self._paused
        return Stop(StopKind.BUDGET, reason) if reason else None

    def goes_on(self, trial_id: str) -> bool:
        """Whether a trial that its budget stopped shall go on within this sweep, once there is room."""
        if trial_id in self._too_dear:
            return False
        return trial_id in self._denied or self._cfg.budget.at_limit == "pause"

    def release(self, trial_id: str) -> None:
        """An attempt's usage has ended: what it did not spend of its reservation is free."""
        self._running.pop(trial_id, None)
        self._denied.pop(trial_id, None)
        self._tight = False
        self._released += 1
        if self._released & (self._released - 1) == 0:  # the first, and at each doubling: it passes over all trials
            self._bounds.learn()

    def watch(self) -> None:
        """With every heartbeat: limits that are nearly or wholly spent, and what trials have shown of their times."""
        self._tight = False
        learnt = self._bounds.learn()
        self._limits.refresh()
        for why in self._limits.not_held:
            if why not in self._told:
                self._told.add(why)
                self.tell(f"budget: a limit is not held: {why}")
        self._limits.look()
        if learnt:
            self._set_aside_again()
        for trial_id, running in self._running.items():
            why = self._limits.trial_reached(trial_id, running.holding)
            if why and trial_id not in self._too_dear:
                self._too_dear[trial_id] = why
                self.tell(f"budget: {why}: it is stopped")
        for warning in self._limits.new_warnings():
            self.tell(f"budget: {warning}")
        reached = self._limits.reached()
        if self._paused:
            self._go_on_where_there_is_room(reached)
        elif reached:
            self._reach(reached)

    def _reach_for_want_of_room(self, left: list[TrialRecord]) -> None:
        """Nothing runs, and none of these, all that wait, can be started."""
        may_go_on = [t for t in left if not self._limits.trial_reached(t.trial_id, None)]
        if not may_go_on:  # no wait would help
            self.over = f"no trial that is left fits: {self._limits.trial_reached(left[0].trial_id, None)}"
            return
        self._reach(f"no trial that is left fits: {self._lacks(self._bound(may_go_on[0]))}")

    def _reach(self, why: str) -> None:
        """A limit is reached, or has no room for anything that is left."""
        if self._cfg.budget.at_limit == "stop":
            self.over = why
            return
        self._paused = why
        self.tell(
            f"budget: paused: {why}. What runs writes a checkpoint and stops; {self._goes_on_costing()}. It goes on "
            "once there is room: a limit of `cost budget` is raised with python -m cost budget --set, a month's begins "
            "anew with the next; one of the configuration is raised by ending this (Ctrl-C) and starting it again"
        )

    def _go_on_where_there_is_room(self, reached: str | None) -> None:
        self._wait()
        bound = self._cheapest()
        if reached or self._promised() or self._lacks(bound):
            return
        self._paused = None
        self.tell("budget: there is room again, the sweep goes on")

    def _why_not_now(self, trial: TrialRecord) -> str | None:
        """Why a trial cannot be started whatever is free, in words; None: it can, if it fits."""
        if why := self._limits.trial_reached(trial.trial_id, None, full=bool(trial.attempts)):
            return why
        if self._limits and (self._running or self._handed_out) and self._bound(trial) is None:
            return f"{NOTHING_KNOWN}: the first one runs alone"
        return None

    def _lacks(self, bound: Bound | None) -> str | None:
        """The first limit without room for one more attempt, in words."""
        needed, source = (bound.pico, bound.source) if bound else (1, NOTHING_KNOWN)
        return self._limits.lacking(needed, source, self._lease.lease_id if self._lease else None, self._promised())

    def _promised(self) -> int:
        """Bounds of attempts that were handed out and do not hold their cards yet."""
        return sum(bound.pico for bound in self._handed_out.values() if bound)

    def _bound(self, trial: TrialRecord) -> Bound | None:
        """What a trial may cost at most. It is stopped at `budget.trial_limit`: that bounds it too."""
        bound, left = self._bounds(trial), self._limits.left_for_trial(trial.trial_id)
        if left is None:
            return bound
        mine = Decimal(self._cfg.search.cards_per_trial)
        paid_for = bound.cards if bound else mine
        at_most = floor(left * Fraction(paid_for) / Fraction(mine))
        if bound is not None and bound.pico <= at_most:
            return bound
        return Bound(at_most, paid_for, "budget.trial_limit")

    def _cheapest(self) -> Bound | None:
        """The least of the bounds of what is left to do; None: nothing tells."""
        left = [t for t in self._record.unfinished if t.trial_id not in self._running]
        may_go_on = [t for t in left if not self._limits.trial_reached(t.trial_id, None)]
        known = [bound for t in may_go_on if (bound := self._bound(t))]
        return min(known, key=lambda bound: bound.pico, default=None)

    def _set_aside(self, key: UsageKey, bound: Bound) -> Reservation:
        assert self._row is not None
        amount, sweep_id = Money(bound.pico, self._row.currency), self._record.sweep_id
        aside = Reservation(key, sweep_id, self._cfg.stage.name, amount, bound.cards, bound.source)
        self._ledger.reservations.add(aside)
        self._limits.look_at_reservations()
        return aside

    def _all_that_is_free(self) -> Bound:
        assert self._lease is not None
        return Bound(self._limits.free(), Decimal(self._lease.cards), NOTHING_KNOWN)

    def _set_aside_again(self) -> None:
        """Now that its own times are known, what was set aside without them gives way to what follows from them."""
        if self._row is None:
            return
        with self._ledger.reservations.exclusive():
            for trial_id, running in self._running.items():
                bound = self._bound(self._record.trials[trial_id])
                if bound is not None and trial_id not in self._denied:
                    self._set_aside(running.key, bound)

    def _least_of_a_lease(self) -> int:
        """What a machine costs that is given back at once: the first granule, or the minimum."""
        row, now_ns = self._row, self._ledger.now_ns()
        assert row is not None
        rule = rule_for(billing_rules(self._book), row.provider, row.purchase)
        watts = Decimal(str(self._cfg.machine.watts))
        return total(charge(now_ns, now_ns + 1, rule=rule, prices=(row,), cards=self._cfg.machine.cards, watts=watts))

    def _goes_on_costing(self) -> str:
        if self._lease is None or self._row is None:
            return "no machine is held"
        watts = self._lease.watts or Decimal(0)
        return f"the machine goes on costing {money_text(hourly(self._row, self._lease.cards, watts))} an hour"

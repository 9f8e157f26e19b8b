"""The limits that a sweep holds to, and what is used of them.

Those of the configuration, and those that `python -m cost budget --set` keeps in the ledger: all of them are held, so
the tighter one counts. An amount in another currency than the machine's is compared at the exchange rate of the day.
Counts and tells; decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime

from cost.budgets.budget import Limit, limits, scope_name
from cost.budgets.spending import Holding, Spending
from cost.clock import SystemClock
from cost.ledger.ledger import Ledger
from cost.money import Money, money_text
from cost.prices.book import PriceRow
from cost.prices.fx import MissingRateError, Rate, convert, load_rates, rate_notes
from sweeps.config.types import MONEY_KEYS, ConfigError, SweepConfig
from sweeps.machines.pricing import Pricing

WARN_AT_PERCENT = (50, 80, 95)
LOOK_NS = 10**9
"""What was looked at so long ago is looked at again before something is decided by it."""


KEPT = "cost budget --set"
"""Where limits come from that the ledger keeps."""


def check_limits(cfg: SweepConfig, pricing: Pricing) -> None:
    """
    Raises:
        ConfigError: an amount of the configuration cannot be held against what the machine costs.
    """
    day, rates = _day(SystemClock().utc_ns()), load_rates(pricing.book.folder)
    for key in MONEY_KEYS:
        if amount := getattr(cfg.budget, key):
            _into_own(amount, pricing.row, f"budget.{key}", day, rates)


class SweepLimits:
    """What one sweep may spend. Amounts without a currency are in 1e-12 of the machine's."""

    def __init__(self, cfg: SweepConfig, ledger: Ledger, sweep_id: str, pricing: Pricing) -> None:
        """
        Raises:
            ConfigError: a limit on a machine without a price, or without an exchange rate to its currency.
        """
        self._ledger, self._book, self._row = ledger, pricing.book, pricing.row
        self._sweep_id, self._stage = sweep_id, cfg.stage.name
        self._simulated = cfg.simulated
        budget = cfg.budget
        configured = {
            f"sweep:{sweep_id}": ("sweep_limit", budget.sweep_limit),
            f"stage:{cfg.stage.name}": ("stage_limit", budget.stage_limit),
            "month": ("month_limit", budget.month_limit),
        }
        self._scopes = tuple(configured)
        self._configured = [
            Limit(scope, amount, f"budget.{key}") for scope, (key, amount) in configured.items() if amount
        ]
        self.of_trial = budget.trial_limit
        """`budget.trial_limit`."""
        self._rates = load_rates(pricing.book.folder)
        self._limits: list[Limit] = []
        self.not_held: list[str] = []
        """Why limits that the ledger keeps are not held."""
        self._spending: Spending | None = None
        self._looked_ns = 0
        self.refresh()
        self.notes = self._check()
        """The exchange rates by which limits in other currencies are held, in words."""
        self._warnings = f"budget:{sweep_id}"
        self._warned = {event.key for event in ledger.events.read(self._warnings)}

    def __bool__(self) -> bool:
        """Whether there is any limit beside the one of each trial."""
        return bool(self._limits)

    def forget(self) -> None:
        """What was looked at is looked at again: a lease has begun."""
        self._spending = None
        self.refresh()

    def refresh(self) -> None:
        """Take in the limits that the ledger keeps now."""
        kept = limits(self._ledger)
        found = [Limit(scope, kept[scope], f"{KEPT} {scope}") for scope in self._scopes if scope in kept]
        self.not_held = [why for limit in found if (why := self._cannot_be_held(limit))]
        self._limits = [*self._configured, *(limit for limit in found if not self._cannot_be_held(limit))]
        scopes = {limit.scope for limit in self._limits} or ({f"sweep:{self._sweep_id}"} if self.of_trial else set())
        if scopes != set(self._spending.scopes if self._spending else ()):
            self._spending = self._new_spending(scopes) if scopes else None
            self._looked_ns = 0

    def _new_spending(self, scopes: set[str]) -> Spending:
        stages = {self._sweep_id: self._stage}
        return Spending(self._ledger, self._book, sorted(scopes), simulated=self._simulated, stages=stages)

    def look(self, *, full: bool = False) -> None:
        """See what was spent, and what is reserved."""
        now_ns = self._ledger.now_ns()
        if self._spending is not None and (full or now_ns - self._looked_ns >= LOOK_NS):
            self._spending.look(now_ns, full=full)
            self._looked_ns = now_ns

    def look_at_reservations(self) -> None:
        """See what all drivers have reserved: within `ReservationStore.exclusive`, until that ends."""
        if self._spending is not None:
            self._spending.look_at_reservations(self._ledger.now_ns())

    def lacking(self, needed: int, source: str, lease_id: str | None, beside: int = 0) -> str | None:
        """The first limit without room for `needed`, in words; None: all have. `beside`: what else was promised.

        `lease_id`: the machine that both will be spent on; None: one that is not held yet.
        """
        for limit in self._limits:
            more = {lease_id: needed + beside} if lease_id else None
            used = self._used(limit, more) + (0 if lease_id else self._into(needed + beside, limit))
            if used > limit.amount.pico:
                if self._spending is not None and not self._spending.exact:
                    self.look(full=True)
                    return self.lacking(needed, source, lease_id, beside)
                return self._words(limit, f"a trial needs {money_text(self._own(needed))} ({source})")
        return None

    def free(self) -> int:
        """What the tightest limit has left."""
        assert self._row is not None
        left = [(limit.amount.currency, limit.amount.pico - self._used(limit)) for limit in self._limits]
        return max(0, min(convert(pico, own, self._row.currency, self._day(), self._rates).pico for own, pico in left))

    def reached(self) -> str | None:
        """The first limit that is spent, in words."""
        for limit in self._limits:
            if self._spent(limit, limit.amount.pico) >= limit.amount.pico:
                return self._words(limit, "nothing is left")
        return None

    def new_warnings(self) -> list[str]:
        """What a person should know of limits that are half spent, or nearly; each is told once in a sweep's life."""
        found = []
        for limit in self._limits:
            of = f"{scope_name(limit.scope, self._ledger.now_ns())}:{limit.amount}"
            left = [percent for percent in WARN_AT_PERCENT if f"{of}:{percent}" not in self._warned]
            if not left:
                continue
            spent = self._spent(limit, limit.amount.pico * left[0] // 100)
            passed = [percent for percent in left if spent * 100 >= limit.amount.pico * percent]
            for percent in passed:
                body = {"scope": limit.scope, "limit": str(limit.amount), "percent": percent}
                self._ledger.events.append(self._warnings, "warned", body, f"{of}:{percent}")
                self._warned.add(f"{of}:{percent}")
            if passed:
                found.append(self._words(limit, f"{passed[-1]} % is spent"))
        return found

    def trial_reached(self, trial_id: str, holding: Holding | None, *, full: bool = False) -> str | None:
        """Why a trial may cost no more, in words; None: it may. `full`: attempts that ended just now count too."""
        if self.of_trial is None or self._spending is None:
            return None
        self.look(full=full)
        spent = self._trial_spent(trial_id, holding, self.of_trial.currency)
        if spent < self.of_trial.pico:
            return None
        cost = money_text(Money(spent, self.of_trial.currency))
        return f"trial {trial_id} has cost {cost} and budget.trial_limit is {self.of_trial}"

    def left_for_trial(self, trial_id: str) -> int | None:
        """What a trial that is about to start may still cost; None: there is no limit for each."""
        if self.of_trial is None or self._spending is None or self._row is None:
            return None
        self.look()
        left = self.of_trial.pico - self._trial_spent(trial_id, None, self.of_trial.currency)
        return max(0, convert(left, self.of_trial.currency, self._row.currency, self._day(), self._rates).pico)

    def into_own(self, amount: Money, source: str) -> int:
        """An amount in the machine's currency. Raises ConfigError without a price or an exchange rate."""
        return _into_own(amount, self._row, source, self._day(), self._rates)

    def _cannot_be_held(self, limit: Limit) -> str | None:
        try:
            self.into_own(limit.amount, limit.source)
        except ConfigError as error:
            return str(error)
        return None

    def _check(self) -> tuple[str, ...]:
        if self.not_held:
            raise ConfigError(self.not_held[0])
        given = {limit.source: limit.amount for limit in self._limits}
        given |= {"budget.trial_limit": self.of_trial} if self.of_trial else {}
        for source, amount in given.items():
            self.into_own(amount, source)
        if self._row is None:
            return ()
        own, day = self._row.currency, self._day()
        return rate_notes(convert(1, own, amount.currency, day, self._rates) for amount in given.values())

    def _spent(self, limit: Limit, where_it_matters: int) -> int:
        """Looked at fully where it has come to an amount that matters."""
        assert self._spending is not None
        spent = self._spending.spent(limit.scope, limit.amount.currency)
        if spent >= where_it_matters and not self._spending.exact:
            self.look(full=True)
            spent = self._spending.spent(limit.scope, limit.amount.currency)
        return spent

    def _used(self, limit: Limit, more: Mapping[str, int] | None = None) -> int:
        assert self._spending is not None
        currency = limit.amount.currency
        return self._spending.spent(limit.scope, currency) + self._spending.reserved(limit.scope, currency, more)

    def _trial_spent(self, trial_id: str, holding: Holding | None, currency: str) -> int:
        assert self._spending is not None
        return self._spending.spent_by_trial(self._sweep_id, trial_id, currency, holding)

    def _words(self, limit: Limit, what: str) -> str:
        assert self._spending is not None
        currency = limit.amount.currency
        spent = money_text(Money(self._spending.spent(limit.scope, currency), currency))
        reserved = Money(self._spending.reserved(limit.scope, currency), currency)
        beside = f", {money_text(reserved)} reserved for trials that run" if reserved else ""
        name = scope_name(limit.scope, self._ledger.now_ns())
        return f"{name}: {what}: limit {limit.amount} ({limit.source}), {spent} spent{beside}"

    def _into(self, pico: int, limit: Limit) -> int:
        return convert(pico, self._own(0).currency, limit.amount.currency, self._day(), self._rates).pico

    def _own(self, pico: int) -> Money:
        assert self._row is not None
        return Money(pico, self._row.currency)

    def _day(self) -> date:
        return _day(self._ledger.now_ns())


def _into_own(amount: Money, row: PriceRow | None, source: str, day: date, rates: Sequence[Rate]) -> int:
    if row is None:
        raise ConfigError(f"{source}={amount} cannot be kept on an unpriced machine: add its price, or drop it")
    try:
        return convert(amount.pico, amount.currency, row.currency, day, rates).pico
    except MissingRateError as error:
        raise ConfigError(f"{source}={amount}, and the machine costs {row.currency}: {error}") from error


def _day(at_ns: int) -> date:
    return datetime.fromtimestamp(at_ns // 10**9, UTC).date()

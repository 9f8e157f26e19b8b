"""The price of a machine, and the forecast cost of a trial on it."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import floor

from cost.clock import SystemClock
from cost.money import Money, money_text
from cost.prices.billing import MissingRuleError, load_rules, rule_for
from cost.prices.book import MissingPriceError, PriceBook, PriceError, PriceRow, hourly
from cost.records import FORECAST_LABELS
from sweeps.config.overrides import CONF_DIR
from sweeps.config.types import ConfigError, SweepConfig
from sweeps.forecast.step_time import StepTime
from sweeps.planning.plan import PlannedTrial


@dataclass(frozen=True)
class Pricing:
    """The price of the machine. `row` and `per_hour` are None where `budget.allow_unpriced` permits no price."""

    book: PriceBook
    row: PriceRow | None
    per_hour: Money | None

    def of(self, seconds: float) -> str:
        """The cost of this many seconds, for people."""
        if self.per_hour is None:
            return "UNPRICED"
        nanos = round(seconds * 1e9)
        return money_text(Money(self.per_hour.pico * nanos // (3600 * 10**9), self.per_hour.currency))

    def of_card_share(self, card_ns: int, cards: int) -> Money | None:
        """The cost of this many card-nanoseconds on a machine with `cards` cards; None: the machine is unpriced."""
        if self.per_hour is None:
            return None
        return Money(self.per_hour.pico * card_ns // (cards * 3600 * 10**9), self.per_hour.currency)

    @property
    def per_hour_text(self) -> str:
        """The cost of an hour, for people."""
        return "UNPRICED" if self.per_hour is None else money_text(self.per_hour)

    @property
    def by_energy(self) -> bool:
        """Own hardware, priced by the electricity that it draws."""
        return self.row is not None and self.row.per == "kwh"


def find_price(cfg: SweepConfig) -> Pricing:
    """The machine's price in force now, for which there is a billing rule.

    Raises:
        ConfigError: the machine cannot be priced, and the configuration does not permit an unpriced machine.
    """
    machine = cfg.machine
    try:
        book = PriceBook.load(CONF_DIR / "pricing")
        rules = load_rules(CONF_DIR / "pricing")
    except PriceError as error:
        raise ConfigError(f"machine={machine.name}: {error}") from error
    try:
        row = book.in_force(
            machine.sku,
            SystemClock().utc_ns(),
            purchase=machine.purchase,
            region=machine.region or None,
        )
        rule_for(rules, row.provider, row.purchase)
        return Pricing(book, row, hourly(row, machine.cards, Decimal(str(machine.watts))))
    except (MissingPriceError, MissingRuleError) as error:
        if cfg.budget.allow_unpriced:
            return Pricing(book, None, None)
        raise ConfigError(f"machine={machine.name}: {error}; or budget.allow_unpriced=true runs it unpriced") from error
    except PriceError as error:
        raise ConfigError(f"machine={machine.name}: {error}") from error


def forecast_labels(cfg: SweepConfig, pricing: Pricing, trial: PlannedTrial, time: StepTime | None) -> dict[str, str]:
    """The forecast cost of a trial, P50 and P90, as labels for the ledger.

    Empty without a measurement on this machine or without a price.
    """
    seconds = time.forecast(trial, cfg.stage.steps) if time else None
    if seconds is None or pricing.per_hour is None:
        return {}
    hour, currency = pricing.per_hour.pico, pricing.per_hour.currency
    of_hour = Fraction(cfg.search.cards_per_trial, cfg.machine.cards * 3600)
    amounts = (str(Money(floor(hour * of_hour * Fraction(value)), currency)) for value in seconds)
    return dict(zip(FORECAST_LABELS, amounts, strict=True))

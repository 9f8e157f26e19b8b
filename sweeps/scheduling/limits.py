"""Which limits apply to a sweep: those of its configuration, and those that `python -m cost budget --set` stores.

All of them apply, so the tightest one decides. A limit in another currency than the machine's is compared at the
exchange rate of the day; without a rate, or on a machine without a price, it cannot be applied.

Tested in tests/sweeps/scheduling/test_budget_controller.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date

from cost.budgets.snapshot import Limit
from cost.clock import SystemClock
from cost.money import Money
from cost.periods import utc_day
from cost.prices.book import PriceRow
from cost.prices.fx import MissingRateError, Rate, convert, load_rates
from sweeps.config.types import MONEY_KEYS, ConfigError, SweepConfig
from sweeps.machines.pricing import Pricing


def check_limits(cfg: SweepConfig, pricing: Pricing) -> None:
    """Check that every amount of `budget` can be compared with the machine's price.

    Raises:
        ConfigError: an amount cannot: the machine has no price, or there is no exchange rate.
    """
    day, rates = utc_day(SystemClock().utc_ns()), load_rates(pricing.book.folder)
    for key in MONEY_KEYS:
        if amount := getattr(cfg.budget, key):
            in_machine_currency(amount, pricing.row, f"budget.{key}", day, rates)


def scopes_of(cfg: SweepConfig, sweep_id: str) -> dict[str, str]:
    """The scopes whose limits apply to a sweep, and the key of `budget` that limits each."""
    return {f"sweep:{sweep_id}": "sweep_limit", f"stage:{cfg.stage.name}": "stage_limit", "month": "month_limit"}


def configured_limits(cfg: SweepConfig, sweep_id: str) -> tuple[Limit, ...]:
    """The limits of the configuration, without `budget.trial_limit`."""
    keys = scopes_of(cfg, sweep_id).items()
    return tuple(Limit(scope, amount, f"budget.{key}") for scope, key in keys if (amount := getattr(cfg.budget, key)))


def applicable_limits(
    limits: Iterable[Limit], row: PriceRow | None, day: date, rates: Sequence[Rate]
) -> tuple[tuple[Limit, ...], tuple[str, ...]]:
    """The limits that can be compared with the machine's price, and for each of the others the reason why not."""
    found, problems = [], []
    for limit in limits:
        try:
            in_machine_currency(limit.amount, row, limit.source, day, rates)
        except ConfigError as error:
            problems.append(str(error))
        else:
            found.append(limit)
    return tuple(found), tuple(problems)


def in_machine_currency(amount: Money, row: PriceRow | None, source: str, day: date, rates: Sequence[Rate]) -> int:
    """An amount in 1e-12 of the currency of the machine's price. `source`: where the amount comes from.

    Raises:
        ConfigError: the machine has no price, or there is no exchange rate.
    """
    if row is None:
        raise ConfigError(f"{source}={amount} cannot be applied to an unpriced machine: add its price, or drop it")
    try:
        return convert(amount.pico, amount.currency, row.currency, day, rates).pico
    except MissingRateError as error:
        raise ConfigError(f"{source}={amount}, and the machine costs {row.currency}: {error}") from error

"""The exact forecast cost of a lease by category, from the provider's billing rule and dated prices.

A longer lease never costs less, so the P50 and P90 of the charge are the charges of the P50 and P90 of the lease.
Amounts are integers of 1e-12 of the currency.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from cost.forecast.predict import Forecast
from cost.forecast.sampling import ForecastError, Interval
from cost.money import PICO_PER_UNIT, largest_remainder
from cost.prices.billing import BillingRule, charge
from cost.prices.book import PriceRow


@dataclass(frozen=True)
class CategoryMoney:
    """Money of one category at the P50 and the P90 of the total. Only `billing_increment` may be less at P90."""

    name: str
    p50_pico: int
    p90_pico: int


@dataclass(frozen=True)
class MoneyForecast:
    """The categories sum to `total` at P50 and at P90."""

    currency: str
    total: Interval
    categories: tuple[CategoryMoney, ...]

    def __post_init__(self) -> None:
        for percentile in ("p50", "p90"):
            parts = sum(getattr(c, f"{percentile}_pico") for c in self.categories)
            if parts != getattr(self.total, percentile):
                raise ForecastError(f"categories sum to {parts} at {percentile}, the total is {self.total}")


def lease_money(
    forecast: Forecast,
    *,
    rule: BillingRule,
    prices: Sequence[PriceRow],
    from_ns: int,
    watts: Decimal | int = 0,
) -> MoneyForecast:
    """Charge the forecast lease from `from_ns` on. Raises PriceError as `cost.prices.billing.charge` does."""
    machine, increment = [], []
    for held_ns in (forecast.lease_ns.p10, forecast.lease_ns.p50, forecast.lease_ns.p90):
        segments = charge(
            from_ns,
            from_ns + held_ns,
            rule=rule,
            prices=prices,
            cards=forecast.machine_cards,
            watts=watts,
            ended="user",
        )
        machine.append(sum(s.pico for s in segments if s.category == "machine"))
        increment.append(sum(s.pico for s in segments if s.category != "machine"))
    p50 = largest_remainder(machine[1], [c.p50_ns for c in forecast.categories])
    # With a price that falls over time a longer lease can cost less per hour, but never less in total.
    added_ns = [c.p90_ns - c.p50_ns for c in forecast.categories]
    added = largest_remainder(
        machine[2] - machine[1], added_ns if any(added_ns) else [c.p50_ns for c in forecast.categories]
    )
    categories = [
        CategoryMoney(c.name, amount, amount + more)
        for c, amount, more in zip(forecast.categories, p50, added, strict=True)
    ]
    categories.append(CategoryMoney("billing_increment", increment[1], increment[2]))
    total = Interval(*(m + i for m, i in zip(machine, increment, strict=True)))
    return MoneyForecast(prices[0].currency, total, tuple(categories))


def with_extras(money: MoneyForecast, extras: Mapping[str, int]) -> MoneyForecast:
    """Add amounts that do not depend on the lease's length: storage, egress, fees. Raises ForecastError if negative."""
    if any(pico < 0 for pico in extras.values()):
        raise ForecastError(f"extra costs must not be negative: {dict(extras)}")
    more = sum(extras.values())
    total = Interval(money.total.p10 + more, money.total.p50 + more, money.total.p90 + more)
    added = tuple(CategoryMoney(name, pico, pico) for name, pico in extras.items())
    return MoneyForecast(money.currency, total, (*money.categories, *added))


def prepaid_balance_pico(money: MoneyForecast, runs: int = 1, smallest_payment: Decimal = Decimal("0.01")) -> int:
    """Balance that a prepaid provider needs before the start: P90 of `runs` runs, rounded up to what can be paid."""
    step = Fraction(smallest_payment) * PICO_PER_UNIT
    if step <= 0:
        raise ForecastError(f"the smallest payment must be above 0, not {smallest_payment}")
    return int(-(-(money.total.p90 * runs) // step) * step)


def token_money(tokens: Interval, price_per_million: Decimal, currency: str) -> MoneyForecast:
    """What hosted training by the token costs for sampled tokens. Floored to 1e-12 once per percentile."""
    if price_per_million < 0:
        raise ForecastError(f"a price per million tokens must not be negative: {price_per_million}")
    price = Fraction(price_per_million) * PICO_PER_UNIT / 10**6
    total = Interval(*(int(count * price) for count in (tokens.p10, tokens.p50, tokens.p90)))
    return MoneyForecast(currency, total, (CategoryMoney("tokens", total.p50, total.p90),))

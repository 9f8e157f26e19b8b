"""Cost lines grouped into the charges of a FOCUS file. Each charge becomes one row (`focus_row`).

Tested in tests/cost/reports/test_focus.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from cost.charges.attribution import Attribution, CostLine
from cost.money import PICO_PER_UNIT, largest_remainder
from cost.periods import month_of
from cost.prices.book import MissingPriceError, add_command


@dataclass
class FocusCharge:
    """The sum of the lines of one lease, trial, category and price in one billing period."""

    line: CostLine
    """The first of the lines; its descriptive fields are those of all."""
    period: tuple[int, int]
    """Start and end of the billing period."""
    invoice: str = ""
    """Number of the invoice; empty: none was applied."""
    pico: int = 0
    billed_pico: int = 0
    list_pico: int = 0
    contracted_pico: int = 0
    effective_pico: int = 0
    micro_card_ns: int = 0
    from_ns: int = 0
    to_ns: int = 0
    flags: set[str] = field(default_factory=set)
    statuses: set[str] = field(default_factory=set)
    allocated_ratio: Fraction | None = None
    """Its share of the charge that it was split from (version 1.3); None: it was not split."""


def group_lines(attribution: Attribution) -> list[FocusCharge]:
    """The charges of the lines, which must have been cut at the starts of the UTC months.

    Raises:
        MissingPriceError: a lease has no price.
    """
    periods = _BillingPeriods()
    charges: dict[tuple, FocusCharge] = {}
    for line in attribution.lines:
        lease = line.lease
        if line.unpriced:
            raise MissingPriceError(
                f"lease {lease.lease_id} has no price, and a FOCUS file cannot contain an unknown cost; add the price "
                f"of its SKU with: {add_command(lease.sku, lease.purchase)}"
            )
        period = periods.of(line.from_ns)
        price = line.price.hash if line.price is not None else line.commitment
        # Within a charge each kind of price has one value.
        amounts = line.by_price_kind
        price_rows = (amounts.list_row, amounts.contracted_row, amounts.effective_row) if amounts else ()
        other_prices = tuple(row and row.hash for row in price_rows)
        key = (
            lease.lease_id,
            line.sweep_id,
            line.trial_id,
            line.category,
            price,
            other_prices,
            line.invoice,
            period[0],
        )
        charge = charges.get(key)
        if charge is None:
            charge = charges[key] = FocusCharge(line, period, line.invoice, from_ns=line.from_ns, to_ns=line.to_ns)
        charge.pico += line.pico
        charge.billed_pico += line.billed_pico
        charge.list_pico += line.list_pico
        charge.contracted_pico += line.contracted_pico
        charge.effective_pico += line.effective_pico
        charge.micro_card_ns += line.micro_card_ns
        charge.from_ns = min(charge.from_ns, line.from_ns)
        charge.to_ns = max(charge.to_ns, line.to_ns)
        charge.flags.update(line.flags)
        charge.statuses.add(line.status)
    return list(charges.values())


def set_allocated_ratios(charges: Sequence[FocusCharge]) -> None:
    """Set each charge's share of the cost of its lease at its price in its period. The shares sum to exactly 1."""
    origins: dict[tuple, list[FocusCharge]] = defaultdict(list)
    for charge in charges:
        line = charge.line
        if (line.price is not None or line.commitment) and line.category not in ("tax", "purchase"):
            price = line.price.hash if line.price is not None else line.commitment
            origins[line.lease.lease_id, price, charge.period[0]].append(charge)
    for parts in origins.values():
        weights = [charge.pico for charge in parts]
        if not any(weights):
            weights = [charge.micro_card_ns for charge in parts]
        if not any(weights):
            weights = [1] * len(parts)
        for charge, share in zip(parts, largest_remainder(PICO_PER_UNIT, weights), strict=True):
            charge.allocated_ratio = Fraction(share, PICO_PER_UNIT)


class _BillingPeriods:
    """The billing period (UTC month) of an instant. Keeps the last period, which the next line usually shares."""

    def __init__(self) -> None:
        self._last = (0, 0)

    def of(self, at_ns: int) -> tuple[int, int]:
        if not self._last[0] <= at_ns < self._last[1]:
            self._last = month_of(at_ns)
        return self._last

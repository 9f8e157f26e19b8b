"""What a report is made of: rows whose amounts are exact, and the report that holds them.

Amounts are in 1e-12 of the currency; nothing is rounded here, nothing is converted, nothing is read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

from cost.charges.attribution import CostLine
from cost.charges.charge_status import least_final
from cost.ledger.schema import MICRO_PER_CARD
from cost.money import Money

NS_PER_HOUR = 3600 * 10**9

COSTS = ("list_cost", "contracted_cost", "effective_cost", "billed_cost")
"""What finance tells apart, by the names that reports have for them."""


@dataclass(frozen=True)
class ReportRow:
    """One line of a report. What does not apply is empty."""

    kind: Literal["trial", "overhead", "group"]
    name: str
    """The trial, the category of overhead, or what is grouped by (a day, a user ...)."""
    sweep_id: str
    currency: str
    pico: int
    """The cost, imputed cost of own hardware included. Meaningless where `unpriced`."""
    billed_pico: int
    """The part of it that somebody sends a bill for."""
    micro_card_ns: int
    categories: Mapping[str, int]
    """The cost by category; the values sum to `pico`."""
    trial_id: str = ""
    attempts: int = 0
    machine: str = ""
    sku: str = ""
    cards: Decimal | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    price_source: str = ""
    flags: tuple[str, ...] = ()
    unpriced: bool = False
    status: str = "provisional"
    """How firm it is, all in all: one of `status.STATUSES`."""
    list_pico: int = 0
    """What it would have cost at list prices."""
    contracted_pico: int = 0
    """What it would have cost at contracted prices, without commitments."""
    effective_pico: int = 0
    """The cost with what was paid for commitments, and in advance, spread over its time."""

    @property
    def card_hours(self) -> Decimal:
        """Rounded to six decimal places."""
        hours = Decimal(self.micro_card_ns) / MICRO_PER_CARD / NS_PER_HOUR
        return hours.quantize(Decimal("0.000001"))

    @property
    def costs(self) -> dict[str, int]:
        """The cost as finance tells it apart: by name of COSTS."""
        return dict(
            zip(COSTS, (self.list_pico, self.contracted_pico, self.effective_pico, self.billed_pico), strict=True)
        )

    @property
    def cost(self) -> Money | None:
        """None: there is no price for some of it."""
        return None if self.unpriced else Money(self.pico, self.currency)


@dataclass(frozen=True)
class Report:
    """Rows, and what they were made for."""

    title: str
    at_ns: int
    rows: tuple[ReportRow, ...]
    open_leases: tuple[str, ...]
    """Leases in it that are still held: their cost grows."""
    notes: tuple[str, ...] = ()
    """Exchange rates that were used; for an as-of report, what has changed since."""

    @property
    def trials(self) -> tuple[ReportRow, ...]:
        return tuple(row for row in self.rows if row.kind == "trial")

    @property
    def overheads(self) -> tuple[ReportRow, ...]:
        return tuple(row for row in self.rows if row.kind == "overhead")

    @property
    def currencies(self) -> tuple[str, ...]:
        return tuple(sorted({row.currency for row in self.rows}))

    @property
    def currency(self) -> str:
        """The one currency of the report; `ValueError` where there are several."""
        found = self.currencies
        if len(found) > 1:
            raise ValueError(f"the report is in several currencies ({', '.join(found)}): look at each one's total")
        return found[0] if found else "USD"

    @property
    def total_pico(self) -> int:
        """The sum of all rows, in the report's one currency."""
        return self.total_in(self.currency)

    @property
    def billed_pico(self) -> int:
        return sum(row.billed_pico for row in self.rows if row.currency == self.currency)

    @property
    def unpriced(self) -> bool:
        """Whether some of it has no price, so that the total is not all there is."""
        return any(row.unpriced for row in self.rows)

    def total_in(self, currency: str) -> int:
        return sum(row.pico for row in self.rows if row.currency == currency)

    def costs_in(self, currency: str) -> dict[str, int]:
        """The total as finance tells it apart: by name of COSTS."""
        rows = [row for row in self.rows if row.currency == currency]
        return {name: sum(row.costs[name] for row in rows) for name in COSTS}


def sum_lines(
    kind: Literal["trial", "overhead", "group"], name: str, lines: Sequence[CostLine], **more: Any
) -> ReportRow:
    """The sum of some lines in one currency."""
    categories: dict[str, int] = defaultdict(int)
    machines, skus, sources, flags = set(), set(), set(), set()
    pico = billed = card_ns = listed = contracted = effective = 0
    unpriced = False
    for line in lines:
        categories[line.category] += line.pico
        pico += line.pico
        card_ns += line.micro_card_ns
        machines.add(line.lease.machine)
        skus.add(line.lease.sku)
        flags.update(line.flags)
        unpriced = unpriced or line.unpriced
        if line.lease.simulated:
            flags.add("simulated")
        elif line.imputed:
            flags.add("imputed")
        billed += line.billed_pico
        listed, contracted = listed + line.list_pico, contracted + line.contracted_pico
        effective += line.effective_pico
        if line.price is not None:
            sources.add(line.price.source)
        if line.commitment:
            sources.add(f"commitment {line.commitment}")
        if line.exchange_rate:
            sources.add(line.exchange_rate)
    if unpriced:
        flags.add("UNPRICED")
    return ReportRow(
        kind=kind,
        name=name,
        currency=lines[0].lease.currency,
        pico=pico,
        billed_pico=billed,
        micro_card_ns=card_ns,
        categories=dict(categories),
        machine=" ".join(sorted(machines)),
        sku=" ".join(sorted(skus)),
        price_source=" | ".join(sorted(sources)),
        flags=tuple(sorted(flags | set(more.pop("flags", ())))),
        unpriced=unpriced,
        status=least_final({line.status for line in lines}),
        list_pico=listed,
        contracted_pico=contracted,
        effective_pico=effective,
        **{"sweep_id": "", **more},
    )

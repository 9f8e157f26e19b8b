"""A report: rows with exact amounts in 1e-12 of their currency. Nothing is rounded, converted or read here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

from cost.charges.attribution import CostLine
from cost.charges.charge_status import least_final
from cost.clock import NS_PER_HOUR
from cost.ledger.schema import MICRO_PER_CARD
from cost.money import Money

UNPRICED = "UNPRICED"
"""What reports show in place of an amount without a price."""

COSTS = ("list_cost", "contracted_cost", "effective_cost", "billed_cost")
"""The four costs that finance distinguishes, by the names that reports use."""


@dataclass(frozen=True)
class ReportRow:
    """One row of a report. Fields that do not apply are empty."""

    kind: Literal["trial", "overhead", "group"]
    name: str
    """The trial, the overhead category, or the name of the group (a day, a user ...)."""
    sweep_id: str
    currency: str
    pico: int
    """The cost, including the imputed cost of own hardware. Meaningless if `unpriced`."""
    billed_pico: int
    """The part of the cost that a provider bills."""
    micro_card_ns: int
    categories: Mapping[str, int]
    """The cost by category; the values sum to `pico`."""
    trial_id: str = ""
    attempts: int = 0
    machine: str = ""
    sku: str = ""
    cards: Decimal | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    provider: str = ""
    account: str = ""
    """The accounts that the providers bill."""
    from_ns: int = 0
    to_ns: int = 0
    """When the first cost of the row began and the last ended."""
    price_source: str = ""
    flags: tuple[str, ...] = ()
    unpriced: bool = False
    status: str = "provisional"
    """How final the whole amount is: one of `charge_status.STATUSES`."""
    list_pico: int = 0
    """The cost at list prices."""
    contracted_pico: int = 0
    """The cost at contracted prices, without commitments."""
    effective_pico: int = 0
    """The cost with commitments and upfront payments spread over their time."""

    @property
    def card_hours(self) -> Decimal:
        """Rounded to six decimal places."""
        hours = Decimal(self.micro_card_ns) / MICRO_PER_CARD / NS_PER_HOUR
        return hours.quantize(Decimal("0.000001"))

    @property
    def costs(self) -> dict[str, int]:
        """The amounts of COSTS by name."""
        return dict(
            zip(COSTS, (self.list_pico, self.contracted_pico, self.effective_pico, self.billed_pico), strict=True)
        )

    @property
    def cost(self) -> Money | None:
        """None: a part of the row has no price."""
        return None if self.unpriced else Money(self.pico, self.currency)


@dataclass(frozen=True)
class Report:
    """Rows with a title and notes."""

    title: str
    at_ns: int
    rows: tuple[ReportRow, ...]
    open_leases: tuple[str, ...]
    """Leases in the report that are still open: their cost grows."""
    notes: tuple[str, ...] = ()
    """Sentences for the reader: the exchange rates used, what has changed since the moment of the report ..."""

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
        """The one currency of the report; ValueError if there are several."""
        currencies = self.currencies
        if len(currencies) > 1:
            raise ValueError(f"the report has several currencies ({', '.join(currencies)}); use the total of each")
        return currencies[0] if currencies else "USD"

    @property
    def total_pico(self) -> int:
        """The sum of all rows, in the report's one currency."""
        return self.total_in(self.currency)

    @property
    def billed_pico(self) -> int:
        return sum(row.billed_pico for row in self.rows if row.currency == self.currency)

    @property
    def unpriced(self) -> bool:
        """Whether a part of the report has no price, so that the total is incomplete."""
        return any(row.unpriced for row in self.rows)

    def total_in(self, currency: str) -> int:
        return sum(row.pico for row in self.rows if row.currency == currency)

    def costs_in(self, currency: str) -> dict[str, int]:
        """The totals of COSTS by name."""
        rows = [row for row in self.rows if row.currency == currency]
        return {name: sum(row.costs[name] for row in rows) for name in COSTS}


def sum_lines(
    kind: Literal["trial", "overhead", "group"], name: str, lines: Sequence[CostLine], **fields: Any
) -> ReportRow:
    """A row that sums lines of one currency. `fields`: further fields of the row; `flags` are added to the lines'."""
    categories: dict[str, int] = defaultdict(int)
    machines, skus, sources, flags = set(), set(), set(), set()
    providers, accounts = set(), set()
    pico = billed = card_ns = listed = contracted = effective = 0
    unpriced = False
    for line in lines:
        categories[line.category] += line.pico
        pico += line.pico
        card_ns += line.micro_card_ns
        machines.add(line.lease.machine)
        skus.add(line.lease.sku)
        providers.add(line.lease.provider)
        accounts.add(line.lease.account)
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
        provider=" ".join(sorted(providers - {""})),
        account=" ".join(sorted(accounts - {""})),
        from_ns=min(line.from_ns for line in lines),
        to_ns=max(line.to_ns for line in lines),
        price_source=" | ".join(sorted(sources)),
        flags=tuple(sorted(flags | set(fields.pop("flags", ())))),
        unpriced=unpriced,
        status=least_final({line.status for line in lines}),
        list_pico=listed,
        contracted_pico=contracted,
        effective_pico=effective,
        **{"sweep_id": "", **fields},
    )

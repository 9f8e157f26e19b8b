"""A charge at each kind of price: list, contracted and effective. Pure functions.

The list price is the provider's public price; the contracted price was negotiated; the effective price is what remains
when commitments and upfront fees are spread over their time. If the price book lacks a kind, the price that was charged
stands in for it. Nothing here decides what is charged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor

from cost.clock import NS_PER_HOUR
from cost.money import largest_remainder
from cost.prices.billing import Segment
from cost.prices.book import TIME_UNITS, PriceBook, PriceError, PriceRow, in_force, pico_per_hour
from cost.records import Lease

PriceSeries = tuple[PriceRow, ...]


@dataclass(frozen=True)
class PriceKindAmounts:
    """Amounts in 1e-12 of the currency at each kind of price, and the price row of each (None: the charged price)."""

    list_pico: int
    contracted_pico: int
    effective_pico: int
    list_row: PriceRow | None = None
    contracted_row: PriceRow | None = None
    effective_row: PriceRow | None = None

    def split(self, weights: Sequence[int]) -> list[PriceKindAmounts]:
        """Parts in proportion to the weights, which sum to the whole exactly; equal parts if every weight is 0."""
        weights = weights if any(weights) else [1] * len(weights)
        amounts = (self.list_pico, self.contracted_pico, self.effective_pico)
        parts = zip(*(largest_remainder(pico, weights) for pico in amounts), strict=True)
        return [replace(self, list_pico=a, contracted_pico=b, effective_pico=c) for a, b, c in parts]

    def converted(self, convert: Callable[[str, int], int]) -> PriceKindAmounts:
        """The amounts in another currency. `convert` receives the name of each amount and the amount."""
        names = ("list_pico", "contracted_pico", "effective_pico")
        return replace(self, **{name: convert(name, getattr(self, name)) for name in names})


class AlternativePrices:
    """The other kinds of price for what one lease was charged.

    `rows`: the charged price rows by hash. `committed`: whether a commitment covers a part of the lease.
    """

    def __init__(self, lease: Lease, rows: Mapping[str, PriceRow], book: PriceBook, *, committed: bool = False) -> None:
        self._lease, self._rows = lease, rows
        self._series = {digest: self._other_kinds(row, book) for digest, row in rows.items()}
        # Time that a commitment covers is compared with the price of the machine without the commitment.
        self._series_without_commitment = self._uncommitted_prices(book) if committed else ((), (), ())

    @property
    def change_times(self) -> set[int]:
        """Moments at which one of these prices changes. A segment cut there has one price of each kind."""
        all_kinds = [*self._series.values(), self._series_without_commitment]
        rows = [row for kinds in all_kinds for series in kinds for row in series]
        return {edge for row in rows for edge in (row.from_ns, row.to_ns) if edge is not None}

    def amounts(self, segments: Sequence[Segment], committed: Sequence[bool]) -> list[PriceKindAmounts | None]:
        """The amounts of each segment; None if every kind of price is the charged price.

        Each running total is floored, so that amounts of the past never change. `committed`: whether a commitment
        covers the segment.
        """
        exact = [Fraction(0)] * 3
        amounts: list[PriceKindAmounts | None] = []
        for segment, is_committed in zip(segments, committed, strict=True):
            charged_row = self._rows.get(segment.price_hash)
            kinds = self._series.get(segment.price_hash, ((), (), ()))
            if is_committed:
                kinds = self._series_without_commitment
            rows = [in_force(series, segment.from_ns) for series in kinds]
            before = [floor(total) for total in exact]
            for i, row in enumerate(rows):
                exact[i] += segment.pico if row is None else self._amount(segment, row, charged_row)
            listed, contracted, effective = (floor(t) - floored for t, floored in zip(exact, before, strict=True))
            amounts.append(PriceKindAmounts(listed, contracted, effective, *rows) if any(rows) else None)
        return amounts

    def _amount(self, segment: Segment, row: PriceRow, charged_row: PriceRow | None) -> Fraction:
        """The cost of the same time, or of the same quantity, at another price."""
        if segment.paid_ns:
            return (_hourly(row, self._lease) or 0) * Fraction(segment.paid_ns, NS_PER_HOUR)
        if charged_row is None or not charged_row.price:
            return Fraction(segment.pico)
        return Fraction(segment.pico) * Fraction(row.price) / Fraction(charged_row.price)

    def _other_kinds(self, charged_row: PriceRow, book: PriceBook) -> tuple[PriceSeries, PriceSeries, PriceSeries]:
        """The list, contracted and effective prices of a charged SKU; empty where the charged price stands in."""

        def series_of(kind: str) -> PriceSeries:
            if charged_row.kind == kind:
                return ()
            series = book.series(charged_row.sku, purchase=charged_row.purchase, region=charged_row.region, kind=kind)
            same = [row for row in series if (row.per, row.currency) == (charged_row.per, charged_row.currency)]
            return tuple(row for row in same if row.per not in TIME_UNITS or _hourly(row, self._lease) is not None)

        return series_of("list"), (), series_of("effective")

    def _uncommitted_prices(self, book: PriceBook) -> tuple[PriceSeries, PriceSeries, PriceSeries]:
        """The list and the usual price of the machine's SKU."""
        by_kind = []
        for kind in ("list", None):
            try:
                series = book.series(self._lease.sku, region=self._lease.region or None, kind=kind)
            except PriceError:
                series = ()
            usable = [row for row in series if row.currency == self._lease.currency and row.per in TIME_UNITS]
            by_kind.append(tuple(row for row in usable if _hourly(row, self._lease) is not None))
        return by_kind[0], by_kind[1], ()


def _hourly(row: PriceRow, lease: Lease) -> Fraction | None:
    """The price of an hour of the machine in 1e-12; None if the row prices a machine of another size."""
    try:
        return pico_per_hour(row, lease.cards, lease.watts or 0)
    except PriceError:
        return None

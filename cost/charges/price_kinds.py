"""What a part of a charge comes to at each kind of price: list, contracted, effective. Pure.

Finance tells them apart: the list price is the provider's public one, the contracted price what was negotiated, the
effective price what is left when commitments and upfront fees are spread over their time. Where the price book does not
have a kind, the price charged stands in for it: nothing is guessed. No row here decides what is charged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor

from cost.money import largest_remainder
from cost.prices.billing import Segment
from cost.prices.book import NS_PER_HOUR, PER_HOUR, PriceBook, PriceError, PriceRow, in_force, pico_per_hour
from cost.records import Lease

Series = tuple[PriceRow, ...]


@dataclass(frozen=True)
class PriceKindAmounts:
    """Amounts in 1e-12 at each kind of price, and the price row of each; None: the price charged."""

    list_pico: int
    contracted_pico: int
    effective_pico: int
    list_row: PriceRow | None = None
    contracted_row: PriceRow | None = None
    effective_row: PriceRow | None = None

    def split(self, weights: Sequence[int]) -> list[PriceKindAmounts]:
        """Parts in proportion to weights that sum to it exactly; equal parts where every weight is 0."""
        weights = weights if any(weights) else [1] * len(weights)
        amounts = (self.list_pico, self.contracted_pico, self.effective_pico)
        parts = zip(*(largest_remainder(pico, weights) for pico in amounts), strict=True)
        return [replace(self, list_pico=a, contracted_pico=b, effective_pico=c) for a, b, c in parts]

    def converted(self, convert: Callable[[str, int], int]) -> PriceKindAmounts:
        """Its amounts in another currency. `convert` is told the name of each."""
        names = ("list_pico", "contracted_pico", "effective_pico")
        return replace(self, **{name: convert(name, getattr(self, name)) for name in names})


class AlternativePrices:
    """The prices of a book beside those that one lease was charged. `rows`: the charged ones by hash."""

    def __init__(self, lease: Lease, rows: Mapping[str, PriceRow], book: PriceBook) -> None:
        self._lease, self._rows = lease, rows
        self._beside = {digest: self._others(row, book) for digest, row in rows.items()}
        # What a commitment pays for has a price of its own in the book: that of the machine without it.
        self._committed = self._without_commitment(book)

    @property
    def edges(self) -> set[int]:
        """Moments at which one of the other prices changes: cut there, a segment has one price of each kind."""
        every = [*self._beside.values(), self._committed]
        rows = [row for kinds in every for series in kinds for row in series]
        return {edge for row in rows for edge in (row.from_ns, row.to_ns) if edge is not None}

    def of(self, segments: Sequence[Segment], committed: Sequence[bool]) -> list[PriceKindAmounts | None]:
        """The amounts of each segment; None where every kind of price is the one charged.

        Each running total is floored, so that what is past never changes as time goes on. `committed`: whether a
        commitment pays for the segment.
        """
        exact = [Fraction(0)] * 3
        found: list[PriceKindAmounts | None] = []
        for segment, is_committed in zip(segments, committed, strict=True):
            charged = self._rows.get(segment.price_hash)
            beside = self._committed if is_committed else self._beside.get(segment.price_hash, ((), (), ()))
            rows = [in_force(series, segment.from_ns) for series in beside]
            before = [floor(total) for total in exact]
            for i, row in enumerate(rows):
                exact[i] += segment.pico if row is None else self._amount(segment, row, charged)
            listed, contracted, effective = (floor(total) - whole for total, whole in zip(exact, before, strict=True))
            found.append(PriceKindAmounts(listed, contracted, effective, *rows) if any(rows) else None)
        return found

    def _amount(self, segment: Segment, row: PriceRow, charged: PriceRow | None) -> Fraction:
        """What the same time, or the same quantity, costs at another price."""
        if segment.paid_ns:
            return (_hourly(row, self._lease) or 0) * Fraction(segment.paid_ns, NS_PER_HOUR)
        if charged is None or not charged.price:
            return Fraction(segment.pico)
        return Fraction(segment.pico) * Fraction(row.price) / Fraction(charged.price)

    def _others(self, charged: PriceRow, book: PriceBook) -> tuple[Series, Series, Series]:
        """List and effective prices of the series that was charged."""

        def kind(name: str) -> Series:
            if charged.kind == name:
                return ()
            found = book.series(charged.sku, purchase=charged.purchase, region=charged.region, kind=name)
            same = [row for row in found if (row.per, row.currency) == (charged.per, charged.currency)]
            return tuple(row for row in same if row.per not in PER_HOUR or _hourly(row, self._lease) is not None)

        return kind("list"), (), kind("effective")

    def _without_commitment(self, book: PriceBook) -> tuple[Series, Series, Series]:
        found = []
        for kind in ("list", None):
            try:
                series = book.series(self._lease.sku, region=self._lease.region or None, kind=kind)
            except PriceError:
                series = ()
            usable = [row for row in series if row.currency == self._lease.currency and row.per in PER_HOUR]
            found.append(tuple(row for row in usable if _hourly(row, self._lease) is not None))
        return found[0], found[1], ()


def _hourly(row: PriceRow, lease: Lease) -> Fraction | None:
    """None: the row is of a machine of another size."""
    try:
        return pico_per_hour(row, lease.cards, lease.watts or 0)
    except PriceError:
        return None

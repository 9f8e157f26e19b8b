"""Exact money: integers of 1e-12 of a currency, and the splitting and rounding of integers without losing one.

Never holds a float, never mixes currencies, never rounds except in `rounded`, which is for what is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal, Inexact

PICO_PER_UNIT = 10**12
"""How many of the smallest amount make one unit of a currency."""

_CURRENCY = re.compile(r"[A-Z]{3}")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_EXACT = Context(prec=60, traps=[Inexact])


class MoneyError(ValueError):
    """An amount that cannot be read, or two that cannot be added. The message says what was given and what is right."""


def exact_decimal(text: object, *, negative: bool = True) -> Decimal:
    """Read a plain decimal number from a string: `0.34`, `12`, `-1.5`.

    Floats, NaN, infinities, exponents, thousands separators, signs of a currency and empty texts are refused, since
    each of them has been read as a wrong price before. An int or a Decimal is taken as it is.

    Raises:
        MoneyError: anything else was given, or a negative number where `negative` is False.
    """
    if isinstance(text, bool) or not isinstance(text, (str, int, Decimal)):
        kind = type(text).__name__
        raise MoneyError(f'{text!r} is a {kind}; write the number as text, for example "12.10"')
    if isinstance(text, str):
        stripped = text.strip()
        if not _NUMBER.fullmatch(stripped):
            raise MoneyError(
                f"{text!r} is not a plain decimal number; write digits and at most one point, for example 1234.50 "
                "(no thousands separator, no currency sign, no exponent)"
            )
        value = Decimal(stripped)
    else:
        value = Decimal(text)
        if not value.is_finite():
            raise MoneyError(f"{text!r} is not a finite number")
    if value < 0 and not negative:
        raise MoneyError(f"{text!r} is negative; it must be zero or more")
    return value


def pico_of(amount: Decimal | int) -> int:
    """The amount in 1e-12 units, exactly.

    Raises:
        MoneyError: the amount has more than 12 decimal places.
    """
    scaled = Decimal(amount).scaleb(12, _EXACT)
    if scaled != scaled.to_integral_value():
        raise MoneyError(f"{amount} has more than 12 decimal places; money is kept in 1e-12 of its currency")
    return int(scaled)


def checked_currency(code: object) -> str:
    """A currency code of three capital letters (ISO 4217).

    Raises:
        MoneyError: it is something else.
    """
    if not isinstance(code, str) or not _CURRENCY.fullmatch(code):
        raise MoneyError(f"{code!r} is not a currency; write its three-letter code, for example USD")
    return code


@dataclass(frozen=True)
class Money:
    """An exact amount of one currency. `pico` counts 1e-12 of it."""

    pico: int
    currency: str

    def __post_init__(self) -> None:
        if type(self.pico) is not int:
            raise MoneyError(f"money is counted in whole 1e-12 units; {self.pico!r} is a {type(self.pico).__name__}")
        checked_currency(self.currency)

    @classmethod
    def parse(cls, text: object, *, negative: bool = True) -> Money:
        """Read `12.10 USD`.

        Raises:
            MoneyError: it is not a plain decimal number and a currency code, or it is negative where that is barred.
        """
        if not isinstance(text, str):
            kind = type(text).__name__
            raise MoneyError(f'{text!r} is a {kind}; write money as text with its currency, for example "12.10 USD"')
        parts = text.split()
        if len(parts) != 2:
            raise MoneyError(f'{text!r} is not an amount and a currency; write for example "12.10 USD"')
        currency = checked_currency(parts[1])
        return cls(pico_of(exact_decimal(parts[0], negative=negative)), currency)

    @classmethod
    def of(cls, amount: Decimal | int, currency: str) -> Money:
        """The exact amount; a `MoneyError` where it has more than 12 decimal places."""
        return cls(pico_of(amount), currency)

    @classmethod
    def zero(cls, currency: str) -> Money:
        return cls(0, currency)

    @classmethod
    def sum(cls, amounts: Iterable[Money], currency: str) -> Money:
        """The sum of amounts that are all in `currency`."""
        total = cls.zero(currency)
        for amount in amounts:
            total = total + amount
        return total

    @classmethod
    def sums(cls, amounts: Iterable[Money]) -> list[Money]:
        """One sum for each currency, in order of its code."""
        found: dict[str, int] = {}
        for amount in amounts:
            found[amount.currency] = found.get(amount.currency, 0) + amount.pico
        return [cls(pico, currency) for currency, pico in sorted(found.items())]

    @property
    def amount(self) -> Decimal:
        """In units of the currency, exactly."""
        return Decimal(self.pico).scaleb(-12, _EXACT)

    def _same(self, other: Money) -> int:
        if self.currency != other.currency:
            raise MoneyError(f"{self} and {other} are in two currencies; convert one with a dated rate first")
        return other.pico

    def __add__(self, other: Money) -> Money:
        return Money(self.pico + self._same(other), self.currency)

    def __sub__(self, other: Money) -> Money:
        return Money(self.pico - self._same(other), self.currency)

    def __neg__(self) -> Money:
        return Money(-self.pico, self.currency)

    def __mul__(self, factor: int) -> Money:
        if type(factor) is not int:
            raise MoneyError("money is multiplied by whole numbers only; split it with largest_remainder")
        return Money(self.pico * factor, self.currency)

    def __lt__(self, other: Money) -> bool:
        return self.pico < self._same(other)

    def __le__(self, other: Money) -> bool:
        return self.pico <= self._same(other)

    def __gt__(self, other: Money) -> bool:
        return self.pico > self._same(other)

    def __ge__(self, other: Money) -> bool:
        return self.pico >= self._same(other)

    def __bool__(self) -> bool:
        return self.pico != 0

    def __str__(self) -> str:
        return f"{plain(self.amount)} {self.currency}"


def plain(value: Decimal) -> str:
    """A decimal without exponent and without needless zeros after the point: `12.1`, `0`, `-0.000000000001`."""
    text = f"{value:f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def money_text(amount: Money) -> str:
    """An amount for people, with its currency: two decimal places, or up to nine where two would show a zero."""
    for places in (2, 4, 6):
        if abs(amount.pico) >= 10 ** (12 - places) * 5 or not amount.pico:
            return f"{amount.amount:.{places}f} {amount.currency}"
    return f"{amount.amount:.9f} {amount.currency}"


def pico_text(pico: int) -> str:
    """An amount of 1e-12 units as an exact decimal text in units of the currency."""
    return plain(Decimal(pico).scaleb(-12, _EXACT))


def largest_remainder(total: int, weights: Sequence[int]) -> list[int]:
    """Split an integer in proportion to integer weights, so that the parts sum to it exactly.

    Every part is the floor or the ceiling of its exact share; what the floors leave goes to the largest remainders,
    ties to the earlier position. A negative total is split as its absolute value and negated. Hamilton's method.

    Raises:
        ValueError: a weight is negative, or all are zero while the total is not.
    """
    weight_sum = sum(weights)
    if any(weight < 0 for weight in weights):
        raise ValueError("weights must be zero or more")
    if weight_sum == 0:
        if total == 0:
            return [0] * len(weights)
        raise ValueError(f"{total} cannot be split: every weight is zero")
    if total < 0:
        return [-part for part in largest_remainder(-total, weights)]
    parts, remainders = [], []
    for weight in weights:
        part, remainder = divmod(total * weight, weight_sum)
        parts.append(part)
        remainders.append(remainder)
    left = total - sum(parts)
    for position in sorted(range(len(parts)), key=lambda i: (-remainders[i], i))[:left]:
        parts[position] += 1
    return parts


def rounded(pico: int, places: int) -> Decimal:
    """An amount of 1e-12 units as it is shown: `places` decimals of the currency, half to even."""
    exponent = Decimal(1).scaleb(-places)
    return Decimal(pico).scaleb(-12, _EXACT).quantize(exponent, rounding=ROUND_HALF_EVEN, context=Context(prec=60))

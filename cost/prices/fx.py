"""Exchange rates. The rate of a day is that of the last fixing on or before the day.

Every conversion names the rate, its day and its source. No rate is guessed, and none is newer than the day of the
amount.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

from cost.periods import day_text, midnight_ns, utc_datetime
from cost.prices.book import DEFAULT_FOLDER, PriceError, parse_price, read_yaml

STALE_DAYS = 4
"""A rate older than this gives a warning. A weekend with a holiday has no fixing."""


class MissingRateError(PriceError, LookupError):
    """No exchange rate for a pair of currencies on or before a day."""


@dataclass(frozen=True)
class Rate:
    """One unit of `base` was `rate` units of `quote` at the fixing of `day`."""

    base: str
    quote: str
    rate: Decimal
    day: str
    source: str
    day_read: str


@dataclass(frozen=True)
class Conversion:
    """An amount in 1e-12 of `currency`, and a text that names the rates used."""

    pico: int
    currency: str
    text: str
    age_days: int = 0
    """Age of the oldest rate used, in days before the day of the amount."""
    factor: Fraction = Fraction(1)
    """Units of `currency` per unit of the original currency."""


def load_rates(folder: str | Path | None = None) -> tuple[Rate, ...]:
    """The rates of `folder`/fx.yaml; none when there is no such file. Raises PriceError with the rate's number."""
    file = (Path(folder) if folder is not None else DEFAULT_FOLDER) / "fx.yaml"
    if not file.exists():
        return ()
    raw = read_yaml(file)
    if not isinstance(raw, dict) or not isinstance(raw.get("rates"), list):
        raise PriceError(f"{file}: expected a list of exchange rates under the key `rates`")
    rates = []
    for number, item in enumerate(raw["rates"], 1):
        where = f"{file} rate {number}"
        try:
            rate = parse_price(item["rate"], where)
            texts = {k: str(item[k]) for k in ("base", "quote", "day", "source", "day_read")}
            date.fromisoformat(texts["day"])
        except (KeyError, TypeError) as error:
            raise PriceError(f"{where}: base, quote, rate, day, source and day_read are needed: {error}") from error
        except ValueError as error:
            raise PriceError(f"{where}: {error}") from error
        if rate == 0:
            raise PriceError(f"{where}: a rate of 0")
        rates.append(Rate(rate=rate, **texts))
    return tuple(rates)


def rates_as_of(rates: Sequence[Rate], at_ns: int) -> tuple[Rate, ...]:
    """The rates that were known at a moment. For a pair of currencies without any, all rates of the pair."""
    day = day_text(at_ns)
    known = {(rate.base, rate.quote) for rate in rates if rate.day_read <= day}
    return tuple(rate for rate in rates if rate.day_read <= day or (rate.base, rate.quote) not in known)


def fixings(rates: Iterable[Rate]) -> list[int]:
    """The instants at which a new rate begins to apply, sorted. Between two of them all rates are constant."""
    return sorted({midnight_ns(date.fromisoformat(rate.day), UTC) for rate in rates})


class Converter:
    """Converts amounts into one currency, each at the rate of its day. Keeps the rates used, for `rate_notes`.

    The amounts of one sum at one rate are converted as a running total that is rounded to 1e-12; the result for an
    amount is the increase of this total. So converted parts always sum to the converted sum, and a positive amount
    never becomes negative.
    """

    def __init__(self, to: str, rates: Sequence[Rate]) -> None:
        self._to, self._rates = to, rates
        self._by_day: dict[tuple[str, date], Conversion] = {}
        self._totals: dict[tuple[str, str, str], int] = {}

    @property
    def used(self) -> Iterable[Conversion]:
        return self._by_day.values()

    def text(self, currency: str, at_ns: int) -> str:
        """A text that names the rate of a moment; empty if the currency is the same."""
        return self._rate(currency, at_ns).text

    def __call__(self, what: str, pico: int, currency: str, at_ns: int) -> int:
        """Convert an amount of a moment. `what`: the name of the sum that it is a part of. Raises MissingRateError."""
        rate = self._rate(currency, at_ns)
        key = what, currency, rate.text
        before = self._totals.get(key, 0)
        self._totals[key] = before + pico
        return round((before + pico) * rate.factor) - round(before * rate.factor)

    def _rate(self, currency: str, at_ns: int) -> Conversion:
        day = utc_datetime(at_ns).date()
        if (currency, day) not in self._by_day:
            self._by_day[currency, day] = convert(0, currency, self._to, day, self._rates)
        return self._by_day[currency, day]


def convert(pico: int, currency: str, to: str, day: date, rates: Sequence[Rate]) -> Conversion:
    """Convert an amount at the rates of `day`: directly, by the inverse rate, or through a third currency.

    Rounded once, to the nearest 1e-12, halves to even. Raises MissingRateError.
    """
    if currency == to:
        return Conversion(pico, to, "")
    path = _path(currency, to, day, rates)
    if path is None:
        raise MissingRateError(
            f"no exchange rate from {currency} to {to} on or before {day}; add one to conf/pricing/fx.yaml"
        )
    factor = Fraction(1)
    steps = []
    for rate, backwards in path:
        factor *= 1 / Fraction(rate.rate) if backwards else Fraction(rate.rate)
        steps.append(f"1 {rate.base} = {rate.rate} {rate.quote} on {rate.day} ({rate.source})")
    age = max((day - date.fromisoformat(rate.day)).days for rate, _ in path)
    return Conversion(round(pico * factor), to, "; ".join(steps), age, factor)


def rate_notes(conversions: Iterable[Conversion]) -> tuple[str, ...]:
    """Texts that name the rates used, each once; the text of an old rate is a warning."""
    oldest: dict[str, int] = {}
    for one in conversions:
        if one.text:
            oldest[one.text] = max(one.age_days, oldest.get(one.text, 0))
    return tuple(_noted(text, age) for text, age in sorted(oldest.items()))


def _noted(text: str, age_days: int) -> str:
    if age_days <= STALE_DAYS:
        return text
    return f"warning: {text}: {age_days} days older than what it converts; add a newer rate to conf/pricing/fx.yaml"


def _path(start: str, end: str, day: date, rates: Sequence[Rate]) -> list[tuple[Rate, bool]] | None:
    newest: dict[tuple[str, str], tuple[Rate, bool]] = {}
    for rate in sorted(rates, key=lambda r: r.day):
        if date.fromisoformat(rate.day) <= day:
            newest[(rate.base, rate.quote)] = (rate, False)
            newest[(rate.quote, rate.base)] = (rate, True)
    if (start, end) in newest:
        return [newest[(start, end)]]
    for (a, middle), first in sorted(newest.items(), key=lambda item: item[0]):
        if a == start and (middle, end) in newest:
            return [first, newest[(middle, end)]]
    return None

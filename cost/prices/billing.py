"""Billing rules: how a provider computes the charge of a machine from the time of its lease.

Pure integer arithmetic over nanoseconds and 1e-12 of a currency. Rules are data (conf/pricing/billing.yaml). The caller
passes the span in which a machine was in a billed state, and who ended it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from datetime import UTC, tzinfo
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from cost.clock import NS_PER_HOUR, NS_PER_SECOND
from cost.money import PICO_PER_UNIT
from cost.periods import instant_text, period_edges, zone_of
from cost.prices.book import (
    DEFAULT_FOLDER,
    MissingPriceError,
    PriceError,
    PriceRow,
    add_command,
    in_force,
    parse_price,
    pico_per_hour,
    read_yaml,
)
from cost.records import LedgerError

ROUNDING = ("up", "down", "nearest")
SPOT_PRICE_RULES = ("moment", "instance_hour")
STORAGE_RULES = ("none", "while_running", "while_stopped", "daily")
BILL_ROUNDING = ("none", "line", "day", "total")
Ended = Literal["user", "provider"]


class MissingRuleError(PriceError, LookupError):
    """There is no billing rule for a provider and purchase option."""


@dataclass(frozen=True)
class BillingRule:
    """The rule of a provider. Times are in seconds; `rounding`: how the leased time becomes whole granules.

    charged_ahead: a granule is billed at its beginning. billed_states: the machine states whose time is billed.
    spot_price_rule: the price at each moment, or the price in force at the beginning of each instance-hour.
    interruption_waiver_s: a machine that the provider takes back before this many seconds is free.
    storage_rule: whether a disk is billed while the machine is stopped (`daily`: by whole days).
    minimum_amount: the smallest charge. bill_rounding and bill_quantum: how the provider's bill is rounded (per line,
    day or total), which reconciliation must expect. purchases: empty for all purchase options.
    """

    provider: str
    granularity_s: int
    minimum_s: int
    rounding: str
    charged_ahead: bool
    billed_states: tuple[str, ...]
    spot_price_rule: str
    interruption_waiver_s: int
    storage_rule: str
    source: str
    day_read: str
    purchases: tuple[str, ...] = ()
    minimum_amount: Decimal = Decimal(0)
    bill_rounding: str = "none"
    bill_quantum: Decimal = Decimal(0)
    note: str = ""
    timezone: str = "UTC"
    """The provider's time zone, in which the days of `daily` storage begin."""


@dataclass(frozen=True)
class Segment:
    """A span of time at one price: the cost of the machine, or what the provider's rule adds to it."""

    from_ns: int
    to_ns: int
    pico: int
    category: str
    price_hash: str
    paid_ns: int = 0
    """The part of the span that is charged by time; 0 if a quantity is charged, or nothing."""


def charge(
    from_ns: int,
    to_ns: int,
    *,
    rule: BillingRule,
    prices: Sequence[PriceRow],
    cards: int,
    watts: Decimal | int = 0,
    ended: Ended | None = None,
) -> tuple[Segment, ...]:
    """The charge of a machine in a billed state from `from_ns` to `to_ns`, by segment.

    `prices` is one SKU's series, oldest first (`PriceBook.series`); rows that do not touch the interval are ignored.
    `watts` is the mean power of the whole machine, for prices per kWh. `ended` is None while the lease is open.

    Rounding: the running total is floored to 1e-12 at the end of each segment and a segment is the difference, so
    that segments sum to the floored exact total, and those already past never change as time goes on.
    Segments of category "machine" cover from..to without gap; "billing_increment" lies after `to_ns`.
    Raises PriceError for a negative duration or mixed currencies, MissingPriceError for a moment without a price.
    """
    if to_ns < from_ns:
        raise PriceError(f"a lease cannot end before it starts: {instant_text(from_ns)} to {instant_text(to_ns)}")
    if len({row.currency for row in prices}) > 1:
        raise PriceError("the prices of one charge must be in one currency")
    rows = tuple(prices)
    leased = to_ns - from_ns
    waived = ended == "provider" and leased < rule.interruption_waiver_s * NS_PER_SECOND
    billed = leased if waived else billed_ns(leased, rule, ended)
    segments = []
    exact, floored = Fraction(0), 0
    for start, stop, row in _pieces(from_ns, to_ns, from_ns + max(leased, billed), rule, rows):
        for a, b in ((start, min(stop, to_ns)), (max(start, to_ns), stop)):
            if a >= b:
                continue
            # Rounding down can leave leased time unbilled: its segment has no cost.
            paid = 0 if waived else max(0, min(b, from_ns + billed) - a)
            exact += pico_per_hour(row, cards, watts) * paid / NS_PER_HOUR
            whole = exact.numerator // exact.denominator
            category = "machine" if b <= to_ns else "billing_increment"
            segments.append(Segment(a, b, whole - floored, category, row.hash, paid))
            floored = whole
    least = int(rule.minimum_amount * PICO_PER_UNIT)
    if not waived and segments and 0 < floored < least:
        end = segments[-1].to_ns
        segments.append(Segment(end, end, least - floored, "billing_increment", segments[-1].price_hash))
    return tuple(segments)


def billed_ns(leased_ns: int, rule: BillingRule, ended: Ended | None) -> int:
    """Leased nanoseconds after granularity, rounding and minimum. Monotone in `leased_ns`."""
    granule = rule.granularity_s * NS_PER_SECOND
    if rule.charged_ahead:
        # A granule is billed at its beginning, so a lease that is open at a full hour is billed for one more hour.
        whole = leased_ns // granule + 1 if ended is None else -(-leased_ns // granule)
    elif rule.rounding == "up":
        whole = -(-leased_ns // granule)
    elif rule.rounding == "down":
        whole = leased_ns // granule
    else:
        whole = (2 * leased_ns + granule) // (2 * granule)
    return max(whole * granule, rule.minimum_s * NS_PER_SECOND)


def total(segments: Sequence[Segment]) -> int:
    """The charge in 1e-12 of the currency: the exact sum of its segments."""
    return sum(s.pico for s in segments)


def _pieces(
    start: int, leased_to: int, stop: int, rule: BillingRule, rows: tuple[PriceRow, ...]
) -> list[tuple[int, int, PriceRow]]:
    """[start, stop) cut at price changes. Adjacent pieces with the same price are merged."""
    hop = _repricing_ns(rule, rows)
    pieces: list[tuple[int, int, PriceRow]] = []
    at = start
    while at < stop:
        row = in_force(rows, at)
        if row is None and pieces and at >= leased_to:
            # A rule may add time after the end of the last price, which then still applies.
            row = pieces[-1][2]
        if row is None:
            sku = rows[0].sku if rows else "(none)"
            raise MissingPriceError(
                f"no price for SKU {sku!r} in force at {instant_text(at)}; add it with: {add_command(sku)}"
            )
        end = min(stop, at + hop) if hop else _next_change(at, stop, rows)
        if pieces and pieces[-1][2] is row:
            pieces[-1] = (pieces[-1][0], end, row)
        else:
            pieces.append((at, end, row))
        at = end
    return pieces


def _next_change(at: int, stop: int, rows: tuple[PriceRow, ...]) -> int:
    """The first moment after `at`, at most `stop`, at which a row starts or ends."""
    end = stop
    for row in rows:
        for edge in (row.from_ns, row.to_ns):
            if edge is not None and at < edge < end:
                end = edge
    return end


def _repricing_ns(rule: BillingRule, rows: tuple[PriceRow, ...]) -> int:
    """How long a price applies once read: an instance-hour, a granule billed in advance, or 0: until it changes."""
    if rule.spot_price_rule == "instance_hour" and any(r.purchase == "spot" for r in rows):
        return NS_PER_HOUR
    return rule.granularity_s * NS_PER_SECOND if rule.charged_ahead else 0


def quantity_pico(row: PriceRow, quantity: Decimal | int) -> int:
    """The cost of a quantity (GiB sent, requests, measured kWh, one-off fees), floored to 1e-12."""
    if row.per not in ("gib", "request", "kwh", "one_off"):
        raise PriceError(f"SKU {row.sku!r} is priced per {row.per}: not a price of a quantity")
    if quantity < 0:
        raise PriceError(f"quantity {quantity} of SKU {row.sku!r} must not be negative")
    exact = Fraction(row.price) * PICO_PER_UNIT * Fraction(quantity)
    return exact.numerator // exact.denominator


def storage_pico(from_ns: int, to_ns: int, *, row: PriceRow, gib: Decimal | int, rule: BillingRule) -> int:
    """The cost of storing `gib` from..to at a price per GiB-month, floored to 1e-12. See `exact_storage_pico`."""
    exact = exact_storage_pico(from_ns, to_ns, row=row, gib=gib, rule=rule)
    return exact.numerator // exact.denominator


def exact_storage_pico(from_ns: int, to_ns: int, *, row: PriceRow, gib: Decimal | int, rule: BillingRule) -> Fraction:
    """The exact cost of storing `gib` from..to at a price per GiB-month, by the length of each calendar month.

    Months are those of UTC. With storage_rule `daily`, every day that the interval touches counts as a whole, and days
    and months are those of the provider's time zone. With `none` storage is free.
    """
    if row.per != "gib_month":
        raise PriceError(f"SKU {row.sku!r} is priced per {row.per}: storage is priced per gib_month")
    if to_ns < from_ns:
        raise PriceError(f"storage cannot end before it starts: {instant_text(from_ns)} to {instant_text(to_ns)}")
    if rule.storage_rule == "none" or to_ns == from_ns:
        return Fraction(0)
    zone: tzinfo = UTC
    if rule.storage_rule == "daily":
        zone = zone_of(rule.timezone)
        days = period_edges(from_ns, to_ns - 1, "day", zone)
        from_ns, to_ns = days[0], days[-1]
    months = Fraction(0)
    at = from_ns
    while at < to_ns:
        first, following = period_edges(at, at, "month", zone)[:2]
        end = min(to_ns, following)
        months += Fraction(end - at, following - first)
        at = end
    return Fraction(row.price) * PICO_PER_UNIT * Fraction(gib) * months


def load_rules(folder: str | Path | None = None) -> tuple[BillingRule, ...]:
    """The rules in `folder`/billing.yaml (None: conf/pricing). Raises PriceError with the number of the rule."""
    file = (Path(folder) if folder is not None else DEFAULT_FOLDER) / "billing.yaml"
    raw = read_yaml(file)
    if not isinstance(raw, dict) or not isinstance(raw.get("rules"), list):
        raise PriceError(f"{file}: expected a list of billing rules under the key `rules`")
    return tuple(_read_rule(item, f"{file} rule {n}") for n, item in enumerate(raw["rules"], 1))


def rule_for(rules: Sequence[BillingRule], provider: str, purchase: str = "on_demand") -> BillingRule:
    """The provider's rule for a purchase option. Raises MissingRuleError that lists the known providers."""
    for rule in rules:
        if rule.provider == provider and (not rule.purchases or purchase in rule.purchases):
            return rule
    known = ", ".join(sorted({r.provider for r in rules}))
    raise MissingRuleError(
        f"no billing rule for provider {provider!r} ({purchase}); add one to conf/pricing/billing.yaml; known: {known}"
    )


def _read_rule(raw: Any, where: str) -> BillingRule:
    if not isinstance(raw, dict):
        raise PriceError(f"{where}: a billing rule is a mapping of field to value, not {raw!r}")
    where = f"{where} ({raw.get('provider', 'no provider')})"
    known = {f.name: f for f in fields(BillingRule)}
    if unknown := sorted(set(raw) - set(known)):
        raise PriceError(f"{where}: unknown field {unknown[0]!r}; a rule has {', '.join(known)}")
    data: dict[str, Any] = {}
    for name, f in known.items():
        if name in raw:
            data[name] = raw[name]
        elif f.default is MISSING:
            raise PriceError(f"{where}: {name} is missing")
    choices = {
        "rounding": ROUNDING,
        "spot_price_rule": SPOT_PRICE_RULES,
        "storage_rule": STORAGE_RULES,
        "bill_rounding": BILL_ROUNDING,
    }
    for name, allowed in choices.items():
        if name in data and data[name] not in allowed:
            raise PriceError(f"{where}: {name} {data[name]!r} is not one of {', '.join(allowed)}")
    for name, least in (("granularity_s", 1), ("minimum_s", 0), ("interruption_waiver_s", 0)):
        if isinstance(data[name], bool) or not isinstance(data[name], int) or data[name] < least:
            raise PriceError(f"{where}: {name} {data[name]!r} must be a whole number of seconds, at least {least}")
    if not isinstance(data["charged_ahead"], bool):
        raise PriceError(f"{where}: charged_ahead {data['charged_ahead']!r} must be true or false")
    for name in ("minimum_amount", "bill_quantum"):
        if name in data:
            data[name] = parse_price(data[name], f"{where}: {name}")
    for name in ("billed_states", "purchases"):
        if name in data:
            data[name] = tuple(str(v) for v in data[name])
    try:
        zone_of(data.get("timezone", "UTC"))
    except LedgerError as error:
        raise PriceError(f"{where}: timezone: {error}") from None
    data["day_read"] = str(data["day_read"])
    return BillingRule(**data)

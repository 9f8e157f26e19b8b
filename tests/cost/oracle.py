"""What a ledger should cost, computed a second time from the rules in docs/pricing.md and docs/cost-report.md.

It imports nothing of `cost`: it has its own records, its own arithmetic in fractions, and its own calendar. It is slow
and plain on purpose: each rule is one function, so that a reader can compare it with the sentence that it stands for.

Times are integer nanoseconds UTC, cards are counted in millionths, money in 1e-12 of its currency.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from zoneinfo import ZoneInfo

SECOND = 10**9
HOUR = 3600 * SECOND
DIED = ("FAILED", "PREEMPTED", "LOST")


@dataclass(frozen=True)
class Price:
    """A price in force from `from_ns` to `to_ns` (None: for good): units of currency per hour of a card or machine."""

    from_ns: int
    to_ns: int | None
    amount: Fraction
    per_card: bool
    tax: Fraction
    tax_included: bool


@dataclass(frozen=True)
class Rule:
    """A provider's billing rule."""

    granularity_s: int
    minimum_s: int
    rounding: str
    charged_ahead: bool
    billed_states: tuple[str, ...]
    hourly_price: bool
    """The price at the start of each hour holds for that hour (spot)."""
    waiver_s: int
    least: Fraction
    storage: str = "none"
    zone: str = "UTC"


@dataclass(frozen=True)
class Use:
    """Cards that an attempt used. `reports`: number, phase and card-nanoseconds of each report."""

    sweep: str
    trial: str
    attempt: int
    micro_cards: int
    from_ns: int
    to_ns: int | None
    outcome: str
    reports: tuple[tuple[int, str, int], ...]


@dataclass(frozen=True)
class Hold:
    """A sweep attached to a lease."""

    sweep: str
    from_ns: int
    to_ns: int | None


@dataclass(frozen=True)
class Entry:
    """A correction."""

    sweep: str
    trial: str
    category: str
    pico: int
    at_ns: int


@dataclass(frozen=True)
class Disk:
    """GiB kept on a lease at prices per GiB and month."""

    gib: Fraction
    from_ns: int
    to_ns: int | None
    """None: until the lease ends."""
    prices: tuple[Price, ...]


@dataclass(frozen=True)
class Machine:
    """A lease with everything that the ledger has about it."""

    name: str
    cards: int
    currency: str
    from_ns: int
    to_ns: int | None
    taken_back: bool
    prices: tuple[Price, ...]
    rule: Rule
    holds: tuple[Hold, ...] = ()
    uses: tuple[Use, ...] = ()
    changes: tuple[tuple[int, str], ...] = ()
    """Instant and new state of each stop and start."""
    entries: tuple[Entry, ...] = ()
    disks: tuple[Disk, ...] = ()


@dataclass(frozen=True)
class Part:
    """A stretch of a charge at one price. `paid_ns`: how much of its time is paid for."""

    from_ns: int
    to_ns: int
    pico: int
    category: str
    price: Price
    paid_ns: int


@dataclass
class Amounts:
    """Sums in 1e-12: by (currency, sweep, trial, category), and by (currency, day)."""

    by_category: dict[tuple[str, str, str, str], int] = field(default_factory=dict)
    by_day: dict[tuple[str, str], int] = field(default_factory=dict)


def amounts(machines: Sequence[Machine], now_ns: int) -> Amounts:
    """What the machines cost up to a moment, by trial and category."""
    total = Amounts()
    for machine in machines:
        for _, sweep, trial, category, pico in _lines(machine, _parts(machine, now_ns)):
            _add(total.by_category, (machine.currency, sweep, trial, category), pico)
    return total


def amounts_by_day(machines: Sequence[Machine], now_ns: int, zone: str) -> Amounts:
    """What the machines cost up to a moment, by the days of a time zone."""
    total = Amounts()
    for machine in machines:
        parts = _parts(machine, now_ns)
        last = max(part.to_ns for part in parts)
        midnights = _midnights(machine.from_ns, last, zone)
        for at_ns, _, _, _, pico in _lines(machine, _cut(machine, parts, midnights)):
            _add(total.by_day, (machine.currency, _day(at_ns, zone)), pico)
    return total


def _add(sums: dict, key: tuple, pico: int) -> None:
    sums[key] = sums.get(key, 0) + pico


# Charges


def _parts(machine: Machine, now_ns: int) -> list[Part]:
    """The charge of a lease: each run of billed time by itself, unbilled time at 0, then disks."""
    end = max(now_ns, machine.from_ns) if machine.to_ns is None else machine.to_ns
    states = _states(machine, end)
    parts: list[Part] = []
    runs: list[list] = []
    for start, stop, state in states:
        billed = state in machine.rule.billed_states
        if runs and runs[-1][2] == billed:
            runs[-1][1] = stop
        else:
            runs.append([start, stop, billed])
    for start, stop, billed in runs:
        if billed:
            ended = "user"
            if stop == end:
                ended = "open" if machine.to_ns is None else "provider" if machine.taken_back else "user"
            parts += _run(machine, start, stop, ended)
        else:
            parts.append(Part(start, stop, 0, "machine", _price_at(machine.prices, start), 0))
    parts = _cut(machine, parts, [edge for a, b, state in states if state != "running" for edge in (a, b)])
    stopped = [(a, b) for a, b, state in states if state != "running"]
    parts = [
        replace(part, category="stopped")
        if part.category == "machine" and any(a <= part.from_ns < b for a, b in stopped)
        else part
        for part in parts
    ]
    return parts + [part for disk in machine.disks for part in _disk(machine, disk, states, end)]


def _states(machine: Machine, end: int) -> list[tuple[int, int, str]]:
    edges = [(machine.from_ns, "running"), *(change for change in machine.changes if change[0] < end), (end, "")]
    spans = [(a, b, state) for (a, state), (b, _) in pairwise(edges) if a < b]
    return spans or [(machine.from_ns, end, "running")]


def _price_at(prices: Sequence[Price], at_ns: int) -> Price:
    (price,) = [p for p in prices if p.from_ns <= at_ns and (p.to_ns is None or at_ns < p.to_ns)]
    return price


def _rate(machine: Machine, price: Price) -> Fraction:
    """1e-12 of the currency per nanosecond of the machine."""
    return price.amount * 10**12 * (machine.cards if price.per_card else 1) / HOUR


def _billed_ns(held: int, rule: Rule, ended: str) -> int:
    granule = rule.granularity_s * SECOND
    exact = Fraction(held, granule)
    if rule.charged_ahead:
        # The granule that has begun is owed, also while the machine runs on at a full hour.
        granules = exact.__floor__() + 1 if ended == "open" else exact.__ceil__()
    elif rule.rounding == "up":
        granules = exact.__ceil__()
    elif rule.rounding == "down":
        granules = exact.__floor__()
    else:
        granules = (exact + Fraction(1, 2)).__floor__()
    return max(granules * granule, rule.minimum_s * SECOND)


def _run(machine: Machine, start: int, stop: int, ended: str) -> list[Part]:
    """A machine in a billed state from start to stop, and what the rule adds afterwards."""
    rule, held = machine.rule, stop - start
    waived = ended == "provider" and held < rule.waiver_s * SECOND
    billed = held if waived else _billed_ns(held, rule, ended)
    last = start + max(held, billed)
    hop = HOUR if rule.hourly_price else rule.granularity_s * SECOND if rule.charged_ahead else 0
    priced: list[list] = []
    at = start
    while at < last:
        price = _price_at(machine.prices, at)
        until = min(last, at + hop) if hop else min([last, *(p.from_ns for p in machine.prices if at < p.from_ns)])
        if priced and priced[-1][2] == price:
            priced[-1][1] = until
        else:
            priced.append([at, until, price])
        at = until
    parts: list[Part] = []
    exact, counted = Fraction(0), 0
    for a, b, price in priced:
        for c, d in ((a, min(b, stop)), (max(a, stop), b)):
            if c < d:
                paid = 0 if waived else max(0, min(d, start + billed) - c)
                exact += _rate(machine, price) * paid
                category = "machine" if d <= stop else "billing_increment"
                parts.append(Part(c, d, exact.__floor__() - counted, category, price, paid))
                counted = exact.__floor__()
    least = (rule.least * 10**12).__floor__()
    if not waived and 0 < counted < least:
        end = parts[-1].to_ns
        parts.append(Part(end, end, least - counted, "billing_increment", parts[-1].price, 0))
    return parts


def _cut(machine: Machine, parts: Sequence[Part], edges: Sequence[int]) -> list[Part]:
    """The same charge with no part across an edge: what is paid by time is worth its exact cost up to each edge."""
    pieces: list[Part] = []
    exact, counted, until = Fraction(0), 0, None
    for part in parts:
        moments = [part.from_ns, *sorted({e for e in edges if part.from_ns < e < part.to_ns}), part.to_ns]
        spans = list(pairwise(moments))
        if part.from_ns != until:
            exact, counted = Fraction(0), 0
        by_time = None
        if part.paid_ns == part.to_ns - part.from_ns and part.category != "storage":
            running = [(exact + _rate(machine, part.price) * (b - part.from_ns)).__floor__() for _, b in spans]
            if running[-1] - counted == part.pico:
                by_time = [b - a for a, b in zip([counted, *running], running, strict=False)]
                exact += _rate(machine, part.price) * (part.to_ns - part.from_ns)
                counted, until = running[-1], part.to_ns
        if by_time is None:
            until = None
            by_time = [part.pico] if len(spans) == 1 else _shares(part.pico, [b - a for a, b in spans])
        paid = [part.paid_ns] if len(spans) == 1 else _shares(part.paid_ns, [b - a for a, b in spans])
        for (a, b), pico, paid_ns in zip(spans, by_time, paid, strict=True):
            pieces.append(replace(part, from_ns=a, to_ns=b, pico=pico, paid_ns=paid_ns))
    return pieces


def _shares(total: int, weights: Sequence[int]) -> list[int]:
    """Hamilton's method: floors first, then one unit each to the largest remainders, the earlier of equals first."""
    if not sum(weights):
        return [0] * len(weights)
    exact = [Fraction(abs(total) * weight, sum(weights)) for weight in weights]
    shares = [value.__floor__() for value in exact]
    order = sorted(range(len(weights)), key=lambda i: (shares[i] - exact[i], i))
    for i in order[: abs(total) - sum(shares)]:
        shares[i] += 1
    return [-share for share in shares] if total < 0 else shares


# Disks


def _disk(machine: Machine, disk: Disk, states: Sequence[tuple[int, int, str]], end: int) -> list[Part]:
    """A disk by each month's own length at the prices in force; daily: each day of the provider's zone, once."""
    rule = machine.rule
    disk_end = max(end, disk.from_ns) if disk.to_ns is None else disk.to_ns
    pieces: list[tuple[int, int]] = []
    if rule.storage == "daily":
        if disk.from_ns < disk_end:
            days = _midnights(disk.from_ns, disk_end - 1, rule.zone)
            pieces = [(max(a, disk.from_ns), b) for a, b in pairwise(days)]
    else:
        spans = [(disk.from_ns, disk_end)]
        if rule.storage == "while_running":
            running = [(a, b) for a, b, state in states if state == "running"]
            spans = [(max(a, disk.from_ns), min(b, disk_end)) for a, b in running]
        for start, stop in spans:
            if start < stop:
                months = [m for m in _midnights(start, stop, "UTC") if _local(m, "UTC").day == 1]
                inner = {m for m in (*months, *(p.from_ns for p in disk.prices)) if start < m < stop}
                pieces += list(pairwise(sorted({start, stop, *inner})))
    parts = []
    exact, counted = Fraction(0), 0
    for a, b in pieces:
        price = _price_at(disk.prices, a)
        whole_day = rule.storage == "daily"
        zone = rule.zone if whole_day else "UTC"
        start = _midnights(a, a, zone)[0] if whole_day else a
        months = Fraction(0) if rule.storage == "none" else _months(start, b, zone)
        exact += price.amount * 10**12 * disk.gib * months
        # A whole day is due when it begins.
        parts.append(Part(a, a if whole_day else b, exact.__floor__() - counted, "storage", price, 0))
        counted = exact.__floor__()
    return parts


def _months(start: int, stop: int, zone: str) -> Fraction:
    months, at = Fraction(0), start
    while at < stop:
        first = _local(at, zone).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        following = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
        until = min(stop, _ns(following))
        months += Fraction(until - at, _ns(following) - _ns(first))
        at = until
    return months


# Who pays


def _lines(machine: Machine, parts: Sequence[Part]) -> list[tuple[int, str, str, str, int]]:
    """(instant, sweep, trial, category, amount) of each line of a lease: its parts split, tax on them, corrections."""
    lines: list[tuple[int, str, str, str, int]] = []
    end = max(part.to_ns for part in parts if part.category in ("machine", "stopped"))
    taxed, tax_counted = Fraction(0), 0
    taxes = []
    for part in parts:
        split = _split(machine, part, end)
        by_sweep: dict[str, int] = {}
        for sweep, trial, category, pico in split:
            lines.append((part.from_ns, sweep, trial, category, pico))
            by_sweep[sweep] = by_sweep.get(sweep, 0) + pico
        if part.price.tax_included or not part.price.tax or not any(by_sweep.values()):
            continue
        taxed += part.price.tax * part.pico
        tax, tax_counted = taxed.__floor__() - tax_counted, taxed.__floor__()
        for sweep, pico in zip(by_sweep, _shares(tax, list(by_sweep.values())), strict=True):
            taxes.append((part.from_ns, sweep, "", "tax", pico))
    corrections = [(e.at_ns, e.sweep, e.trial, e.category, e.pico) for e in machine.entries]
    return [*lines, *taxes, *corrections]


def _split(machine: Machine, part: Part, end: int) -> list[tuple[str, str, str, int]]:
    """(sweep, trial, category, amount): time by the cards used at each moment, anything else to the last sweeps."""
    if part.category not in ("machine", "stopped") or part.from_ns == part.to_ns:
        sweeps = _last_sweeps(machine, part)
        equal = _shares(part.pico, [1] * len(sweeps))
        return [(sweep, "", part.category, pico) for sweep, pico in zip(sweeps, equal, strict=True) if part.pico]
    weights = _card_time(machine, part)
    shares = _shares(part.pico, list(weights.values()))
    split = []
    for user, pico in zip(weights, shares, strict=True):
        if isinstance(user, int):
            use = machine.uses[user]
            phases = _phases(use, end)
            for phase, piece in zip(phases, _shares(pico, list(phases.values())), strict=True):
                split.append((use.sweep, use.trial, phase, piece))
        else:
            split.append((user[0], "", user[1], pico))
    return split


def _card_time(machine: Machine, part: Part) -> dict:
    """Card time of each user within a part, in the order of first use: attempts by number, free cards by category."""
    capacity = machine.cards * 10**6
    moments = {part.from_ns, part.to_ns}
    for thing in (*machine.uses, *machine.holds):
        moments |= {thing.from_ns, part.to_ns if thing.to_ns is None else thing.to_ns}
    ordered = sorted(m for m in moments if part.from_ns <= m <= part.to_ns)
    weights: dict = {}
    for start, stop in pairwise(ordered):
        length, used = stop - start, 0
        for number, use in enumerate(machine.uses):
            if use.from_ns <= start and (use.to_ns is None or start < use.to_ns):
                weights[number] = weights.get(number, 0) + use.micro_cards * length
                used += use.micro_cards
        free = (capacity - used) * length
        holds = [h for h in machine.holds if h.from_ns <= start and (h.to_ns is None or start < h.to_ns)]
        if not free:
            continue
        if not holds:
            holds_and_categories = [("", "unassigned")]
        else:
            holds_and_categories = [(hold.sweep, _overhead(machine, hold, start)) for hold in holds]
        for (sweep, category), piece in zip(
            holds_and_categories, _shares(free, [1] * len(holds_and_categories)), strict=True
        ):
            key = (sweep, "stopped" if part.category == "stopped" else category)
            weights[key] = weights.get(key, 0) + piece
    return weights


def _overhead(machine: Machine, hold: Hold, at_ns: int) -> str:
    """Start-up before the sweep's first attempt, teardown after its last, idle between them."""
    own = [
        use
        for use in machine.uses
        if use.sweep == hold.sweep and hold.from_ns <= use.from_ns and (hold.to_ns is None or use.from_ns < hold.to_ns)
    ]
    if not own or at_ns < min(use.from_ns for use in own):
        return "startup"
    over = hold.to_ns is not None and all(use.to_ns is not None and use.to_ns <= at_ns for use in own)
    return "teardown" if over else "idle"


def _phases(use: Use, end: int) -> dict[str, int]:
    """Card time of an attempt by category: as reported, lost after the last checkpoint if it died, the rest other."""
    granted = use.micro_cards * ((max(end, use.from_ns) if use.to_ns is None else use.to_ns) - use.from_ns)
    died = use.outcome in DIED
    saved_until = max([number for number, phase, _ in use.reports if phase == "checkpoint"], default=-1)
    phases: dict[str, int] = {}
    lost = 0
    for number, phase, card_ns in use.reports:
        if died and number > saved_until:
            lost += card_ns * 10**6
        else:
            name = "recovery" if phase == "startup" and use.attempt > 1 else phase
            phases[name] = phases.get(name, 0) + card_ns * 10**6
    unreported = granted - sum(card_ns for _, _, card_ns in use.reports) * 10**6
    if died:
        lost += max(unreported, 0)
    elif unreported > 0:
        phases["other"] = phases.get("other", 0) + unreported
    if lost:
        phases = {"lost_work": lost, **phases}
    return phases or {"lost_work" if died else "other": 1}


def _last_sweeps(machine: Machine, part: Part) -> list[str]:
    """The sweeps attached when an increment begins, else those that left last; of another charge, those at the end."""
    holds = machine.holds
    if part.category == "billing_increment":
        holds = tuple(h for h in holds if h.from_ns < part.from_ns) or holds
        still = [h for h in holds if h.to_ns is None or h.to_ns > part.from_ns]
    else:
        still = [h for h in holds if h.to_ns is None]
    latest = max((h.to_ns or 0 for h in holds), default=0)
    return sorted({h.sweep for h in still or [h for h in holds if h.to_ns == latest]}) or [""]


# Calendar


def _local(at_ns: int, zone: str) -> datetime:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=at_ns // SECOND)).astimezone(ZoneInfo(zone))


def _ns(moment: datetime) -> int:
    return int(moment.timestamp()) * SECOND


def _day(at_ns: int, zone: str) -> str:
    return _local(at_ns, zone).date().isoformat()


def _midnights(start: int, stop: int, zone: str) -> list[int]:
    """The first instant of each day of a zone, from the day of `start` to the day after that of `stop`."""
    day = _local(start, zone).replace(hour=0, minute=0, second=0, microsecond=0)
    found = [_ns(day)]
    while found[-1] <= stop:
        day += timedelta(days=1)
        found.append(_ns(day))
    return found

"""Named checks of the books. Each returns what it found; whole books give nothing. Nothing is changed or repaired."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import select

from cost.charges.attribution import Attribution, attribute
from cost.charges.lease_charge import ChargeInputs, billing_rules, charge_lease, load_charge_inputs
from cost.clock import NS_PER_HOUR, NS_PER_SECOND
from cost.close.months import closed_totals, month_totals
from cost.ledger import schema
from cost.ledger.ledger import SILENT_NS, Ledger
from cost.ledger.machine_states import RUNNING, change_at
from cost.money import PICO_PER_UNIT, pico_text
from cost.periods import instant_text
from cost.prices.billing import BillingRule, total
from cost.prices.book import PriceBook
from cost.records import CATEGORIES

SKEW_NS = NS_PER_SECOND
"""Two drivers' clocks may differ by so much before their intervals count as overlapping."""


@dataclass(frozen=True)
class CheckFinding:
    """Something that is wrong: which check found it, where, and what it is."""

    check: str
    where: str
    what: str


@dataclass(frozen=True)
class _Books:
    ledger: Ledger
    book: PriceBook
    rules: Sequence[BillingRule]
    now_ns: int
    lines: Attribution
    other: ChargeInputs


def run_checks(
    ledger: Ledger, book: PriceBook, now_ns: int, *, rules: Sequence[BillingRule] | None = None
) -> list[CheckFinding]:
    """`priced`, then every other check in order of name.

    Raises:
        StoreError: the file is damaged.
    """
    ledger.check_file()
    rules = billing_rules(book) if rules is None else rules
    other = load_charge_inputs(ledger, book, ledger.leases.find(), now_ns)
    found = [CheckFinding("priced", *problem) for problem in _unpriced(ledger, rules, now_ns, other)]
    books = _Books(ledger, book, rules, now_ns, attribute(ledger, book, now_ns, rules=rules), other)
    for name, check in sorted(CHECKS.items()):
        found += [CheckFinding(name, where, what) for where, what in check(books)]
    return found


def _unpriced(
    ledger: Ledger, rules: Sequence[BillingRule], now_ns: int, other: ChargeInputs
) -> Iterator[tuple[str, str]]:
    for state in ledger.leases.find():
        where = f"lease {state.lease.lease_id}"
        if problem := charge_lease(state, rules, now_ns, other).problem:
            yield where, f"UNPRICED: {problem}"


def _conservation(books: _Books) -> Iterator[tuple[str, str]]:
    """What is attributed of each lease, plus tax and corrections, is what it was charged."""
    attributed: dict[str, int] = defaultdict(int)
    for line in books.lines.lines:
        if "corrected" not in line.flags and line.category != "tax":
            attributed[line.lease.lease_id] += line.pico
    for state in books.lines.leases:
        due = total(charge_lease(state, books.rules, books.now_ns, books.other).segments)
        found = attributed[state.lease.lease_id]
        if due != found:
            yield f"lease {state.lease.lease_id}", f"charged {pico_text(due)}, attributed {pico_text(found)}"


def _card_time(books: _Books) -> Iterator[tuple[str, str]]:
    """Every card-nanosecond of a lease has exactly one category."""
    held: dict[str, int] = defaultdict(int)
    for line in books.lines.lines:
        held[line.lease.lease_id] += line.micro_card_ns
    for state in books.lines.leases:
        to_ns = books.now_ns if state.to_ns is None else state.to_ns
        due = state.lease.cards * schema.MICRO_PER_CARD * max(to_ns - state.from_ns, 0)
        if held[state.lease.lease_id] != due:
            yield (
                f"lease {state.lease.lease_id}",
                f"{held[state.lease.lease_id]} of {due} micro-card-ns have a category",
            )


def _cards(books: _Books) -> Iterator[tuple[str, str]]:
    """At no moment is more held than the machine has."""
    events: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for usage in books.lines.usages.values():
        micro = int(usage.cards * schema.MICRO_PER_CARD)
        to_ns = books.now_ns if usage.to_ns is None else usage.to_ns
        if to_ns - SKEW_NS > usage.from_ns:
            events[usage.key.lease_id] += [(usage.from_ns, micro), (to_ns - SKEW_NS, -micro)]
    for state in books.lines.leases:
        held = 0
        for at_ns, change in sorted(events[state.lease.lease_id]):
            held += change
            if held > state.lease.cards * schema.MICRO_PER_CARD:
                cards = held / schema.MICRO_PER_CARD
                yield (
                    f"lease {state.lease.lease_id}",
                    f"{cards:g} of {state.lease.cards} cards held at {instant_text(at_ns)}",
                )
                break


def _not_negative(books: _Books) -> Iterator[tuple[str, str]]:
    """No interval ends before it starts, and nothing but a correction is below zero."""
    for usage in books.lines.usages.values():
        if usage.to_ns is not None and usage.to_ns < usage.from_ns:
            yield str(usage.key), f"ends {usage.from_ns - usage.to_ns} ns before it starts"
    for state in books.lines.leases:
        if state.to_ns is not None and state.to_ns < state.from_ns:
            yield f"lease {state.lease.lease_id}", f"ends {state.from_ns - state.to_ns} ns before it starts"
    for line in books.lines.lines:
        if line.pico < 0 and "corrected" not in line.flags and line.category != "unused_commitment":
            yield f"lease {line.lease.lease_id}", f"{line.category} of {pico_text(line.pico)} {line.lease.currency}"


def _monotone(books: _Books) -> Iterator[tuple[str, str]]:
    """A usage lies within its lease, and its heartbeats within it."""
    leases = {state.lease.lease_id: state for state in books.lines.leases}
    for usage in books.lines.usages.values():
        lease = leases[usage.key.lease_id]
        if usage.from_ns < lease.from_ns or (
            lease.to_ns is not None and (usage.to_ns or lease.to_ns + 1) > lease.to_ns
        ):
            yield str(usage.key), "is not within its lease"
        if usage.to_ns is not None and usage.last_heartbeat_ns > usage.to_ns + SKEW_NS:
            yield str(usage.key), "has a heartbeat after its end"


def _over_reported(books: _Books) -> Iterator[tuple[str, str]]:
    """No trial reports more card time than it held."""
    keys = {(x.lease.lease_id, x.trial_id, x.attempt) for x in books.lines.lines if "over_reported" in x.flags}
    for lease_id, trial_id, attempt in sorted(keys):
        yield f"lease {lease_id} trial {trial_id} attempt {attempt}", "reported more card time than it held"


def _closed(books: _Books) -> Iterator[tuple[str, str]]:
    """No machine and no attempt is left open with nobody looking after it."""
    for state in books.lines.leases:
        stopped = change_at(books.other.state_changes, state.lease.lease_id, books.now_ns)
        if stopped is not None and stopped.state != RUNNING:
            continue  # A hand stopped it, and keeps it.
        if state.to_ns is None and state.lease.opened_by == "sweep":
            silent = books.now_ns - state.last_heartbeat_ns
            if silent >= SILENT_NS:
                since = instant_text(state.last_heartbeat_ns)
                close = f"python -m cost leases close {state.lease.lease_id}"
                yield f"lease {state.lease.lease_id}", f"is open, and not heard of since {since}; close it: {close}"


def _idempotency(books: _Books) -> Iterator[tuple[str, str]]:
    """Journals are numbered 1, 2, 3 ... without a gap, and labels and reports have one value each."""
    table = schema.event
    with books.ledger.read() as connection:
        expected: dict[str, int] = defaultdict(int)
        query = select(table.c.stream, table.c.sequence).order_by(table.c.stream, table.c.sequence)
        for stream, sequence in connection.execute(query):
            expected[stream] += 1
            if sequence != expected[stream]:
                yield f"journal {stream}", f"entry {expected[stream]} is missing"
                expected[stream] = sequence


def _frozen(books: _Books) -> Iterator[tuple[str, str]]:
    """A closed month has changed by nothing but corrections."""
    for period, kept in closed_totals(books.ledger).items():
        found = month_totals(books.ledger, books.book, period, books.now_ns, rules=books.rules)
        for lease_id in sorted({*kept, *found}):
            then, now = kept.get(lease_id, (0, ""))[0], found.get(lease_id, (0, ""))[0]
            if then != now:
                yield f"lease {lease_id}", f"cost {pico_text(then)} when {period} was closed, {pico_text(now)} now"


def _categories(books: _Books) -> Iterator[tuple[str, str]]:
    """Every category is a known one, so that no report leaves one out."""
    for line in books.lines.lines:
        if line.category not in CATEGORIES:
            yield f"lease {line.lease.lease_id}", f"{line.category!r} is no category; one of {', '.join(CATEGORIES)}"


def _commitments(books: _Books) -> Iterator[tuple[str, str]]:
    """What leases name was bought; it is used or unused, exactly, and no more of it is used than there is."""
    for lease_id, name in books.other.commitment_usage.unknown.items():
        yield (
            f"lease {lease_id}",
            f"names commitment {name!r}, which nobody entered; python -m cost commitments add {name}",
        )
    found: dict[str, int] = defaultdict(int)
    for line in books.lines.lines:
        if line.commitment and line.category != "tax":
            found[line.commitment] += line.pico
    for one in books.other.commitment_usage.begun:
        due = one.amortised(books.now_ns)
        if found[one.name] != due:
            yield f"commitment {one.name}", f"{pico_text(due)} amortised, {pico_text(found[one.name])} attributed"
    for over in books.other.commitment_usage.overused:
        one, at = over.commitment, instant_text(over.at_ns)
        used, bought = (f"{float(rate * NS_PER_HOUR / PICO_PER_UNIT):g}" for rate in (over.used, over.bought))
        what = f"{used} {one.price.currency} an hour are used of the {bought} bought, at {at}"
        if one.kind != "savings_plan":
            what = f"{over.used / over.bought * one.cards} cards run on the {one.cards} bought, at {at}"
        yield f"commitment {one.name}", what


CHECKS: dict[str, Callable[[_Books], Iterator[tuple[str, str]]]] = {
    "card_time": _card_time,
    "cards": _cards,
    "categories": _categories,
    "closed": _closed,
    "commitments": _commitments,
    "conservation": _conservation,
    "frozen": _frozen,
    "idempotency": _idempotency,
    "monotone": _monotone,
    "not_negative": _not_negative,
    "over_reported": _over_reported,
}

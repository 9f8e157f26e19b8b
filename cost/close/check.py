"""Checks of a ledger. Each has a name and returns its findings; an intact ledger has none. Nothing is repaired."""

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
"""Intervals of two drivers may overlap by this much, because their clocks differ."""


@dataclass(frozen=True)
class CheckFinding:
    """A problem in the ledger: the name of the check, the place and a description."""

    check: str
    where: str
    what: str


@dataclass(frozen=True)
class _CheckInputs:
    ledger: Ledger
    book: PriceBook
    rules: Sequence[BillingRule]
    now_ns: int
    attribution: Attribution
    charge_inputs: ChargeInputs


def run_checks(
    ledger: Ledger, book: PriceBook, now_ns: int, *, rules: Sequence[BillingRule] | None = None
) -> list[CheckFinding]:
    """Run `priced`, then all other checks in the order of their names.

    Raises:
        StoreError: the file of the ledger is damaged.
    """
    ledger.check_file()
    rules = billing_rules(book) if rules is None else rules
    charge_inputs = load_charge_inputs(ledger, book, ledger.leases.find(), now_ns)
    found = [CheckFinding("priced", *problem) for problem in _unpriced(ledger, rules, now_ns, charge_inputs)]
    inputs = _CheckInputs(ledger, book, rules, now_ns, attribute(ledger, book, now_ns, rules=rules), charge_inputs)
    for name, check in sorted(CHECKS.items()):
        found += [CheckFinding(name, where, what) for where, what in check(inputs)]
    return found


def _unpriced(
    ledger: Ledger, rules: Sequence[BillingRule], now_ns: int, charge_inputs: ChargeInputs
) -> Iterator[tuple[str, str]]:
    for state in ledger.leases.find():
        where = f"lease {state.lease.lease_id}"
        if problem := charge_lease(state, rules, now_ns, charge_inputs).problem:
            yield where, f"UNPRICED: {problem}"


def _conservation(inputs: _CheckInputs) -> Iterator[tuple[str, str]]:
    """The attributed cost of each lease, without tax and corrections, equals its charge."""
    attributed: dict[str, int] = defaultdict(int)
    for line in inputs.attribution.lines:
        if "corrected" not in line.flags and line.category != "tax":
            attributed[line.lease.lease_id] += line.pico
    for state in inputs.attribution.leases:
        due = total(charge_lease(state, inputs.rules, inputs.now_ns, inputs.charge_inputs).segments)
        found = attributed[state.lease.lease_id]
        if due != found:
            yield f"lease {state.lease.lease_id}", f"charged {pico_text(due)}, attributed {pico_text(found)}"


def _card_time(inputs: _CheckInputs) -> Iterator[tuple[str, str]]:
    """Every card-nanosecond of a lease has exactly one category."""
    categorised: dict[str, int] = defaultdict(int)
    for line in inputs.attribution.lines:
        categorised[line.lease.lease_id] += line.micro_card_ns
    for state in inputs.attribution.leases:
        to_ns = inputs.now_ns if state.to_ns is None else state.to_ns
        due = state.lease.cards * schema.MICRO_PER_CARD * max(to_ns - state.from_ns, 0)
        if categorised[state.lease.lease_id] != due:
            yield (
                f"lease {state.lease.lease_id}",
                f"{categorised[state.lease.lease_id]} of {due} micro-card-ns have a category",
            )


def _cards(inputs: _CheckInputs) -> Iterator[tuple[str, str]]:
    """The attempts of a machine never use more cards than it has."""
    events: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for usage in inputs.attribution.usages.values():
        micro = int(usage.cards * schema.MICRO_PER_CARD)
        to_ns = inputs.now_ns if usage.to_ns is None else usage.to_ns
        if to_ns - SKEW_NS > usage.from_ns:
            events[usage.key.lease_id] += [(usage.from_ns, micro), (to_ns - SKEW_NS, -micro)]
    for state in inputs.attribution.leases:
        in_use = 0
        for at_ns, change in sorted(events[state.lease.lease_id]):
            in_use += change
            if in_use > state.lease.cards * schema.MICRO_PER_CARD:
                cards = in_use / schema.MICRO_PER_CARD
                yield (
                    f"lease {state.lease.lease_id}",
                    f"{cards:g} of {state.lease.cards} cards in use at {instant_text(at_ns)}",
                )
                break


def _not_negative(inputs: _CheckInputs) -> Iterator[tuple[str, str]]:
    """No interval ends before it starts, and only corrections are negative."""
    for usage in inputs.attribution.usages.values():
        if usage.to_ns is not None and usage.to_ns < usage.from_ns:
            yield str(usage.key), f"ends {usage.from_ns - usage.to_ns} ns before it starts"
    for state in inputs.attribution.leases:
        if state.to_ns is not None and state.to_ns < state.from_ns:
            yield f"lease {state.lease.lease_id}", f"ends {state.from_ns - state.to_ns} ns before it starts"
    for line in inputs.attribution.lines:
        if line.pico < 0 and "corrected" not in line.flags and line.category != "unused_commitment":
            yield f"lease {line.lease.lease_id}", f"{line.category} of {pico_text(line.pico)} {line.lease.currency}"


def _monotone(inputs: _CheckInputs) -> Iterator[tuple[str, str]]:
    """A usage lies within its lease, and the heartbeats of a usage within the usage."""
    leases = {state.lease.lease_id: state for state in inputs.attribution.leases}
    for usage in inputs.attribution.usages.values():
        lease = leases[usage.key.lease_id]
        if usage.from_ns < lease.from_ns or (
            lease.to_ns is not None and (usage.to_ns or lease.to_ns + 1) > lease.to_ns
        ):
            yield str(usage.key), "is not within its lease"
        if usage.to_ns is not None and usage.last_heartbeat_ns > usage.to_ns + SKEW_NS:
            yield str(usage.key), "has a heartbeat after its end"


def _over_reported(inputs: _CheckInputs) -> Iterator[tuple[str, str]]:
    """No trial reports more card time than it used."""
    keys = {(x.lease.lease_id, x.trial_id, x.attempt) for x in inputs.attribution.lines if "over_reported" in x.flags}
    for lease_id, trial_id, attempt in sorted(keys):
        yield f"lease {lease_id} trial {trial_id} attempt {attempt}", "reported more card time than it used"


def _closed(inputs: _CheckInputs) -> Iterator[tuple[str, str]]:
    """Every open lease that a sweep opened has heartbeats, unless its machine was stopped by hand."""
    for state in inputs.attribution.leases:
        stopped = change_at(inputs.charge_inputs.state_changes, state.lease.lease_id, inputs.now_ns)
        if stopped is not None and stopped.state != RUNNING:
            continue
        if state.to_ns is None and state.lease.opened_by == "sweep":
            silent = inputs.now_ns - state.last_heartbeat_ns
            if silent >= SILENT_NS:
                since = instant_text(state.last_heartbeat_ns)
                close = f"python -m cost leases close {state.lease.lease_id}"
                yield (
                    f"lease {state.lease.lease_id}",
                    f"is open, but has had no heartbeat since {since}; close it with: {close}",
                )


def _idempotency(inputs: _CheckInputs) -> Iterator[tuple[str, str]]:
    """The events of every journal are numbered 1, 2, 3 ... without a gap."""
    table = schema.event
    with inputs.ledger.read() as connection:
        expected: dict[str, int] = defaultdict(int)
        query = select(table.c.stream, table.c.sequence).order_by(table.c.stream, table.c.sequence)
        for stream, sequence in connection.execute(query):
            expected[stream] += 1
            if sequence != expected[stream]:
                yield f"journal {stream}", f"event {expected[stream]} is missing"
                expected[stream] = sequence


def _frozen(inputs: _CheckInputs) -> Iterator[tuple[str, str]]:
    """The cost of a closed month has changed only by corrections."""
    for period, stored in closed_totals(inputs.ledger).items():
        found = month_totals(inputs.ledger, inputs.book, period, inputs.now_ns, rules=inputs.rules)
        for lease_id in sorted({*stored, *found}):
            then, now = stored.get(lease_id, (0, ""))[0], found.get(lease_id, (0, ""))[0]
            if then != now:
                yield f"lease {lease_id}", f"cost {pico_text(then)} when {period} was closed, {pico_text(now)} now"


def _categories(inputs: _CheckInputs) -> Iterator[tuple[str, str]]:
    """Every category is one of CATEGORIES, so that reports include all cost."""
    for line in inputs.attribution.lines:
        if line.category not in CATEGORIES:
            yield (
                f"lease {line.lease.lease_id}",
                f"{line.category!r} is not a category; the categories are {', '.join(CATEGORIES)}",
            )


def _commitments(inputs: _CheckInputs) -> Iterator[tuple[str, str]]:
    """Every commitment that a lease names exists, is attributed exactly, and is not used beyond its capacity."""
    for lease_id, name in inputs.charge_inputs.commitment_usage.unknown.items():
        yield (
            f"lease {lease_id}",
            f"names commitment {name!r}, which does not exist; add it with: python -m cost commitments add {name}",
        )
    found: dict[str, int] = defaultdict(int)
    for line in inputs.attribution.lines:
        if line.commitment and line.category != "tax":
            found[line.commitment] += line.pico
    for commitment in inputs.charge_inputs.commitment_usage.begun:
        due = commitment.amortised(inputs.now_ns)
        if found[commitment.name] != due:
            yield (
                f"commitment {commitment.name}",
                f"{pico_text(due)} amortised, {pico_text(found[commitment.name])} attributed",
            )
    for over in inputs.charge_inputs.commitment_usage.overused:
        commitment, at = over.commitment, instant_text(over.at_ns)
        used, bought = (f"{float(rate * NS_PER_HOUR / PICO_PER_UNIT):g}" for rate in (over.used, over.bought))
        what = f"{used} {commitment.price.currency} per hour are used, but only {bought} were bought, at {at}"
        if commitment.kind != "savings_plan":
            cards = over.used / over.bought * commitment.cards
            what = f"{cards} cards are used, but only {commitment.cards} were bought, at {at}"
        yield f"commitment {commitment.name}", what


CHECKS: dict[str, Callable[[_CheckInputs], Iterator[tuple[str, str]]]] = {
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

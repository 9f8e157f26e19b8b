"""The ledger against a provider's bill: per lease and day, and per commitment, the difference and its causes.

Causes sum to the difference exactly. Own hardware, and what was only simulated, is on nobody's bill and is left out.
Nothing is written here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from typing import TYPE_CHECKING

from cost.bills import commitment_purchases
from cost.bills.differences import DAY_NS, KIND, NS, SEPARATE_KINDS, Cause, Comparison, Reconciliation
from cost.bills.reader import Bill, BillLine, period_of
from cost.charges import commitments
from cost.charges.attribution import CostLine, attribute
from cost.prices.billing import BillingRule, load_rules, rule_for
from cost.prices.book import PriceBook, PriceRow, pico_per_hour
from cost.prices.fx import Conversion, Rate, convert, rate_notes
from cost.records import Lease, LeaseState

if TYPE_CHECKING:
    from cost.ledger.ledger import Ledger

_MATCH_SLACK_NS = 3600 * NS


@dataclass(frozen=True)
class _LedgerCosts:
    """What the ledger says: lines cut at days, and the prices."""

    lines: dict[str, list[CostLine]]
    book: PriceBook
    rates: Sequence[Rate]
    rules: Sequence[BillingRule]


def reconcile(
    ledger: Ledger,
    book: PriceBook,
    bill: Bill,
    now_ns: int,
    *,
    rates: Sequence[Rate] = (),
    rules: Sequence[BillingRule] | None = None,
) -> Reconciliation:
    """Compares a bill with the books, over the days that the bill is about.

    Raises:
        PriceError: a price, a billing rule or an exchange rate is missing.
    """
    first, last = period_of(bill)
    cuts = list(range(first, last + DAY_NS, DAY_NS))
    rules = load_rules(book.folder) if rules is None else rules
    found = attribute(ledger, book, now_ns, cuts=cuts, rules=rules)
    by_lease: dict[str, list[CostLine]] = defaultdict(list)
    for line in found.lines:
        if first <= line.from_ns < last and is_billable(line):
            by_lease[line.lease.lease_id].append(line)
    states = {s.lease.lease_id: s for s in found.leases}
    books = _LedgerCosts(by_lease, book, rates, rules)
    notes: list[Conversion] = []
    bought, rest = commitment_purchases.match_purchases(bill, commitments.load_commitments(ledger))
    comparisons = commitment_purchases.compare_purchases(bill, bought, rates, notes)
    matched, missing = _match(bill, rest, found.leases)
    for lease_id, lines in matched.items():
        comparisons += _compare_lease(books, states[lease_id].lease, lines, (first, last), notes)
    providers = {states[lease_id].lease.provider for lease_id in matched} | {bill.map.provider} - {""}
    providers |= {one.provider for one, _ in bought}
    unbilled = commitment_purchases.purchases_not_billed(bill, commitments.load_commitments(ledger), bought, providers)
    for lease_id, lines in by_lease.items():
        pico = sum(line.pico for line in lines)
        lease = states[lease_id].lease
        if lease_id not in matched and pico and (lease.provider in providers or not providers):
            unbilled.append((lease, pico))
    return Reconciliation(bill, tuple(comparisons), tuple(missing), tuple(unbilled), rate_notes(notes))


def is_billable(line: CostLine) -> bool:
    """Whether it is charged for itself: not own hardware, not simulated, not paid for by a commitment's purchase."""
    return not line.imputed and not line.lease.simulated and not line.commitment


def _match(
    bill: Bill, lines: Sequence[BillLine], states: Iterable[LeaseState]
) -> tuple[dict[str, list[BillLine]], list[BillLine]]:
    """Bill lines by lease: by resource id, instance id or lease id, and among several leases of one machine by time."""
    known: dict[str, list[LeaseState]] = defaultdict(list)
    for state in states:
        lease = state.lease
        if bill.map.provider in ("", lease.provider):
            for name in {lease.resource_id, lease.instance_id, lease.lease_id} - {""}:
                known[name].append(state)
    matched: dict[str, list[BillLine]] = defaultdict(list)
    missing: list[BillLine] = []
    for line in lines:
        candidates = known.get(line.resource) or known.get(line.resource.rsplit("/", 1)[-1], [])
        held = [(s, _overlap(line, s)) for s in candidates]
        best = max(held, key=lambda pair: pair[1], default=None)
        if best is None or best[1] <= 0:
            missing.append(line)
        else:
            matched[best[0].lease.lease_id].append(line)
    return dict(matched), missing


def _overlap(line: BillLine, state: LeaseState) -> int:
    """Nanoseconds that a line and a lease share, with some slack: a machine's clock and its provider's may differ."""
    end = state.to_ns if state.to_ns is not None else line.to_ns + _MATCH_SLACK_NS
    start = state.from_ns - _MATCH_SLACK_NS
    return min(line.to_ns, end + _MATCH_SLACK_NS) - max(line.from_ns, start)


def _compare_lease(
    books: _LedgerCosts, lease: Lease, lines: list[BillLine], period: tuple[int, int], notes: list[Conversion]
) -> list[Comparison]:
    daily = all(line.from_ns // DAY_NS == (max(line.to_ns, line.from_ns + 1) - 1) // DAY_NS for line in lines)
    billed: dict[tuple[int, str], list[BillLine]] = defaultdict(list)
    booked: dict[tuple[int, str], list[CostLine]] = defaultdict(list)
    for line in lines:
        day = line.from_ns // DAY_NS if daily else 0
        billed[day, KIND.get(line.kind, line.kind)].append(line)
    for line in books.lines.get(lease.lease_id, []):
        day = line.from_ns // DAY_NS if daily else 0
        booked[day, SEPARATE_KINDS.get(line.category, "machine")].append(line)
    found = []
    for day, kind in sorted({*billed, *booked}):
        span = (day * DAY_NS, (day + 1) * DAY_NS) if daily else period
        found.append(_compare(books, lease, kind, span, billed[day, kind], booked[day, kind], notes))
    return found


def _compare(
    books: _LedgerCosts,
    lease: Lease,
    kind: str,
    span: tuple[int, int],
    billed: list[BillLine],
    booked: list[CostLine],
    notes: list[Conversion],
) -> Comparison:
    foreign = any(line.currency != lease.currency for line in billed)
    bill_pico = 0
    for line in billed:
        day = datetime.fromtimestamp(line.from_ns // NS, UTC).date()
        conversion = convert(line.pico, line.currency, lease.currency, day, books.rates)
        bill_pico += conversion.pico
        notes.append(conversion)
    ledger_pico = sum(line.pico for line in booked)
    idle = sum(line.pico for line in booked if not line.trial_id and line.category != "billing_increment")
    made = Comparison(lease, kind, *span, bill_pico, ledger_pico, idle if kind == "machine" else 0, ())
    made = replace(made, by_hand_pico=sum(line.pico for line in booked if "by_hand" in line.flags))
    if not made.difference:
        return made
    if kind != "machine":
        return replace(made, causes=(Cause(kind, made.difference, _who_says(made, booked)),))
    return replace(made, causes=tuple(_explain(books, made, billed, booked, foreign)))


def _who_says(made: Comparison, booked: Sequence[CostLine]) -> str:
    """A sentence on a charge that is not machine time: who has it, and whether a person entered it."""
    entered = " (entered by hand with `cost correct`)" if any("by_hand" in line.flags for line in booked) else ""
    if not made.bill_pico:
        return f"the books have {made.kind}{entered}, the bill has none"
    if not made.ledger_pico:
        return f"the bill has {made.kind}, the books have none"
    return f"the bill and the books{entered} have {made.kind} of different amounts"


def manual_conflicts(done: Reconciliation) -> list[Comparison]:
    """Those that truing up would change against what a person entered by hand."""
    return [one for one in done.comparisons if one.by_hand_pico and one.difference]


def _explain(
    books: _LedgerCosts, made: Comparison, billed: list[BillLine], booked: list[CostLine], foreign: bool
) -> list[Cause]:
    """Causes of a difference in machine time; they sum to it."""
    lease, difference = made.lease, made.difference
    tolerance = _tolerance(books.rules, lease, billed)
    if abs(difference) <= tolerance and not foreign:
        return [Cause("rounding", difference, f"within the rounding of the bill's {len(billed)} amounts")]
    if not booked:
        return [Cause("idle", difference, "the machine was billed in time of which the books know nothing")]
    if not billed:
        return [Cause("unbilled_time", difference, "the books have machine time that is not on the bill")]
    hours = _bill_hours(billed, lease.cards)
    book_hours = _book_hours(booked, lease)
    if hours is None or not book_hours or not made.ledger_pico or not hours:
        return [_without_hours(books, made, booked, foreign)]
    book_price = Fraction(made.ledger_pico) / book_hours
    at_our_price = round(hours * book_price)
    found = []
    if time := at_our_price - made.ledger_pico:
        found.append(_time_cause(time, hours - book_hours, len(billed)))
    if rest := difference - time:
        bill_price = Fraction(made.bill_pico) / hours
        text = f"billed at {_text(bill_price)} {lease.currency} an hour of the machine, booked at {_text(book_price)}"
        name = "rounding" if abs(rest) <= tolerance else "fx" if foreign else "price"
        found.append(Cause(name, rest, text))
    return found


def _tolerance(rules: Sequence[BillingRule], lease: Lease, billed: Sequence[BillLine]) -> int:
    """How far rounding can have moved what the bill says, in 1e-12: by half of the last place of each amount as it is
    written, and by what the provider's rule says of its own rounding, per line, or once per day or total."""
    written = sum(line.quantum for line in billed) // 2 + 1
    rule = rule_for(rules, lease.provider, lease.purchase)
    if rule.bill_rounding == "none":
        return written
    times = max(1, len(billed)) if rule.bill_rounding == "line" else 1
    return max(written, int(rule.bill_quantum * 10**12) * times // 2)


def _time_cause(pico: int, hours: Fraction, lines: int) -> Cause:
    seconds = hours * 3600
    if abs(seconds) <= max(60, lines):
        return Cause("rounding", pico, f"{float(seconds):+.3f} s of machine time")
    if seconds > 0:
        return Cause("idle", pico, f"{float(hours):.4f} h billed in which the machine was not in the books")
    return Cause("unbilled_time", pico, f"{float(-hours):.4f} h in the books that are not on the bill")


def _without_hours(books: _LedgerCosts, made: Comparison, booked: list[CostLine], foreign: bool) -> Cause:
    """The bill gives no time: is it another price of the book, or the exchange rate?"""
    lease = made.lease
    rows = {line.price for line in booked if line.price is not None}
    if len(rows) == 1 and made.ledger_pico:
        (row,) = rows
        for other in books.book.rows:
            if other.sku != row.sku or other.price == row.price or not row.price or other.currency != row.currency:
                continue
            expected = Fraction(made.ledger_pico) * Fraction(other.price) / Fraction(row.price)
            if abs(expected - made.bill_pico) <= max(expected / 1000, 1):
                text = f"billed at {_price_text(other)}, booked at {_price_text(row)}"
                return Cause("price", made.difference, text)
    if foreign and made.ledger_pico and abs(Fraction(made.difference, made.ledger_pico)) < Fraction(1, 20):
        return Cause("fx", made.difference, f"the provider's rate to {lease.currency} is another than ours")
    return Cause("unexplained", made.difference, "the bill gives no machine time to compare")


def _bill_hours(billed: Iterable[BillLine], cards: int) -> Fraction | None:
    total = Fraction(0)
    for line in billed:
        if line.seconds is not None:
            total += line.seconds
        elif line.card_seconds is not None:
            total += line.card_seconds / cards
        else:
            return None
    return total / 3600


def _book_hours(booked: Iterable[CostLine], lease: Lease) -> Fraction:
    """Hours of the machine that were charged: cost over the price of an hour, line by line."""
    hourly: dict[PriceRow, Fraction] = {}
    total = Fraction(0)
    for line in booked:
        if line.price is None:
            continue
        if line.price not in hourly:
            hourly[line.price] = pico_per_hour(line.price, lease.cards, lease.watts or 0)
        if hourly[line.price]:
            total += line.pico / hourly[line.price]
    return total


def _text(pico_an_hour: Fraction) -> str:
    return f"{float(pico_an_hour / 10**12):.6g}"


def _price_text(row: PriceRow) -> str:
    return f"{row.price} {row.currency} per {row.per} ({row.kind}, from {row.valid_from})"

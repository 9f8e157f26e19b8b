"""Commitments: capacity bought for a period, the part of it that each lease uses, and the part that is left unused.

A commitment (reserved capacity, a capacity block, a savings plan) is paid once, for a number of cards and a period. Its
price is amortised evenly over that period. A lease names its commitment in the tag `commitment` and then costs a part
of the amortised price: its cards' share, or for a savings plan, which commits to an amount of money, its time at the
plan's own price of the machine. The part that no lease uses is `unused_commitment`. At every moment, the used and the
unused parts sum to the amortised price exactly. Leases that together use more than was bought share the amortised
price.

Only `add_commitment` and the functions that load commitments access the ledger; all others are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from fractions import Fraction
from itertools import pairwise
from math import floor

from cost.clock import NS_PER_HOUR
from cost.ledger.ledger import Ledger
from cost.ledger.schema import MICRO_PER_CARD
from cost.money import Money
from cost.periods import instant_text, period_name
from cost.prices.billing import Segment
from cost.prices.book import PriceBook, PriceError, in_force, pico_per_hour
from cost.records import IntegrityError, Lease, LeaseState, LedgerError

STREAM = "commitments"
TAG = "commitment"
KINDS = ("reserved", "capacity_block", "savings_plan")
PREFIX = "commitment:"
"""A segment that a commitment covers has this prefix and the commitment's name in place of a price hash."""


@dataclass(frozen=True)
class Commitment:
    """A purchase of capacity. `kind` is one of KINDS; it lasts from `from_ns` to `to_ns` (exclusive)."""

    name: str
    kind: str
    provider: str
    sku: str
    cards: int
    price: Money
    from_ns: int
    to_ns: int
    owner: str = ""
    project: str = ""

    @property
    def lease(self) -> Lease:
        """A lease that stands for the commitment in reports of the purchase and of the unused part."""
        return Lease(
            lease_id=f"{PREFIX}{self.name}",
            instance_id=f"{PREFIX}{self.name}",
            machine=self.name,
            sku=self.sku,
            provider=self.provider,
            cards=self.cards,
            currency=self.price.currency,
            price_hash=None,
            purchase=self.kind,
            owner=self.owner,
            project=self.project,
            tags={TAG: self.name},
        )

    def amortised(self, at_ns: int) -> int:
        """The part of the price, in 1e-12, that is amortised by a moment; floored."""
        elapsed = min(max(at_ns, self.from_ns), self.to_ns) - self.from_ns
        return self.price.pico * elapsed // (self.to_ns - self.from_ns)


@dataclass(frozen=True)
class UnusedCommitment:
    """An interval of a commitment, and the part of its price that no lease used. Rounding can make it -1e-12 or so."""

    commitment: Commitment
    from_ns: int
    to_ns: int
    pico: int
    micro_card_ns: int


@dataclass(frozen=True)
class CommitmentCoverage:
    """The segments of a lease that its commitment covers, without a gap."""

    commitment: Commitment
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class CommitmentOveruse:
    """The start of an interval in which more is used than was bought; both in 1e-12 of the currency per nanosecond."""

    commitment: Commitment
    at_ns: int
    used: Fraction
    bought: Fraction


@dataclass(frozen=True)
class CommitmentUsage:
    """The use of all commitments up to a moment."""

    covered: Mapping[str, CommitmentCoverage] = field(default_factory=dict)
    """By lease id."""
    unused: tuple[UnusedCommitment, ...] = ()
    begun: tuple[Commitment, ...] = ()
    """The commitments that have begun."""
    overused: tuple[CommitmentOveruse, ...] = ()
    """The first interval of each overused commitment."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """By lease id: the name of a commitment that was never entered. The price book applies to these leases."""
    invalid: Mapping[str, str] = field(default_factory=dict)
    """By lease id: why the commitment that a lease names cannot pay for it."""


def add_commitment(ledger: Ledger, commitment: Commitment, closed_months: Iterable[str]) -> bool:
    """Enter a commitment. Returns False if it was entered before.

    Raises:
        LedgerError: a field is invalid.
        IntegrityError: another commitment has this name, or the commitment would change a closed month.
    """
    if commitment.kind not in KINDS:
        raise LedgerError(f"{commitment.kind!r} is not a kind of commitment; choose one of {', '.join(KINDS)}")
    period_ns, price = commitment.to_ns - commitment.from_ns, commitment.price.pico
    if not commitment.name.strip() or commitment.cards < 1 or period_ns <= 0 or price <= 0:
        raise LedgerError(
            f"commitment {commitment.name!r} needs a name, at least one card, an end after its start, and a price "
            "above zero"
        )
    for earlier in load_commitments(ledger):
        if earlier.name == commitment.name:
            if earlier == commitment:
                return False
            terms = vars(commitment)
            differs = [f"{k} {v}" for k, v in vars(earlier).items() if terms[k] != v and not k.endswith("_ns")]
            if (earlier.from_ns, earlier.to_ns) != (commitment.from_ns, commitment.to_ns):
                differs.append(f"{instant_text(earlier.from_ns)} to {instant_text(earlier.to_ns)}")
            raise IntegrityError(
                f"commitment {commitment.name} was entered before with other terms: {', '.join(differs)}"
            )
    first, last = (period_name(ns, "month", UTC) for ns in (commitment.from_ns, commitment.to_ns - 1))
    for month in closed_months:
        if first <= month <= last:
            raise IntegrityError(f"commitment {commitment.name} would change {month}, which is closed")
    body = {k: v for k, v in vars(commitment).items() if k != "price"} | {"price": str(commitment.price)}
    return ledger.events.append(STREAM, "bought", body, commitment.name)


def load_commitments(ledger: Ledger, as_of_ns: int | None = None) -> list[Commitment]:
    """The commitments in the order they were entered, as recorded at a moment (None: now)."""
    return [
        Commitment(**{**event.body, "price": Money.parse(event.body["price"])})
        for event in ledger.events.read(STREAM)
        if as_of_ns is None or event.at_ns <= as_of_ns
    ]


def find_commitment(ledger: Ledger, name: str) -> Commitment:
    """The commitment with a name. Raises LedgerError if there is none."""
    for commitment in load_commitments(ledger):
        if commitment.name == name:
            return commitment
    raise LedgerError(f"there is no commitment {name!r}; enter it with: python -m cost commitments add {name}")


def commitment_usage(
    commitments: Sequence[Commitment],
    states: Sequence[LeaseState],
    now_ns: int,
    cuts: Sequence[int] = (),
    book: PriceBook | None = None,
) -> CommitmentUsage:
    """The use of each commitment up to `now_ns`. `states`: all leases.

    No segment crosses one of `cuts`; cuts change the total of no lease. `book`: the price book with the prices of
    savings plans. A machine without such a price uses its cards' share.
    """
    covered: dict[str, CommitmentCoverage] = {}
    unused: list[UnusedCommitment] = []
    over: list[CommitmentOveruse] = []
    invalid: dict[str, str] = {}
    for commitment in commitments:
        tagged = [s for s in states if s.lease.tags.get(TAG) == commitment.name and not s.lease.simulated]
        users = [state for state in tagged if state.lease.currency == commitment.price.currency]
        invalid |= {
            state.lease.lease_id: f"lease {state.lease.lease_id} is in {state.lease.currency}, but its commitment "
            f"{commitment.name} was paid in {commitment.price.currency}"
            for state in tagged
            if state not in users
        }
        rates = {state.lease.lease_id: drawdown_rate(commitment, state.lease, book) for state in users}
        segments, unused_parts, overuses = _split(commitment, users, rates, min(now_ns, commitment.to_ns), cuts)
        unused += unused_parts
        over += overuses[:1]
        covered.update(
            {lease_id: CommitmentCoverage(commitment, tuple(own)) for lease_id, own in segments.items() if own}
        )
    names = {commitment.name for commitment in commitments}
    named = {s.lease.lease_id: s.lease.tags[TAG] for s in states if TAG in s.lease.tags and not s.lease.simulated}
    unknown = {lease_id: name for lease_id, name in named.items() if name not in names}
    begun = tuple(commitment for commitment in commitments if commitment.from_ns <= now_ns)
    return CommitmentUsage(covered, tuple(unused), begun, tuple(over), unknown, invalid)


def drawdown_rate(commitment: Commitment, lease: Lease, book: PriceBook | None) -> Fraction:
    """The part of a commitment that a lease uses, in 1e-12 of its currency per nanosecond, while enough is left."""
    share = Fraction(commitment.price.pico * lease.cards, commitment.cards * (commitment.to_ns - commitment.from_ns))
    if commitment.kind != "savings_plan" or book is None:
        return share
    try:
        series = book.series(lease.sku, purchase="savings_plan", region=lease.region or None)
        # A plan's prices are those of the day on which it began.
        row = in_force(series, commitment.from_ns) or series[0]
        return pico_per_hour(row, lease.cards) / NS_PER_HOUR if row.currency == commitment.price.currency else share
    except PriceError:
        return share


def _split(
    commitment: Commitment,
    users: Sequence[LeaseState],
    rates: Mapping[str, Fraction],
    end_ns: int,
    cuts: Sequence[int],
) -> tuple[dict[str, list[Segment]], list[UnusedCommitment], list[CommitmentOveruse]]:
    """The segments of each lease that uses the commitment, the unused parts, and the intervals of overuse."""
    spans = {}
    for state in users:
        start = max(state.from_ns, commitment.from_ns)
        stop = end_ns if state.to_ns is None else min(state.to_ns, end_ns)
        if start < stop:
            spans[state.lease.lease_id] = (start, stop)
    edges = {commitment.from_ns, end_ns, *(edge for span in spans.values() for edge in span), *cuts}
    ordered = sorted(edge for edge in edges if commitment.from_ns <= edge <= end_ns)
    capacity = Fraction(commitment.price.pico, commitment.to_ns - commitment.from_ns)
    exact: dict[str, Fraction] = dict.fromkeys(spans, Fraction(0))
    segments: dict[str, list[Segment]] = {lease_id: [] for lease_id in spans}
    unused: list[UnusedCommitment] = []
    over: list[CommitmentOveruse] = []
    for start, stop in pairwise(ordered):
        active = [lease_id for lease_id, (a, b) in spans.items() if a <= start < b]
        used = sum((rates[lease_id] for lease_id in active), Fraction(0))
        if used > capacity:
            over.append(CommitmentOveruse(commitment, start, used, capacity))
        left = commitment.amortised(stop) - commitment.amortised(start)
        for lease_id in active:
            # A running total is floored, so that a lease's part does not depend on the cuts.
            before = floor(exact[lease_id])
            exact[lease_id] += rates[lease_id] * (stop - start) * (capacity / max(used, capacity))
            pico = floor(exact[lease_id]) - before
            segments[lease_id].append(Segment(start, stop, pico, "machine", f"{PREFIX}{commitment.name}", stop - start))
            left -= pico
        free = floor(commitment.cards * MICRO_PER_CARD * (stop - start) * (1 - min(used / capacity, 1)))
        if left or free:
            unused.append(UnusedCommitment(commitment, start, stop, left, free))
    return segments, unused, over

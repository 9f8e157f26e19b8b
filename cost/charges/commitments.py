"""Capacity that was bought for a time: what of it each lease uses, and what is left unused. Pure but for one journal.

A commitment (reserved capacity, a capacity block, a savings plan) is paid once, for so many cards from one moment to
another. Its price is amortised evenly over that time. A lease names the one it runs on in its tag `commitment` and then
costs its part of it: its cards' share, or, of a savings plan, what its time comes to at the plan's own price of its
machine, since what was committed to there is money. What no lease uses is `unused_commitment`. Uses and rest sum to the
amortised price exactly, at every moment. Leases that use more than was bought share what there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from fractions import Fraction
from itertools import pairwise
from math import floor

from cost.ledger.ledger import Ledger
from cost.ledger.schema import MICRO_PER_CARD
from cost.money import Money
from cost.periods import instant_text, period_name
from cost.prices.billing import Segment
from cost.prices.book import NS_PER_HOUR, PriceBook, PriceError, in_force, pico_per_hour
from cost.records import IntegrityError, Lease, LeaseState, LedgerError

STREAM = "commitments"
TAG = "commitment"
KINDS = ("reserved", "capacity_block", "savings_plan")
PREFIX = "commitment:"
"""What stands in a segment in place of a price's hash, before the commitment's name."""


@dataclass(frozen=True)
class Commitment:
    """What was bought. `kind` is one of KINDS; it lasts from `from_ns` to before `to_ns`."""

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
        """What reports show for what no lease used, and for the purchase."""
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
        """The part of the price, in 1e-12, that lies before a moment; floored."""
        elapsed = min(max(at_ns, self.from_ns), self.to_ns) - self.from_ns
        return self.price.pico * elapsed // (self.to_ns - self.from_ns)


@dataclass(frozen=True)
class UnusedCommitment:
    """A stretch of a commitment and the part of its price that no lease used. Rounding may make it -1e-12 or so."""

    commitment: Commitment
    from_ns: int
    to_ns: int
    pico: int
    micro_card_ns: int


@dataclass(frozen=True)
class CommitmentCoverage:
    """What a lease uses of its commitment: segments without a gap, from when to when it is covered."""

    commitment: Commitment
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class CommitmentOveruse:
    """From a moment on more is used of a commitment than was bought: both in 1e-12 of its currency per nanosecond."""

    commitment: Commitment
    at_ns: int
    used: Fraction
    bought: Fraction


@dataclass(frozen=True)
class CommitmentUsage:
    """All commitments at a moment."""

    covered: Mapping[str, CommitmentCoverage] = field(default_factory=dict)
    """By lease."""
    unused: tuple[UnusedCommitment, ...] = ()
    bought: tuple[Commitment, ...] = ()
    """Those that have begun."""
    over: tuple[CommitmentOveruse, ...] = ()
    """The first moment of each commitment."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Leases that name a commitment which nobody entered, and its name: the price book counts for them."""


def add_commitment(ledger: Ledger, new: Commitment, frozen: Iterable[str]) -> bool:
    """Enter what was bought. Returns False where it was there already. `frozen`: months that are closed.

    Raises:
        LedgerError: a field is wrong.
        IntegrityError: another one has this name, or it would change a closed month.
    """
    if new.kind not in KINDS:
        raise LedgerError(f"{new.kind!r} is no kind of commitment; one of {', '.join(KINDS)}")
    if not new.name.strip() or new.cards < 1 or new.to_ns <= new.from_ns or new.price.pico <= 0:
        raise LedgerError(
            f"commitment {new.name!r} needs a name, one card or more, an end after its start, and a price above zero"
        )
    for earlier in load_commitments(ledger):
        if earlier.name == new.name:
            if earlier == new:
                return False
            differs = [f"{k} {v}" for k, v in vars(earlier).items() if vars(new)[k] != v and not k.endswith("_ns")]
            if (earlier.from_ns, earlier.to_ns) != (new.from_ns, new.to_ns):
                differs.append(f"{instant_text(earlier.from_ns)} to {instant_text(earlier.to_ns)}")
            raise IntegrityError(f"commitment {new.name} was entered before with other terms: {', '.join(differs)}")
    first, last = (period_name(ns, "month", UTC) for ns in (new.from_ns, new.to_ns - 1))
    for month in frozen:
        if first <= month <= last:
            raise IntegrityError(f"commitment {new.name} would change {month}, which is closed")
    body = {k: v for k, v in vars(new).items() if k != "price"} | {"price": str(new.price)}
    return ledger.events.append(STREAM, "bought", body, new.name)


def load_commitments(ledger: Ledger, as_of_ns: int | None = None) -> list[Commitment]:
    """What was bought, in the order it was entered, as it was known at a moment (None: now)."""
    found = []
    for event in ledger.events.read(STREAM):
        if as_of_ns is None or event.at_ns <= as_of_ns:
            found.append(Commitment(**{**event.body, "price": Money.parse(event.body["price"])}))
    return found


def find_commitment(ledger: Ledger, name: str) -> Commitment:
    """The commitment of a name. Raises LedgerError where there is none."""
    for one in load_commitments(ledger):
        if one.name == name:
            return one
    raise LedgerError(f"there is no commitment {name!r}; enter it with: python -m cost commitments add {name}")


def commitment_usage(
    bought: Sequence[Commitment],
    states: Sequence[LeaseState],
    now_ns: int,
    cuts: Sequence[int] = (),
    book: PriceBook | None = None,
) -> CommitmentUsage:
    """Who used what by `now_ns`. `states`: all leases. No piece crosses one of `cuts`, which change no lease's total.

    `book`: where the prices of savings plans stand. A machine that has none there uses its cards' share of one.

    Raises:
        LedgerError: a lease is in another currency than its commitment.
    """
    covered: dict[str, CommitmentCoverage] = {}
    unused: list[UnusedCommitment] = []
    over: list[CommitmentOveruse] = []
    for one in bought:
        mine = [state for state in states if state.lease.tags.get(TAG) == one.name and not state.lease.simulated]
        for state in mine:
            if state.lease.currency != one.price.currency:
                raise LedgerError(
                    f"lease {state.lease.lease_id} is in {state.lease.currency}, and commitment {one.name} that it "
                    f"names was paid in {one.price.currency}"
                )
        claims = {state.lease.lease_id: drawdown_rate(one, state.lease, book) for state in mine}
        segments, rest, beyond = _use_one(one, mine, claims, min(now_ns, one.to_ns), cuts)
        unused += rest
        over += beyond[:1]
        covered.update(
            {lease_id: CommitmentCoverage(one, tuple(found)) for lease_id, found in segments.items() if found}
        )
    names = {one.name for one in bought}
    tagged = {s.lease.lease_id: s.lease.tags[TAG] for s in states if TAG in s.lease.tags and not s.lease.simulated}
    unknown = {lease_id: name for lease_id, name in tagged.items() if name not in names}
    begun = tuple(one for one in bought if one.from_ns <= now_ns)
    return CommitmentUsage(covered, tuple(unused), begun, tuple(over), unknown)


def drawdown_rate(one: Commitment, lease: Lease, book: PriceBook | None) -> Fraction:
    """What a lease uses of a commitment, in 1e-12 of its currency per nanosecond, while there is enough of it."""
    share = Fraction(one.price.pico * lease.cards, one.cards * (one.to_ns - one.from_ns))
    if one.kind != "savings_plan" or book is None:
        return share
    try:
        series = book.series(lease.sku, purchase="savings_plan", region=lease.region or None)
        # A plan's prices are those of the day on which it began.
        row = in_force(series, one.from_ns) or series[0]
        return pico_per_hour(row, lease.cards) / NS_PER_HOUR if row.currency == one.price.currency else share
    except PriceError:
        return share


def _use_one(
    one: Commitment, states: Sequence[LeaseState], claims: Mapping[str, Fraction], end_ns: int, cuts: Sequence[int]
) -> tuple[dict[str, list[Segment]], list[UnusedCommitment], list[CommitmentOveruse]]:
    spans = {}
    for state in states:
        start, stop = max(state.from_ns, one.from_ns), end_ns if state.to_ns is None else min(state.to_ns, end_ns)
        if start < stop:
            spans[state.lease.lease_id] = (start, stop)
    edges = {one.from_ns, end_ns, *(edge for start, stop in spans.values() for edge in (start, stop)), *cuts}
    ordered = sorted(edge for edge in edges if one.from_ns <= edge <= end_ns)
    capacity = Fraction(one.price.pico, one.to_ns - one.from_ns)
    exact: dict[str, Fraction] = dict.fromkeys(spans, Fraction(0))
    segments: dict[str, list[Segment]] = {lease_id: [] for lease_id in spans}
    rest: list[UnusedCommitment] = []
    over: list[CommitmentOveruse] = []
    for start, stop in pairwise(ordered):
        active = [lease_id for lease_id, (a, b) in spans.items() if a <= start < b]
        claimed = sum((claims[lease_id] for lease_id in active), Fraction(0))
        if claimed > capacity:
            over.append(CommitmentOveruse(one, start, claimed, capacity))
        left = one.amortised(stop) - one.amortised(start)
        for lease_id in active:
            # A running total is floored, so that a lease's part does not depend on where it is cut.
            before = floor(exact[lease_id])
            exact[lease_id] += claims[lease_id] * (stop - start) * (capacity / max(claimed, capacity))
            pico = floor(exact[lease_id]) - before
            segments[lease_id].append(Segment(start, stop, pico, "machine", f"{PREFIX}{one.name}", stop - start))
            left -= pico
        free = floor(one.cards * MICRO_PER_CARD * (stop - start) * (1 - min(claimed / capacity, 1)))
        if left or free:
            rest.append(UnusedCommitment(one, start, stop, left, free))
    return segments, rest, over

"""The allocation conserves the charge: tested over random leases, usages and prices."""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from cost.charges.allocation import LeaseHistory, ReportedUsage, allocate
from cost.charges.lease_charge import cut_segments
from cost.ledger.schema import MICRO_PER_CARD
from cost.prices.billing import Segment
from cost.records import CATEGORIES, OUTCOMES, PHASES, Attachment, Lease, LeaseState, Usage, UsageKey

SWEEPS = ("s1", "s2", "s3")
END = 1_000

moments = st.integers(0, END)
durations = st.dictionaries(st.sampled_from(PHASES), st.integers(0, 3 * END), max_size=5)


@st.composite
def intervals(draw, open_ended: bool = True):
    start, stop = sorted((draw(moments), draw(moments)))
    return start, None if open_ended and draw(st.booleans()) else stop


@st.composite
def lease_histories(draw) -> LeaseHistory:
    """Any history, also ones that the ledger refuses: more cards used than leased, more time reported than used."""
    cards = draw(st.integers(1, 8))
    lease = Lease("L", "i", "m", "sku", "p", cards, "USD", None)
    attachments = []
    for sweep in draw(st.lists(st.sampled_from(SWEEPS), max_size=4)):
        start, stop = draw(intervals())
        attachments.append(Attachment("L", sweep, start, stop, None))
    usages = []
    for number in range(1, 1 + draw(st.integers(0, 6))):
        start, stop = draw(intervals())
        outcome = None if stop is None else draw(st.sampled_from(OUTCOMES))
        micro = draw(st.integers(1, cards * MICRO_PER_CARD))
        key = UsageKey("L", f"t{draw(st.integers(1, 3))}", number)
        usage = Usage(
            *(key, draw(st.sampled_from(SWEEPS)), Decimal(micro) / MICRO_PER_CARD, start, stop, outcome),
            *(False, start, {}, False),
        )
        phases = draw(durations)
        unsaved = {kind: draw(st.integers(0, value)) for kind, value in phases.items()}
        usages.append(ReportedUsage(number, usage, phases, unsaved))
    return LeaseHistory(LeaseState(lease, 0, None, None, False, 0, ()), tuple(attachments), tuple(usages))


@st.composite
def charges(draw) -> list[Segment]:
    """Machine time from 0 to END without a gap, at changing prices, with or without a billing increment."""
    edges = [0, *sorted(draw(st.sets(st.integers(1, END - 1), max_size=4))), END]
    prices = st.integers(0, 10**15)
    segments = [Segment(a, b, draw(prices), "machine", "h") for a, b in pairwise(edges)]
    if draw(st.booleans()):
        segments.append(Segment(END, END + draw(st.integers(0, 50)), draw(prices), "billing_increment", "h"))
    return segments


@settings(max_examples=300)
@given(lease_histories(), charges())
def test_every_segment_of_a_charge_is_attributed_exactly(history, segments):
    allocation = allocate(history, segments)
    by_segment: dict[int, int] = defaultdict(int)
    card_time: dict[int, int] = defaultdict(int)
    for cost in allocation.costs:
        by_segment[cost.segment] += cost.pico
        card_time[cost.segment] += cost.micro_card_ns
        assert cost.pico >= 0
        assert cost.micro_card_ns >= 0
        assert cost.category in CATEGORIES
    for index, segment in enumerate(segments):
        assert by_segment[index] == segment.pico
        if segment.category == "machine":
            card_ns = history.state.lease.cards * MICRO_PER_CARD * (segment.to_ns - segment.from_ns)
            assert card_time[index] == card_ns, "every card-nanosecond has one category"


@settings(max_examples=150)
@given(lease_histories(), charges(), st.lists(st.integers(-10, END + 60), max_size=6, unique=True))
def test_cuts_change_no_total(history, segments, cuts):
    pieces = cut_segments(segments, sorted(cuts))
    assert sum(s.pico for s in pieces) == sum(s.pico for s in segments)
    assert all(not s.from_ns < c < s.to_ns for s in pieces for c in cuts)
    whole, cut_up = allocate(history, segments), allocate(history, pieces)
    assert sum(s.pico for s in cut_up.costs) == sum(s.pico for s in whole.costs)
    time: dict[tuple[str, str, str, int], int] = defaultdict(int)
    for sign, costs in ((1, whole.costs), (-1, cut_up.costs)):
        for cost in costs:
            time[cost.lease_id, cost.sweep_id, cost.trial_id, cost.attempt] += sign * cost.micro_card_ns
    assert max(map(abs, time.values()), default=0) <= 6 * len(pieces), (
        "the split of an oversubscribed segment depends on the cuts"
    )


@settings(max_examples=100)
@given(lease_histories(), charges())
def test_oversubscription_is_reported_exactly_when_attempts_claim_more_cards_than_there_are(history, segments):
    allocation = allocate(history, segments)
    capacity, claimed_too_much = history.state.lease.cards, False
    for at in range(END):
        claimed = sum(
            u.usage.cards
            for u in history.usages
            if u.usage.from_ns <= at < (END if u.usage.to_ns is None else u.usage.to_ns)
        )
        claimed_too_much = claimed_too_much or claimed > capacity
    assert (allocation.oversubscribed_ns > 0) == claimed_too_much


def test_attempts_that_claim_the_same_card_share_its_cost():
    lease = Lease("L", "i", "m", "sku", "p", 1, "USD", None)
    usages = tuple(
        ReportedUsage(n, Usage(UsageKey("L", f"t{n}", 1), "s1", Decimal(1), 0, None, None, False, 0, {}, False), {})
        for n in range(1, 4)
    )
    history = LeaseHistory(
        LeaseState(lease, 0, None, None, False, 0, ("s1",)), (Attachment("L", "s1", 0, None, None),), usages
    )
    allocation = allocate(history, [Segment(0, 10, 100, "machine", "h")])
    assert sorted(cost.pico for cost in allocation.costs) == [33, 33, 34]
    assert sum(cost.micro_card_ns for cost in allocation.costs) == 10 * MICRO_PER_CARD
    assert allocation.oversubscribed_ns == 10

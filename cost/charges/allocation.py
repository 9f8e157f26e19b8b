"""Who caused what part of a lease's charge: an exact split over time, cards and phases. Pure functions.

At each moment the cards that attempts hold take their share of what the machine costs; what nobody holds is idle,
shared among the attached sweeps. Every card-nanosecond has one category, and the parts sum to the charge exactly:
each segment is split once, by largest remainder, over weights in millionths of a card x nanoseconds. Nothing is
clamped: where more cards are claimed than there are, the claims share what there is, and the lease is flagged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from cost.ledger.schema import MICRO_PER_CARD
from cost.money import largest_remainder
from cost.prices.billing import Segment
from cost.records import DIED, PHASES, Attachment, LeaseState, Usage

OVERHEADS = (
    *("startup", "idle", "teardown", "unassigned", "billing_increment", "unused_commitment"),
    *("storage", "egress", "requests", "fee", "tax", "credit", "refund", "fx", "adjustment", "purchase", "stopped"),
)
"""What is not inside a trial. `unassigned` is time in which no sweep was attached to the machine; a `purchase` costs
nothing by itself, since what was bought is amortised over its time, but it is what is billed; `stopped` is time in
which the machine was held and did not run, whether its provider bills that or not."""

TIMED = ("machine", "stopped")
"""Categories of segments that are split by who held the machine's cards then."""

CATEGORIES = (*PHASES, "lost_work", *(name for name in OVERHEADS if name not in PHASES))
"""Every category there is, in the order of the report's columns."""


@dataclass(frozen=True)
class ReportedUsage:
    """A usage with what its trial reported. `number` identifies it; durations are card-nanoseconds by phase."""

    number: int
    usage: Usage
    phases: Mapping[str, int]
    after_checkpoint: Mapping[str, int] = field(default_factory=dict)
    """The part of `phases` after the last checkpoint; only looked at where the attempt died."""


@dataclass(frozen=True)
class LeaseHistory:
    """All that happened on one lease."""

    state: LeaseState
    attachments: tuple[Attachment, ...]
    usages: tuple[ReportedUsage, ...]


@dataclass(frozen=True)
class AllocatedCost:
    """A part of one segment's charge. Without a trial it is overhead; without a sweep nobody is answerable for it."""

    lease_id: str
    sweep_id: str
    trial_id: str
    attempt: int
    category: str
    pico: int
    micro_card_ns: int
    """Millionths of a card x nanoseconds."""
    segment: int
    """Position of its segment among those given."""


@dataclass(frozen=True)
class Allocation:
    """The shares of a lease: they sum to its segments, one by one."""

    shares: tuple[AllocatedCost, ...]
    oversubscribed_ns: int
    """How long more cards were claimed than the machine has."""
    over_reported: tuple[int, ...]
    """Numbers of the usages whose trial reported more card time than it held."""


def allocate(facts: LeaseHistory, segments: Sequence[Segment]) -> Allocation:
    """Split every segment of a lease's charge. Segments of machine time are split by who held the cards then, or, while
    the machine was stopped, by who was attached; any other goes, as a whole, to the sweeps that were attached last.

    A usage or an attachment that is still open lasts to the end of the last segment.
    """
    machine = [i for i, s in enumerate(segments) if s.category in TIMED and s.to_ns > s.from_ns]
    weights, oversubscribed = _weights(facts, [(segments[i].from_ns, segments[i].to_ns) for i in machine])
    # The whole time that each usage holds, of which its trial's phases are parts, not only what falls into `segments`.
    end_ns = max((s.to_ns for s in segments if s.category in TIMED), default=facts.state.from_ns)
    splits = {u.number: phase_weights(u, end_ns) for u in facts.usages}
    by_number = {u.number: u for u in facts.usages}
    shares: list[AllocatedCost] = []
    for position, index in enumerate(machine):
        held = weights[position] if segments[index].category == "machine" else _stopped(weights[position])
        keys = list(held)
        pico_parts = largest_remainder(segments[index].pico, [held[key] for key in keys])
        for key, pico in zip(keys, pico_parts, strict=True):
            shares += _shares_of(facts, by_number, splits, key, pico, held[key], index)
    for index, segment in enumerate(segments):
        if index not in machine and segment.pico:
            shares += _to_last_sweeps(facts, segment, index)
    over = tuple(u.number for u in facts.usages if _reported(u) > _held(u, end_ns))
    return Allocation(tuple(shares), oversubscribed, over)


_Key = tuple[int, str, str]
"""(usage number, "", "") for cards held by an attempt, (0, sweep, category) for cards that nobody holds."""


def _weights(facts: LeaseHistory, spans: Sequence[tuple[int, int]]) -> tuple[list[dict[_Key, int]], int]:
    """For each span, who answers for how many micro-card-nanoseconds of it. They sum to cards x length."""
    if not spans:
        return [], 0
    last = max(to_ns for _, to_ns in spans)
    of_sweep: dict[str, list[Usage]] = defaultdict(list)
    for one in facts.usages:
        of_sweep[one.usage.sweep_id].append(one.usage)
    idle_begins: dict[int, list[_Idle]] = defaultdict(list)
    idle_ends: dict[int, list[_Idle]] = defaultdict(list)
    for attachment in facts.attachments:
        idle = _Idle(attachment, of_sweep[attachment.sweep_id], last)
        if idle.to_ns > idle.from_ns:
            idle_begins[idle.from_ns].append(idle)
            idle_ends[idle.to_ns].append(idle)
    begins: dict[int, list[ReportedUsage]] = defaultdict(list)
    ends: dict[int, list[ReportedUsage]] = defaultdict(list)
    edges = {edge for span in spans for edge in span}
    for one in facts.usages:
        to_ns = last if one.usage.to_ns is None else one.usage.to_ns
        if to_ns > one.usage.from_ns:
            begins[one.usage.from_ns].append(one)
            ends[to_ns].append(one)
    edges.update(begins, ends, idle_begins, idle_ends)
    ordered = sorted(edges)
    capacity = facts.state.lease.cards * MICRO_PER_CARD
    found: list[dict[_Key, int]] = [defaultdict(int) for _ in spans]
    active: dict[int, int] = {}
    attached: list[_Idle] = []
    position, oversubscribed = 0, 0
    for start, stop in pairwise(ordered):
        for one in ends.get(start, ()):
            active.pop(one.number, None)
        for one in begins.get(start, ()):
            active[one.number] = int(one.usage.cards * MICRO_PER_CARD)
        for idle in idle_ends.get(start, ()):
            attached.remove(idle)
        attached += idle_begins.get(start, ())
        while position < len(spans) and spans[position][1] <= start:
            position += 1
        if position == len(spans):
            break
        if spans[position][0] > start:
            continue
        length, weight_of = stop - start, found[position]
        claimed = sum(active.values())
        if claimed > capacity:
            oversubscribed += length
            parts = largest_remainder(capacity * length, list(active.values()))
            for number, part in zip(active, parts, strict=True):
                weight_of[number, "", ""] += part
            continue
        for number, cards in active.items():
            weight_of[number, "", ""] += cards * length
        if claimed < capacity:
            unheld = (capacity - claimed) * length
            if not attached:
                weight_of[0, "", "unassigned"] += unheld
            else:
                for idle, part in zip(attached, largest_remainder(unheld, [1] * len(attached)), strict=True):
                    weight_of[0, idle.sweep_id, idle.category(start)] += part
    return found, oversubscribed


def _stopped(weights: Mapping[_Key, int]) -> dict[_Key, int]:
    """What nobody holds of a machine that does not run is `stopped`, of the sweeps that are attached or of nobody."""
    found: dict[_Key, int] = defaultdict(int)
    for (number, sweep_id, category), weight in weights.items():
        found[(number, sweep_id, category) if number else (0, sweep_id, "stopped")] += weight
    return found


class _Idle:
    """What a sweep's unheld time is called: startup before its first usage, teardown after its last, else idle."""

    def __init__(self, attachment: Attachment, usages: Iterable[Usage], last_ns: int) -> None:
        """`usages`: those of the attachment's sweep. `last_ns`: the end of what is charged."""
        self.sweep_id = attachment.sweep_id
        self.from_ns = attachment.from_ns
        self.to_ns = last_ns if attachment.to_ns is None else attachment.to_ns
        mine = [u for u in usages if self.from_ns <= u.from_ns < self.to_ns]
        self._first = min((u.from_ns for u in mine), default=self.to_ns)
        over = attachment.to_ns is not None and all(u.to_ns is not None for u in mine)
        self._done = max((u.to_ns or 0 for u in mine), default=self.to_ns) if over else self.to_ns

    def category(self, at_ns: int) -> str:
        if at_ns < self._first:
            return "startup"
        return "teardown" if at_ns >= self._done else "idle"


def phase_weights(facts: ReportedUsage, end_ns: int) -> dict[str, int]:
    """Categories of a usage's card time, in micro-card-nanoseconds.

    What the trial did not report is `other`. On an attempt after the first, startup is `recovery`. Where the attempt
    died, all after its last checkpoint is `lost_work`, the time from its last report to its end included.
    """
    weights: dict[str, int] = defaultdict(int)
    died = facts.usage.outcome in DIED
    for kind, card_ns in facts.phases.items():
        lost = facts.after_checkpoint.get(kind, 0) if died else 0
        weights["lost_work"] += lost * MICRO_PER_CARD
        name = "recovery" if kind == "startup" and facts.usage.key.attempt > 1 else kind
        weights[name] += (card_ns - lost) * MICRO_PER_CARD
    unreported = _held(facts, end_ns) - _reported(facts)
    if unreported > 0 or not any(weights.values()):
        weights["lost_work" if died else "other"] += max(unreported, 1)
    return {name: weight for name, weight in weights.items() if weight}


def _reported(facts: ReportedUsage) -> int:
    return sum(facts.phases.values()) * MICRO_PER_CARD


def _held(facts: ReportedUsage, end_ns: int) -> int:
    to_ns = max(end_ns, facts.usage.from_ns) if facts.usage.to_ns is None else facts.usage.to_ns
    return int(facts.usage.cards * MICRO_PER_CARD) * (to_ns - facts.usage.from_ns)


def _shares_of(
    facts: LeaseHistory,
    by_number: Mapping[int, ReportedUsage],
    splits: Mapping[int, Mapping[str, int]],
    key: _Key,
    pico: int,
    micro_card_ns: int,
    segment: int,
) -> list[AllocatedCost]:
    number, sweep_id, category = key
    lease_id = facts.state.lease.lease_id
    if not number:
        return [AllocatedCost(lease_id, sweep_id, "", 0, category, pico, micro_card_ns, segment)]
    usage, split = by_number[number].usage, splits[number]
    pico_parts = largest_remainder(pico, list(split.values()))
    time_parts = largest_remainder(micro_card_ns, list(split.values()))
    return [
        AllocatedCost(lease_id, usage.sweep_id, usage.key.trial_id, usage.key.attempt, name, part, time_part, segment)
        for name, part, time_part in zip(split, pico_parts, time_parts, strict=True)
    ]


def _to_last_sweeps(facts: LeaseHistory, segment: Segment, index: int) -> list[AllocatedCost]:
    """What was counted belongs to those who held the machine last; what a billing rule adds, to the last before it."""
    lease_id, mine, end = facts.state.lease.lease_id, facts.attachments, None
    if segment.category == "billing_increment":
        end = segment.from_ns
        mine = tuple(a for a in mine if a.from_ns < end) or mine
    still = [a for a in mine if a.to_ns is None or (end is not None and a.to_ns > end)]
    latest = max((a.to_ns or 0 for a in mine), default=0)
    last = still or [a for a in mine if a.to_ns == latest]
    sweeps = sorted({a.sweep_id for a in last}) or [""]
    parts = largest_remainder(segment.pico, [1] * len(sweeps))
    return [
        AllocatedCost(lease_id, sweep_id, "", 0, segment.category, part, 0, index)
        for sweep_id, part in zip(sweeps, parts, strict=True)
    ]

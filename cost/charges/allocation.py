"""Split a lease's charge over the attempts that used its machine. Pure functions.

At each moment the cards granted to attempts take their share of the machine's cost. Free cards are overhead of the
attached sweeps, in equal parts, or `unassigned` if no sweep is attached. Every card-nanosecond has one category, and
the parts of each segment sum to it exactly: a segment is split once, by largest remainder, with weights in millionths
of a card x nanoseconds. Nothing is clamped: attempts that claim more cards than the machine has share its cards, and
the allocation says for how long that was so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from cost.ledger.schema import MICRO_PER_CARD
from cost.money import largest_remainder
from cost.prices.billing import Segment
from cost.records import LOST_WORK_OUTCOMES, Attachment, LeaseState, Usage

TIMED = ("machine", "stopped")
"""Categories of the segments that are split by the use of the machine's cards."""


@dataclass(frozen=True)
class ReportedUsage:
    """A usage and the durations that its trial reported, in card-nanoseconds by phase."""

    usage_id: int
    usage: Usage
    phase_card_ns: Mapping[str, int]
    unsaved_card_ns: Mapping[str, int] = field(default_factory=dict)
    """The part of `phase_card_ns` after the last checkpoint. It matters only if the attempt died."""


@dataclass(frozen=True)
class LeaseHistory:
    """A lease with the sweeps that were attached to it and the usages of its cards."""

    state: LeaseState
    attachments: tuple[Attachment, ...]
    usages: tuple[ReportedUsage, ...]


@dataclass(frozen=True)
class AllocatedCost:
    """A part of one segment's charge. An empty `trial_id` is overhead; an empty `sweep_id` belongs to no sweep."""

    lease_id: str
    sweep_id: str
    trial_id: str
    attempt: int
    category: str
    pico: int
    micro_card_ns: int
    """Millionths of a card x nanoseconds."""
    segment: int
    """Index of the segment among those passed to `allocate`."""


@dataclass(frozen=True)
class Allocation:
    """The parts of a lease's charge. For each segment they sum to it."""

    costs: tuple[AllocatedCost, ...]
    oversubscribed_ns: int
    """How long attempts claimed more cards than the machine has."""
    over_reported: tuple[int, ...]
    """Ids of the usages whose trial reported more card time than the usage lasted."""


def allocate(history: LeaseHistory, segments: Sequence[Segment]) -> Allocation:
    """Split every segment of a lease's charge.

    A segment of machine time is split by the use of the cards in that time; while the machine was stopped, over the
    attached sweeps. Any other segment goes as a whole to the sweeps that were attached last. A usage or an attachment
    that is still open lasts to the end of the last segment.
    """
    timed = [i for i, s in enumerate(segments) if s.category in TIMED and s.to_ns > s.from_ns]
    weights, oversubscribed = _weights(history, [(segments[i].from_ns, segments[i].to_ns) for i in timed])
    # Phases are parts of the whole usage, also where `segments` cover only some of it.
    end_ns = max((s.to_ns for s in segments if s.category in TIMED), default=history.state.from_ns)
    phase_splits = {u.usage_id: phase_weights(u, end_ns) for u in history.usages}
    usages = {u.usage_id: u.usage for u in history.usages}
    costs: list[AllocatedCost] = []
    for position, index in enumerate(timed):
        running = segments[index].category == "machine"
        card_time = weights[position] if running else _stopped(weights[position])
        parts = largest_remainder(segments[index].pico, list(card_time.values()))
        for (user, micro_card_ns), pico in zip(card_time.items(), parts, strict=True):
            costs += _costs_of_user(history, usages, phase_splits, user, pico, micro_card_ns, index)
    for index, segment in enumerate(segments):
        if index not in timed and segment.pico:
            costs += _to_last_sweeps(history, segment, index)
    over = tuple(u.usage_id for u in history.usages if _reported(u) > _granted(u, end_ns))
    return Allocation(tuple(costs), oversubscribed, over)


_User = tuple[int, str, str]
"""Who uses cards: (usage id, "", "") for an attempt, (0, sweep id, category) for free cards."""


def _weights(history: LeaseHistory, spans: Sequence[tuple[int, int]]) -> tuple[list[dict[_User, int]], int]:
    """For each span, the micro-card-nanoseconds of each user; they sum to cards x length. Also the oversubscribed ns.

    One pass over the moments at which a span, a usage or an attachment begins or ends.
    """
    if not spans:
        return [], 0
    last = max(to_ns for _, to_ns in spans)
    usages_of_sweep: dict[str, list[Usage]] = defaultdict(list)
    for reported in history.usages:
        usages_of_sweep[reported.usage.sweep_id].append(reported.usage)
    attachment_starts: dict[int, list[_SweepOverhead]] = defaultdict(list)
    attachment_ends: dict[int, list[_SweepOverhead]] = defaultdict(list)
    for attachment in history.attachments:
        overhead = _SweepOverhead(attachment, usages_of_sweep[attachment.sweep_id], last)
        if overhead.to_ns > overhead.from_ns:
            attachment_starts[overhead.from_ns].append(overhead)
            attachment_ends[overhead.to_ns].append(overhead)
    usage_starts: dict[int, list[ReportedUsage]] = defaultdict(list)
    usage_ends: dict[int, list[ReportedUsage]] = defaultdict(list)
    for reported in history.usages:
        to_ns = last if reported.usage.to_ns is None else reported.usage.to_ns
        if to_ns > reported.usage.from_ns:
            usage_starts[reported.usage.from_ns].append(reported)
            usage_ends[to_ns].append(reported)
    moments = {moment for span in spans for moment in span}
    moments.update(usage_starts, usage_ends, attachment_starts, attachment_ends)
    capacity = history.state.lease.cards * MICRO_PER_CARD
    weights: list[dict[_User, int]] = [defaultdict(int) for _ in spans]
    claims: dict[int, int] = {}
    attached: list[_SweepOverhead] = []
    position, oversubscribed = 0, 0
    for start, stop in pairwise(sorted(moments)):
        for reported in usage_ends.get(start, ()):
            claims.pop(reported.usage_id, None)
        for reported in usage_starts.get(start, ()):
            claims[reported.usage_id] = int(reported.usage.cards * MICRO_PER_CARD)
        for overhead in attachment_ends.get(start, ()):
            attached.remove(overhead)
        attached += attachment_starts.get(start, ())
        while position < len(spans) and spans[position][1] <= start:
            position += 1
        if position == len(spans):
            break
        if spans[position][0] > start:
            continue
        length, span_weights = stop - start, weights[position]
        claimed = sum(claims.values())
        if claimed > capacity:
            oversubscribed += length
            parts = largest_remainder(capacity * length, list(claims.values()))
            for usage_id, part in zip(claims, parts, strict=True):
                span_weights[usage_id, "", ""] += part
            continue
        for usage_id, micro_cards in claims.items():
            span_weights[usage_id, "", ""] += micro_cards * length
        if claimed < capacity:
            free = (capacity - claimed) * length
            if not attached:
                span_weights[0, "", "unassigned"] += free
            else:
                for overhead, part in zip(attached, largest_remainder(free, [1] * len(attached)), strict=True):
                    span_weights[0, overhead.sweep_id, overhead.category(start)] += part
    return weights, oversubscribed


def _stopped(weights: Mapping[_User, int]) -> dict[_User, int]:
    """The weights of a span in which the machine did not run: all overhead becomes `stopped`."""
    stopped: dict[_User, int] = defaultdict(int)
    for (usage_id, sweep_id, category), weight in weights.items():
        stopped[(usage_id, sweep_id, category) if usage_id else (0, sweep_id, "stopped")] += weight
    return stopped


class _SweepOverhead:
    """An attachment, and the category of its sweep's free cards: startup, idle or teardown."""

    def __init__(self, attachment: Attachment, usages: Iterable[Usage], last_ns: int) -> None:
        """`usages`: those of the attachment's sweep. `last_ns`: the end of the charge."""
        self.sweep_id = attachment.sweep_id
        self.from_ns = attachment.from_ns
        self.to_ns = last_ns if attachment.to_ns is None else attachment.to_ns
        own = [u for u in usages if self.from_ns <= u.from_ns < self.to_ns]
        self._first_start = min((u.from_ns for u in own), default=self.to_ns)
        ended = attachment.to_ns is not None and all(u.to_ns is not None for u in own)
        self._last_end = max((u.to_ns or 0 for u in own), default=self.to_ns) if ended else self.to_ns

    def category(self, at_ns: int) -> str:
        """Startup before the sweep's first usage, teardown after its last, else idle."""
        if at_ns < self._first_start:
            return "startup"
        return "teardown" if at_ns >= self._last_end else "idle"


def phase_weights(reported: ReportedUsage, end_ns: int) -> dict[str, int]:
    """The categories of a usage's card time, in micro-card-nanoseconds.

    Card time that the trial did not report is `other`. The startup of a second or later attempt is `recovery`. If the
    attempt died, everything after its last checkpoint is `lost_work`, including the time after its last report.
    """
    weights: dict[str, int] = defaultdict(int)
    died = reported.usage.outcome in LOST_WORK_OUTCOMES
    for phase, card_ns in reported.phase_card_ns.items():
        lost = reported.unsaved_card_ns.get(phase, 0) if died else 0
        weights["lost_work"] += lost * MICRO_PER_CARD
        category = "recovery" if phase == "startup" and reported.usage.key.attempt > 1 else phase
        weights[category] += (card_ns - lost) * MICRO_PER_CARD
    unreported = _granted(reported, end_ns) - _reported(reported)
    if unreported > 0 or not any(weights.values()):
        weights["lost_work" if died else "other"] += max(unreported, 1)
    return {category: weight for category, weight in weights.items() if weight}


def _reported(reported: ReportedUsage) -> int:
    return sum(reported.phase_card_ns.values()) * MICRO_PER_CARD


def _granted(reported: ReportedUsage, end_ns: int) -> int:
    usage = reported.usage
    to_ns = max(end_ns, usage.from_ns) if usage.to_ns is None else usage.to_ns
    return int(usage.cards * MICRO_PER_CARD) * (to_ns - usage.from_ns)


def _costs_of_user(
    history: LeaseHistory,
    usages: Mapping[int, Usage],
    phase_splits: Mapping[int, Mapping[str, int]],
    user: _User,
    pico: int,
    micro_card_ns: int,
    segment: int,
) -> list[AllocatedCost]:
    """A user's part of a segment; an attempt's part is split by phase."""
    usage_id, sweep_id, category = user
    lease_id = history.state.lease.lease_id
    if not usage_id:
        return [AllocatedCost(lease_id, sweep_id, "", 0, category, pico, micro_card_ns, segment)]
    usage, split = usages[usage_id], phase_splits[usage_id]
    pico_parts = largest_remainder(pico, list(split.values()))
    time_parts = largest_remainder(micro_card_ns, list(split.values()))
    return [
        AllocatedCost(lease_id, usage.sweep_id, usage.key.trial_id, usage.key.attempt, phase, part, time_part, segment)
        for phase, part, time_part in zip(split, pico_parts, time_parts, strict=True)
    ]


def _to_last_sweeps(history: LeaseHistory, segment: Segment, index: int) -> list[AllocatedCost]:
    """Split a segment without card time over the sweeps that were attached last.

    For a billing increment, those are the sweeps attached last before the increment began.
    """
    lease_id, attachments, end = history.state.lease.lease_id, history.attachments, None
    if segment.category == "billing_increment":
        end = segment.from_ns
        attachments = tuple(a for a in attachments if a.from_ns < end) or attachments
    still_attached = [a for a in attachments if a.to_ns is None or (end is not None and a.to_ns > end)]
    latest = max((a.to_ns or 0 for a in attachments), default=0)
    last = still_attached or [a for a in attachments if a.to_ns == latest]
    sweeps = sorted({a.sweep_id for a in last}) or [""]
    parts = largest_remainder(segment.pico, [1] * len(sweeps))
    return [
        AllocatedCost(lease_id, sweep_id, "", 0, segment.category, part, 0, index)
        for sweep_id, part in zip(sweeps, parts, strict=True)
    ]

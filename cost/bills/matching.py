"""Find the lease that a bill line is about, and tell a machine that may be missing in the ledger from other charges.

Tested in tests/cost/bills/test_reconcile.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cost.bills.bill import Bill, BillLine, last_instant
from cost.prices.book import TIME_UNITS, PriceBook
from cost.records import LeaseState

_SLACK_NS = 3600 * 10**9
"""How far the clocks of a machine and its provider may differ."""
_AFTERWARDS = ("credit", "refund")
"""Kinds of charge that may come at any time after the lease that they are for."""


@dataclass(frozen=True)
class MatchedLines:
    """The lines of a bill by lease, and the lines that no lease explains."""

    by_lease: dict[str, list[BillLine]]
    missing: list[BillLine]
    """Lines that may be about a machine of ours."""
    unrelated: list[BillLine]
    """Other charges of an account that the ledger knows nothing about."""


def match_lines(bill: Bill, lines: Sequence[BillLine], states: Iterable[LeaseState], book: PriceBook) -> MatchedLines:
    """Match lines with leases by resource id, instance id or lease id, and among leases of one machine by time.

    A credit or a refund matches whatever its time.
    """
    known: dict[str, list[LeaseState]] = defaultdict(list)
    for state in states:
        lease = state.lease
        if bill.map.provider in ("", lease.provider):
            for name in {lease.resource_id, lease.instance_id, lease.lease_id} - {""}:
                known[name].append(state)
    by_lease: dict[str, list[BillLine]] = defaultdict(list)
    unknown: list[BillLine] = []
    missing: list[BillLine] = []
    for line in lines:
        candidates = known.get(line.resource) or known.get(line.resource.rsplit("/", 1)[-1], [])
        state = _state_of(line, candidates)
        if state is not None:
            by_lease[state.lease.lease_id].append(line)
        elif candidates:
            missing.append(line)
        else:
            unknown.append(line)
    ours, unrelated = _split_unknown(unknown, [line for own in by_lease.values() for line in own] + missing, book)
    return MatchedLines(dict(by_lease), [*missing, *ours], unrelated)


def _state_of(line: BillLine, candidates: Sequence[LeaseState]) -> LeaseState | None:
    best = max(candidates, key=lambda state: _overlap_ns(line, state), default=None)
    if best is None:
        return None
    if _overlap_ns(line, best) > 0:
        return best
    if line.kind not in _AFTERWARDS:
        return None
    earlier = [state for state in candidates if state.from_ns <= line.from_ns]
    return max(earlier, key=lambda state: state.from_ns) if earlier else min(candidates, key=lambda s: s.from_ns)


def _overlap_ns(line: BillLine, state: LeaseState) -> int:
    end = state.to_ns if state.to_ns is not None else line.to_ns + _SLACK_NS
    return min(last_instant(line) + 1, end + _SLACK_NS) - max(line.from_ns, state.from_ns - _SLACK_NS)


def _split_unknown(
    unknown: Sequence[BillLine], known: Sequence[BillLine], book: PriceBook
) -> tuple[list[BillLine], list[BillLine]]:
    """Split lines without a lease into those that may be ours and those of the rest of an account.

    On a bill of our machines every other line may be a machine that was never entered, or a charge for all of them. A
    bill on which fewer than half of the resources are ours is the bill of a whole account. A line there is ours only if
    it is machine time of a SKU that the price book prices.
    """
    known_names = {line.resource for line in known}
    unknown_names = {line.resource for line in unknown} - {""}
    ours = not known or len(known_names) >= len(unknown_names)
    without_resource = sum(not line.resource for line in unknown)
    shared = ours and without_resource <= max(len(known), 1)
    types = {row.sku.split("-", 1)[-1] for row in book.rows if row.per in TIME_UNITS and row.provider != "own"}
    missing, unrelated = [], []
    for line in unknown:
        named = line.kind == "machine" and any(_mentions(line.description, name) for name in types)
        (missing if named or (ours if line.resource else shared) else unrelated).append(line)
    return missing, unrelated


def _mentions(description: str, machine_type: str) -> bool:
    """Whether a description has the name of a machine type as a word, such as `p5.48xlarge`."""
    return (
        any(char.isdigit() for char in machine_type) and machine_type in description.lower().replace(",", " ").split()
    )

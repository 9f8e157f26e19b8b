"""The trials that wait for cards, in the order in which they start. A retry waits for its moment."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class TrialQueue:
    """First in, first out, among the trials that are due."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, str]] = []
        self._order = itertools.count()

    def add(self, trial_id: str, not_before_ns: int = 0) -> None:
        """The trial is due from `not_before_ns` on."""
        heapq.heappush(self._heap, (not_before_ns, next(self._order), trial_id))

    def has_due(self, now_ns: int) -> bool:
        return bool(self._heap) and self._heap[0][0] <= now_ns

    def all_due(self, now_ns: int) -> bool:
        return all(not_before_ns <= now_ns for not_before_ns, _, _ in self._heap)

    def pop(self) -> str:
        """Remove and return the first trial."""
        return heapq.heappop(self._heap)[2]

    def pop_first(self, now_ns: int, fits: Callable[[str], bool]) -> str | None:
        """Remove and return the first due trial that fits; None: none does."""
        if self.has_due(now_ns) and fits(self._heap[0][2]):
            return self.pop()
        for _, _, trial_id in sorted(entry for entry in self._heap if entry[0] <= now_ns)[1:]:
            if fits(trial_id):
                self.remove(trial_id)
                return trial_id
        return None

    def remove(self, trial_id: str) -> None:
        self._heap = [entry for entry in self._heap if entry[2] != trial_id]
        heapq.heapify(self._heap)

    def trial_ids(self) -> list[str]:
        return [trial_id for _, _, trial_id in self._heap]

    def __len__(self) -> int:
        return len(self._heap)

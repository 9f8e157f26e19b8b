"""The trials that wait for cards, in the order in which they shall get them; some not before a certain moment."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class TrialQueue:
    """First come, first served, among those whose moment has come."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, str]] = []
        self._order = itertools.count()

    def put(self, trial_id: str, not_before_ns: int = 0) -> None:
        heapq.heappush(self._heap, (not_before_ns, next(self._order), trial_id))

    def ready(self, now_ns: int) -> bool:
        return bool(self._heap) and self._heap[0][0] <= now_ns

    def take(self) -> str:
        return heapq.heappop(self._heap)[2]

    def take_first(self, now_ns: int, fits: Callable[[str], bool]) -> str | None:
        """The first of those whose moment has come that fits; None: none does."""
        if self.ready(now_ns) and fits(self._heap[0][2]):
            return self.take()
        for _, _, trial_id in sorted(entry for entry in self._heap if entry[0] <= now_ns)[1:]:
            if fits(trial_id):
                self.remove(trial_id)
                return trial_id
        return None

    def all_ready(self, now_ns: int) -> bool:
        """Nothing waits for a moment that is still to come."""
        return all(not_before <= now_ns for not_before, _, _ in self._heap)

    def remove(self, trial_id: str) -> None:
        self._heap = [entry for entry in self._heap if entry[2] != trial_id]
        heapq.heapify(self._heap)

    def all(self) -> list[str]:
        return [trial_id for _, _, trial_id in self._heap]

    def __len__(self) -> int:
        return len(self._heap)

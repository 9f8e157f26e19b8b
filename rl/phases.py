"""Where the time of an attempt goes: a stopwatch whose laps leave nothing out. Durations only, never a date."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rl.spec import PHASES


class PhaseClock:
    """Measures phases between laps; what no phase claims is `other`, so that a lap's phases sum to its wall clock."""

    def __init__(self, cards: int, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._cards = cards
        self._now_ns = now_ns
        self._lap_start = now_ns()
        self._spent: dict[str, int] = {}
        self._running: str | None = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what happens inside as `name` (one of PHASES). Phases do not nest."""
        if name not in PHASES or self._running:
            raise ValueError(f"phase {name!r} inside {self._running!r}; phases: {', '.join(PHASES)}, not nested")
        start, self._running = self._now_ns(), name
        try:
            yield
        finally:
            self._spent[name] = self._spent.get(name, 0) + self._now_ns() - start
            self._running = None

    def lap(self) -> tuple[int, dict[str, int]]:
        """(wall nanoseconds, card-nanoseconds by phase) since the last lap; the next lap starts at the same instant."""
        now = self._now_ns()
        wall = now - self._lap_start
        spent, self._spent, self._lap_start = self._spent, {}, now
        spent["other"] = wall - sum(spent.values())
        return wall, {name: ns * self._cards for name, ns in spent.items() if ns}

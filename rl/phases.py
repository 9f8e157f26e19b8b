"""A stopwatch that assigns the wall-clock time of an attempt to phases. Durations only, never a date."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rl.spec import PHASES


class PhaseClock:
    """Measures phases between two laps. Time outside of all phases is `other`, so the phases of a lap add up to it."""

    def __init__(
        self,
        cards: int,
        now_ns: Callable[[], int] = time.monotonic_ns,
        wait_for_card: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            cards: the number of cards that the attempt has.
            now_ns: returns monotonic nanoseconds.
            wait_for_card: returns when the card has done all its work. It is called at the end of a phase: work is
                queued on a card, and without it a phase would end before its work, which the next phase would then
                wait for.
        """
        self._cards = cards
        self._now_ns = now_ns
        self._wait_for_card = wait_for_card
        self._lap_start = now_ns()
        self._spent: dict[str, int] = {}
        self._running: str | None = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time inside the `with` block as phase `name`.

        Raises:
            ValueError: `name` is not in `PHASES`, or another phase is running (phases do not nest).
        """
        if name not in PHASES:
            raise ValueError(f"there is no phase {name!r}; there are: {', '.join(PHASES)}")
        if self._running:
            raise ValueError(f"phase {name!r} starts inside phase {self._running!r}; phases do not nest")
        start, self._running = self._now_ns(), name
        try:
            yield
            self._wait_for_card()
        finally:
            self._spent[name] = self._spent.get(name, 0) + self._now_ns() - start
            self._running = None

    def lap(self) -> tuple[int, dict[str, int]]:
        """(wall nanoseconds, card-nanoseconds by phase) since the last lap, or since creation for the first lap.

        The next lap starts at the instant at which this one ends, so no time is lost between laps.
        """
        now = self._now_ns()
        wall = now - self._lap_start
        spent, self._spent, self._lap_start = self._spent, {}, now
        spent["other"] = spent.get("other", 0) + wall - sum(spent.values())
        return wall, {name: ns * self._cards for name, ns in spent.items() if ns}


def wait_for_cuda() -> None:
    """Wait until the work queued on this process's CUDA card is done. Does nothing where CUDA is not in use."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()

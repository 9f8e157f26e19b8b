"""Clocks. The time of a driver is an anchor plus the monotonic time since then, so changes of the wall clock do not
affect durations.

All times are integer nanoseconds; instants are UTC. Steps of the wall clock are recorded and not followed. Time zones
and date formats are in `cost.periods`.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

NS_PER_SECOND = 10**9
NS_PER_HOUR = 3600 * NS_PER_SECOND
STEP_THRESHOLD_NS = NS_PER_SECOND // 2
"""A change of the wall clock against the anchor by this much or more is a step; less is slewing."""


class Clock(Protocol):
    """The clocks of a machine. `utc_ns` may jump either way; `monotonic_ns` never goes back within one boot."""

    def utc_ns(self) -> int: ...

    def monotonic_ns(self) -> int: ...

    def boot_id(self) -> str: ...


FAKE_BOOT_PREFIX = "fake"
"""Prefix of the boot id of a simulated clock."""


@functools.cache
def real_boot_id() -> str:
    """The id of the current boot of this machine; `unknown` if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


class SystemClock:
    """The clocks of this machine. The monotonic clock includes suspended time if the system has such a clock, because a
    provider bills a suspended machine too."""

    _monotonic_id = getattr(time, "CLOCK_BOOTTIME", None)

    def utc_ns(self) -> int:
        return time.time_ns()

    def monotonic_ns(self) -> int:
        if self._monotonic_id is None:
            return time.monotonic_ns()
        return time.clock_gettime_ns(self._monotonic_id)

    def boot_id(self) -> str:
        return real_boot_id()


@dataclass
class FakeClock:
    """A clock that moves only by `advance` and `step_wall`."""

    utc: int = 1_767_225_600 * NS_PER_SECOND
    """2026-01-01T00:00:00Z."""
    monotonic: int = 1_000 * NS_PER_SECOND
    boot: str = f"{FAKE_BOOT_PREFIX}-boot"

    def utc_ns(self) -> int:
        return self.utc

    def monotonic_ns(self) -> int:
        return self.monotonic

    def boot_id(self) -> str:
        return self.boot

    def advance(self, ns: int) -> None:
        """Move both clocks forward by `ns` (zero or more)."""
        if ns < 0:
            raise ValueError("time does not run backwards; step_wall moves the wall clock alone")
        self.utc += ns
        self.monotonic += ns

    def advance_seconds(self, seconds: float) -> None:
        self.advance(round(seconds * NS_PER_SECOND))

    def step_wall(self, ns: int) -> None:
        """Set the wall clock forward or back by `ns`. The monotonic clock does not move."""
        self.utc += ns


@dataclass(frozen=True)
class Anchor:
    """One moment on both clocks of one boot."""

    utc_ns: int
    monotonic_ns: int
    boot_id: str

    @property
    def simulated(self) -> bool:
        """Whether the anchor is one of a simulated clock."""
        return self.boot_id.startswith(FAKE_BOOT_PREFIX)


@dataclass(frozen=True)
class ClockStep:
    """The wall clock was found to be stepped by `step_ns` at `at_ns` (anchored time)."""

    at_ns: int
    step_ns: int


@dataclass
class DriverClock:
    """The time of one driver process: anchor + monotonic delta."""

    clock: Clock
    anchor: Anchor = field(init=False)
    steps: list[ClockStep] = field(init=False, default_factory=list)
    _offset_ns: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.anchor = Anchor(self.clock.utc_ns(), self.clock.monotonic_ns(), self.clock.boot_id())

    def not_before(self, at_ns: int) -> None:
        """Move the anchor so that it is at least `at_ns` now. Used after the wall clock was set back."""
        behind = at_ns - self.now_ns()
        if behind > 0:
            self.anchor = replace(self.anchor, utc_ns=self.anchor.utc_ns + behind)

    def now_ns(self) -> int:
        """UTC nanoseconds by the anchor. A step of the wall clock since the last call is appended to `steps`."""
        now = self.anchor.utc_ns + self.clock.monotonic_ns() - self.anchor.monotonic_ns
        offset = self.clock.utc_ns() - now
        moved = offset - self._offset_ns
        if abs(moved) >= STEP_THRESHOLD_NS:
            self.steps.append(ClockStep(now, moved))
            self._offset_ns = offset
        return now

"""How attempts and drivers end.

Tested in tests/sweeps/executors/test_ray_tune.py and tests/sweeps/driver/test_controller.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from rl.spec import StopKind


class AttemptOutcome(StrEnum):
    """How an attempt ended."""

    COMPLETED = "completed"
    """All steps are done."""
    CRASHED = "crashed"
    """The trainer raised, or its process died."""
    HUNG = "hung"
    """The trainer reported nothing for longer than `retry.hung_after_seconds`."""
    OUT_OF_MEMORY = "out_of_memory"
    BAD_CONFIGURATION = "bad_configuration"
    """The trainer refused the trial's configuration."""
    PREEMPTED = "preempted"
    """The attempt lost its machine, or the driver is about to lose it."""
    INTERRUPTED = "interrupted"
    """The driver stopped for a reason that is not the trial's; a resume continues the trial."""
    LOST = "lost"
    """The driver died, so how the attempt ended is unknown."""
    PRUNED = "pruned"
    """The search ended the trial early."""
    BUDGET = "budget"
    """A budget limit stopped the trial."""
    CANCELLED = "cancelled"
    """A person cancelled the trial."""


STOP_OUTCOMES: Mapping[StopKind, AttemptOutcome] = {
    StopKind.INTERRUPTED: AttemptOutcome.INTERRUPTED,
    StopKind.REQUESTED: AttemptOutcome.INTERRUPTED,
    StopKind.TERMINATED: AttemptOutcome.PREEMPTED,
    StopKind.MACHINE_TAKEN: AttemptOutcome.PREEMPTED,
    StopKind.NO_CARDS: AttemptOutcome.INTERRUPTED,
    StopKind.IDLE: AttemptOutcome.INTERRUPTED,
    StopKind.BUDGET: AttemptOutcome.BUDGET,
    StopKind.PRUNED: AttemptOutcome.PRUNED,
    StopKind.CANCELLED: AttemptOutcome.CANCELLED,
}
"""How an attempt ends that the driver stopped."""


class DriverEnd(StrEnum):
    """How a driver ended its work on a sweep."""

    DONE = "done"
    """Every trial is over and the gate was judged."""
    INTERRUPTED = "interrupted"
    """The sweep was stopped; a resume continues it."""
    BUDGET = "budget"
    """A budget limit stopped the sweep, or has no room for any trial."""
    FAILED = "failed"
    """An error ended the driver."""

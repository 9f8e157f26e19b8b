"""One attempt as the Ray Tune executor tracks it, and the cleanup of its processes on the node that runs them.

Tested in tests/sweeps/executors/test_ray_tune.py.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from sweeps.executors import Attempt
from sweeps.executors.cluster import alive_nodes
from sweeps.executors.processes import AttemptProcesses, end_processes
from sweeps.journal.outcomes import AttemptOutcome

RELEASE_SECONDS = 60.0
"""After its end, an attempt's processes and cards count as not released after this long."""


@dataclass
class RayAttempt:
    """An attempt that was handed to Ray Tune. Times are monotonic seconds."""

    attempt: Attempt
    mark: str
    """What its processes are found by, in their environment."""
    sequence: int = 0
    """Number of its next message."""
    processes: AttemptProcesses | None = None
    """None: its process has not reported yet."""
    group: str | None = None
    """Id of its placement group; None: it has no cards yet."""
    node: str = ""
    last_message: float = 0.0
    """When its newest message came, or its cards were granted."""
    outcome: tuple[AttemptOutcome, str] | None = None
    """How it ends, once that is known."""
    ended_at: float | None = None
    """None: it runs."""
    unreachable_since: float | None = None
    """It cannot be reached, and Ray does not know yet whether its node is dead."""
    cleanup: Future[list[str]] | None = field(default=None, repr=False)
    """Its processes are being ended; the result lists what could not be."""


class AttemptCleanup:
    """Ends the processes of attempts: on this node in a thread, on another node in a Ray task there."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="cleanup")
        self._own_node = ray.get_runtime_context().get_node_id()

    def start(self, running: RayAttempt, patience_seconds: float) -> None:
        """Start to end its processes. `patience_seconds`: how long its own process may take to end by itself."""
        if running.cleanup is not None or running.processes is None:
            return
        work = (running.processes, patience_seconds, RELEASE_SECONDS / 4)
        if running.processes.node == self._own_node:
            running.cleanup = self._threads.submit(end_processes, *work)
        else:
            there = NodeAffinitySchedulingStrategy(running.processes.node, soft=False)
            running.cleanup = _end_processes.options(scheduling_strategy=there).remote(*work).future()

    def remaining(self, running: RayAttempt, timeout: float = 0.0) -> list[str] | None:
        """What of its processes could not be ended; None: not known yet."""
        if running.cleanup is None:
            return []
        try:
            return running.cleanup.result(timeout)
        except TimeoutError:
            return None
        except Exception:  # the node did not answer
            return [] if not self.is_alive(running.node) else [f"node {running.node} did not answer"]

    def is_alive(self, node: str) -> bool:
        return any(n.node_id == node for n in alive_nodes(self._device))

    def end_on_own_node(self, running: RayAttempt, patience_seconds: float) -> None:
        """End its processes now, without Ray, if they are on this node."""
        if running.processes is not None and running.processes.node == self._own_node:
            end_processes(running.processes, patience_seconds, RELEASE_SECONDS)

    def close(self) -> None:
        self._threads.shutdown(wait=False)


@ray.remote(num_cpus=0, max_retries=0)
def _end_processes(processes: AttemptProcesses, patience_seconds: float, kill_seconds: float) -> list[str]:
    return end_processes(processes, patience_seconds, kill_seconds)

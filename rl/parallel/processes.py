"""Starts the processes of ranks 1, 2, ..., and runs a method on all ranks at once.

A process is `python -m rl.parallel.process`, connected by a socket pair. It inherits the environment of the attempt, so
the executor finds and ends it with the attempt's other processes. A process ends when its parent closes the socket.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from rl.deadline import DeadlineError
from rl.spec import TrialError

CALL_SECONDS = 1800.0
"""Deadline of a call on all ranks without a deadline of its own."""
_POLL_SECONDS = 0.05
"""Longest time between two looks for a dead rank."""


class RanksError(TrialError):
    """A rank died. The message names the rank."""


class RankProcesses:
    """The processes of ranks 1 to `size` - 1. Each has an object of its own, made by `build(rank, size)`.

    Args:
        build: a function of a module, since processes import it by name.
        environment: variables to add to the environment of the processes.
    """

    def __init__(self, size: int, build: Callable[[int, int], Any], environment: Mapping[str, str] | None = None):
        self.size = size
        self._ranks: dict[int, tuple[subprocess.Popen[bytes], Connection]] = {}
        variables = {**os.environ, **(environment or {}), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        for rank in range(1, size):
            ours, theirs = socket.socketpair()
            command = [sys.executable, "-m", "rl.parallel.process", str(theirs.fileno())]
            process = subprocess.Popen(
                command, env=variables, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=sys.__stderr__
            )
            theirs.close()
            connection = Connection(ours.detach())
            self._ranks[rank] = (process, connection)
            connection.send((build, rank, size))

    def run(
        self,
        method: str,
        arguments: Sequence[tuple[Any, ...]],
        own: Callable[[], Any],
        seconds: float = CALL_SECONDS,
    ) -> list[Any]:
        """Call `own` in this process, and `method` in all others at the same time. Returns the results by rank.

        `own` runs in a thread: while rank 0 waits in a collective call for a rank that has died, this call returns.

        Args:
            arguments: of `method`, by rank. Those of rank 0 are not used.

        Raises:
            RanksError: a rank died.
            DeadlineError: a rank has not returned after `seconds`; the message names it.
            Exception: whatever `method` or `own` raised, of the first rank that raised.
        """
        for rank, (_, connection) in self._ranks.items():
            try:
                connection.send((method, arguments[rank]))
            except OSError:
                raise self._died(rank, method) from None
        outcome: list[tuple[bool, Any]] = []

        def call() -> None:
            try:
                outcome.append((True, own()))
            except BaseException as error:
                outcome.append((False, error))

        thread = threading.Thread(target=call, name=f"rank 0: {method}", daemon=True)
        thread.start()
        until = time.monotonic() + seconds
        results: dict[int, Any] = {}
        failed_at: float | None = None
        while 0 not in results or len(results) < self.size:
            if 0 not in results:
                thread.join(0 if len(results) < self.size - 1 else _POLL_SECONDS)
                if outcome and outcome[0][0]:
                    results[0] = outcome[0][1]
                elif outcome and failed_at is None:
                    failed_at = time.monotonic()
            waiting = {c: rank for rank, (_, c) in self._ranks.items() if rank not in results}
            for ready in wait(list(waiting), _POLL_SECONDS) if waiting else ():
                rank = waiting[ready]  # type: ignore[index]
                results[rank] = self._result(rank, method)
            # Rank 0 fails too when another rank dies. The other rank's error comes first, if there is one.
            if failed_at is not None and time.monotonic() - failed_at > 2.0:
                raise outcome[0][1]
            if time.monotonic() > until:
                late = ", ".join(str(r) for r in range(self.size) if r not in results)
                raise DeadlineError(f"{method} did not end within {seconds:g} s on rank {late} of {self.size}")
        return [results[rank] for rank in range(self.size)]

    def close(self) -> None:
        """End all processes. May be called twice."""
        for process, connection in self._ranks.values():
            connection.close()
            process.kill()
            process.wait()
        self._ranks.clear()

    def pids(self) -> list[int]:
        """The process ids of ranks 1, 2, ..."""
        return [process.pid for process, _ in self._ranks.values()]

    def _result(self, rank: int, method: str) -> Any:
        try:
            ok, value = self._ranks[rank][1].recv()
        except (EOFError, OSError):
            raise self._died(rank, method) from None
        if ok:
            return value
        raise value

    def _died(self, rank: int, method: str) -> RanksError:
        process = self._ranks[rank][0]
        try:
            code = process.wait(5.0)
        except subprocess.TimeoutExpired:
            code = None
        return RanksError(f"rank {rank} of {self.size} died in {method} (exit code {code}); its output is in the log")

"""Scores completions: raw rewards by name, their weighted sum, and raw correctness.

Code that may hang or end its process runs in worker processes, with a deadline per completion: the user's scorer, the
user's regular expression (matching can take exponential time), and math-verify (sympy may not terminate). `exact` and
`number` run in this process: they cannot fail, and their time is linear in the length of the text.

A completion whose scorer raises, dies or exceeds its deadline counts as wrong: all its raw rewards are 0, and its error
is counted. It is never left out of a mean.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rl.spec import ConfigurationError, TaskSpec
from rl.tasks.worker import START_SECONDS, make_scorer

_log = logging.getLogger(__name__)

IN_PROCESS = ("exact", "number")
"""Scorers that run in this process."""
MAX_LOGGED_ERRORS = 3
"""Number of different errors that a `Scorer` logs."""


@dataclass(frozen=True)
class WorkerRestart:
    """A worker was ended or died, and a new worker replaced it."""

    index: int
    """Number of the worker, from 0."""
    reason: str


@dataclass(frozen=True)
class Scores:
    """Scores of a batch. Every sequence has one entry per completion, in the order of the completions."""

    reward: tuple[float, ...]
    """The weighted sum of the raw rewards."""
    acc: tuple[float, ...]
    """1.0 where the raw reward `correct` is 1, else 0.0."""
    raw: Mapping[str, tuple[float, ...]]
    """Every reward by name, unweighted, from 0 to 1."""
    errors: tuple[str | None, ...]
    """Error message of the scorer; None where scoring succeeded."""
    restarts: tuple[WorkerRestart, ...] = ()
    """Workers that were restarted since the last call."""


class Scorer:
    """Scores the completions of a task. A context manager: on exit all worker processes are ended.

    Not thread-safe. Workers start at the first call that needs them.
    """

    def __init__(
        self, spec: TaskSpec, user_scorer: str | None = None, *, warm_up_seconds: float = START_SECONDS
    ) -> None:
        """
        Args:
            warm_up_seconds: deadline of the first call of the scorer in a new worker.

        Raises:
            ConfigurationError: a weight for an unknown reward or a reward without weight, an invalid regular
                expression, a deadline of 0, or no workers.
        """
        self._spec = spec
        self._user_scorer = user_scorer
        self._weights = _checked_weights(spec, user_scorer)
        self._workers: list[_Worker] = []
        self._restarts: list[WorkerRestart] = []
        self._logged: set[str] = set()
        self._warm_up_seconds = warm_up_seconds
        self._warm_up: str | None = None
        """An answer of the task, which a new worker scores before its deadlines count; None: no warm-up."""
        self._may_warm_up = user_scorer is not None or spec.scorer == "math_verify"
        self._local = user_scorer is None and spec.scorer in IN_PROCESS and not spec.format_pattern

    def __enter__(self) -> Scorer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers and their child processes. May be called twice."""
        for worker in self._workers:
            worker.kill()
        self._workers.clear()

    def score(self, completions: Sequence[str], answers: Sequence[str]) -> Scores:
        """Score each completion against the answer at the same index.

        Raises:
            ConfigurationError: the user's scorer cannot be imported, or its rewards are not those of
                `task.reward_weights`.
            ValueError: the two sequences have different lengths.
        """
        if len(completions) != len(answers):
            raise ValueError(f"{len(completions)} completions and {len(answers)} answers; their numbers must be equal")
        results: list[dict[str, float] | str]
        if self._local:
            score = make_scorer(self._spec.scorer, None, "")
            results = [score(c, a) for c, a in zip(completions, answers, strict=True)]
        else:
            results = self._in_workers(list(zip(completions, answers, strict=True)))
        restarts, self._restarts = tuple(self._restarts), []
        self._log_new_errors(completions, results)
        return self._scores(results, restarts)

    def _log_new_errors(self, completions: Sequence[str], results: Sequence[dict[str, float] | str]) -> None:
        """Log the first few different errors, since the curve of errors shows their number only."""
        for completion, result in zip(completions, results, strict=True):
            if isinstance(result, str) and result not in self._logged and len(self._logged) < MAX_LOGGED_ERRORS:
                self._logged.add(result)
                _log.warning("scoring failed and counts as wrong: %s; the completion was %.200r", result, completion)

    def _scores(self, results: list[dict[str, float] | str], restarts: tuple[WorkerRestart, ...]) -> Scores:
        """`results` has, per completion, the raw rewards by name or the text of an error."""
        for result in results:
            if not isinstance(result, str) and set(result) != set(self._weights):
                raise ConfigurationError(
                    f"the scorer {self._user_scorer} returns the rewards {_names(result)}, but task.reward_weights has "
                    f"{_names(self._weights)}: give each returned reward a weight (0 logs it without optimising it), "
                    "and remove the other weights"
                )
        raw = {n: tuple(0.0 if isinstance(r, str) else r[n] for r in results) for n in self._weights}
        return Scores(
            reward=tuple(sum(w * raw[n][i] for n, w in self._weights.items()) for i in range(len(results))),
            acc=tuple(float(v >= 1.0) for v in raw["correct"]),
            raw=raw,
            errors=tuple(r if isinstance(r, str) else None for r in results),
            restarts=restarts,
        )

    def _in_workers(self, items: list[tuple[str, str]]) -> list[dict[str, float] | str]:
        """Score (completion, answer) pairs. Each idle worker gets one; its deadline starts at that moment."""
        if not items:
            return []
        if self._may_warm_up:
            self._warm_up = items[0][1]
        while len(self._workers) < min(self._spec.reward_workers, len(items)):
            self._workers.append(self._start())
        results: list[dict[str, float] | str] = [""] * len(items)
        waiting = list(range(len(items)))[::-1]
        busy: dict[int, tuple[int, float]] = {}  # worker -> (item, deadline)
        while waiting or busy:
            for w in range(len(self._workers)):
                if w not in busy and waiting:
                    if reason := self._workers[w].how_it_ended():
                        self._restart(w, reason)  # it died while idle, so no completion is counted as wrong
                    busy[w] = (item := waiting.pop()), time.monotonic() + self._spec.reward_timeout_seconds
                    self._workers[w].send({"completion": items[item][0], "answer": items[item][1]})
            for w, reply in _wait(self._workers, busy).items():
                item = busy.pop(w)[0]
                if reply is None:
                    reason = self._workers[w].failure_reason(self._spec.reward_timeout_seconds)
                    self._restart(w, reason)
                    results[item] = reason
                else:
                    results[item] = reply["error"] if "error" in reply else reply["raw"]
        return results

    def _start(self) -> _Worker:
        """A new worker that has scored one answer of the task against itself, whatever the result.

        Many scorers import their libraries or load their data in the first call. That call has the deadline of a start,
        since the deadline of a completion would end each new worker in its first call. A worker that ends or hangs in
        the warm-up is replaced by one without warm-up: its scorer fails completion by completion.
        """
        worker = self._start_cold()
        if self._warm_up is None:
            return worker
        seconds = self._warm_up_seconds
        worker.send({"completion": self._warm_up, "answer": self._warm_up, "timeout_seconds": seconds})
        if _wait([worker], {0: (0, time.monotonic() + seconds)})[0] is not None:
            return worker
        worker.kill()
        self._may_warm_up, self._warm_up = False, None
        return self._start_cold()

    def _start_cold(self) -> _Worker:
        worker = _Worker()
        worker.send(
            {
                "scorer": self._spec.scorer,
                "user_scorer": self._user_scorer,
                "format_pattern": self._spec.format_pattern,
                "timeout_seconds": self._spec.reward_timeout_seconds,
            }
        )
        reply = _wait([worker], {0: (0, time.monotonic() + START_SECONDS)})[0]
        if reply is None or "failed" in reply:
            reason = worker.failure_reason(START_SECONDS) if reply is None else reply["failed"]
            worker.kill()
            raise ConfigurationError(
                f"a reward worker for {self._user_scorer or self._spec.scorer} cannot start: {reason}"
            )
        return worker

    def _restart(self, index: int, reason: str) -> None:
        self._workers[index].kill()
        self._workers[index] = self._start()
        self._restarts.append(WorkerRestart(index, reason))


class _Worker:
    """A child process and its pipes. It leads its own process group, so that its children end with it."""

    def __init__(self) -> None:
        # The child must find the same modules as this process, however sys.path was set.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rl.tasks.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
            bufsize=0,
        )
        self._received = b""

    def fileno(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def send(self, message: Mapping[str, object]) -> None:
        assert self._process.stdin is not None
        data = memoryview(json.dumps(message).encode() + b"\n")
        # A worker that has died does not read. `receive` then finds the end of its pipe, and reports it.
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[self._process.stdin.write(data) or 0 :]

    def receive(self) -> tuple[bool, dict | None]:
        """(whether there is an outcome, the reply). The reply is None if the worker has died."""
        chunk = os.read(self.fileno(), 1 << 16)
        self._received += chunk
        line, newline, rest = self._received.partition(b"\n")
        if newline:
            self._received = rest
            return True, json.loads(line)
        return not chunk, None

    def failure_reason(self, timeout_seconds: float) -> str:
        """Why there is no reply: the worker has ended, or it is still running and has exceeded its deadline."""
        for _ in range(100):  # the pipe of a dying process closes shortly before the process ends
            if reason := self.how_it_ended():
                return reason
            if not self._at_end():
                break
            time.sleep(0.01)
        return f"no answer within {timeout_seconds:g} s"

    def how_it_ended(self) -> str | None:
        """How the process ended; None while it runs. `kill` reaps it: until then its process id is not reused."""
        try:
            ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # a library in this process has waited for all children
            return "the worker ended with an unknown exit code"
        if ended is None:
            return None
        return f"the worker ended with {'exit code' if ended.si_code == os.CLD_EXITED else 'signal'} {ended.si_status}"

    def _at_end(self) -> bool:
        """Whether the worker has closed its end of the pipe."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.fileno(), selectors.EVENT_READ)
            return bool(selector.select(0)) and not os.read(self.fileno(), 1)

    def kill(self) -> None:
        """End the process and its children with SIGKILL, and reap it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def _wait(workers: Sequence[_Worker], busy: Mapping[int, tuple[int, float]]) -> dict[int, dict | None]:
    """Wait until at least one busy worker replies, dies or exceeds its deadline.

    `busy` maps a worker's index to (item, deadline on the monotonic clock in seconds). Returns the reply of each worker
    that has an outcome; None if it died or exceeded its deadline.
    """
    with selectors.DefaultSelector() as selector:
        for w in busy:
            selector.register(workers[w].fileno(), selectors.EVENT_READ, w)
        while True:
            done: dict[int, dict | None] = {}
            nearest = min(deadline for _, deadline in busy.values())
            for key, _ in selector.select(max(0.0, nearest - time.monotonic())):
                has_outcome, reply = workers[key.data].receive()
                if has_outcome:
                    done[key.data] = reply
            now = time.monotonic()
            done.update({w: None for w, (_, deadline) in busy.items() if w not in done and now >= deadline})
            if done:
                return done


def _checked_weights(spec: TaskSpec, user_scorer: str | None) -> dict[str, float]:
    if spec.reward_timeout_seconds <= 0 or spec.reward_workers < 1:
        raise ConfigurationError(
            f"task.reward_timeout_seconds={spec.reward_timeout_seconds} should be above 0 and "
            f"task.reward_workers={spec.reward_workers} at least 1"
        )
    try:
        re.compile(spec.format_pattern)
    except re.error as error:
        raise ConfigurationError(
            f"task.format_pattern={spec.format_pattern!r} is not a valid regular expression: {error}"
        ) from error
    weights = {n: float(w) for n, w in spec.reward_weights.items()}
    if not spec.format_pattern:
        weights.pop("format", None)  # the default weights have it; without a pattern there is no such reward
    if "correct" not in weights:
        raise ConfigurationError(
            f"task.reward_weights={dict(spec.reward_weights)} has no weight for 'correct'; add one (0 is valid)"
        )
    known = {"correct", "format"}
    if user_scorer is None and (unknown := sorted(set(weights) - known)):
        raise ConfigurationError(f"task.reward_weights: there is no reward {unknown[0]!r}; there are: {_names(known)}")
    if spec.format_pattern and "format" not in weights:
        raise ConfigurationError(
            "task.format_pattern is set, but task.reward_weights has no weight for 'format'; add one"
        )
    return weights


def _names(names: object) -> str:
    return ", ".join(sorted(map(str, names)))  # type: ignore[call-overload]

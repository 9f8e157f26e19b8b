"""Scores completions: several raw rewards by name, their weighted sum, and raw correctness apart from it.

Code that may never return or may take the process with it runs in worker processes with a deadline for each
completion: a user's own scorer, a user's regular expression (matching can take exponential time), and math-verify
(sympy can simplify for ever). `exact` and `number` run in this process: they are ours, take time linear in the length
of the text, and cannot fail, so a process would add only its cost.

A completion whose scorer throws, or dies, or is over its deadline counts as wrong, with every raw reward 0 and its
error counted; it is never left out of a mean.
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
from rl.tasks.worker import START_SECONDS, judge_from

_log = logging.getLogger(__name__)

IN_PROCESS = ("exact", "number")
MOST_ERRORS_TOLD = 3


@dataclass(frozen=True)
class WorkerRestart:
    """A worker was ended or died, and a new one has its place."""

    index: int
    reason: str


@dataclass(frozen=True)
class Scores:
    """The judgement of a batch; every sequence has one entry per completion, in their order."""

    reward: tuple[float, ...]
    """The weighted sum of the raw rewards."""
    acc: tuple[float, ...]
    """1.0 where `correct` has full credit, else 0.0."""
    raw: Mapping[str, tuple[float, ...]]
    """Every reward by name, unweighted, from 0 to 1."""
    errors: tuple[str | None, ...]
    """What went wrong in scoring; None where nothing did."""
    restarts: tuple[WorkerRestart, ...] = ()


class Scorer:
    """Scores completions as a task says; leaves no process behind when its `with` block ends.

    One scorer belongs to one thread. Workers start at the first call that needs them.
    """

    def __init__(self, spec: TaskSpec, user_scorer: str | None = None) -> None:
        """
        Raises:
            ConfigurationError: a weight without a reward, a pattern that is no regular expression, no time, no workers.
        """
        self._spec = spec
        self._user_scorer = user_scorer
        self._weights = _checked_weights(spec, user_scorer)
        self._workers: list[_Worker] = []
        self._restarts: list[WorkerRestart] = []
        self._told: set[str] = set()
        self._local = user_scorer is None and spec.scorer in IN_PROCESS and not spec.format_pattern

    def __enter__(self) -> Scorer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers and what they started. Closing twice is fine."""
        for worker in self._workers:
            worker.kill()
        self._workers.clear()

    def score(self, completions: Sequence[str], answers: Sequence[str]) -> Scores:
        """Judge each completion against the answer at the same place.

        Raises:
            ConfigurationError: the user's scorer cannot be imported, or names other rewards than the weights do.
        """
        if len(completions) != len(answers):
            raise ValueError(f"{len(completions)} completions and {len(answers)} answers")
        judged: list[dict[str, float] | str]
        if self._local:
            judge = judge_from(self._spec.scorer, None, "")
            judged = [judge(c, a) for c, a in zip(completions, answers, strict=True)]
        else:
            judged = self._in_workers(list(zip(completions, answers, strict=True)))
        restarts, self._restarts = tuple(self._restarts), []
        self._tell_new_errors(completions, judged)
        return self._scores(judged, restarts)

    def _tell_new_errors(self, completions: Sequence[str], judged: Sequence[dict[str, float] | str]) -> None:
        """Log the first few different errors: a rate of errors says how many, and not why."""
        for completion, one in zip(completions, judged, strict=True):
            if isinstance(one, str) and one not in self._told and len(self._told) < MOST_ERRORS_TOLD:
                self._told.add(one)
                _log.warning("scoring failed and counts as wrong: %s; the completion was %.200r", one, completion)

    def _scores(self, judged: list[dict[str, float] | str], restarts: tuple[WorkerRestart, ...]) -> Scores:
        """`judged` has the raw rewards by name, or the text of an error."""
        for one in judged:
            if not isinstance(one, str) and set(one) != set(self._weights):
                raise ConfigurationError(
                    f"the scorer {self._user_scorer} gives the rewards {_names(one)} and task.reward_weights has "
                    f"{_names(self._weights)}: give each a weight (0 logs it only), and take out the others"
                )
        raw = {n: tuple(0.0 if isinstance(one, str) else one[n] for one in judged) for n in self._weights}
        return Scores(
            reward=tuple(sum(w * raw[n][i] for n, w in self._weights.items()) for i in range(len(judged))),
            acc=tuple(float(v >= 1.0) for v in raw["correct"]),
            raw=raw,
            errors=tuple(one if isinstance(one, str) else None for one in judged),
            restarts=restarts,
        )

    def _in_workers(self, items: list[tuple[str, str]]) -> list[dict[str, float] | str]:
        """Hand one item at a time to each idle worker; the deadline of an item starts when it is handed over."""
        if not items:
            return []
        while len(self._workers) < min(self._spec.reward_workers, len(items)):
            self._workers.append(self._start())
        judged: list[dict[str, float] | str] = [""] * len(items)
        waiting = list(range(len(items)))[::-1]
        busy: dict[int, tuple[int, float]] = {}  # worker -> item, deadline
        while waiting or busy:
            for w in range(len(self._workers)):
                if w not in busy and waiting:
                    if reason := self._workers[w].how_it_ended():
                        self._restart(w, reason)  # it died idle, which is no completion's fault
                    busy[w] = (item := waiting.pop()), time.monotonic() + self._spec.reward_timeout_seconds
                    self._workers[w].ask({"completion": items[item][0], "answer": items[item][1]})
            for w, reply in _wait(self._workers, busy).items():
                item = busy.pop(w)[0]
                if reply is None:
                    reason = self._workers[w].why_silent(self._spec.reward_timeout_seconds)
                    self._restart(w, reason)
                    judged[item] = reason
                else:
                    judged[item] = reply["error"] if "error" in reply else reply["raw"]
        return judged

    def _start(self) -> _Worker:
        worker = _Worker()
        worker.ask(
            {
                "scorer": self._spec.scorer,
                "user_scorer": self._user_scorer,
                "format_pattern": self._spec.format_pattern,
                "timeout_seconds": self._spec.reward_timeout_seconds,
            }
        )
        reply = _wait([worker], {0: (0, time.monotonic() + START_SECONDS)})[0]
        if reply is None or "failed" in reply:
            reason = worker.why_silent(START_SECONDS) if reply is None else reply["failed"]
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
    """A child process and the pipes to it. It leads a process group of its own, so its children end with it."""

    def __init__(self) -> None:
        # The child imports what we import, from the same places, whatever they were set by.
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

    def ask(self, message: Mapping[str, object]) -> None:
        assert self._process.stdin is not None
        data = memoryview(json.dumps(message).encode() + b"\n")
        # A worker that died does not read: looking for its answer finds the end of its pipe, and says so.
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[self._process.stdin.write(data) or 0 :]

    def receive(self) -> tuple[bool, dict | None]:
        """Whether the answer is there, and the answer; None if the worker is gone instead."""
        chunk = os.read(self.fileno(), 1 << 16)
        self._received += chunk
        line, newline, rest = self._received.partition(b"\n")
        if newline:
            self._received = rest
            return True, json.loads(line)
        return not chunk, None

    def why_silent(self, timeout_seconds: float) -> str:
        """Why no answer came: the worker has ended, or it still runs and so is over its deadline."""
        for _ in range(100):  # its pipe closes a little before it is dead
            if reason := self.how_it_ended():
                return reason
            if not self._at_end():
                break
            time.sleep(0.01)
        return f"no answer within {timeout_seconds:g} s"

    def how_it_ended(self) -> str | None:
        """None while it runs. Leaves it to `kill` to reap it: until then nobody else gets its process id."""
        try:
            ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # a library of this process waits for all children, not only for its own
            return "the worker ended, how is not known"
        if ended is None:
            return None
        return f"the worker ended with {'exit code' if ended.si_code == os.CLD_EXITED else 'signal'} {ended.si_status}"

    def _at_end(self) -> bool:
        """Whether the worker's end of the pipe is closed."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.fileno(), selectors.EVENT_READ)
            return bool(selector.select(0)) and not os.read(self.fileno(), 1)

    def kill(self) -> None:
        """End it and its children, whatever state they are in."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def _wait(workers: Sequence[_Worker], busy: Mapping[int, tuple[int, float]]) -> dict[int, dict | None]:
    """Wait for the first of the busy workers to answer, end or miss its deadline. None: no answer will come."""
    with selectors.DefaultSelector() as selector:
        for w in busy:
            selector.register(workers[w].fileno(), selectors.EVENT_READ, w)
        while True:
            done: dict[int, dict | None] = {}
            nearest = min(deadline for _, deadline in busy.values())
            for key, _ in selector.select(max(0.0, nearest - time.monotonic())):
                there, answer = workers[key.data].receive()
                if there:
                    done[key.data] = answer
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
            f"task.format_pattern={spec.format_pattern!r} is no regular expression: {error}"
        ) from error
    weights = {n: float(w) for n, w in spec.reward_weights.items()}
    if not spec.format_pattern:
        weights.pop("format", None)  # its weight stands by until there is a pattern
    if "correct" not in weights:
        raise ConfigurationError(
            f"task.reward_weights={dict(spec.reward_weights)} has no weight for 'correct' (0 is one)"
        )
    known = {"correct", "format"}
    if user_scorer is None and (unknown := sorted(set(weights) - known)):
        raise ConfigurationError(f"task.reward_weights: there is no reward {unknown[0]!r}; there are: {_names(known)}")
    if spec.format_pattern and "format" not in weights:
        raise ConfigurationError("task.format_pattern is set and task.reward_weights has no weight for 'format'")
    return weights


def _names(names: object) -> str:
    return ", ".join(sorted(map(str, names)))  # type: ignore[call-overload]

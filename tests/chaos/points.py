"""Points at which a driver can be killed, and a witness that records what really happened until then.

Both are in the process that is killed. There is a point before and after every commit, before every row of an open
transaction, before every change of a file, between the truncation of a file and its first write, and before and after
every call of the controller by its executor. At the n-th point the process kills itself with SIGKILL: without `finally`
or `atexit`, and buffers are lost. The witness writes to its file without a buffer, so its lines survive.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cost.clock import FakeClock
from rl.spec import CheckpointWritten, Command, Event
from sweeps.executors import Attempt, Controller

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_FILE_EVENTS = {
    "os.rename",
    "os.mkdir",
    "os.remove",
    "os.rmdir",
    "os.truncate",
    "os.link",
    "os.symlink",
    "shutil.rmtree",
}
_ROW_STATEMENTS = ("INSERT", "UPDATE", "DELETE", "CREATE", "ALTER", "DROP")


class Witness:
    """Writes lines of JSON to a file, unbuffered. `run` numbers the drivers of one sweep."""

    def __init__(self, file: Path, run: int) -> None:
        self._descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._run = run
        self.clock: FakeClock | None = None

    def write(self, what: str, **more: Any) -> None:
        at_ns = None if self.clock is None else self.clock.utc_ns()
        line = {"run": self._run, "what": what, "at_ns": at_ns, **more}
        os.write(self._descriptor, (json.dumps(line) + "\n").encode())


class Points:
    """Counts the points and kills the process at number `kill_at` (0: never), after the witness has recorded where."""

    def __init__(self, witness: Witness, kill_at: int) -> None:
        self.count = 0
        self._witness, self._kill_at = witness, kill_at

    def reach(self, kind: str, where: str) -> None:
        self.count += 1
        if self.count == self._kill_at:
            self._witness.write("killed", point=self.count, kind=kind, where=where)
            os.kill(os.getpid(), signal.SIGKILL)


def install(points: Points, witness: Witness, root: Path) -> None:
    """Put the points into this process, which runs one driver and cannot be restored."""
    _at_commits_and_rows(points)
    _at_files(points, os.fspath(root))
    _at_calls(points, witness)


def _at_commits_and_rows(points: Points) -> None:
    from sqlalchemy import Engine, event
    from sqlalchemy.engine.default import DefaultDialect

    changes: dict[int, int] = {}
    commit = DefaultDialect.do_commit

    def do_commit(self: DefaultDialect, dbapi_connection: Any) -> None:
        raw = getattr(dbapi_connection, "dbapi_connection", dbapi_connection)
        rows = getattr(raw, "total_changes", 0)  # a server's connection does not count them
        wrote = rows != changes.get(id(raw), 0)
        changes[id(raw)] = rows
        if wrote:
            points.reach("before a commit", "")
        commit(self, dbapi_connection)
        if wrote:
            points.reach("after a commit", "")

    DefaultDialect.do_commit = do_commit

    @event.listens_for(Engine, "before_cursor_execute")
    def _row(_connection: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        if statement.lstrip().upper().startswith(_ROW_STATEMENTS):
            points.reach("within a transaction", " ".join(statement.split()[:3]))


def _at_files(points: Points, root: str) -> None:
    def audit(name: str, arguments: tuple[Any, ...]) -> None:
        if name == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & _WRITES and _within(path, root):
                points.reach("before a file", os.path.basename(os.fspath(path)))
        elif name in _FILE_EVENTS and _within(arguments[0], root):
            points.reach("before a file", f"{name} {os.path.basename(os.fspath(arguments[0]))}")

    def emptied(opened: Callable[..., Any]) -> Callable[..., Any]:
        def open_file(file: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
            handle = opened(file, mode, *more, **named)
            if "w" in mode and _within(file, root):
                points.reach("in a file", os.path.basename(os.fspath(file)))
            return handle

        return open_file

    import builtins

    io.open = builtins.open = emptied(io.open)
    sys.addaudithook(audit)


def _within(path: Any, root: str) -> bool:
    return isinstance(path, str | os.PathLike) and str(os.path.abspath(os.fspath(path))).startswith(root)


def _at_calls(points: Points, witness: Witness) -> None:
    from sweeps.driver import driver
    from sweeps.executors.in_process import InProcessExecutor

    class WitnessedClock(FakeClock):
        def __init__(self, utc: int) -> None:
            super().__init__(utc)
            witness.clock = self
            witness.write("driver")

    run = InProcessExecutor.run
    driver.FakeClock = WitnessedClock

    def run_witnessed(self: InProcessExecutor, controller: Controller) -> None:
        witnessed: Any = _WitnessedController(controller, points, witness)
        run(self, witnessed)

    InProcessExecutor.run = run_witnessed


class _WitnessedController:
    """Wraps a controller: the executor's calls reach the witness first."""

    def __init__(self, controller: Any, points: Points, witness: Witness) -> None:
        self._controller, self._points, self._witness = controller, points, witness

    def __getattr__(self, name: str) -> Any:
        return getattr(self._controller, name)

    def on_granted(self, attempt: Attempt) -> None:
        resumed = None if attempt.checkpoint is None else attempt.checkpoint.name
        self._witness.write("granted", trial=attempt.trial_id, attempt=attempt.number, checkpoint=resumed)
        self._around("granted", lambda: self._controller.on_granted(attempt))

    def on_message(self, attempt: Attempt, sequence: int, message: Event) -> Command:
        fields = {"trial": attempt.trial_id, "attempt": attempt.number, "kind": message.type}
        step = getattr(message, "step", None)
        self._witness.write("message", **fields, step=step)
        command = self._around(message.type, lambda: self._controller.on_message(attempt, sequence, message))
        if isinstance(message, CheckpointWritten):
            self._witness.write("checkpoint_received", **fields, step=step, checkpoint=Path(message.path).name)
        return command

    def on_ended(self, attempt: Attempt, *more: Any) -> None:
        self._around("ended", lambda: self._controller.on_ended(attempt, *more))

    def on_released(self, attempt: Attempt, released: bool) -> None:
        self._witness.write("released", trial=attempt.trial_id, attempt=attempt.number)
        self._around("released", lambda: self._controller.on_released(attempt, released))
        self._witness.write("closed", trial=attempt.trial_id, attempt=attempt.number)

    def on_tick(self) -> None:
        self._around("tick", self._controller.on_tick)

    def _around(self, name: str, call: Callable[[], Any]) -> Any:
        self._points.reach("before a call", name)
        answer = call()
        self._points.reach("after a call", name)
        return answer

"""A deadline for calls that may hang, such as a weight sync between processes."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable

SYNC_SECONDS = 600.0
"""Deadline of a weight sync. A sync of the largest models takes seconds, so one that takes this long has failed."""


class DeadlineError(RuntimeError):
    """A call did not return in time. The message names the call."""


def within(seconds: float, what: str, call: Callable[[], object]) -> None:
    """Run `call` in a new thread and wait for it.

    A call that exceeds the deadline keeps running in its daemon thread, since a thread cannot be ended from outside.
    The caller must end the attempt; the thread ends with the process.

    Args:
        what: what `call` does, for the error message: the operation, the role and the rank.

    Raises:
        DeadlineError: `call` has not returned after `seconds`.
        BaseException: whatever `call` raised.
    """
    raised: list[BaseException] = []
    context = contextvars.copy_context()

    def run() -> None:
        try:
            context.run(call)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name=what, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise DeadlineError(
            f"{what} did not end within {seconds:g} s: the process at the other end hangs or has died. The attempt "
            "ends here; a retry resumes from the last checkpoint"
        )
    if raised:
        raise raised[0]

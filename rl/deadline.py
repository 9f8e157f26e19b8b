"""A deadline for what may hang: a weight sync between processes, above all. The error says who did not answer.

What hangs is left behind in its thread: the attempt is over, and its process is ended by whoever runs it.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable

SYNC_SECONDS = 600.0
"""A sync of the largest models takes seconds; one that takes this long will not end."""


class DeadlineError(RuntimeError):
    """Something did not end in time; the message names it."""


def within(seconds: float, what: str, call: Callable[[], object]) -> None:
    """Run `call` in a thread of its own and wait for it.

    Raises:
        DeadlineError: it has not ended after `seconds`; `what` says which role and rank that is.
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
            f"{what} did not end within {seconds:g} s: what is behind it hangs or is gone; the last checkpoint stands"
        )
    if raised:
        raise raised[0]

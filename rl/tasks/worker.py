"""A reward worker: a process that scores one completion at a time.

`rl.tasks.rewards` starts it as `python -m rl.tasks.worker`. Requests come on its standard input and replies go to its
standard output, as JSON lines. The parent ends a worker that exceeds the deadline of a completion. A worker whose
parent has died ends itself.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from rl.tasks.scorers import SCORERS
from rl.tasks.thinking import after_thinking

START_SECONDS = 120.0
"""Deadline for the start of a worker, import of the user's module included."""
ORPHANED_AFTER_DEADLINES = 2
"""A worker that is still busy after this many deadlines was not ended by its parent, so the parent has died."""


def main() -> None:
    # User code may print and read. Move the pipes to other descriptors; connect stdout to stderr, and stdin to nothing.
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def reply(message: Mapping[str, Any]) -> None:
        replies.write(json.dumps(message).encode() + b"\n")
        replies.flush()

    with open(os.devnull, "w") as nowhere:

        def end_me_after(deadline_seconds: float) -> None:
            # faulthandler uses a C thread, which ends the process even while a regular expression holds the GIL.
            faulthandler.dump_traceback_later(ORPHANED_AFTER_DEADLINES * deadline_seconds, exit=True, file=nowhere)

        setup = json.loads(requests.readline())
        end_me_after(START_SECONDS)
        try:
            score = make_scorer(setup["scorer"], setup["user_scorer"], setup["format_pattern"])
        except BaseException as error:
            reply({"failed": _text(error)})
            return
        faulthandler.cancel_dump_traceback_later()
        reply({"ready": True})
        for line in requests:
            request = json.loads(line)
            end_me_after(request.get("timeout_seconds", setup["timeout_seconds"]))
            try:
                result: dict[str, Any] = {"raw": score(request["completion"], request["answer"])}
            except BaseException as error:  # SystemExit in user code is a failed score, not the end of the worker
                result = {"error": _text(error)}
            faulthandler.cancel_dump_traceback_later()
            reply(result)


def make_scorer(scorer: str, user_scorer: str | None, format_pattern: str) -> Callable[[str, str], dict[str, float]]:
    """A function (completion, answer) -> raw rewards by name: `correct`, `format`, and those of the user's scorer.

    Args:
        scorer: a key of `SCORERS`, used if there is no `user_scorer`.
        user_scorer: `package.module:function`.
        format_pattern: regular expression of the reward `format`; empty: no such reward.

    Raises:
        Exception: whatever the import of the user's scorer raises.
    """
    pattern = re.compile(format_pattern) if format_pattern else None
    if user_scorer:
        module, _, name = user_scorer.partition(":")
        function: Any = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
    else:
        function = SCORERS[scorer]
        if scorer == "math_verify":
            importlib.import_module("math_verify")  # takes seconds, which would count against the first deadline

    def score(completion: str, answer: str) -> dict[str, float]:
        value = function(completion if user_scorer else after_thinking(completion), answer)
        raw = {str(n): _unit(v, n) for n, v in (value if isinstance(value, Mapping) else {"correct": value}).items()}
        if pattern:
            raw["format"] = float(pattern.search(completion) is not None)
        return raw

    return score


def _unit(value: Any, name: str) -> float:
    """`value` as a raw reward, a number from 0 to 1, so that full credit can be told from partial credit.

    Raises:
        ValueError: it is outside of 0 to 1, or not finite.
    """
    number = float(value)
    if not (math.isfinite(number) and 0.0 <= number <= 1.0):
        raise ValueError(f"the scorer's {name!r} is {value!r}; a raw reward is a number from 0 to 1")
    return number


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main()

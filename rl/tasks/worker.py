"""One reward worker: a process that scores one completion at a time, as its parent asks over a pipe in JSON lines.

Started by rewards.py as `python -m rl.tasks.worker`. Nothing is pickled in either direction. The worker keeps no
time: whoever asked ends it at the deadline. Should the parent be gone by then, it ends itself.
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

START_SECONDS = 120.0
"""What a worker may take to start and to import the user's module."""
ORPHANED_AFTER_DEADLINES = 2
"""A worker that is still busy after this many deadlines was not ended by its parent: there is none any more."""


def main() -> None:
    # The user's code may print and may read: keep the pipes to ourselves, and give it stderr and nothing.
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def reply(message: Mapping[str, Any]) -> None:
        replies.write(json.dumps(message).encode() + b"\n")
        replies.flush()

    with open(os.devnull, "w") as nowhere:

        def end_me_after(deadline_seconds: float) -> None:
            # A thread of C: it ends the process even while a regular expression holds the interpreter's lock.
            faulthandler.dump_traceback_later(ORPHANED_AFTER_DEADLINES * deadline_seconds, exit=True, file=nowhere)

        setup = json.loads(requests.readline())
        end_me_after(START_SECONDS)
        try:
            judge = judge_from(setup["scorer"], setup["user_scorer"], setup["format_pattern"])
        except BaseException as error:
            reply({"failed": _text(error)})
            return
        faulthandler.cancel_dump_traceback_later()
        reply({"ready": True})
        for line in requests:
            asked = json.loads(line)
            end_me_after(setup["timeout_seconds"])
            try:
                answer: dict[str, Any] = {"raw": judge(asked["completion"], asked["answer"])}
            except BaseException as error:  # SystemExit from the user's code is a failure like any other
                answer = {"error": _text(error)}
            faulthandler.cancel_dump_traceback_later()
            reply(answer)


def judge_from(scorer: str, user_scorer: str | None, format_pattern: str) -> Callable[[str, str], dict[str, float]]:
    """A function from completion and answer to every raw reward by name: `correct`, `format`, and the user's own.

    Raises:
        Exception: whatever importing the user's scorer raises.
    """
    pattern = re.compile(format_pattern) if format_pattern else None
    if user_scorer:
        module, _, name = user_scorer.partition(":")
        score: Any = importlib.import_module(module)
        for part in name.split("."):
            score = getattr(score, part)
    else:
        score = SCORERS[scorer]
        if scorer == "math_verify":
            importlib.import_module("math_verify")  # seconds that no completion's deadline should pay for

    def judge(completion: str, answer: str) -> dict[str, float]:
        value = score(completion, answer)
        raw = {str(n): _unit(v, n) for n, v in (value if isinstance(value, Mapping) else {"correct": value}).items()}
        if pattern:
            raw["format"] = float(pattern.search(completion) is not None)
        return raw

    return judge


def _unit(value: Any, name: str) -> float:
    """A raw reward lies between 0 and 1; a weight scales it. So `acc` can tell full credit from part of it."""
    number = float(value)
    if not (math.isfinite(number) and 0.0 <= number <= 1.0):
        raise ValueError(f"the scorer's {name!r} is {value!r}; a raw reward is a number from 0 to 1")
    return number


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main()

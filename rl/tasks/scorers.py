"""Scorers: pure functions that compare a completion with the answer. `rl.tasks.rewards` runs them."""

from __future__ import annotations

import logging
from typing import Any

from rl.tasks.numbers import final_number, parse_number


def exact(completion: str, answer: str) -> float:
    """1.0 if the completion equals the answer, apart from surrounding white space; else 0.0."""
    return float(completion.strip() == answer.strip())


def number(completion: str, answer: str) -> float:
    """1.0 if the number that the completion gives as its answer equals `answer`, else 0.0.

    `rl.tasks.numbers` says which number that is. Values are compared exactly: `1,000.0` equals `1000`, and `09` is 9.
    """
    found, right = final_number(completion), parse_number(answer)
    return float(found is not None and right is not None and found.equals(right))


def math_verify(completion: str, answer: str) -> float:
    """1.0 if math-verify finds the last expression of the completion equivalent to the answer (LaTeX or plain text).

    The time limits of math-verify are off, since they use SIGALRM. The reward worker that calls this has a deadline.
    """
    import math_verify as library

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # otherwise every call warns that the limits are off
    off: Any = None  # the library accepts None; its annotations do not
    gold = library.parse(f"\\boxed{{{answer}}}", parsing_timeout=off)
    found = library.parse(completion, parsing_timeout=off)
    return float(bool(library.verify(gold, found, timeout_seconds=off)))


SCORERS = {"exact": exact, "number": number, "math_verify": math_verify}

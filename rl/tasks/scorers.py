"""Scorers: pure functions that compare a completion with the answer. `rl.tasks.rewards` runs them."""

from __future__ import annotations

import logging
import re
from decimal import Decimal
from typing import Any

# A minus after a digit or a closing bracket is an operator ("9-4" ends with 4); elsewhere it is a sign.
# The pattern is unambiguous, so that a search takes time linear in the length of the text.
_NUMBER = re.compile(r"(?:(?<![\d.)\]])[-+])?(?:\d+(?:,\d{3}(?!\d))*(?:\.\d+)?|\.\d+)", re.ASCII)


def exact(completion: str, answer: str) -> float:
    """1.0 if the completion equals the answer, apart from surrounding white space; else 0.0."""
    return float(completion.strip() == answer.strip())


def number(completion: str, answer: str) -> float:
    """1.0 if the last number in the completion equals the answer, else 0.0.

    Numbers are compared exactly: `1,000.0` equals `1000`, and `09` equals `9`.
    """
    found = last_number(completion)
    return float(found is not None and found == parse_number(answer))


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


def last_number(text: str) -> Decimal | None:
    """The last number in `text` that is written in digits; None if there is none."""
    matches = _NUMBER.findall(text.replace("\u2212", "-"))
    return Decimal(matches[-1].replace(",", "")) if matches else None


def parse_number(text: str) -> Decimal | None:
    """`text` as a number; None unless all of it, apart from surrounding white space, is one number."""
    text = text.strip().replace("\u2212", "-")
    return Decimal(text.replace(",", "")) if _NUMBER.fullmatch(text) else None


SCORERS = {"exact": exact, "number": number, "math_verify": math_verify}

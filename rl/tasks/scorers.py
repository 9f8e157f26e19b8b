"""Is this completion right? Pure functions of a completion and the answer; where they run is decided in rewards.py."""

from __future__ import annotations

import logging
import re
from decimal import Decimal
from typing import Any

# A minus right after a digit or a bracket is an operator ("9-4" ends in 4), anywhere else it is a sign.
# Nothing in it can match in two ways, so the search is linear in the length of the text.
_NUMBER = re.compile(r"(?:(?<![\d.)\]])[-+])?(?:\d+(?:,\d{3}(?!\d))*(?:\.\d+)?|\.\d+)", re.ASCII)


def exact(completion: str, answer: str) -> float:
    """1.0 if the completion is the answer, but for white space around it."""
    return float(completion.strip() == answer.strip())


def number(completion: str, answer: str) -> float:
    """1.0 if the last number in the completion equals the answer: `1,000.0` and `1000` are equal, `9` and `09` too."""
    found = last_number(completion)
    return float(found is not None and found == parse_number(answer))


def math_verify(completion: str, answer: str) -> float:
    """1.0 if math-verify finds the completion's last expression equivalent to the answer (LaTeX or plain).

    Its own time limits are off: they use SIGALRM, and the worker that calls this has a deadline from outside.
    """
    import math_verify as library

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns at every call that its limits are off
    off: Any = None  # which the library accepts and its annotations do not
    gold = library.parse(f"\\boxed{{{answer}}}", parsing_timeout=off)
    found = library.parse(completion, parsing_timeout=off)
    return float(bool(library.verify(gold, found, timeout_seconds=off)))


def last_number(text: str) -> Decimal | None:
    """The last number written in digits in `text`, None if there is none."""
    matches = _NUMBER.findall(text.replace("\u2212", "-"))
    return Decimal(matches[-1].replace(",", "")) if matches else None


def parse_number(text: str) -> Decimal | None:
    """`text` as a number, None if it is not one from first to last character (white space aside)."""
    text = text.strip().replace("\u2212", "-")
    return Decimal(text.replace(",", "")) if _NUMBER.fullmatch(text) else None


SCORERS = {"exact": exact, "number": number, "math_verify": math_verify}

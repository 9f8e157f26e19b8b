"""What a message suggests instead of what was typed: the nearest existing keys, and texts quoted for shell and Hydra.

Tested in tests/sweeps/config/test_suggestions.py.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable, Sequence

NAMES_ELSEWHERE = {
    "learning_rate": "lr",
    "num_generations": "group_size",
    "beta": "kl_coef",
    "epsilon": "clip_eps_low",
    "epsilon_high": "clip_eps_high",
    "max_completion_length": "max_completion_tokens",
    "max_prompt_length": "max_prompt_tokens",
    "max_steps": "steps",
}
"""Names of other trainers' settings, and the last part of our key for each."""

_LEAST_LIKENESS = 0.75


def nearest_keys(key: str, candidates: Sequence[str]) -> list[str]:
    """The existing keys that were probably meant: usually one, several where they are equally near, or none.

    The last part of a key counts most, because a right name in the wrong place is the usual mistake.
    """
    parent, _, last = key.rpartition(".")
    last = NAMES_ELSEWHERE.get(last, last)
    scores: dict[str, float] = {}
    for candidate in candidates:
        other_parent, _, other_last = candidate.rpartition(".")
        likeness = _likeness(last, other_last)
        if likeness >= _LEAST_LIKENESS:
            scores[candidate] = round(0.7 * likeness + 0.3 * _likeness(parent, other_parent), 3)
    best = max(scores.values(), default=0.0)
    return [candidate for candidate, score in scores.items() if score == best][:2]


def _likeness(a: str, b: str) -> float:
    """0 to 1."""
    return 1.0 if a == b else difflib.SequenceMatcher(None, a, b).ratio()


def did_you_mean(near: Iterable[str]) -> str:
    """The end of a message: the question with what was probably meant, or a full stop."""
    found = " or ".join(near)
    return f"; did you mean {found}?" if found else "."


def quoted_text(key: str, text: str) -> str:
    """`KEY="text"` as it is typed on a shell, whatever characters the text has."""
    escaped = re.sub(r'(\\*)("|$)', lambda m: m[1] * 2 + (r"\"" if m[2] else ""), text)
    return shlex.quote(f'{key}="{escaped}"')

"""Progress bars of tqdm and of notebooks: steps done, steps planned, and the time since the start.

Tested in tests/rl/trainers/logs/test_trl_console.py and tests/rl/trainers/logs/test_files.py.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rl.trainers.logs.text import Line

_BAR = re.compile(
    r"(?P<label>[A-Za-z][^|%\r]{0,60}: *)?\d{1,3}%\|[^|]{0,300}\|\s*(?P<count>\d{1,9})/(?P<total>\d{1,9})"
    r" \[(?P<elapsed>\d{1,6}(?::\d\d){1,2})[<,]",
    re.ASCII,
)
_NOTEBOOK_BAR = re.compile(r"\[\s*(\d{1,9})/(\d{1,9}) (\d{1,6}(?::\d\d){1,2})(?: < [^,\]]*)?, *Epoch", re.ASCII)
_TRAINING_LABELS = ("Training Progress", "Episode [", "train")


@dataclass(frozen=True, slots=True)
class Bar:
    """One state of a progress bar."""

    index: int
    """Position of its line in the document's lines."""
    count: int
    total: int
    elapsed_seconds: int


def training_bars(lines: Sequence[Line]) -> list[Bar]:
    """The states of the bar that counts training steps: without a label, and with the most different counts."""
    by_total: dict[int, list[Bar]] = defaultdict(list)
    for index, line in enumerate(lines):
        if "%|" in line.text:
            for found in _BAR.finditer(line.text):
                label = (found["label"] or "").strip()
                if not label or label.startswith(_TRAINING_LABELS):
                    bar = Bar(index, int(found["count"]), int(found["total"]), _seconds(found["elapsed"]))
                    if bar.count <= bar.total:
                        by_total[bar.total].append(bar)
    return max(by_total.values(), key=lambda bars: (len({bar.count for bar in bars}), bars[0].total), default=[])


def notebook_bar(text: str) -> Bar | None:
    """The last bar of a notebook's training output."""
    bars = _NOTEBOOK_BAR.findall(text)
    if not bars:
        return None
    count, total, elapsed = bars[-1]
    return Bar(0, int(count), int(total), _seconds(elapsed))


def elapsed_by_count(bars: Iterable[Bar]) -> dict[int, int]:
    """Seconds since the start at which each count was first shown; empty where the bar started again."""
    found: dict[int, int] = {}
    last = -1
    for bar in bars:
        if bar.count < last:
            return {}
        last = bar.count
        found.setdefault(bar.count, bar.elapsed_seconds)
    return found


def _seconds(text: str) -> int:
    total = 0
    for part in text.split(":"):
        total = total * 60 + int(part)
    return total

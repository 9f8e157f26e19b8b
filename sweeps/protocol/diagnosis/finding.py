"""What a diagnosis consists of: findings with their evidence, and what could not be judged.

Tested in tests/sweeps/protocol/diagnosis/test_diagnose.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sweeps.protocol.diagnosis.texts import TEXTS
from sweeps.protocol.gate_rules import Severity
from sweeps.protocol.windows import Window

PLOT_POINTS = 60


@dataclass(frozen=True)
class Evidence:
    """One curve that a finding rests on."""

    curve: str
    text: str
    """The numbers, with their steps."""
    first_step: int
    last_step: int
    points: tuple[tuple[int, float], ...] = ()
    """Step and mean of windows over the whole run, at most `PLOT_POINTS`: for a small plot."""


@dataclass(frozen=True)
class Finding:
    """One named disease of a run. Cause, remedy and blind spot are the same for every run: `TEXTS[name]`."""

    name: str
    severity: Severity
    summary: str
    """One sentence with the numbers that decided."""
    evidence: tuple[Evidence, ...]
    detail: str = ""
    """What this run adds to the general cause; empty: nothing."""

    def __post_init__(self) -> None:
        if self.name not in TEXTS or not self.evidence:
            raise ValueError(f"finding {self.name!r} needs an entry in TEXTS and at least one piece of evidence")

    @property
    def first_step(self) -> int:
        """The first step with evidence: money spent from here on was spent on a sick run."""
        return min(e.first_step for e in self.evidence)

    @property
    def title(self) -> str:
        return TEXTS[self.name].title

    @property
    def cause(self) -> str:
        general = TEXTS[self.name].cause
        return f"{general} {self.detail}".strip()

    @property
    def remedy(self) -> str:
        return TEXTS[self.name].remedy

    @property
    def cannot_see(self) -> str:
        return TEXTS[self.name].cannot_see


@dataclass(frozen=True)
class NotJudged:
    """A finding that could be neither made nor excluded."""

    name: str
    why: str


Result = Finding | NotJudged | None
"""Of one check. None: looked for and not found."""


@dataclass(frozen=True)
class Diagnosis:
    """What is known about the health of one run."""

    findings: tuple[Finding, ...]
    """The worst first."""
    excluded: tuple[str, ...]
    """Names of what was looked for and not found."""
    not_judged: tuple[NotJudged, ...]
    curves_read: tuple[str, ...]
    curves_missing: tuple[str, ...]
    """Of the eight curves and their companions."""
    last_step: int

    @property
    def healthy(self) -> bool:
        """No finding asks for action, and something was looked at."""
        return bool(self.excluded) and not any(f.severity is not Severity.NOTE for f in self.findings)

    @property
    def verdict(self) -> str:
        """One line for a person."""
        serious = [f for f in self.findings if f.severity is not Severity.NOTE]
        if serious:
            names = ", ".join(f"{f.title} (step {f.first_step})" for f in serious)
            return f"{len(serious)} finding{'s' if len(serious) > 1 else ''}: {names}"
        if not self.excluded:
            return f"nothing could be judged after {self.last_step} steps"
        return (
            f"no finding after {self.last_step} steps: {len(self.excluded)} excluded, {len(self.not_judged)} not judged"
        )


def points_of(series: Sequence[Window]) -> tuple[tuple[int, float], ...]:
    """Evenly chosen windows, the first and the last among them."""
    if len(series) <= PLOT_POINTS:
        return tuple((w.last_step, w.mean) for w in series)
    chosen = (series[round(i * (len(series) - 1) / (PLOT_POINTS - 1))] for i in range(PLOT_POINTS))
    return tuple((w.last_step, w.mean) for w in chosen)

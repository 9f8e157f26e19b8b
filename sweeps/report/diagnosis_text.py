"""A diagnosis as text of at most 100 columns, and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from sweeps.protocol.diagnosis.finding import Diagnosis, Evidence, Finding
from sweeps.protocol.gate_rules import Severity

WIDTH = 100
_BARS = "▁▂▃▄▅▆▇█"
_ASKS = {
    Severity.STOP: "stop the run",
    Severity.CLOSE: "do not go to the next stage",
    Severity.WARN: "warning",
    Severity.NOTE: "note",
}
"""What a finding of a severity asks for."""


def diagnosis_text(name: str, diagnosis: Diagnosis) -> str:
    """The verdict, every finding with its evidence, and what was excluded or could not be judged."""
    lines = [f"{name}: {diagnosis.verdict}"]
    for finding in diagnosis.findings:
        lines += ["", *_finding_lines(finding)]
    lines.append("")
    if diagnosis.excluded:
        lines += wrapped("Looked for and not found:", ", ".join(_words(n) for n in diagnosis.excluded))
    if diagnosis.not_judged:
        lines += wrapped("Not judged:", "; ".join(_not_judged(diagnosis)))
    if diagnosis.curves_missing:
        lines += wrapped("Curves that the run does not have:", ", ".join(diagnosis.curves_missing))
    return "\n".join(lines)


def diagnosis_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Every field of a diagnosis, and of each finding its title, cause, remedy and blind spot."""
    return {
        "verdict": diagnosis.verdict,
        "healthy": diagnosis.healthy,
        "last_step": diagnosis.last_step,
        "findings": [
            {
                "name": finding.name,
                "title": finding.title,
                "severity": str(finding.severity),
                "summary": finding.summary,
                "first_step": finding.first_step,
                "cause": finding.cause,
                "remedy": finding.remedy,
                "cannot_see": finding.cannot_see,
                "evidence": [asdict(evidence) for evidence in finding.evidence],
            }
            for finding in diagnosis.findings
        ],
        "excluded": list(diagnosis.excluded),
        "not_judged": {n.name: n.why for n in diagnosis.not_judged},
        "curves_missing": list(diagnosis.curves_missing),
    }


def _not_judged(diagnosis: Diagnosis) -> list[str]:
    """Names by their reason, so that a reason is printed once."""
    by_reason: dict[str, list[str]] = {}
    for one in diagnosis.not_judged:
        by_reason.setdefault(one.why, []).append(_words(one.name))
    return [f"{', '.join(names)} ({why})" for why, names in by_reason.items()]


def _finding_lines(finding: Finding) -> list[str]:
    lines = wrapped(f"{_ASKS[finding.severity]}: {finding.title}.", f"{finding.summary}.", indent="  ")
    lines += wrapped("Evidence from step:", str(finding.first_step), indent="    ")
    for evidence in finding.evidence:
        lines += _plot_lines(evidence)
    lines += wrapped("Likely cause:", finding.cause, indent="    ")
    lines += wrapped("What to do:", finding.remedy, indent="    ")
    lines += wrapped("This cannot see:", finding.cannot_see, indent="    ")
    return lines


def _plot_lines(evidence: Evidence) -> list[str]:
    """One line: the curve's name, its windows as bars, and the range of the bars."""
    if len(evidence.points) < 2:
        return []
    values = [value for _, value in evidence.points]
    low, high = min(values), max(values)
    return [f"    {evidence.curve}  {bars(values)}  {low:.3g} to {high:.3g}"]


def bars(values: Sequence[float]) -> str:
    """One character per value, from the lowest to the highest of them."""
    low, high = min(values), max(values)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in values)


def _words(name: str) -> str:
    return name.replace("_", " ")


def wrapped(head: str, text: str, indent: str = "") -> list[str]:
    """Lines of at most 100 columns; the second and later lines are indented further."""
    return textwrap.wrap(
        f"{head} {text}",
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def overview(diagnoses: Iterable[tuple[str, Diagnosis]]) -> list[str]:
    """One line per run: its name and verdict."""
    return [textwrap.shorten(f"{name}: {d.verdict}", WIDTH, placeholder=" …") for name, d in diagnoses]

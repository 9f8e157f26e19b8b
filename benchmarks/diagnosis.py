"""How often the diagnosis is right on synthetic runs with planted diseases, and how often it is wrong on healthy ones.

    python benchmarks/diagnosis.py                    # 60 runs per disease, 1,000 healthy ones; about two minutes
    python benchmarks/diagnosis.py --runs 20 --healthy 200 --seed 7

The generator (benchmarks/synthetic_runs.py) shares no code with the diagnosis. A disease is found if the diagnosis
names it. A false alarm is a healthy run with any finding that asks for action (warn, close or stop).
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.synthetic_runs import DISEASES, SyntheticRun, healthy, planted
from sweeps.protocol.diagnosis.diagnose import diagnose
from sweeps.protocol.diagnosis.finding import Diagnosis, Finding
from sweeps.protocol.diagnosis.limits import DEFAULT_LIMITS, Limits
from sweeps.protocol.diagnosis.reward import collapse_rule
from sweeps.protocol.gate_rules import Severity, first_stop
from sweeps.protocol.run_curves import Evaluation, RunCurves, RunFacts

NOTES = {"rollout_bound", "training_bound", "time_outside_steps"}
"""These are notes by nature: they are about money, not about health."""
FOUND_TARGET, FALSE_ALARM_TARGET = 0.95, 0.05


def as_run_curves(run: SyntheticRun) -> RunCurves:
    facts: dict[str, Any] = run.facts
    return RunCurves(
        tuple(run.steps),
        {name: tuple(values) for name, values in run.curves.items()},
        tuple(run.completions),
        run.rows_are_means_of,
        tuple(Evaluation(*e) for e in run.evaluations),
        RunFacts(**facts),
    )


def finding_of(diagnosis: Diagnosis, disease: str) -> Finding | None:
    """The disease, named as something to act on, or as a note where it is one by nature."""
    return next(
        (f for f in diagnosis.findings if f.name == disease and (f.severity is not Severity.NOTE or disease in NOTES)),
        None,
    )


@dataclass
class Score:
    """One disease."""

    runs: int = 0
    found: int = 0
    late: list[int] = field(default_factory=list)
    """First step with evidence minus the step at which the disease began."""
    instead: Counter[str] = field(default_factory=Counter)
    """What was named in the runs in which the disease was not."""

    @property
    def share(self) -> float:
        return self.found / self.runs


def score_diseases(runs: int, seed: int, limits: Limits = DEFAULT_LIMITS) -> dict[str, Score]:
    scores = {}
    for number, disease in enumerate(DISEASES):
        rng = np.random.default_rng([seed, number])
        score = scores[disease] = Score()
        for _ in range(runs):
            run = planted(rng, disease)
            diagnosis = diagnose(as_run_curves(run), limits)
            score.runs += 1
            if (finding := finding_of(diagnosis, disease)) is not None:
                score.found += 1
                score.late.append(finding.first_step - run.onset)
            else:
                score.instead.update([f"{f.name} ({f.severity})" for f in diagnosis.findings] or ["nothing"])
    return scores


@dataclass
class Alarms:
    """Healthy runs."""

    runs: int = 0
    alarmed: int = 0
    stopped: int = 0
    recovering: int = 0
    recovering_stopped: int = 0
    names: Counter[str] = field(default_factory=Counter)
    variants: Counter[str] = field(default_factory=Counter)

    @property
    def share(self) -> float:
        return self.alarmed / self.runs


def score_healthy(runs: int, seed: int, limits: Limits = DEFAULT_LIMITS) -> Alarms:
    rng, alarms = np.random.default_rng([seed, 1000]), Alarms()
    rule = collapse_rule(limits)
    for _ in range(runs):
        run = healthy(rng)
        curves = as_run_curves(run)
        serious = [f for f in diagnose(curves, limits).findings if f.severity is not Severity.NOTE]
        stopped = first_stop([rule], curves) is not None
        alarms.runs += 1
        alarms.alarmed += bool(serious)
        alarms.stopped += stopped
        alarms.recovering += run.recovers
        alarms.recovering_stopped += run.recovers and stopped
        alarms.names.update(f.name for f in serious)
        alarms.variants.update([run.variant] if serious else [])
    return alarms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=60, help="runs per disease")
    parser.add_argument("--healthy", type=int, default=1000, help="healthy runs")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    scores = score_diseases(args.runs, args.seed)
    print(
        f"{'planted disease':<26}{'runs':>6}{'found':>8}{'first evidence':>16}   named instead, where it was not found"
    )
    print(f"{'':<40}{'after onset':>16}")
    for disease, score in scores.items():
        instead = ", ".join(f"{name} {count}" for name, count in score.instead.most_common(3))
        late = f"{statistics.median(score.late):+.0f} steps" if score.late else "-"
        print(f"{disease:<26}{score.runs:>6}{score.share:>8.0%}{late:>16}   {instead}")
    overall = statistics.fmean(s.share for s in scores.values())
    print(
        f"{'all diseases':<26}{sum(s.runs for s in scores.values()):>6}{overall:>8.1%}   [target {FOUND_TARGET:.0%}]\n"
    )
    alarms = score_healthy(args.healthy, args.seed)
    print(f"healthy runs: {alarms.runs}, false alarms {alarms.share:.1%} [target at most {FALSE_ALARM_TARGET:.0%}]")
    print(f"  stopped {alarms.stopped}; {alarms.recovering} dip and recover, stopped {alarms.recovering_stopped}")
    print(f"  by finding: {', '.join(f'{n} {c}' for n, c in alarms.names.most_common()) or 'none'}")
    print(f"  by kind of run: {', '.join(f'{n} {c}' for n, c in alarms.variants.most_common()) or 'none'}")


if __name__ == "__main__":
    main()

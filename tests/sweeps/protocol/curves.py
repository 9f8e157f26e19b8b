"""Curves for tests: a level per step plus repeatable noise, as a run of 64 completions a step."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sweeps.protocol.diagnosis.diagnose import diagnose
from sweeps.protocol.diagnosis.finding import Diagnosis, Finding
from sweeps.protocol.gate_rules import Severity
from sweeps.protocol.run_curves import RunCurves, RunFacts

COMPLETIONS = 64
Level = float | Callable[[float], float]
"""A constant, or a function of the part of the run that is done, from 0 to 1."""


def curve(level: Level, steps: int = 200, noise: float = 0.0, seed: int = 0) -> list[float]:
    """The level at every step, with normal noise around it."""
    rng = random.Random(f"{seed} {noise}")
    done = [i / max(1, steps - 1) for i in range(steps)]
    return [(level(t) if callable(level) else level) + (rng.gauss(0.0, noise) if noise else 0.0) for t in done]


def a_run(
    steps: int = 200, *, completions_per_step: int | None = COMPLETIONS, facts: RunFacts | None = None, **curves: Any
) -> RunCurves:
    """A run of single-step rows. A curve is a level (noise is added in proportion), or a list of values."""
    columns = {
        name: tuple(value) if isinstance(value, (list, tuple)) else tuple(curve(value, steps, seed=len(name)))
        for name, value in curves.items()
    }
    so_far = tuple(step * completions_per_step for step in range(1, steps + 1)) if completions_per_step else ()
    return RunCurves(tuple(range(1, steps + 1)), columns, so_far, 1, (), facts or RunFacts())


def collapsing(steps: int = 200) -> RunCurves:
    """A reward of 0.8 that is nearly 0 from the middle of the run on. Rewards stay at or above 0, as shares do."""
    values = curve(lambda t: 0.8 if t < 0.5 else 0.0, steps, noise=0.03)
    return a_run(steps, reward=[max(value, 0.0) for value in values])


def learning(steps: int = 200, **others: Any) -> RunCurves:
    """A healthy run that learns from 0.2 to 0.7, with every curve that a healthy run has."""
    rising = curve(lambda t: 0.2 + 0.5 * t, steps, noise=0.05, seed=1)
    curves: dict[str, Any] = {
        "reward": rising,
        "acc": rising,
        "entropy": curve(lambda t: 0.8 - 0.3 * t, steps, noise=0.05, seed=2),
        "kl": curve(lambda t: 0.02 + 0.04 * t, steps, noise=0.002, seed=3),
        "approx_kl": 0.002,
        "clip_frac": 0.01,
        "ratio_mean": 1.0,
        "response_length": curve(300.0, steps, noise=20.0, seed=4),
        "truncated_frac": 0.02,
        "zero_std_frac": 0.3,
        "phantom_credit_frac": 0.02,
        "grad_norm": [abs(v) for v in curve(0.5, steps, noise=0.15, seed=5)],
        "scorer_error_frac": 0.0,
        "logp_diff_mean": curve(0.02, steps, noise=0.001, seed=6),
        "mismatch_kl": curve(0.0005, steps, noise=0.00003, seed=7),
        "staleness": 0.0,
        "step_seconds": 10.0,
        "rollout_seconds": 5.0,
        "train_seconds": 4.0,
    } | others
    facts = RunFacts(updates_per_rollout=2, group_size=8, lr=1e-6, max_completion_tokens=1024, elapsed_seconds=2100.0)
    return a_run(steps, facts=facts, **curves)


def flat(steps: int = 200, level: float = 0.4, **others: Any) -> RunCurves:
    """A run that does not learn and could: everything else as in `learning`."""
    values = curve(level, steps, noise=0.05, seed=1)
    return learning(steps, **({"reward": values, "acc": values} | others))


def merged(run: RunCurves, k: int) -> RunCurves:
    """The same run logged as means of k steps."""
    rows = len(run.steps) // k

    def mean(values: Sequence[float | None]) -> float | None:
        known = [v for v in values if v is not None]
        return sum(known) / len(known) if known else None

    return replace(
        run,
        steps=tuple(run.steps[(i + 1) * k - 1] for i in range(rows)),
        curves={name: tuple(mean(v[i * k : (i + 1) * k]) for i in range(rows)) for name, v in run.curves.items()},
        completions=tuple(run.completions[(i + 1) * k - 1] for i in range(rows)) if run.completions else (),
        rows_are_means_of=k,
    )


def found(run: RunCurves, name: str) -> Finding | None:
    return next((f for f in diagnose(run).findings if f.name == name), None)


def serious(diagnosis: Diagnosis) -> set[str]:
    """Names of findings that ask for action."""
    return {f.name for f in diagnosis.findings if f.severity is not Severity.NOTE}


def why_not_judged(run: RunCurves, name: str) -> str | None:
    return next((n.why for n in diagnose(run).not_judged if n.name == name), None)

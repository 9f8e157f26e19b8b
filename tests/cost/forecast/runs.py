"""Small measured runs for the tests of cost/forecast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cost.forecast.hardware import Hardware
from cost.forecast.measured_run import MeasuredRun, MeasuredStep, OffStep
from cost.forecast.predict import Machine, SweepWork, TrialWork
from cost.forecast.priors import Priors

NS = 10**9
H100 = Hardware("H100", tflops=989.4, memory_gb_per_s=3350.0, memory_gib=80.0, interconnect_gb_per_s=900.0)
A100 = Hardware("A100", tflops=312.0, memory_gb_per_s=2039.0, memory_gib=80.0, interconnect_gb_per_s=600.0)
EXACT = Priors(level_log_error=0.0, size_log_error=0.0, size_log_error_per_doubling=0.0, half_work_log_error=0.0)
"""Without the errors that a measurement cannot remove: golden values can then be computed by hand."""


def ns(seconds: float) -> int:
    return round(seconds * NS)


def step(number: int, *, prompts: int = 8, completions: int = 64, cards: int = 1, **phases: float) -> MeasuredStep:
    """One step; phases in seconds."""
    phases = phases or {"rollout": 3.0, "train": 5.0}
    return MeasuredStep(number, prompts, completions, cards, {name: ns(value) for name, value in phases.items()})


def run(
    steps: int | Sequence[MeasuredStep] = 20, off_steps: Mapping[str, float] | None = None, **changes: Any
) -> MeasuredRun:
    """A run of equal steps, or of the given ones, on one H100."""
    made = tuple(step(i) for i in range(1, steps + 1)) if isinstance(steps, int) else tuple(steps)
    off = tuple(OffStep(kind, ns(seconds)) for kind, seconds in (off_steps or {"start": 0.0}).items())
    base = MeasuredRun("run", "native", "Qwen3-0.6B", "gsm8k", H100.card_type, made, off)
    return replace(base, **changes)


def sweep(*trials: TrialWork, cards: int = 1, hardware: Hardware = H100, **changes: Any) -> SweepWork:
    """Trials on one machine."""
    base = SweepWork("native", "Qwen3-0.6B", "gsm8k", Machine("machine", cards, hardware), trials)
    return replace(base, **changes)

"""The numbers that the diagnosis compares with, in one place, each with its meaning and its origin.

"Noise" is the standard error of the difference between two windows of the same run (`sweeps/protocol/windows.py`).
Limits are relative to the run itself wherever the curve allows it. How sensitive the results on real runs are to these
numbers: `benchmarks/gates_on_trial.py`.

Tested in tests/sweeps/protocol/diagnosis/test_diagnose.py.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """All limits of the diagnosis."""

    window_steps: int = 20
    """A window covers at least this many steps. Of the real runs that dipped and recovered, none was below
    `collapse` for so long."""
    window_completions: int = 64
    """A window covers at least this many completions; small batches need more steps for the same evidence."""
    clear: float = 5.0
    """Noise. A fall counts from here on: the best of many windows is above the average one by chance alone."""
    gain: float = 3.0
    """Noise. A rise between the first and the last part of a run counts from here on."""
    collapse: float = 0.2
    """Share of the best window's reward, below which the reward has collapsed."""
    decline: float = 0.7
    """Share of the best part's reward, below which the reward has fallen."""
    visible_gain: float = 0.2
    """Standard deviations of the reward of one completion. A lack of gain counts only in runs with so many completions
    that a gain of this size would be seen: 450 in each of the two parts that are compared."""
    saturated: float = 0.8
    """Accuracy (or a reward between 0 and 1) from which on little is left to learn: a lack of gain means nothing."""
    entropy_collapse: float = 0.1
    """Share of the first window's entropy. Healthy runs that have nothing left to learn go below it, too."""
    entropy_explosion: float = 4.0
    """Times the first window's entropy."""
    kl_growth: float = 4.0
    """Times the KL of the run's second quarter, in its last window. Steady growth gives 2.3."""
    kl_floor: float = 0.05
    """Nats per token. Less than this is small, even if it grows."""
    kl_large: float = 0.5
    """Nats per token. From here on KL is large ..."""
    kl_large_growth: float = 10.0
    """... if it is this many times the KL of the first window."""
    gradient_spike: float = 10.0
    """Times the median of the gradient norms that are not 0."""
    gradient_spikes: int = 3
    """Rows with a spike, from which on they are no accident."""
    length_growth: float = 1.5
    """Times the first window's completion length."""
    length_collapse: float = 1 / 3
    """Share of the first window's completion length."""
    cut_share: float = 0.5
    """Share of completions that are cut at the limit."""
    near_limit: float = 0.9
    """Share of the length limit. With a mean length above it, most completions are cut."""
    dead_groups: float = 0.9
    """Share of groups without reward spread."""
    phantom_credit: float = 0.5
    """Share of the groups with reward spread whose members are equally correct."""
    clip_high: float = 0.2
    """`clip_frac` of the last update, above which the learning rate is too high."""
    clip_idle: float = 0.001
    """`clip_frac` of the last of several updates, below which the updates hardly move the policy."""
    approx_kl_high: float = 0.05
    """Nats per token between the policies before and after the updates of one rollout."""
    kl_idle: float = 0.001
    """Nats per token to the reference model, below which the policy has hardly moved."""
    mismatch_growth: float = 3.0
    """Times the first window's difference between sampler and learner."""
    staleness_growth: float = 2.0
    """Times the first window's staleness."""
    evaluation_resolution: float = 0.1
    """Accuracy. An evaluation that cannot see a difference of this size is too small."""
    evaluation_clear: float = 2.5
    """Standard errors. The largest of several differences between evaluations counts from here on."""
    evaluation_hint: float = 1.0
    """Standard errors. With such a rise of the evaluation a flat training reward is no proof of a lack of learning."""
    evaluation_gap: float = 0.15
    """Accuracy in training minus accuracy in the evaluation."""
    phase_share: float = 0.8
    """Share of a step's seconds in one phase."""
    outside_share: float = 0.25
    """Share of the elapsed time outside of steps."""


DEFAULT_LIMITS = Limits()

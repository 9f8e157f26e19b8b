"""Synthetic curves of GRPO runs, healthy ones and ones with a planted disease, for benchmarks/diagnosis.py.

The generator works on questions, groups and completions, not on windows or noise, and shares no code with the
diagnosis. Each step draws prompts of different difficulty (a beta distribution around the policy's accuracy),
completions per prompt (binomial) and their format. Reward, accuracy, groups without spread and phantom credit follow
from these draws. Difficulty wanders from step to step (autocorrelation). Rows may be means of several steps, the reward
may be negative, and curves may be missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

Array = np.ndarray


@dataclass
class SyntheticRun:
    """One run as a log would give it."""

    kind: str
    """`healthy`, or the name of the planted disease."""
    variant: str
    rows_are_means_of: int
    steps: list[int]
    completions: list[int]
    curves: dict[str, list[float]]
    evaluations: list[tuple[int, float, int]]
    """Step, accuracy, questions."""
    facts: dict[str, float]
    recovers: bool = False
    onset: int = 0
    """Steps before the disease begins."""


@dataclass
class Truth:
    """What really happens in a run, step by step, before anything is sampled."""

    steps: int
    prompts: int
    group: int
    updates: int
    accuracy: Array
    """Probability that a completion is right."""
    entropy: Array
    kl: Array
    length: Array
    limit: float
    grad_scale: Array
    clip: Array
    approx_kl: Array
    logp_diff: Array
    staleness: Array
    scorer_errors: Array
    format_share: Array
    format_weight: float
    bonus: Array
    """Reward that has nothing to do with right answers, the same for every completion of a step."""
    difficulty_spread: float
    wander: float
    """Standard deviation of the wandering difficulty, in logits."""
    wander_memory: float
    reward_scale: float = 1.0
    reward_shift: float = 0.0
    rollout_share: float = 0.5
    train_share: float = 0.3
    outside_share: float = 0.1
    evaluation_accuracy: Array | None = None
    questions: int = 400
    spikes: list[int] = field(default_factory=list)
    spike_size: float = 30.0
    not_finite: list[int] = field(default_factory=list)
    rows_are_means_of: int = 1
    lr: float = 1e-6
    variant: str = ""
    keep: tuple[str, ...] = ("reward",)
    """Curves that are never missing."""
    recovers: bool = False
    onset: int = 0
    """Steps before the disease begins."""


OPTIONAL = (
    *("acc", "entropy", "kl", "approx_kl", "clip_frac", "response_length", "truncated_frac", "zero_std_frac"),
    *(
        "grad_norm",
        "phantom_credit_frac",
        "scorer_error_frac",
        "logp_diff_mean",
        "mismatch_kl",
        "staleness",
        "reward_std",
    ),
)
"""Each of these is missing in some runs."""


def healthy(rng: np.random.Generator) -> SyntheticRun:
    """A healthy run: it learns, or is nearly done from the start; some dip and recover."""
    variants: list[Callable[[np.random.Generator], Truth]] = [
        learner,
        learner,
        slow,
        saturated,
        signed,
        dips,
        lengthens,
    ]
    return observe(rng, variants[rng.integers(len(variants))](rng))


def planted(rng: np.random.Generator, disease: str) -> SyntheticRun:
    """A run with this disease."""
    run = observe(rng, DISEASES[disease](rng))
    run.kind = disease
    return run


# ---------------------------------------------------------------------------------------------------------------------
# Healthy runs
# ---------------------------------------------------------------------------------------------------------------------


def base(rng: np.random.Generator, least_completions: int = 0) -> Truth:
    """Sizes, noise and machinery of an ordinary run; the accuracy is flat and is replaced by the caller."""
    while True:
        steps = int(rng.integers(100, 401))
        prompts, group = int(rng.choice([2, 4, 8, 16, 32, 64])), int(rng.choice([4, 8, 16]))
        if steps * prompts * group >= least_completions:
            break
    t = np.linspace(0.0, 1.0, steps)
    updates = int(rng.choice([1, 1, 2, 4]))
    length = rng.uniform(80, 800) * np.exp(rng.uniform(-0.5, 0.3) * t)
    noise = lambda sigma: np.exp(rng.normal(0, sigma, steps))  # noqa: E731
    asynchronous = rng.random() < 0.2
    return Truth(
        steps=steps,
        prompts=prompts,
        group=group,
        updates=updates,
        accuracy=np.full(steps, 0.4),
        entropy=rng.uniform(0.1, 1.5) * np.exp(rng.uniform(-1.2, 0.4) * t) * noise(0.1),
        kl=rng.uniform(0.005, 0.15) * (t ** rng.uniform(0.4, 1.1) + 0.01) * noise(0.3),
        length=length * noise(0.08),
        limit=float(length.max() * rng.uniform(1.8, 5.0)),
        grad_scale=rng.uniform(0.05, 2.0) * noise(rng.uniform(0.2, 0.6)),
        clip=rng.uniform(0.001, 0.02) * noise(0.4),
        approx_kl=rng.uniform(2e-4, 8e-3) * noise(0.4),
        logp_diff=rng.uniform(0.004, 0.03) * (1.0 + rng.uniform(-0.1, 0.5) * t) * noise(0.1),
        staleness=np.full(steps, float(rng.integers(1, 5)) if asynchronous else 0.0)
        * np.minimum(1.0, np.arange(steps) / 8.0),
        scorer_errors=np.zeros(steps),
        format_share=np.full(steps, rng.uniform(0.9, 1.0)),
        format_weight=float(rng.choice([0.0, 0.1, 0.2])),
        bonus=np.zeros(steps),
        difficulty_spread=rng.uniform(0.8, 3.0),
        wander=rng.uniform(0.0, 0.25),
        wander_memory=rng.uniform(0.0, 0.6),
        rollout_share=rng.uniform(0.3, 0.7),
        train_share=rng.uniform(0.15, 0.3),
        outside_share=rng.uniform(0.02, 0.2),
        questions=int(rng.choice([200, 400, 1000])),
        spikes=[int(rng.integers(steps))] if rng.random() < 0.2 else [],
        rows_are_means_of=int(rng.choice([1, 1, 1, 2, 5, 10])),
    )


def sigmoid(rng: np.random.Generator, steps: int, low: float, high: float) -> Array:
    t = np.linspace(0.0, 1.0, steps)
    s = 1.0 / (1.0 + np.exp(-rng.uniform(5, 14) * (t - rng.uniform(0.2, 0.5))))
    return low + (high - low) * (s - s[0]) / (s[-1] - s[0])


def learner(rng: np.random.Generator) -> Truth:
    truth = base(rng)
    low = rng.uniform(0.03, 0.45)
    truth.accuracy = sigmoid(rng, truth.steps, low, rng.uniform(low + 0.3, 0.95))
    truth.format_share = sigmoid(rng, truth.steps, rng.uniform(0.3, 0.9), rng.uniform(0.92, 1.0))
    truth.variant = "learner"
    return truth


def slow(rng: np.random.Generator) -> Truth:
    """Gains slowly, with batches that are large enough to show it."""
    truth = base(rng, least_completions=12_000)
    low = rng.uniform(0.1, 0.6)
    truth.accuracy = np.linspace(low, low + rng.uniform(0.12, 0.25), truth.steps)
    truth.variant = "slow"
    return truth


def saturated(rng: np.random.Generator) -> Truth:
    """Nearly solved from the start: most groups are all right, entropy falls far, nothing is gained."""
    truth = base(rng)
    start = rng.uniform(0.85, 0.93)
    truth.accuracy = np.linspace(start, min(0.985, start + rng.uniform(0.0, 0.08)), truth.steps)
    truth.difficulty_spread = rng.uniform(0.2, 1.0)
    truth.entropy = truth.entropy * np.exp(-rng.uniform(0.0, 3.0) * np.linspace(0, 1, truth.steps))
    truth.variant = "saturated"
    return truth


def signed(rng: np.random.Generator) -> Truth:
    """Rewards that are negative for wrong answers."""
    truth = learner(rng)
    truth.reward_scale, truth.reward_shift = rng.uniform(1.0, 6.0), -rng.uniform(0.3, 3.0)
    truth.variant = "signed"
    return truth


def dips(rng: np.random.Generator) -> Truth:
    """Falls for some steps and comes back by itself."""
    truth = learner(rng) if rng.random() < 0.5 else saturated(rng)
    start, width = int(rng.uniform(0.2, 0.75) * truth.steps), int(rng.integers(4, 13))
    depth = rng.uniform(0.03, 0.35)
    shape = np.ones(truth.steps)
    shape[start : start + width] = depth
    back = np.linspace(depth, 1.0, int(rng.integers(3, 12)))
    shape[start + width : start + width + len(back)] = back[: max(0, truth.steps - start - width)]
    truth.accuracy = truth.accuracy * shape
    truth.entropy = truth.entropy * (1.0 + (1.0 - shape) * rng.uniform(0.0, 5.0))
    truth.variant, truth.recovers = "dips", True
    return truth


def lengthens(rng: np.random.Generator) -> Truth:
    """Completions become longer, and better."""
    truth = learner(rng)
    truth.length = truth.length * np.linspace(1.0, rng.uniform(1.5, 3.5), truth.steps)
    truth.limit = float(truth.length.max() * rng.uniform(1.6, 4.0))
    truth.variant = "lengthens"
    return truth


# ---------------------------------------------------------------------------------------------------------------------
# Diseases
# ---------------------------------------------------------------------------------------------------------------------


def onset(rng: np.random.Generator, steps: int, latest: float = 0.65) -> int:
    return int(rng.uniform(0.2, latest) * steps)


def ramp(steps: int, start: int, width: int) -> Array:
    """0 before `start`, 1 from `start + width` on."""
    return np.clip((np.arange(steps) - start) / max(1, width), 0.0, 1.0)


def any_shape(rng: np.random.Generator) -> Truth:
    return [learner, saturated][rng.integers(2)](rng)


def reward_collapse(rng: np.random.Generator) -> Truth:
    truth = any_shape(rng)
    start = onset(rng, truth.steps)
    truth.onset = start
    gone = ramp(truth.steps, start, int(rng.integers(2, 16)))
    truth.accuracy = truth.accuracy[start] * (1.0 - gone) * (np.arange(truth.steps) >= start) + truth.accuracy * (
        np.arange(truth.steps) < start
    )
    truth.accuracy = truth.accuracy + gone * rng.uniform(0.0, 0.02)
    truth.format_share = truth.format_share * (1.0 - gone)
    if rng.random() < 0.6:
        truth.entropy = truth.entropy * (1.0 + gone * rng.uniform(3.0, 40.0))
    return truth


def reward_decline(rng: np.random.Generator) -> Truth:
    truth = base(rng, least_completions=12_000)
    truth.accuracy = sigmoid(rng, truth.steps, rng.uniform(0.3, 0.5), rng.uniform(0.65, 0.9))
    start = int(rng.uniform(0.3, 0.5) * truth.steps)
    truth.onset = start
    lost = ramp(truth.steps, start, truth.steps // 4) * rng.uniform(0.45, 0.65)
    truth.accuracy = np.minimum(truth.accuracy, truth.accuracy[start]) * (1.0 - lost)
    truth.format_weight = 0.0
    return truth


def entropy_collapse(rng: np.random.Generator) -> Truth:
    truth = base(rng)
    start = onset(rng, truth.steps, 0.5)
    truth.onset = start
    level = rng.uniform(0.15, 0.55)
    truth.accuracy = (
        sigmoid(rng, truth.steps, level * 0.6, level) if rng.random() < 0.5 else np.full(truth.steps, level)
    )
    truth.accuracy[start:] = truth.accuracy[start]
    truth.entropy = truth.entropy * np.exp(-ramp(truth.steps, start, truth.steps // 5) * rng.uniform(2.8, 5.0))
    truth.difficulty_spread = rng.uniform(0.3, 0.8)
    truth.keep = ("reward", "acc", "entropy")
    return truth


def entropy_explosion(rng: np.random.Generator) -> Truth:
    truth = any_shape(rng)
    start = onset(rng, truth.steps)
    truth.onset = start
    grown = ramp(truth.steps, start, int(rng.integers(5, 40)))
    high = truth.entropy[:10].mean() * rng.uniform(6.0, 40.0) * np.exp(rng.normal(0, 0.1, truth.steps))
    truth.entropy = truth.entropy * (1.0 - grown) + high * grown
    truth.accuracy = np.where(grown > 0, truth.accuracy[start], truth.accuracy) * (1.0 - grown * rng.uniform(0.4, 0.75))
    truth.keep = ("reward", "acc", "entropy")
    return truth


def kl_runaway(rng: np.random.Generator) -> Truth:
    truth = base(rng)
    start = onset(rng, truth.steps, 0.5)
    truth.onset = start
    level = rng.uniform(0.2, 0.7)
    truth.accuracy = np.full(truth.steps, level) * (1.0 - ramp(truth.steps, start, truth.steps) * rng.uniform(0.0, 0.6))
    final = np.log(rng.uniform(0.8, 20.0) / max(1e-3, float(truth.kl[start])))
    truth.kl = truth.kl * np.exp(final * ramp(truth.steps, start, truth.steps - start))
    truth.keep = ("reward", "acc", "kl")
    return truth


def gradient_spikes(rng: np.random.Generator) -> Truth:
    truth = learner(rng)
    k = truth.rows_are_means_of
    rows = np.arange(k - 1, truth.steps, k)
    count = max(4, int(rng.uniform(0.02, 0.06) * len(rows)))
    truth.spikes = [int(s) for s in rng.choice(rows, size=min(count, len(rows)), replace=False)]
    truth.spike_size = rng.uniform(25.0, 300.0)
    truth.keep = ("reward", "grad_norm")
    return truth


def length_explosion(rng: np.random.Generator) -> Truth:
    truth = base(rng)
    start = onset(rng, truth.steps)
    truth.onset = start
    level = rng.uniform(0.25, 0.7)
    grown = ramp(truth.steps, start, int(rng.integers(10, 60)))
    truth.accuracy = np.full(truth.steps, level) * (1.0 - grown * rng.uniform(0.0, 0.6))
    truth.length = truth.length[:5].mean() * (truth.length / truth.length.mean())
    truth.length = truth.length * (1.0 + grown * rng.uniform(1.0, 4.0))
    truth.limit = float(truth.length.max() * rng.uniform(0.9, 3.0))
    truth.keep = ("reward", "acc", "response_length")
    return truth


def length_collapse(rng: np.random.Generator) -> Truth:
    truth = any_shape(rng)
    start = onset(rng, truth.steps)
    truth.onset = start
    gone = ramp(truth.steps, start, int(rng.integers(3, 30)))
    truth.length = truth.length * (1.0 - gone * rng.uniform(0.8, 0.97))
    truth.accuracy = np.where(gone > 0, truth.accuracy[start], truth.accuracy) * (1.0 - gone * rng.uniform(0.45, 0.75))
    truth.keep = ("reward", "acc", "response_length")
    return truth


def limit_too_short(rng: np.random.Generator) -> Truth:
    truth = base(rng)
    truth.accuracy = np.full(truth.steps, rng.uniform(0.03, 0.4))
    truth.length = np.full(truth.steps, truth.length.mean()) * np.exp(rng.normal(0, 0.05, truth.steps))
    truth.limit = float(truth.length.mean() * rng.uniform(0.45, 0.75))
    truth.keep = ("reward", "acc", "truncated_frac") if rng.random() < 0.8 else ("reward", "acc", "response_length")
    return truth


def learning_rate_too_high(rng: np.random.Generator) -> Truth:
    truth = base(rng)
    start = onset(rng, truth.steps, 0.3)
    truth.onset = start
    grown = ramp(truth.steps, start, truth.steps // 3)
    level = rng.uniform(0.3, 0.7)
    truth.accuracy = np.full(truth.steps, level) * (1.0 - grown * rng.uniform(0.5, 0.75))
    if rng.random() < 0.6:
        truth.updates = int(rng.choice([2, 4]))
        truth.clip = rng.uniform(0.25, 0.5) * (0.5 + 0.5 * grown) * np.exp(rng.normal(0, 0.15, truth.steps))
        truth.clip = np.maximum(truth.clip, 0.23 * grown)
        truth.keep = ("reward", "acc", "clip_frac")
    else:
        truth.updates = 1
        truth.kl = truth.kl + grown**3 * rng.uniform(1.0, 10.0) * np.exp(rng.normal(0, 0.2, truth.steps))
        truth.keep = ("reward", "acc", "kl", "grad_norm")
    return truth


def learning_rate_too_low(rng: np.random.Generator) -> Truth:
    truth = base(rng, least_completions=2_500)
    truth.accuracy = np.full(truth.steps, rng.uniform(0.08, 0.65))
    truth.kl = truth.kl * 0.0 + rng.uniform(1e-5, 5e-4) * np.exp(rng.normal(0, 0.3, truth.steps))
    truth.clip, truth.approx_kl = truth.clip * 0.02, truth.approx_kl * 0.005
    truth.keep = ("reward", "acc", "kl")
    return truth


def no_learning(rng: np.random.Generator) -> Truth:
    truth = base(rng, least_completions=2_500)
    truth.accuracy = np.full(truth.steps, rng.uniform(0.08, 0.65))
    truth.keep = ("reward", "acc")
    return truth


def dead_groups(rng: np.random.Generator) -> Truth:
    truth = base(rng)
    truth.accuracy = np.full(truth.steps, rng.uniform(0.0, 0.004))
    truth.format_weight = 0.0
    truth.keep = ("reward", "zero_std_frac")
    return truth


def phantom_credit(rng: np.random.Generator) -> Truth:
    truth = base(rng)
    truth.accuracy = np.full(truth.steps, rng.uniform(0.01, 0.12))
    truth.difficulty_spread = rng.uniform(0.2, 0.6)
    truth.format_share = sigmoid(rng, truth.steps, rng.uniform(0.2, 0.4), rng.uniform(0.5, 0.8))
    truth.format_weight = float(rng.choice([0.1, 0.2, 0.5]))
    truth.keep = ("reward", "phantom_credit_frac")
    return truth


def reward_hacking(rng: np.random.Generator) -> Truth:
    truth = base(rng)
    level = rng.uniform(0.15, 0.6)
    start = onset(rng, truth.steps, 0.4)
    truth.onset = start
    truth.accuracy = level * (1.0 - ramp(truth.steps, start, truth.steps // 2) * rng.uniform(0.0, 0.7))
    truth.bonus = rng.uniform(0.5, 1.5) * ramp(truth.steps, start, truth.steps // 3)
    truth.keep = ("reward", "acc")
    truth.format_weight = 0.0
    return truth


def weight_sync_broken(rng: np.random.Generator) -> Truth:
    truth = base(rng)
    truth.accuracy = np.full(truth.steps, rng.uniform(0.1, 0.6))
    truth.length = np.full(truth.steps, truth.length.mean()) * np.exp(rng.normal(0, 0.08, truth.steps))
    t = np.arange(truth.steps) / truth.steps
    if rng.random() < 0.3:
        truth.staleness = np.arange(truth.steps).astype(float)
        truth.keep = ("reward", "staleness")
    else:
        truth.staleness = np.zeros(truth.steps)
        truth.logp_diff = truth.logp_diff + rng.uniform(0.15, 1.0) * t ** rng.uniform(0.5, 1.2)
        truth.keep = ("reward", "logp_diff_mean")
    return truth


def sampler_mismatch(rng: np.random.Generator) -> Truth:
    truth = learner(rng)
    t = np.arange(truth.steps) / truth.steps
    truth.logp_diff = truth.logp_diff * (1.0 + rng.uniform(5.0, 20.0) * t ** rng.uniform(0.8, 2.0))
    truth.keep = ("reward", "logp_diff_mean")
    return truth


def stale_policy(rng: np.random.Generator) -> Truth:
    truth = learner(rng)
    truth.staleness = 1.0 + np.arange(truth.steps) * rng.uniform(0.03, 0.4) + rng.integers(0, 2, truth.steps)
    truth.keep = ("reward", "staleness")
    return truth


def scorer_errors(rng: np.random.Generator) -> Truth:
    truth = learner(rng)
    truth.onset = onset(rng, truth.steps)
    truth.scorer_errors = (np.arange(truth.steps) >= truth.onset) * rng.uniform(0.03, 0.6)
    truth.keep = ("reward", "scorer_error_frac")
    return truth


def not_finite(rng: np.random.Generator) -> Truth:
    truth = learner(rng)
    start = onset(rng, truth.steps)
    truth.onset = start
    truth.not_finite = list(
        range(start, truth.steps if rng.random() < 0.5 else start + 2 * truth.rows_are_means_of + 1)
    )
    truth.keep = ("reward", "grad_norm")
    return truth


def evaluation_fell(rng: np.random.Generator) -> Truth:
    truth = learner(rng)
    start = rng.uniform(0.45, 0.8)
    truth.evaluation_accuracy = np.linspace(start, start - rng.uniform(0.25, 0.4), truth.steps)
    return truth


def evaluation_gap(rng: np.random.Generator) -> Truth:
    truth = base(rng, least_completions=4_000)
    truth.accuracy = sigmoid(rng, truth.steps, rng.uniform(0.2, 0.4), rng.uniform(0.75, 0.95))
    truth.evaluation_accuracy = np.full(truth.steps, rng.uniform(0.25, 0.4))
    truth.keep = ("reward", "acc")
    return truth


def evaluation_too_small(rng: np.random.Generator) -> Truth:
    truth = learner(rng)
    start = rng.uniform(0.3, 0.6)
    truth.evaluation_accuracy = np.linspace(start, start + rng.uniform(0.0, 0.05), truth.steps)
    truth.questions = int(rng.integers(12, 60))
    return truth


def rollout_bound(rng: np.random.Generator) -> Truth:
    truth = learner(rng)
    truth.rollout_share = rng.uniform(0.84, 0.93)
    truth.train_share = 0.06
    return truth


def training_bound(rng: np.random.Generator) -> Truth:
    truth = learner(rng)
    truth.train_share = rng.uniform(0.84, 0.93)
    truth.rollout_share = 0.06
    return truth


def time_outside_steps(rng: np.random.Generator) -> Truth:
    truth = learner(rng)
    truth.outside_share = rng.uniform(0.28, 0.6)
    return truth


DISEASES: dict[str, Callable[[np.random.Generator], Truth]] = {
    f.__name__: f
    for f in (
        *(reward_collapse, reward_decline, entropy_collapse, entropy_explosion, kl_runaway, gradient_spikes),
        *(length_explosion, length_collapse, limit_too_short, learning_rate_too_high, learning_rate_too_low),
        *(no_learning, dead_groups, phantom_credit, reward_hacking, weight_sync_broken, sampler_mismatch, stale_policy),
        *(scorer_errors, not_finite, evaluation_fell, evaluation_gap, evaluation_too_small),
        *(rollout_bound, training_bound, time_outside_steps),
    )
}


# ---------------------------------------------------------------------------------------------------------------------
# What a trainer logs
# ---------------------------------------------------------------------------------------------------------------------


def observe(rng: np.random.Generator, truth: Truth) -> SyntheticRun:
    """Samples prompts and completions of every step, and logs what a trainer would log."""
    n, prompts, group = truth.steps, truth.prompts, truth.group
    wander = np.zeros(n)
    for i in range(1, n):
        fresh = rng.normal(0.0, truth.wander * np.sqrt(1.0 - truth.wander_memory**2))
        wander[i] = truth.wander_memory * wander[i - 1] + fresh
    accuracy = np.clip(truth.accuracy, 1e-9, 1.0 - 1e-9)
    p = 1.0 / (1.0 + np.exp(-(np.log(accuracy / (1.0 - accuracy)) + wander)))
    spread = truth.difficulty_spread
    easy = rng.beta(np.maximum(p * spread, 1e-6)[:, None], np.maximum((1 - p) * spread, 1e-6)[:, None], (n, prompts))
    right = rng.binomial(group, np.clip(easy, 0.0, 1.0))
    formatted = rng.binomial(group, np.clip(truth.format_share, 0.0, 1.0)[:, None], (n, prompts))
    acc = right.mean(axis=1) / group
    equal_right = (right == 0) | (right == group)
    equal_format = (formatted == 0) | (formatted == group) if truth.format_weight else np.ones_like(equal_right)
    reward = truth.reward_scale * (acc + truth.format_weight * formatted.mean(axis=1) / group + truth.bonus)
    dead = (equal_right & equal_format).mean(axis=1)
    cut = rng.binomial(prompts * group, _share_over(truth.limit, truth.length)) / (prompts * group)
    grad = truth.grad_scale * (dead < 1.0)
    grad[truth.spikes] = truth.grad_scale.mean() * truth.spike_size * rng.uniform(0.7, 1.5, len(truth.spikes))
    grad[truth.not_finite] = np.nan
    seconds = rng.uniform(5, 60) * np.exp(rng.normal(0, 0.1, n))
    curves: dict[str, Array] = {
        "reward": reward + truth.reward_shift,
        "acc": acc,
        "entropy": truth.entropy,
        "kl": truth.kl,
        "approx_kl": truth.approx_kl,
        "response_length": np.minimum(truth.length, truth.limit),
        "truncated_frac": cut,
        "zero_std_frac": dead,
        "phantom_credit_frac": (equal_right & ~equal_format).mean(axis=1),
        "grad_norm": grad,
        "logp_diff_mean": truth.logp_diff,
        "mismatch_kl": truth.logp_diff**2 * 0.8,
        "staleness": truth.staleness,
        "scorer_error_frac": rng.binomial(prompts * group, truth.scorer_errors) / (prompts * group),
        "reward_std": np.sqrt(np.maximum(acc * (1 - acc), 0.0)) * truth.reward_scale,
        "step_seconds": seconds,
        "rollout_seconds": seconds * truth.rollout_share,
        "train_seconds": seconds * truth.train_share,
    }
    if truth.updates > 1:
        curves["clip_frac"] = truth.clip
    for name in OPTIONAL:
        if name not in truth.keep and rng.random() < 0.25:
            curves.pop(name, None)
    k = truth.rows_are_means_of
    rows = n // k
    logged = {
        name: [
            float(values[(i + 1) * k - 1] if name == "grad_norm" else values[i * k : (i + 1) * k].mean())
            for i in range(rows)
        ]
        for name, values in curves.items()
    }
    steps = [(i + 1) * k for i in range(rows)]
    tested = truth.accuracy if truth.evaluation_accuracy is None else truth.evaluation_accuracy
    evaluations = [
        (
            step,
            float(rng.binomial(truth.questions, np.clip(tested[max(0, step - 1)], 0, 1))) / truth.questions,
            truth.questions,
        )
        for step in (0, steps[-1] // 2, steps[-1])
    ]
    if truth.evaluation_accuracy is None and rng.random() < 0.5:
        evaluations = []
    return SyntheticRun(
        "healthy",
        truth.variant,
        k,
        steps,
        [s * prompts * group for s in steps],
        logged,
        evaluations,
        {
            "updates_per_rollout": truth.updates,
            "group_size": group,
            "lr": truth.lr,
            "max_completion_tokens": round(truth.limit),
            "elapsed_seconds": float(seconds[: rows * k].sum() / (1.0 - truth.outside_share)),
        },
        truth.recovers,
        truth.onset,
    )


def _share_over(limit: float, length: Array) -> Array:
    """Of completions with a log-normal length around this mean."""
    from scipy.stats import norm

    sigma = 0.5
    return norm.sf((np.log(limit / length) + sigma**2 / 2) / sigma)

"""The world of the simulated trainer: durations and curves as functions of the spec, the state and a seed.

Pure and parametric: accuracy rises towards `acc_final`, faster with more completions; the clip fraction grows with
the learning rate; entropy falls. Right answers are drawn group by group, so that counts, variance within groups and
per-question results fit together. Models no language model, and no figure of it is a claim about one.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from rl.spec import (
    Curves,
    Mean,
    PromptCounts,
    QuestionResult,
    TokenCounts,
    TrialSpec,
    UpdateCurves,
)

FASTEST_LR = 2e-5
"""Where learning is fastest and the clip fraction of the last update is 3 %."""
PROMPT_TOKENS = 32
_NORMAL = NormalDist()


@dataclass(frozen=True)
class State:
    """All that one step hands to the next; a checkpoint is this."""

    step: int = 0
    lr: float = 0.0
    """Before schedule."""
    progress: float = 0.0
    """Steps at 64 completions and the fastest learning rate that would have taught as much."""
    diverged_steps: int = 0
    evaluated_step: int = -1


@dataclass(frozen=True)
class SimulatedStep:
    curves: Curves
    tokens: TokenCounts
    prompts: PromptCounts


def accuracy(spec: TrialSpec, state: State) -> float:
    """Expected accuracy: half of the rise at `steps_to_half`, half of the rest after as many more."""
    sim = spec.trainer.simulated
    risen = 1.0 - 0.5 ** (state.progress / sim.steps_to_half)
    return (sim.acc_start + (sim.acc_final - sim.acc_start) * risen) * 0.5**state.diverged_steps


def learnt_in_a_step(spec: TrialSpec, lr: float) -> float:
    """Progress of one step: with the root of the completions, and highest at `FASTEST_LR`."""
    relative = lr / FASTEST_LR
    return math.sqrt(spec.completions_per_step / 64) * 2 * relative / (1 + relative**2)


def step_ns(spec: TrialSpec, step: int, completions: int) -> int:
    sim = spec.trainer.simulated
    seconds = sim.seconds_per_step + sim.seconds_per_completion * completions / spec.cards
    return noisy_ns(spec, step, seconds, purpose=1)


def noisy_ns(spec: TrialSpec, step: int, seconds: float, purpose: int) -> int:
    """`seconds` with `noise_frac` of log-normal noise, whole nanoseconds; the same for the same seed and step."""
    digest = hashlib.blake2b(b"%d %d %d" % (spec.seed, step, purpose), digest_size=7).digest()
    noise = _NORMAL.inv_cdf((int.from_bytes(digest) + 0.5) / 256**7)  # a generator would cost ten times as much
    return round(seconds * math.exp(spec.trainer.simulated.noise_frac * noise) * 1e9)


def evaluate(spec: TrialSpec, state: State) -> tuple[tuple[QuestionResult, ...], Mean, Mean]:
    """Results by question, response length, truncated share. How hard a question is depends on the data seed only."""
    questions, samples = spec.task.eval_questions, spec.evaluation.samples_per_question
    hardness = _rng(spec.task.data_seed, 0, 2).normal(size=questions)
    rng = _rng(spec.seed, state.step, 3)
    right = rng.binomial(samples, _chances(accuracy(spec, state), hardness))
    lengths = _lengths(spec, state, rng, questions * samples)
    results = tuple(
        QuestionResult(f"simulated-{spec.task.data_seed}-{i}", int(c), samples) for i, c in enumerate(right)
    )
    return results, _mean(lengths), _mean(lengths == spec.rollout.max_completion_tokens)


def simulate_step(spec: TrialSpec, state: State, lrs: list[float], nan: bool) -> SimulatedStep:
    """Sample and train once. `lrs` has the rate of each update; `nan`: a diverged step has NaN for loss and norm."""
    algorithm, size = spec.algorithm, spec.group_size
    rng = _rng(spec.seed, state.step, 4)
    right, well_formed = _groups(spec, state, rng, spec.prompts_per_step)
    teaches = (right > 0) & (right < size)
    if algorithm.drop_zero_variance_groups:
        for _ in range(algorithm.max_resample_rounds):
            missing = spec.prompts_per_step - int(teaches.sum())
            if missing <= 0:
                break
            more_right, more_formed = _groups(spec, state, rng, missing)
            right, well_formed = np.concatenate([right, more_right]), np.concatenate([well_formed, more_formed])
            teaches = (right > 0) & (right < size)
        trained = np.flatnonzero(teaches)[: spec.prompts_per_step]
    else:
        trained = np.arange(len(right))

    groups, completions = len(right), float(len(right) * size)
    lengths = _lengths(spec, state, rng, groups * size)
    truncated = lengths == spec.rollout.max_completion_tokens
    weights = spec.task.reward_weights
    reward = weights["correct"] * float(right.sum())
    rewards = {"correct": Mean(float(right.sum()), completions)}
    if spec.task.format_pattern:
        formed = float(well_formed.sum() * size)
        reward += weights["format"] * formed
        rewards["format"] = Mean(formed, completions)
    loss_lengths = np.where(truncated, 0, lengths) if algorithm.mask_truncated else lengths
    by_group = loss_lengths.reshape(-1, size).sum(axis=1)[trained].tolist()
    # Groups to updates as evenly as they go, the first updates taking one more.
    each, more = divmod(len(by_group), algorithm.updates_per_rollout)
    edges = [each * u + min(u, more) for u in range(algorithm.updates_per_rollout + 1)]
    batches = [sum(by_group[start:stop]) for start, stop in itertools.pairwise(edges)]
    tokens = float(lengths.sum())
    mismatch = 0.01 * (1 + spec.trainer.simulated.noise_frac * abs(rng.normal()))
    return SimulatedStep(
        Curves(
            reward=Mean(reward, completions),
            acc=rewards["correct"],
            rewards=rewards,
            reward_errors=Mean(0.0, completions),
            response_length=Mean(tokens, completions),
            response_length_min=int(lengths.min()),
            response_length_max=int(lengths.max()),
            truncated=Mean(float(np.count_nonzero(truncated)), completions),
            zero_std=Mean(float(groups - np.count_nonzero(teaches)), float(groups)),
            updates=tuple(
                _update(spec, state, rng, index, float(batch), lr, nan)
                for index, (batch, lr) in enumerate(zip(batches, lrs, strict=True))
            ),
            sampler_ratio=Mean(tokens * (1 + 0.01 * mismatch), tokens),
            logp_diff=Mean(tokens * mismatch, tokens),
            logp_diff_max=10 * mismatch,
            mismatch_kl=Mean(tokens * mismatch**2 / 2, tokens),
            sampler_ess=None if algorithm.sampler_correction == "none" else 1.0 - mismatch**2,
        ),
        TokenCounts(prompt=PROMPT_TOKENS * groups, completion=int(tokens), loss=sum(batches)),
        PromptCounts(trained=len(trained), filtered=groups - len(trained), failed=0),
    )


def _update(
    spec: TrialSpec, state: State, rng: np.random.Generator, index: int, tokens: float, lr: float, nan: bool
) -> UpdateCurves:
    algorithm = spec.algorithm
    noise = 1 + spec.trainer.simulated.noise_frac * min(max(rng.normal(), -3.0), 3.0)
    relative = lr / FASTEST_LR
    bad = state.diverged_steps
    # Updates move the policy away from the one that sampled: none before the first, the whole way before the last.
    moved = index / max(algorithm.updates_per_rollout - 1, 1)
    first = index == 0 and algorithm.old_logprobs == "learner"
    clip = 0.0 if first else min(0.9, 0.03 * relative**1.5 * noise * moved * (10 if bad else 1))
    distance = 0.0 if first else 0.02 * relative * moved * noise
    entropy = (0.5 + 1.4 * 0.5 ** (state.progress / spec.trainer.simulated.steps_to_half)) * 0.3**bad * noise
    return UpdateCurves(
        ratio=Mean(tokens * (1 + 0.01 * distance), tokens),
        ratio_min=math.exp(-5 * distance) if tokens else None,
        ratio_max=math.exp(5 * distance) if tokens else None,
        clip_low=None if first else Mean(tokens * clip * 0.4, tokens),
        clip_high=None if first else Mean(tokens * clip * 0.6, tokens),
        approx_kl=Mean(tokens * distance**2 * (1000 if bad else 1), tokens),
        kl=Mean(tokens * 1e-3 * state.progress * (1000 if bad else 1), tokens) if algorithm.kl_coef else None,
        entropy=Mean(tokens * entropy, tokens),
        grad_norm=math.nan if bad and nan else 0.5 * noise * 1000.0 ** min(bad, 2),
        loss=math.nan if bad and nan else 0.01 * (noise - 1) * 1000.0 ** min(bad, 2),
        lr=lr,
    )


def _groups(spec: TrialSpec, state: State, rng: np.random.Generator, prompts: int) -> tuple[np.ndarray, np.ndarray]:
    """Right answers of each group, and whether the group is well-formed: all of it or none, so that the format
    reward adds no variance within a group."""
    right = rng.binomial(spec.group_size, _chances(accuracy(spec, state), rng.normal(size=prompts)))
    return right, rng.random(prompts) < 0.5 + 0.48 * accuracy(spec, state)


def _chances(accuracy: float, hardness: np.ndarray) -> np.ndarray:
    """Chance of a right answer to each question; at hardness 0 it is the accuracy."""
    if accuracy <= 0.0 or accuracy >= 1.0:
        return np.full(len(hardness), min(max(accuracy, 0.0), 1.0))
    return 1 / (1 + (1 - accuracy) / accuracy * np.exp(hardness))


def _lengths(spec: TrialSpec, state: State, rng: np.random.Generator, count: int) -> np.ndarray:
    """Response lengths in tokens: shorter as accuracy rises, cut at the limit."""
    limit = spec.rollout.max_completion_tokens
    typical = limit * (1.0 - 0.6 * accuracy(spec, state))
    return np.clip(np.rint(typical * rng.lognormal(sigma=0.3, size=count)), 1, limit).astype(np.int64)


def _mean(values: np.ndarray) -> Mean:
    return Mean(float(values.sum()), float(values.size))


def _rng(seed: int, step: int, purpose: int) -> np.random.Generator:
    """A generator of its own for every step and purpose: nothing to carry over in a checkpoint."""
    return np.random.default_rng([seed, step, purpose])

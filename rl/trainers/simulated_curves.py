"""The model behind the simulated trainer: durations and curves as pure functions of spec, state and seed.

Accuracy rises towards `acc_final`, faster with more completions. The clip fraction grows with the learning rate.
Entropy falls. Right answers are drawn group by group, so that counts, variance within groups and results per question
are consistent. The curves are not fitted to a language model, and their values are no claims about one.

Tested in tests/rl/trainers/test_simulated.py.
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
"""The learning rate with the fastest progress. The clip fraction of the last update is 3 % there."""
PROMPT_TOKENS = 32
"""Tokens of every prompt."""
_NORMAL = NormalDist()


@dataclass(frozen=True)
class State:
    """Everything that one step passes to the next. A checkpoint contains it."""

    step: int = 0
    """Steps done."""
    lr: float = 0.0
    """Learning rate before the schedule."""
    progress: float = 0.0
    """Learning so far, in steps of 64 completions at `FASTEST_LR`."""
    diverged_steps: int = 0
    """Steps since the trial diverged; 0: it has not."""
    evaluated_step: int = -1
    """The last step at which an evaluation was done; -1: none."""


@dataclass(frozen=True)
class SimulatedStep:
    """The parts of a step's report that do not depend on time."""

    curves: Curves
    tokens: TokenCounts
    prompts: PromptCounts


def accuracy(spec: TrialSpec, state: State) -> float:
    """Expected accuracy. It has made half of its rise at a progress of `steps_to_half`, and so on exponentially."""
    sim = spec.trainer.simulated
    risen = 1.0 - 0.5 ** (state.progress / sim.steps_to_half)
    return (sim.acc_start + (sim.acc_final - sim.acc_start) * risen) * 0.5**state.diverged_steps


def progress_per_step(spec: TrialSpec, lr: float) -> float:
    """Progress of one step. It grows with the square root of the completions, and is highest at `FASTEST_LR`."""
    relative = lr / FASTEST_LR
    return math.sqrt(spec.completions_per_step / 64) * 2 * relative / (1 + relative**2)


def step_ns(spec: TrialSpec, step: int, completions: int) -> int:
    """Wall nanoseconds of step `step` with this number of sampled completions."""
    sim = spec.trainer.simulated
    seconds = sim.seconds_per_step + sim.seconds_per_completion * completions / spec.cards
    return noisy_ns(spec, step, seconds, purpose=1)


def noisy_ns(spec: TrialSpec, step: int, seconds: float, purpose: int) -> int:
    """`seconds` as integer nanoseconds, with log-normal noise of relative size `noise_frac`.

    The noise depends on the trial's seed, the step and `purpose` only.
    """
    digest = hashlib.blake2b(b"%d %d %d" % (spec.seed, step, purpose), digest_size=7).digest()
    noise = _NORMAL.inv_cdf((int.from_bytes(digest) + 0.5) / 256**7)  # a numpy generator takes ten times as long
    return round(seconds * math.exp(spec.trainer.simulated.noise_frac * noise) * 1e9)


def evaluate(spec: TrialSpec, state: State) -> tuple[tuple[QuestionResult, ...], Mean, Mean]:
    """(results by question, response length, truncated share). The difficulty of questions depends on the data seed."""
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
    """One step from `state`.

    Args:
        lrs: the learning rate of each optimiser update.
        nan: whether the loss and the gradient norm of a diverged step are NaN.
    """
    algorithm, size = spec.algorithm, spec.group_size
    rng = _rng(spec.seed, state.step, 4)
    right, well_formed = _groups(spec, state, rng, spec.prompts_per_step)
    has_variance = (right > 0) & (right < size)
    if algorithm.drop_zero_variance_groups:
        for _ in range(algorithm.max_resample_rounds):
            missing = spec.prompts_per_step - int(has_variance.sum())
            if missing <= 0:
                break
            more_right, more_formed = _groups(spec, state, rng, missing)
            right, well_formed = np.concatenate([right, more_right]), np.concatenate([well_formed, more_formed])
            has_variance = (right > 0) & (right < size)
        trained = np.flatnonzero(has_variance)[: spec.prompts_per_step]
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
    # Distribute the groups evenly over the updates; the first updates take one more.
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
            zero_std=Mean(float(groups - np.count_nonzero(has_variance)), float(groups)),
            updates=tuple(
                _update(spec, state, rng, index, float(batch), lr, nan)
                for index, (batch, lr) in enumerate(zip(batches, lrs, strict=True))
            ),
            sampler_ratio=Mean(tokens * (1 + 0.01 * mismatch), tokens),
            logp_diff=Mean(tokens * mismatch, tokens),
            logp_diff_max=10 * mismatch,
            mismatch_kl=Mean(tokens * mismatch**2 / 2, tokens),
            sampler_ess=None if algorithm.sampler_correction == "none" else 1.0 - mismatch**2,
            phantom_credit=Mean(0.0, float(groups)),  # the format is the same within a group
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
    # Share of the distance to the sampling policy: 0 before the first update, 1 before the last.
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
    """(right answers of each group, whether the completions of the group are well-formed).

    Either all completions of a group are well-formed or none, so the format reward adds no variance within a group.
    """
    right = rng.binomial(spec.group_size, _chances(accuracy(spec, state), rng.normal(size=prompts)))
    return right, rng.random(prompts) < 0.5 + 0.48 * accuracy(spec, state)


def _chances(accuracy: float, hardness: np.ndarray) -> np.ndarray:
    """Probability of a right answer to each question. At hardness 0 it equals `accuracy`."""
    if accuracy <= 0.0 or accuracy >= 1.0:
        return np.full(len(hardness), min(max(accuracy, 0.0), 1.0))
    return 1 / (1 + (1 - accuracy) / accuracy * np.exp(hardness))


def _lengths(spec: TrialSpec, state: State, rng: np.random.Generator, count: int) -> np.ndarray:
    """Response lengths in tokens: shorter with higher accuracy, at most `max_completion_tokens`."""
    limit = spec.rollout.max_completion_tokens
    typical = limit * (1.0 - 0.6 * accuracy(spec, state))
    return np.clip(np.rint(typical * rng.lognormal(sigma=0.3, size=count)), 1, limit).astype(np.int64)


def _mean(values: np.ndarray) -> Mean:
    return Mean(float(values.sum()), float(values.size))


def _rng(seed: int, step: int, purpose: int) -> np.random.Generator:
    """A new generator for every step and purpose, so that checkpoints contain no generator state."""
    return np.random.default_rng([seed, step, purpose])

"""The simulated rollout engine: its distribution, and the log-probabilities that it reports."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from rl.policy import Policy
from rl.rollout.engine import Completion, Sampling
from rl.rollout.simulated_engine import SimulatedEngine
from rl.spec import RolloutSpec
from tests.rl.random_llama import random_llama_policy

VOCABULARY = 96


def make_policy() -> Policy:
    return random_llama_policy(VOCABULARY, hidden=128, initializer_range=0.15, eos_ids=frozenset({1, 2, 3}))


def sample(engine: SimulatedEngine, prompts: int = 1, **settings: Any) -> list[Completion]:
    sampling = Sampling(**{"n": 4, "temperature": 1.0, "max_tokens": 12, "seed": 5, **settings})
    return [c for group in engine.generate([[5]] * prompts, sampling) for c in group]


def test_reported_log_probabilities_match_the_sampling_frequency() -> None:
    policy = make_policy()
    with torch.no_grad():
        policy.head.weight[7] += 0.25
    engine = SimulatedEngine(RolloutSpec(), policy, version=0)
    drawn = sample(engine, prompts=4, n=500, max_tokens=1)
    sevens = [c for c in drawn if c.ids == (7,)]
    assert len(sevens) / len(drawn) > 5 / VOCABULARY
    assert len(sevens) / len(drawn) == pytest.approx(math.exp(sevens[0].logprobs[0]), rel=0.25)


def test_distribution_does_not_depend_on_the_context() -> None:
    engine = SimulatedEngine(RolloutSpec(), make_policy(), version=0)
    drawn = sample(engine, prompts=4, n=50)
    by_token: dict[int, set[float]] = {}
    for completion in drawn:
        for token, logprob in zip(completion.ids, completion.logprobs, strict=True):
            by_token.setdefault(token, set()).add(logprob)
    assert all(len(logprobs) == 1 for logprobs in by_token.values())


def test_only_a_sync_changes_the_distribution() -> None:
    policy = make_policy()
    engine = SimulatedEngine(RolloutSpec(), policy, version=0)
    before = sample(engine)
    with torch.no_grad():
        policy.head.weight.add_(torch.randn_like(policy.head.weight))
    assert sample(engine) == before
    greedy = sample(engine, n=1, temperature=0.0)
    engine.sync(policy, 1)
    assert sample(engine, n=1, temperature=0.0)[0].logprobs != greedy[0].logprobs


def test_greedy_sampling_repeats_the_most_likely_token() -> None:
    policy = make_policy()
    with torch.no_grad():
        policy.head.weight[7] += 0.25
    (completion,) = sample(SimulatedEngine(RolloutSpec(), policy, version=0), n=1, temperature=0.0)
    assert completion.ids == (7,) * 12
    assert completion.truncated

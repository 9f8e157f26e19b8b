"""The conformance suite of rollout engines, run against every engine that is installed, and `create_engine`."""

from __future__ import annotations

import dataclasses
import importlib.util
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from rl.layout import Sequences, micro_batches
from rl.policy import Policy
from rl.rollout import create_engine
from rl.rollout.engine import Completion, RolloutEngine, Sampling
from rl.spec import ConfigurationError, RolloutSpec
from tests.rl.random_llama import random_llama_policy

VOCABULARY = 96
EOS = frozenset({1, 2, 3})
MAX_PROMPT_TOKENS = 300
SPEC = RolloutSpec(max_prompt_tokens=MAX_PROMPT_TOKENS, max_completion_tokens=12, max_batch_completions=8)

# Limits for the mean and the largest difference between the log-probabilities of engine and learner, both in fp32.
BOUNDS = {"transformers": (1e-5, 1e-4), "vllm": (2e-5, 5e-4)}


@dataclasses.dataclass
class Bench:
    """The engine under test, and the policy whose weights it has."""

    engine: RolloutEngine
    policy: Policy

    def skip_if_simulated(self) -> None:
        if self.engine.name not in BOUNDS:
            pytest.skip(f"{self.engine.name} does not sample from the policy")

    def sync(self) -> None:
        self.engine.sync(self.policy, self.engine.policy_version + 1)


def make_policy() -> Policy:
    # Heads of size 32: the smallest that vllm supports.
    return random_llama_policy(
        VOCABULARY,
        hidden=128,
        intermediate=128,
        heads=4,
        kv_heads=2,
        positions=512,
        initializer_range=0.15,
        eos_ids=EOS,
        chunk_tokens=64,
    )


@pytest.fixture(scope="module", params=["transformers", "vllm", "simulated"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    if request.param == "vllm" and importlib.util.find_spec("vllm") is None:
        pytest.skip("vllm is not installed")
    policy = make_policy()
    engine = create_engine(dataclasses.replace(SPEC, engine=request.param), policy, version=0)
    yield Bench(engine, policy)
    engine.close()


def some_prompts(seed: int = 0) -> list[list[int]]:
    """Prompts of very unequal length. The longest fills several blocks of a prefix cache."""
    r = random.Random(seed)
    return [[r.randrange(4, VOCABULARY) for _ in range(n)] for n in (1, 3, 20, MAX_PROMPT_TOKENS)]


def sampling(**changes: Any) -> Sampling:
    return dataclasses.replace(Sampling(n=4, temperature=1.0, max_tokens=12, seed=5), **changes)


def differences(
    policy: Policy, prompts: list[list[int]], groups: list[list[Completion]], temperature: float
) -> torch.Tensor:
    """Log-probability of the engine minus that of the learner, for every sampled token."""
    laid_out = [Sequences(tuple(p), tuple(c.ids for c in g)) for p, g in zip(prompts, groups, strict=True)]
    flat = [c for g in groups for c in g]
    found = []
    with torch.no_grad():
        for batch in micro_batches(laid_out, 4096, packing=False, pad_id=0):
            logprobs, _ = policy.forward(batch, temperature)
            mask = batch.completion_mask()
            for row, number in enumerate(batch.sequences):
                found.append(torch.tensor(flat[number].logprobs) - logprobs[row][mask[row]])
    return torch.cat(found)


def ids_of(groups: list[list[Completion]]) -> list[list[tuple[int, ...]]]:
    return [[c.ids for c in g] for g in groups]


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
def test_log_probabilities_equal_the_learners_at_the_sampling_temperature(bench: Bench, temperature: float) -> None:
    bench.skip_if_simulated()
    prompts = some_prompts()
    diff = differences(
        bench.policy, prompts, bench.engine.generate(prompts, sampling(temperature=temperature)), temperature
    )
    mean, largest = BOUNDS[bench.engine.name]
    assert diff.abs().mean() < mean
    assert diff.abs().max() < largest


def test_samples_of_a_prompt_differ_and_equal_prompts_get_different_samples(bench: Bench) -> None:
    prompt = some_prompts()[2]
    one, two = ids_of(bench.engine.generate([prompt, prompt], sampling(n=8)))
    assert len(one) == len(two) == 8
    assert len(set(one)) > 4
    assert one != two


def test_same_seed_gives_same_completions_and_another_seed_gives_others(bench: Bench) -> None:
    prompts = some_prompts()
    first = bench.engine.generate(prompts, sampling())
    assert ids_of(bench.engine.generate(prompts, sampling())) == ids_of(first)
    assert ids_of(bench.engine.generate(prompts, sampling(seed=6))) != ids_of(first)


def test_vllm_with_one_seed_per_batch_repeats_its_completions_and_leaves_the_random_state_alone(bench: Bench) -> None:
    if bench.engine.name != "vllm":
        pytest.skip("other engines always draw each completion from a stream of its own")
    engine: Any = bench.engine
    prompts = some_prompts()
    engine._seed_requests = False  # as on a card
    try:
        state = torch.get_rng_state()
        first = engine.generate(prompts, sampling())
        assert torch.equal(torch.get_rng_state(), state)
        assert ids_of(engine.generate(prompts, sampling())) == ids_of(first)
        assert ids_of(engine.generate(prompts, sampling(seed=6))) != ids_of(first)
        assert len({c.ids for c in first[2]}) > 1
    finally:
        engine._seed_requests = True


def test_completion_ends_at_any_end_of_sequence_token_or_at_the_limit(bench: Bench) -> None:
    completions = [c for g in bench.engine.generate(some_prompts(), sampling(n=16, max_tokens=6)) for c in g]
    assert {c.finish for c in completions} == {"stop", "length"}
    assert len({c.ids[-1] for c in completions if c.finish == "stop"}) > 1
    for c in completions:
        assert len(c.ids) == len(c.logprobs)
        assert not EOS & set(c.ids[:-1])
        assert (c.finish == "stop") == (c.ids[-1] in EOS)
        assert c.truncated == (c.finish == "length")
        if c.truncated:
            assert len(c.ids) == 6


def test_end_of_sequence_token_at_the_limit_is_not_a_truncation(bench: Bench) -> None:
    completions = [c for g in bench.engine.generate(some_prompts(), sampling(n=32, max_tokens=1)) for c in g]
    assert all(len(c.ids) == 1 for c in completions)
    assert any(c.finish == "stop" for c in completions)
    assert all((c.finish == "stop") == (c.ids[0] in EOS) for c in completions)


def test_greedy_sampling_takes_the_most_likely_token(bench: Bench) -> None:
    bench.skip_if_simulated()
    prompts = some_prompts()
    groups = bench.engine.generate(prompts, sampling(n=1, temperature=0.0, max_tokens=3))
    for prompt, (completion,) in zip(prompts, groups, strict=True):
        ids = list(prompt)
        for token in completion.ids:
            with torch.no_grad():
                assert int(bench.policy.model(torch.tensor([ids])).logits[0, -1].argmax()) == token
            ids.append(token)


def test_only_a_sync_changes_the_weights_and_it_drops_prefix_caches(bench: Bench) -> None:
    """The prompts are the same before and after the sync, so a stale prefix cache would change the result."""
    bench.skip_if_simulated()
    prompts = some_prompts()
    mean, _ = BOUNDS[bench.engine.name]
    bench.engine.generate(prompts, sampling())
    with torch.no_grad():
        for i, (_, parameter) in enumerate(bench.policy.parameters()):
            torch.manual_seed(i)
            parameter.add_(0.05 * torch.randn_like(parameter))
    without = differences(bench.policy, prompts, bench.engine.generate(prompts, sampling()), 1.0)
    assert without.abs().mean() > 1000 * mean
    bench.sync()
    after = differences(bench.policy, prompts, bench.engine.generate(prompts, sampling()), 1.0)
    assert after.abs().mean() < mean


def test_completions_have_the_policy_version_and_a_sync_must_advance_it(bench: Bench) -> None:
    before = bench.engine.policy_version
    bench.sync()
    assert bench.engine.policy_version == before + 1
    assert {c.policy_version for g in bench.engine.generate(some_prompts(), sampling()) for c in g} == {before + 1}
    for stale in (before, before + 1):
        with pytest.raises(ValueError, match="must advance"):
            bench.engine.sync(bench.policy, stale)


@pytest.mark.parametrize("bad", [[], [5] * (MAX_PROMPT_TOKENS + 1)])
def test_empty_and_overlong_prompts_are_refused(bench: Bench, bad: list[int]) -> None:
    with pytest.raises(ValueError, match=f"prompt 1 has {len(bad)} tokens"):
        bench.engine.generate([[5], bad], sampling())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"top_p": 0.9}, "rollout.top_p=1.0"),
        ({"top_k": 5}, "rollout.top_k=0"),
        ({"min_p": 0.1}, "rollout.min_p=0.0"),
        ({"repetition_penalty": 1.1}, "rollout.repetition_penalty=1.0"),
        ({"temperature": 0.0}, "above 0"),
        ({"max_completion_tokens": 0}, "at least 1"),
    ],
)
def test_settings_that_the_learner_cannot_model_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        create_engine(dataclasses.replace(SPEC, **changes), make_policy(), 0)


def test_auto_selects_transformers_on_a_cpu() -> None:
    assert create_engine(dataclasses.replace(SPEC, engine="auto"), make_policy(), 0).name == "transformers"


def test_missing_vllm_is_refused_with_install_instructions() -> None:
    if importlib.util.find_spec("vllm") is not None:
        pytest.skip("vllm is installed")
    with pytest.raises(ConfigurationError, match=r"rollout\.engine=vllm.*install"):
        create_engine(dataclasses.replace(SPEC, engine="vllm"), make_policy(), 0)

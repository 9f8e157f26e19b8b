"""What every rollout engine has to do: one suite, run against each that is installed."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from rl.layout import Sequences, micro_batches
from rl.policy import Policy
from rl.rollout.engine import Completion, RolloutEngine, Sampling, create_engine
from rl.spec import ConfigurationError, RolloutSpec

VOCABULARY = 96
EOS = frozenset({1, 2, 3})
LONGEST = 300
SPEC = RolloutSpec(max_prompt_tokens=LONGEST, max_completion_tokens=12, max_batch_completions=8)

# The largest mean and single difference between an engine's log-probabilities and the learner's, both fp32.
BOUNDS = {"transformers": (1e-5, 1e-4), "vllm": (2e-5, 5e-4)}


@dataclasses.dataclass
class Bench:
    engine: RolloutEngine
    policy: Policy

    def skip_unless_it_runs_the_policy(self) -> None:
        if self.engine.name not in BOUNDS:
            pytest.skip(f"{self.engine.name} samples from a distribution of its own")

    def sync(self) -> None:
        self.engine.sync(self.policy, self.engine.policy_version + 1)


def make_policy() -> Policy:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.15,
        bos_token_id=None,
        eos_token_id=1,
        architectures=["LlamaForCausalLM"],
    )
    model: Any = LlamaForCausalLM(config).eval()
    return Policy(model, None, EOS, 0, torch.device("cpu"), autocast=False, chunk_tokens=64)


@pytest.fixture(scope="module", params=["transformers", "vllm", "simulated"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    if request.param == "vllm" and importlib.util.find_spec("vllm") is None:
        pytest.skip("vllm is not installed")
    policy = make_policy()
    engine = create_engine(dataclasses.replace(SPEC, engine=request.param), policy, version=0)
    yield Bench(engine, policy)
    engine.close()


def some_prompts(seed: int = 0) -> list[list[int]]:
    """Of very unequal length; the longest fills more than one block of any prefix cache."""
    r = random.Random(seed)
    return [[r.randrange(4, VOCABULARY) for _ in range(n)] for n in (1, 3, 20, LONGEST)]


def sampling(**changes: Any) -> Sampling:
    return dataclasses.replace(Sampling(n=4, temperature=1.0, max_tokens=12, seed=5), **changes)


def differences(
    policy: Policy, prompts: list[list[int]], groups: list[list[Completion]], temperature: float
) -> torch.Tensor:
    """Engine minus learner, for every sampled token."""
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
def test_log_probabilities_are_the_learners_at_the_temperature_that_was_sampled_with(
    bench: Bench, temperature: float
) -> None:
    bench.skip_unless_it_runs_the_policy()
    prompts = some_prompts()
    diff = differences(
        bench.policy, prompts, bench.engine.generate(prompts, sampling(temperature=temperature)), temperature
    )
    mean, largest = BOUNDS[bench.engine.name]
    assert diff.abs().mean() < mean
    assert diff.abs().max() < largest


def test_n_samples_of_a_prompt_differ_and_equal_prompts_do_not_share_their_samples(bench: Bench) -> None:
    prompt = some_prompts()[2]
    one, two = ids_of(bench.engine.generate([prompt, prompt], sampling(n=8)))
    assert len(one) == len(two) == 8
    assert len(set(one)) > 4
    assert one != two


def test_the_same_seed_gives_the_same_completions_and_another_seed_others(bench: Bench) -> None:
    prompts = some_prompts()
    first = bench.engine.generate(prompts, sampling())
    assert ids_of(bench.engine.generate(prompts, sampling())) == ids_of(first)
    assert ids_of(bench.engine.generate(prompts, sampling(seed=6))) != ids_of(first)


def test_a_completion_ends_with_any_of_the_end_tokens_or_at_the_limit(bench: Bench) -> None:
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


def test_an_end_token_at_the_very_limit_is_an_end_and_not_a_cut(bench: Bench) -> None:
    completions = [c for g in bench.engine.generate(some_prompts(), sampling(n=32, max_tokens=1)) for c in g]
    assert all(len(c.ids) == 1 for c in completions)
    assert any(c.finish == "stop" for c in completions)
    assert all((c.finish == "stop") == (c.ids[0] in EOS) for c in completions)


def test_greedy_takes_the_likeliest_token(bench: Bench) -> None:
    bench.skip_unless_it_runs_the_policy()
    prompts = some_prompts()
    groups = bench.engine.generate(prompts, sampling(n=1, temperature=0.0, max_tokens=3))
    for prompt, (completion,) in zip(prompts, groups, strict=True):
        ids = list(prompt)
        for token in completion.ids:
            with torch.no_grad():
                assert int(bench.policy.model(torch.tensor([ids])).logits[0, -1].argmax()) == token
            ids.append(token)


def test_weights_change_with_a_sync_and_not_before(bench: Bench) -> None:
    """Same prompts before and after, so that a prefix cache that was kept would show."""
    bench.skip_unless_it_runs_the_policy()
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


def test_the_simulated_engine_says_what_it_sampled_from_and_changes_with_a_sync_alone() -> None:
    policy = make_policy()
    engine = create_engine(dataclasses.replace(SPEC, engine="simulated"), policy, version=0)
    with torch.no_grad():
        policy.head.weight[7] += 0.25
    engine.sync(policy, 1)
    drawn = [c for g in engine.generate([[5]] * 4, sampling(n=500, max_tokens=1)) for c in g]
    sevens = [c for c in drawn if c.ids == (7,)]
    assert len(sevens) / len(drawn) > 5 / VOCABULARY
    assert len(sevens) / len(drawn) == pytest.approx(math.exp(sevens[0].logprobs[0]), rel=0.25)
    with torch.no_grad():
        policy.head.weight.add_(torch.randn_like(policy.head.weight))
    assert ids_of(engine.generate([[5]], sampling())) == ids_of(engine.generate([[5]], sampling()))
    before = engine.generate([[5]], sampling(n=1, temperature=0.0))[0][0]
    engine.sync(policy, 2)
    assert engine.generate([[5]], sampling(n=1, temperature=0.0))[0][0].logprobs != before.logprobs


def test_completions_carry_the_version_of_the_weights_and_a_sync_must_advance_it(bench: Bench) -> None:
    before = bench.engine.policy_version
    bench.sync()
    assert bench.engine.policy_version == before + 1
    assert {c.policy_version for g in bench.engine.generate(some_prompts(), sampling()) for c in g} == {before + 1}
    for stale in (before, before + 1):
        with pytest.raises(ValueError, match="must advance"):
            bench.engine.sync(bench.policy, stale)


@pytest.mark.parametrize("bad", [[], [5] * (LONGEST + 1)])
def test_empty_and_over_long_prompts_are_refused_and_never_cut(bench: Bench, bad: list[int]) -> None:
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
def test_what_the_learner_cannot_model_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        create_engine(dataclasses.replace(SPEC, **changes), make_policy(), 0)


def test_the_automatic_choice_on_a_cpu_is_transformers() -> None:
    assert create_engine(dataclasses.replace(SPEC, engine="auto"), make_policy(), 0).name == "transformers"


def test_vllm_that_is_not_installed_is_named_with_what_to_do() -> None:
    if importlib.util.find_spec("vllm") is not None:
        pytest.skip("vllm is installed")
    with pytest.raises(ConfigurationError, match=r"rollout\.engine=vllm.*install"):
        create_engine(dataclasses.replace(SPEC, engine="vllm"), make_policy(), 0)

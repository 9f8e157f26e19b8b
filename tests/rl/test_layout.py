"""Padded and packed layouts give the log-probabilities and gradients of one sequence at a time."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.layout import MicroBatch, Sequences, micro_batches, packing_is_faster
from rl.policy import Policy
from tests.rl.random_llama import random_llama_policy

VOCABULARY = 23


@pytest.fixture(scope="module")
def policy() -> Policy:
    return random_llama_policy(VOCABULARY, heads=4, kv_heads=2, initializer_range=0.3, chunk_tokens=3)


def some_groups(seed: int, groups: int, size: int) -> list[Sequences]:
    r = random.Random(seed)

    def ids(low: int, high: int) -> tuple[int, ...]:
        return tuple(r.randrange(2, VOCABULARY) for _ in range(r.randint(low, high)))

    return [Sequences(ids(1, 9), tuple(ids(1, 7) for _ in range(size))) for _ in range(groups)]


def by_sequence(policy: Policy, batches: list[MicroBatch], temperature: float = 1.0) -> dict[int, Any]:
    """[2, tokens] per completion number: log-probabilities and entropies."""
    found = {}
    for batch in batches:
        logprobs, entropy = policy.forward(batch, temperature)
        mask = batch.completion_mask()
        for row, number in enumerate(batch.sequences):
            found[number] = torch.stack([logprobs[row][mask[row]], entropy[row][mask[row]]])
    return found


def one_at_a_time(policy: Policy, groups: list[Sequences], temperature: float) -> dict[int, Any]:
    """The same values, computed for one unpadded sequence at a time, from the whole matrix of logits."""
    found = {}
    for group in groups:
        for ids in group.completions:
            logits = policy.model(torch.tensor([[*group.prompt, *ids]])).logits[0] / temperature
            logp = logits[len(group.prompt) - 1 : -1].log_softmax(dim=-1)
            chosen = logp.gather(1, torch.tensor(ids)[:, None])[:, 0]
            found[len(found)] = torch.stack([chosen, -(logp.exp() * logp).sum(dim=-1)])
    return found


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    groups=st.integers(1, 4),
    size=st.integers(1, 4),
    budget=st.sampled_from([1, 12, 30, 200]),
    packing=st.booleans(),
    temperature=st.sampled_from([0.6, 1.0, 1.3]),
)
def test_every_layout_gives_the_log_probabilities_of_single_sequences(
    policy: Policy, seed: int, groups: int, size: int, budget: int, packing: bool, temperature: float
) -> None:
    made = some_groups(seed, groups, size)
    expected = one_at_a_time(policy, made, temperature)
    found = by_sequence(policy, micro_batches(made, budget, packing, pad_id=0), temperature)
    assert sorted(found) == sorted(expected)
    for number, values in expected.items():
        torch.testing.assert_close(found[number], values, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("packing", [False, True])
def test_every_layout_gives_the_gradient_of_single_sequences(policy: Policy, packing: bool) -> None:
    made = some_groups(seed=1, groups=3, size=3)

    def gradient(values: dict[int, Any]) -> torch.Tensor:
        policy.model.zero_grad()
        sum(((n + 1) * v[0]).sum() for n, v in values.items()).backward()  # type: ignore[union-attr]
        return torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])

    expected = gradient(one_at_a_time(policy, made, 0.7))
    found = gradient(by_sequence(policy, micro_batches(made, 40, packing, pad_id=0), 0.7))
    assert (found - expected).norm() < 1e-5 * expected.norm()


@pytest.mark.parametrize("packing", [False, True])
def test_pad_id_changes_nothing(policy: Policy, packing: bool) -> None:
    made = some_groups(seed=2, groups=3, size=2)
    one, two = (by_sequence(policy, micro_batches(made, 1000, packing, pad_id=i)) for i in (0, 9))
    for number in one:
        torch.testing.assert_close(one[number], two[number], rtol=0, atol=1e-6)


@settings(max_examples=50)
@given(seed=st.integers(0, 10**6), budget=st.integers(1, 60), packing=st.booleans())
def test_micro_batches_contain_every_token_once_and_keep_the_budget(seed: int, budget: int, packing: bool) -> None:
    made = some_groups(seed, groups=4, size=3)
    flat = [ids for group in made for ids in group.completions]
    batches = micro_batches(made, budget, packing, pad_id=0)
    assert sorted(n for b in batches for n in b.sequences) == list(range(len(flat)))
    assert sum(len(b.target) for b in batches) == sum(map(len, flat))
    for batch in batches:
        rows, length = batch.input_ids.shape
        assert rows * length <= budget or rows == 1
        assert batch.target.tolist() == [t for n in batch.sequences for t in flat[n]]


def test_packing_computes_a_prompt_once_per_group() -> None:
    group = Sequences(tuple(range(2, 12)), ((3, 4, 1), (5, 1), (6, 7, 8, 1)))
    (packed,) = micro_batches([group], 1000, packing=True, pad_id=0)
    (padded,) = micro_batches([group], 1000, packing=False, pad_id=0)
    assert packed.input_ids.shape == (1, 10 + 2 + 1 + 3)
    assert padded.input_ids.shape == (3, 10 + 3)


def test_mask_is_computed_on_demand_and_is_no_input_of_a_micro_batch() -> None:
    group = Sequences((2, 3), ((4, 5, 1), (6, 7, 1)))
    (packed,) = micro_batches([group], 1000, packing=True, pad_id=0)
    (padded,) = micro_batches([group], 1000, packing=False, pad_id=0)
    assert all(value.ndim <= 2 for value in vars(packed).values() if isinstance(value, torch.Tensor))
    # Rows: prompt 2 3, completion 4 5, completion 6 7.
    expected = ["100000", "110000", "111000", "111100", "110010", "110011"]
    assert ["".join(str(int(x)) for x in row) for row in packed.visible()[0, 0]] == expected
    with_window = ["100000", "110000", "011000", "001100", "010010", "000011"]
    assert ["".join(str(int(x)) for x in row) for row in packed.visible(window=2)[0, 0]] == with_window
    with pytest.raises(ValueError, match="has no mask"):
        padded.visible()


def test_positions_of_padding_go_on_so_that_no_second_sequence_is_seen() -> None:
    (padded,) = micro_batches([Sequences((2, 3), ((4, 5, 1), (6,)))], 1000, packing=False, pad_id=0)
    assert padded.position_ids.tolist() == [[0, 1, 2, 3]] * 2


def group_of(prompt: int, completion: int, size: int = 8) -> Sequences:
    return Sequences(tuple(range(2, 2 + prompt)), tuple(tuple(range(completion)) for _ in range(size)))


SMOLLM2_PAIR_COST = 2 * 30 * 576 / 106e6
"""Of SmolLM2-135M: 30 layers of 576 channels, and 106 million parameters without the embeddings."""


@pytest.mark.parametrize(
    ("prompt", "completion", "tokens", "faster"),
    [
        (100, 24, 1024, True),
        (500, 100, 4096, True),
        (100, 100, 4096, True),
        (100, 250, 4096, False),
        (100, 500, 4096, False),
        (100, 500, 1024, False),
    ],
)
def test_packing_is_chosen_by_lengths(prompt: int, completion: int, tokens: int, faster: bool) -> None:
    """The expected form is the one that was measured to be faster, or the padded one where they are equally fast."""
    assert packing_is_faster([group_of(prompt, completion)], tokens, SMOLLM2_PAIR_COST) == faster


def test_one_completion_per_prompt_is_not_packed() -> None:
    assert not packing_is_faster([group_of(100, 24, size=1)], 1024, SMOLLM2_PAIR_COST)


@pytest.mark.parametrize("group", [Sequences((), ((3,),)), Sequences((3,), ((4,), ()))])
def test_empty_prompts_and_completions_are_refused(group: Sequences) -> None:
    with pytest.raises(ValueError, match="empty prompt or completion"):
        micro_batches([group], 100, packing=True, pad_id=0)

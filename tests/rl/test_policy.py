"""The policy's weights as engines take them, and its frozen copy."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from rl.layout import Sequences, micro_batches
from rl.models import prepare
from rl.policy import Policy, load_policy
from rl.spec import ModelSpec, TaskSpec, TrainerSpec

SUMS = TaskSpec("reasoning_gym", "chain_sum", params={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1})


def load(cache: Path, lora_rank: int = 0, precision: Any = "fp32") -> Policy:
    model = ModelSpec("tiny", lora_rank=lora_rank)
    torch.manual_seed(0)
    return load_policy(prepare(model, SUMS, cache), model, TrainerSpec(precision=precision), torch.device("cpu"))


def shake(policy: Policy) -> None:
    torch.manual_seed(1)
    with torch.no_grad():
        for _, parameter in policy.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))


def logprobs(policy: Policy) -> torch.Tensor:
    (batch,) = micro_batches([Sequences((5, 6, 7), ((8, 9, 1), (10, 1)))], 100, packing=True, pad_id=0)
    with torch.no_grad():
        return policy.forward(batch, 1.0)[0]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("lora_rank", [0, 4])
def test_a_frozen_copy_follows_when_it_is_told_to_and_then_gives_the_same_numbers(
    model_cache: Path, lora_rank: int, precision: str
) -> None:
    policy = load(model_cache, lora_rank, precision)
    frozen = policy.frozen_copy()
    assert torch.equal(logprobs(frozen), logprobs(policy))
    shake(policy)
    assert not torch.allclose(logprobs(frozen), logprobs(policy), atol=1e-3)
    frozen.copy_trained_from(policy)
    assert torch.equal(logprobs(frozen), logprobs(policy))
    assert not frozen.parameters()


def test_weights_of_adapters_are_merged_under_the_names_of_the_plain_model(model_cache: Path) -> None:
    adapted = load(model_cache, lora_rank=4)
    shake(adapted)
    merged = copy.deepcopy(adapted.model).merge_and_unload().state_dict()  # type: ignore[operator]
    found = dict(adapted.weights())
    assert sorted(found) == sorted(merged) == sorted(dict(load(model_cache).weights()))
    for name, weight in merged.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-5, atol=1e-6)


def test_the_reference_under_lora_is_the_model_without_its_adapters(model_cache: Path) -> None:
    plain, adapted = load(model_cache), load(model_cache, lora_rank=4)
    shake(adapted)
    assert not torch.allclose(logprobs(adapted), logprobs(plain), atol=1e-3)
    with adapted.reference_weights():
        torch.testing.assert_close(logprobs(adapted), logprobs(plain))

"""Which tokens are loss tokens, and the counts that a loss is divided by."""

from __future__ import annotations

import dataclasses

import torch

from rl.batch import Denominators, count_denominators, make_loss_mask
from rl.spec import AlgorithmSpec

NAN = float("nan")
COMPLETION = torch.tensor([[True, True, False], [True, True, True], [True, False, False]])
TRUNCATED = torch.tensor([False, False, True])
SPEC = AlgorithmSpec(name="test")


def test_denominators_count_loss_tokens_and_the_sequences_that_have_any() -> None:
    mask = torch.tensor([[True, True, False], [False, False, False], [True, False, False]])
    assert count_denominators(mask) == Denominators(tokens=3, sequences=2)
    assert Denominators(3, 2) + Denominators(1, 1) == Denominators(4, 3)


def test_empty_mask_counts_nothing() -> None:
    assert count_denominators(torch.zeros(0, 3, dtype=torch.bool)) == Denominators(0, 0)
    assert count_denominators(torch.zeros(3, 0, dtype=torch.bool)) == Denominators(0, 0)


def test_all_completion_tokens_are_loss_tokens_by_default() -> None:
    assert make_loss_mask(COMPLETION, TRUNCATED, SPEC).equal(COMPLETION)


def test_truncated_completions_are_masked_only_under_mask_truncated() -> None:
    masked = make_loss_mask(COMPLETION, TRUNCATED, dataclasses.replace(SPEC, mask_truncated=True))
    assert masked.tolist() == [[True, True, False], [True, True, True], [False] * 3]


def test_completion_with_a_non_finite_sampler_logprob_is_masked_as_a_whole() -> None:
    for bad in (NAN, float("inf"), -float("inf")):
        sampler = torch.tensor([[-1.0, -1.0, NAN], [-1.0, bad, -1.0], [-1.0, NAN, NAN]])
        kept = make_loss_mask(COMPLETION, TRUNCATED, SPEC, sampler)
        assert kept.tolist() == [[True, True, False], [False] * 3, [True, False, False]]


def test_both_masks_apply_together() -> None:
    sampler = torch.tensor([[-1.0, -1.0, NAN], [-1.0, NAN, -1.0], [-1.0, NAN, NAN]])
    masked = make_loss_mask(COMPLETION, TRUNCATED, dataclasses.replace(SPEC, mask_truncated=True), sampler)
    assert masked.tolist() == [[True, True, False], [False] * 3, [False] * 3]

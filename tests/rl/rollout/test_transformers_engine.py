"""Parts of the transformers engine that the conformance suite does not reach."""

from __future__ import annotations

import itertools

import pytest
import torch

from rl.rollout import transformers_engine
from rl.rollout.engine import Sampling
from rl.rollout.transformers_engine import TransformersEngine, _cumulative_sum_by_products
from rl.spec import RolloutSpec
from tests.rl.random_llama import random_llama_policy

PROMPTS = [[4, 5, 6], [7], [8, 9, 4, 5, 6, 7, 8]]
SAMPLING = Sampling(n=8, temperature=1.0, max_tokens=24, seed=3)


@pytest.mark.parametrize("columns", [1, 255, 256, 257, 5000])
def test_cumulative_sum_for_deterministic_cards_equals_that_of_torch(columns: int) -> None:
    p = torch.rand(3, columns, generator=torch.Generator().manual_seed(0))
    expected = p.cumsum(dim=-1, dtype=torch.float64)
    torch.testing.assert_close(_cumulative_sum_by_products(p), expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(("share", "tokens_per_sync"), [(0.0, 1), (1.0, 1), (0.25, 7)])
def test_completions_do_not_depend_on_when_ended_rows_are_removed(
    monkeypatch: pytest.MonkeyPatch, share: float, tokens_per_sync: int
) -> None:
    policy = random_llama_policy(20, eos_ids=frozenset({1, 2, 3}))
    engine = TransformersEngine(RolloutSpec("transformers"), policy, 0)
    expected = engine.generate(PROMPTS, SAMPLING)
    assert len({len(c.ids) for group in expected for c in group}) > 3
    monkeypatch.setattr(transformers_engine, "_REMOVE_ENDED_SHARE", share)
    monkeypatch.setattr(transformers_engine, "_TOKENS_PER_SYNC", {"cpu": tokens_per_sync})
    found = engine.generate(PROMPTS, SAMPLING)
    for one, two in zip(itertools.chain(*expected), itertools.chain(*found), strict=True):
        assert (one.ids, one.finish) == (two.ids, two.finish)
        assert one.logprobs == pytest.approx(two.logprobs, abs=1e-5)


def test_cache_is_copied_a_few_times_and_not_whenever_a_row_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import DynamicCache

    copies = []
    reorder = DynamicCache.reorder_cache

    def counted(cache: DynamicCache, rows: torch.Tensor) -> None:
        copies.append(len(rows))
        reorder(cache, rows)  # type: ignore[arg-type]

    monkeypatch.setattr(DynamicCache, "reorder_cache", counted)
    policy = random_llama_policy(20, eos_ids=frozenset({1, 2, 3}))
    engine = TransformersEngine(RolloutSpec("transformers"), policy, 0)
    groups = engine.generate(PROMPTS, SAMPLING)
    lengths = {len(c.ids) for group in groups for c in group}
    # One copy gives each prompt its rows; each further one removes at least a quarter of them.
    assert copies[0] == 24
    assert all(new <= 0.75 * old for old, new in itertools.pairwise(copies))
    assert len(copies) < len(lengths)

"""Checks that all rollout engines share. What an engine does is tested in test_engine_conformance.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl.rollout.engine import (
    Completion,
    batches_of_prompts,
    check_prompts,
    check_sampling,
    check_version,
)
from rl.spec import ConfigurationError, RolloutSpec


def test_default_settings_are_valid() -> None:
    check_sampling(RolloutSpec())


@pytest.mark.parametrize("name", ["max_prompt_tokens", "max_completion_tokens", "max_batch_completions"])
def test_sizes_below_one_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"rollout.{name}=0 must be at least 1"):
        check_sampling(RolloutSpec(**{name: 0}))  # type: ignore[arg-type]


def test_prompts_of_one_token_and_of_the_limit_are_valid() -> None:
    check_prompts([[5], [5] * 4], max_prompt_tokens=4)


@pytest.mark.parametrize("bad", [[], [5] * 5])
def test_first_invalid_prompt_is_named_by_its_index(bad: list[int]) -> None:
    with pytest.raises(ValueError, match=f"prompt 1 has {len(bad)} tokens.*at least 1 and at most 4"):
        check_prompts([[5], bad, []], max_prompt_tokens=4)


@pytest.mark.parametrize("new", [3, 2])
def test_sync_must_advance_the_policy_version(new: int) -> None:
    check_version(3, 4)
    with pytest.raises(ValueError, match=f"sync to policy version {new}.*already has version 3: it must advance"):
        check_version(3, new)


def test_completion_is_truncated_if_it_finished_by_length() -> None:
    assert Completion((5,), (-1.0,), "length", 0).truncated
    assert not Completion((1,), (-1.0,), "stop", 0).truncated


@given(prompts=st.integers(0, 40), n=st.integers(1, 20), limit=st.integers(1, 60))
def test_batches_cover_all_prompts_in_order_and_keep_the_limit(prompts: int, n: int, limit: int) -> None:
    batches = list(batches_of_prompts(prompts, n, limit))
    assert [i for batch in batches for i in batch] == list(range(prompts))
    assert all(len(batch) * n <= limit or len(batch) == 1 for batch in batches)


def test_batches_are_as_large_as_the_limit_allows() -> None:
    assert [len(batch) for batch in batches_of_prompts(7, n=4, max_batch_completions=12)] == [3, 3, 1]

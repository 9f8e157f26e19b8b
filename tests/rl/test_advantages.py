"""Advantages, zero-variance groups, the overlong penalty and the KL in the reward, against values computed by hand."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl.advantages import advantages, kl_in_reward, overlong_penalty, phantom_credit, zero_variance
from rl.spec import AlgorithmSpec, ConfigurationError


def spec(**settings: Any) -> AlgorithmSpec:
    return AlgorithmSpec(name="test", **settings)


REWARDS = torch.tensor([[1.0, 0.0, 0.0, 1.0], [3.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
# Row means 0.5 and 1.5. Row sums of squares 1 and 3, so row std (ddof=1) sqrt(1/3) and 1.
# Batch mean 1, squared differences 0 1 1 0 and 4 0 0 0, so batch std sqrt(6/7).


@pytest.mark.parametrize(
    ("settings", "by_hand"),
    [
        ({}, [[0.5, -0.5, -0.5, 0.5], [1.5, -0.5, -0.5, -0.5]]),
        ({"advantage_baseline": "leave_one_out"}, [[2 / 3, -2 / 3, -2 / 3, 2 / 3], [2.0, -2 / 3, -2 / 3, -2 / 3]]),
    ],
)
def test_baseline_is_the_group_mean_or_the_mean_of_the_other_completions(settings, by_hand):
    got = advantages(REWARDS, spec(advantage_scale="none", **settings))
    torch.testing.assert_close(got, torch.tensor(by_hand, dtype=torch.float64), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("scale", "row_0", "row_1"),
    [("group_std", math.sqrt(1 / 3), 1.0), ("batch_std", math.sqrt(6 / 7), math.sqrt(6 / 7))],
)
def test_scale_is_a_standard_deviation_with_ddof_1_plus_epsilon(scale, row_0, row_1):
    for eps in (1e-4, 0.5):
        got = advantages(REWARDS, spec(advantage_scale=scale, advantage_eps=eps))
        by_hand = torch.tensor(
            [[x / (row_0 + eps) for x in (0.5, -0.5, -0.5, 0.5)], [x / (row_1 + eps) for x in (1.5, -0.5, -0.5, -0.5)]],
            dtype=torch.float64,
        )
        torch.testing.assert_close(got, by_hand, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.1, 0.3, 0.35, 0.7, 1 / 3, -0.1, 0.0, 1e6])
@pytest.mark.parametrize("group", [2, 3, 7, 8, 64])
def test_equal_rewards_give_advantages_of_exactly_zero(value, group, dtype):
    others = torch.rand(1, group, dtype=dtype)
    rewards = torch.cat([torch.full((1, group), value, dtype=dtype), others])
    for scale in ("group_std", "batch_std", "none"):
        for baseline in ("group_mean", "leave_one_out"):
            got = advantages(rewards, spec(advantage_scale=scale, advantage_baseline=baseline))
            assert got[0].tolist() == [0.0] * group
            assert got[1].abs().max() > 0
    assert zero_variance(rewards).tolist() == [True, False]


def test_group_of_one_is_refused_with_a_valid_size():
    with pytest.raises(ConfigurationError, match=r"group_size=1.*at least 2"):
        advantages(torch.ones(4, 1), spec())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_reward_that_is_not_finite_is_an_error(bad):
    with pytest.raises(ValueError, match="NaN or infinite"):
        advantages(torch.tensor([[1.0, bad]]), spec())


def test_rewards_must_be_a_matrix_of_groups():
    with pytest.raises(ValueError, match=r"\[prompts, group_size\]"):
        advantages(torch.ones(8), spec())


def test_phantom_credit_is_in_groups_that_are_equally_correct_and_differ_in_reward():
    rewards = torch.tensor([[0.1, 0.0], [1.1, 1.0], [1.1, 0.0], [0.1, 0.1], [1.0, 0.5]])
    correct = torch.tensor([[0.0, 0.0], [1.0, 1.0], [1.0, 0.0], [0.0, 0.0], [1.0, 0.5]])
    assert phantom_credit(rewards, correct).tolist() == [True, True, False, False, False]


def test_zero_variance_uses_the_optimised_rewards_not_accuracy():
    correct = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    shaped = correct + overlong_penalty(torch.tensor([[10, 24], [24, 3]]), 24, spec(overlong_buffer_tokens=4))
    # Group 0: equal accuracy, unequal optimised rewards. Group 1: the reverse.
    assert zero_variance(shaped).tolist() == [False, True]
    assert advantages(shaped, spec())[1].tolist() == [0.0, 0.0]


@given(st.lists(st.sampled_from([0.0, 0.1, 0.35, 1.0]), min_size=4, max_size=4), st.floats(-10, 10))
def test_advantages_of_a_group_sum_to_zero_and_do_not_depend_on_a_constant(group, shift):
    rewards = torch.tensor([group], dtype=torch.float64)
    a = advantages(rewards, spec())
    assert abs(a.sum().item()) < 1e-9
    assert (advantages(rewards + shift, spec()) - a).abs().max() < 1e-6


def test_overlong_penalty_falls_linearly_over_its_buffer():
    lengths = torch.tensor([0, 16, 17, 18, 20, 25])
    got = overlong_penalty(lengths, 20, spec(overlong_buffer_tokens=4, overlong_penalty=2.0))
    assert got.tolist() == [0.0, 0.0, -0.5, -1.0, -2.0, -2.0]
    assert not overlong_penalty(lengths, 20, spec()).any()


@pytest.mark.parametrize(
    ("estimator", "by_hand"),
    # log pi_old - log pi_ref is ln 2 for both tokens of row 0, and -ln 2 for the token of row 1
    [
        ("k1", [2 * math.log(2), -math.log(2)]),
        ("k2", [math.log(2) ** 2, math.log(2) ** 2 / 2]),
        ("k3", [2 * (0.5 + math.log(2) - 1), 2 - math.log(2) - 1]),
    ],
)
def test_kl_in_the_reward_is_the_coefficient_times_the_sum_over_loss_tokens(estimator, by_hand):
    nan = float("nan")
    old = torch.tensor([[-1.0, -2.0, nan], [-3.0, nan, nan]], dtype=torch.float64)
    reference = old + torch.tensor([[-1.0, -1.0, 0.0], [1.0, nan, nan]], dtype=torch.float64) * math.log(2)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    got = kl_in_reward(old, reference, mask, spec(kl_coef=0.5, kl_placement="reward", kl_estimator=estimator))
    assert got.tolist() == pytest.approx([0.5 * x for x in by_hand], rel=1e-12)
    assert not kl_in_reward(old, reference, mask, spec(kl_coef=0.5, kl_placement="loss")).any()
    assert not kl_in_reward(old, reference, mask, spec(kl_coef=0.0, kl_placement="reward")).any()

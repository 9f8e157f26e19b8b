"""Advantages from rewards: pure functions over whole groups of completions, computed in float64.

Order of use: take the weighted rewards, add the overlong penalty, subtract the KL in the reward. Give that sum to both
`zero_variance` and `advantages`. Formulas and papers: docs/algorithms.md.
"""
# ruff: noqa: F722 - jaxtyping's shape strings are not Python

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rl.estimators import kl_estimate
from rl.spec import AlgorithmSpec, ConfigurationError


def advantages(rewards: Float[Tensor, "prompts group"], spec: AlgorithmSpec) -> Float[Tensor, "prompts group"]:
    """Advantage of every completion of a rollout batch, float64. Row p has the G completions of one prompt.

    `group_std` and `batch_std` are standard deviations with ddof=1, plus `advantage_eps`, as in TRL. A group whose
    rewards are all equal gets exactly 0. Pass the whole rollout batch at once: `batch_std` is taken over all prompts.

    Raises:
        ConfigurationError: G < 2, where every advantage would be 0 and nothing would be trained.
        ValueError: a reward is NaN or infinite, or `rewards` is not a matrix. Callers replace the reward of a failed
            scorer by 0 before.
    """
    _check_groups(rewards)
    r = rewards.double()
    group = r.shape[1]
    centred = r - r.mean(dim=1, keepdim=True)
    if spec.advantage_baseline == "leave_one_out":
        # RLOO subtracts the mean of the other completions; that equals the group-mean form times G / (G - 1).
        centred = centred * (group / (group - 1))
    if spec.advantage_scale == "group_std":
        centred = centred / (r.std(dim=1, correction=1, keepdim=True) + spec.advantage_eps)
    elif spec.advantage_scale == "batch_std":
        centred = centred / (r.std(correction=1) + spec.advantage_eps)
    # The mean of equal rewards such as 0.35 has a rounding error, which division by a small std would magnify.
    return torch.where(zero_variance(rewards)[:, None], 0.0, centred)


def zero_variance(rewards: Float[Tensor, "prompts group"]) -> Bool[Tensor, " prompts"]:
    """Per group: whether all its rewards are equal, so that it contributes no gradient.

    Pass the same rewards as to `advantages`.

    Raises:
        ConfigurationError, ValueError: as `advantages`.
    """
    _check_groups(rewards)
    return (rewards == rewards[:, :1]).all(dim=1)


def phantom_credit(
    rewards: Float[Tensor, "prompts group"], correct: Float[Tensor, "prompts group"]
) -> Bool[Tensor, " prompts"]:
    """Per group: whether its completions are equally correct and yet differ in reward.

    Such a group has advantages that come from format, length or style alone.

    Args:
        correct: raw correctness of each completion.
    """
    return zero_variance(correct) & ~zero_variance(rewards)


def overlong_penalty(
    lengths: Int[Tensor, "*shape"], max_completion_tokens: int, spec: AlgorithmSpec
) -> Float[Tensor, "*shape"]:
    """Penalty to *add* to the reward of each completion, float64, in [-`overlong_penalty`, 0] (DAPO, eq. 13).

    `lengths` are completion tokens. The penalty is 0 up to `max_completion_tokens - overlong_buffer_tokens` and falls
    linearly to `-overlong_penalty` at `max_completion_tokens`.
    """
    if spec.overlong_buffer_tokens is None:
        raise ValueError("algorithm.overlong_buffer_tokens has no number; rl.algorithms.follow_lengths sets it")
    if spec.overlong_buffer_tokens == 0:
        return torch.zeros_like(lengths, dtype=torch.float64)
    free = max_completion_tokens - spec.overlong_buffer_tokens
    excess = (lengths.double() - free) / spec.overlong_buffer_tokens
    return -spec.overlong_penalty * excess.clamp(0.0, 1.0)


def kl_in_reward(
    old_logprobs: Float[Tensor, "sequences tokens"],
    reference_logprobs: Float[Tensor, "sequences tokens"],
    loss_mask: Bool[Tensor, "sequences tokens"],
    spec: AlgorithmSpec,
) -> Float[Tensor, " sequences"]:
    """Penalty to *subtract* from the reward of each completion, float64: `kl_coef` times the KL summed over its tokens.

    Log-probabilities are in nats. The KL is that of the policy that sampled (old) to the reference. The penalty is 0
    unless `kl_placement` is `reward`.
    """
    if spec.kl_placement != "reward" or spec.kl_coef == 0.0:
        return torch.zeros(len(old_logprobs), dtype=torch.float64, device=old_logprobs.device)
    log_ratio = torch.where(loss_mask, (old_logprobs - reference_logprobs).double(), 0.0)
    return spec.kl_coef * kl_estimate(log_ratio, spec.kl_estimator).sum(dim=-1)


def _check_groups(rewards: Tensor) -> None:
    if rewards.ndim != 2:
        raise ValueError(f"rewards must have the shape [prompts, group_size], not {list(rewards.shape)}")
    if rewards.shape[1] < 2:
        raise ConfigurationError(
            f"group_size={rewards.shape[1]}: an advantage compares the completions of one prompt, so group_size must "
            "be at least 2 (8 is the usual choice)"
        )
    if not torch.isfinite(rewards).all():
        raise ValueError("a reward is NaN or infinite; the reward of a completion whose scorer failed must be 0")

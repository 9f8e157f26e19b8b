"""From rewards to advantages: pure functions over whole groups, float64 inside. Never sees a token or a model.

The order is: weighted rewards, plus the overlong penalty, minus the KL in the reward; then `zero_variance` and
`advantages` on that same sum. Formulas and papers: docs/algorithms.md.
"""
# ruff: noqa: F722 - jaxtyping's shape strings are not Python

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rl.estimators import kl_estimate
from rl.spec import AlgorithmSpec, ConfigurationError


def advantages(rewards: Float[Tensor, "prompts group"], spec: AlgorithmSpec) -> Float[Tensor, "prompts group"]:
    """Advantages of every completion of a rollout batch, float64. Row p holds the G completions of one prompt.

    `group_std` and `batch_std` are standard deviations with ddof=1, plus `advantage_eps`, as in TRL. A group whose
    rewards are all equal gets exactly 0. The whole rollout batch must be given at once: `batch_std` looks across
    prompts.

    Raises:
        ConfigurationError: G < 2, where every advantage would be 0 and nothing would be trained.
        ValueError: a reward is NaN or infinite (a scorer that failed counts as 0, it is not passed on).
    """
    _check_groups(rewards)
    r = rewards.double()
    group = r.shape[1]
    centred = r - r.mean(dim=1, keepdim=True)
    if spec.advantage_baseline == "leave_one_out":
        # r_i minus the mean of the others (RLOO) is the group-mean form times G / (G - 1).
        centred = centred * (group / (group - 1))
    if spec.advantage_scale == "group_std":
        centred = centred / (r.std(dim=1, correction=1, keepdim=True) + spec.advantage_eps)
    elif spec.advantage_scale == "batch_std":
        centred = centred / (r.std(correction=1) + spec.advantage_eps)
    # Equal rewards such as 0.35 have a mean that is off by a rounding error, which a small std would blow up.
    return torch.where(zero_variance(rewards)[:, None], 0.0, centred)


def zero_variance(rewards: Float[Tensor, "prompts group"]) -> Bool[Tensor, " prompts"]:
    """Groups whose rewards are all equal: they teach nothing. Give it what the advantage is computed from."""
    _check_groups(rewards)
    return (rewards == rewards[:, :1]).all(dim=1)


def overlong_penalty(
    lengths: Int[Tensor, "*shape"], max_completion_tokens: int, spec: AlgorithmSpec
) -> Float[Tensor, "*shape"]:
    """What is *added* to the reward of a long completion, float64, in [-`overlong_penalty`, 0] (DAPO, eq. 13).

    0 up to `max_completion_tokens - overlong_buffer_tokens`, then linear down to `-overlong_penalty` at
    `max_completion_tokens`.
    """
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
    """What is *subtracted* from each completion's reward, float64: `kl_coef` times the KL summed over its tokens.

    0 where the KL belongs into the loss. The estimate is of the policy that sampled (old) against the reference.
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
        raise ValueError("a reward is NaN or infinite; a scorer that fails must count as a failure, reward 0")

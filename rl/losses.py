"""The policy losses: pure functions from a `LossBatch` to its share of the update's loss.

GRPO, DAPO, Dr.GRPO, GSPO, CISPO and dual clip are settings of one formula, not separate functions; docs/algorithms.md
gives the formula, the papers and the exact settings. Masked values are replaced with `where` before any arithmetic,
since NaN x 0 is NaN.
"""
# ruff: noqa: F722 - jaxtyping's shape strings are not Python

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from rl.batch import Denominators, LossBatch
from rl.curves import UpdateSums
from rl.estimators import kl_estimate, sampler_weights
from rl.spec import AlgorithmSpec

# fp32 overflows at exp(89), and the gradient of a clipped infinity is 0 x inf, which is NaN for the whole update.
_LARGEST_LOG_RATIO = 80.0


def policy_loss(
    batch: LossBatch, spec: AlgorithmSpec, denominators: Denominators
) -> tuple[Float[Tensor, ""], UpdateSums]:
    """(this micro-batch's share of the update's loss, the sums for its curves).

    Call `backward` on the loss as it is. The shares of all micro-batches and ranks add up to the loss of the update,
    and so do their gradients; so gradients must be summed over ranks, not averaged.

    Raises:
        ValueError: the settings need log-probabilities that the batch does not have, or a constant that is not set.
    """
    mask = batch.loss_mask
    logprobs = torch.where(mask, batch.logprobs, 0.0)
    old_logprobs = torch.where(mask, batch.old_logprobs, 0.0)
    advantages = batch.advantages.to(logprobs.dtype)[:, None]

    log_ratio = logprobs - old_logprobs
    lengths = mask.sum(dim=-1, keepdim=True)
    if spec.ratio_level == "sequence":
        # GSPO: one ratio per sequence, the geometric mean of its token ratios; [sequences, 1] from here on.
        log_ratio = log_ratio.sum(dim=-1, keepdim=True) / lengths.clamp(min=1)
        ratio_mask = lengths > 0
    else:
        ratio_mask = mask
    ratio = log_ratio.clamp(max=_LARGEST_LOG_RATIO).exp()

    per_token = _surrogate(ratio, advantages, logprobs, spec)
    if spec.sampler_correction != "none":
        if batch.sampler_logprobs is None:
            raise ValueError(f"sampler_correction={spec.sampler_correction} needs the sampler's log-probabilities")
        per_token = per_token * sampler_weights(batch.old_logprobs, batch.sampler_logprobs, mask, spec)
    if spec.kl_placement == "loss" and spec.kl_coef != 0.0:
        if batch.reference_logprobs is None:
            raise ValueError(f"kl_coef={spec.kl_coef} in the loss needs the reference's log-probabilities")
        reference = torch.where(mask, batch.reference_logprobs, 0.0)
        per_token = per_token + spec.kl_coef * kl_estimate(logprobs - reference, spec.kl_estimator)

    loss = _aggregate(torch.where(mask, per_token, 0.0), lengths, spec, denominators)
    low, high = _clipped(ratio.detach(), advantages, spec)
    sums = UpdateSums.of(
        batch, loss=loss.detach(), ratio=ratio.detach(), ratio_mask=ratio_mask, clip_low=low, clip_high=high
    )
    return loss, sums


def _surrogate(ratio: Tensor, advantages: Tensor, logprobs: Tensor, spec: AlgorithmSpec) -> Tensor:
    if spec.surrogate == "cispo":
        # The bounds are absolute and clip a weight without gradient, so every token keeps its gradient.
        weight = ratio.detach().clamp(spec.clip_eps_low, spec.clip_eps_high)
        return -weight * advantages * logprobs
    clipped = ratio.clamp(1 - spec.clip_eps_low, 1 + spec.clip_eps_high)
    loss = torch.maximum(-ratio * advantages, -clipped * advantages)
    if spec.dual_clip is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -spec.dual_clip * advantages), loss)
    return loss


def _clipped(ratio: Tensor, advantages: Tensor, spec: AlgorithmSpec) -> tuple[Tensor, Tensor]:
    """(where the lower bound acts, where the upper bound acts), given the sign of the advantage."""
    low, high = 1 - spec.clip_eps_low, 1 + spec.clip_eps_high
    if spec.surrogate == "cispo":
        low, high = spec.clip_eps_low, spec.clip_eps_high
    return (ratio < low) & (advantages < 0), (ratio > high) & (advantages > 0)


def _aggregate(per_token: Tensor, lengths: Tensor, spec: AlgorithmSpec, denominators: Denominators) -> Tensor:
    """The masked `per_token` loss, summed and divided. Denominators are at least 1: no tokens give a loss of 0."""
    if spec.aggregation == "token_mean":
        return per_token.sum() / max(denominators.tokens, 1)
    if spec.aggregation == "constant":
        if not spec.aggregation_constant:
            raise ValueError("aggregation=constant needs algorithm.aggregation_constant, in tokens")
        return per_token.sum() / (max(denominators.sequences, 1) * spec.aggregation_constant)
    return (per_token / lengths.clamp(min=1)).sum() / max(denominators.sequences, 1)

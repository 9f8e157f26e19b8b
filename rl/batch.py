"""The input of a loss: one micro-batch of completions, and the counts its loss is divided by.

The loss of a micro-batch is a share of a sum. It is divided by counts over the whole update (`Denominators`), so that
the shares of all micro-batches and ranks add up to the loss of the update, and their gradients to its gradient.
"""
# ruff: noqa: F722 - jaxtyping's shape strings are not Python

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rl.spec import AlgorithmSpec


@dataclass(frozen=True)
class LossBatch:
    """One micro-batch of completions, padded to the longest; log-probabilities and entropies in nats.

    Column t of row s is the t-th completion token of sequence s. Values where `loss_mask` is False may be anything,
    NaN included. A micro-batch without rows or columns is valid: it is that of a rank without work.
    """

    logprobs: Float[Tensor, "sequences tokens"]
    """Of the sampled tokens under the policy being trained, at the sampling temperature. Has the gradient."""
    old_logprobs: Float[Tensor, "sequences tokens"]
    """Under the policy in the denominator of the ratio (`algorithm.old_logprobs`)."""
    sampler_logprobs: Float[Tensor, "sequences tokens"] | None
    """As the rollout engine reported them; needed by `algorithm.sampler_correction` only."""
    reference_logprobs: Float[Tensor, "sequences tokens"] | None
    """Under the reference policy; needed by a KL term in the loss, and by the `kl` curve."""
    entropy: Float[Tensor, "sequences tokens"]
    """Of the policy's next-token distribution; used for a curve only, without gradient."""
    loss_mask: Bool[Tensor, "sequences tokens"]
    """True for loss tokens: tokens that contribute to the gradient."""
    advantages: Float[Tensor, " sequences"]


@dataclass(frozen=True)
class Denominators:
    """Counts over one whole update: every rank, every micro-batch, after masking."""

    tokens: int
    """Loss tokens."""
    sequences: int
    """Sequences with at least one loss token."""

    def __add__(self, other: Denominators) -> Denominators:
        return Denominators(self.tokens + other.tokens, self.sequences + other.sequences)


def count_denominators(loss_mask: Bool[Tensor, "sequences tokens"]) -> Denominators:
    """The counts of one micro-batch. An empty mask counts (0, 0)."""
    return Denominators(tokens=int(loss_mask.sum()), sequences=int(loss_mask.any(dim=-1).sum()))


def make_loss_mask(
    completion_mask: Bool[Tensor, "sequences tokens"],
    truncated: Bool[Tensor, " sequences"],
    spec: AlgorithmSpec,
    sampler_logprobs: Float[Tensor, "sequences tokens"] | None = None,
) -> Bool[Tensor, "sequences tokens"]:
    """Which tokens are loss tokens.

    `completion_mask` is True for the tokens that the engine sampled, its end-of-sequence token included. It follows the
    engine's finish reason, never token values. Left out are all tokens of truncated completions under `mask_truncated`,
    and all tokens of a completion with a NaN or infinite sampler log-probability.
    """
    keep = torch.ones_like(truncated)
    if spec.mask_truncated:
        keep = keep & ~truncated
    if sampler_logprobs is not None:
        keep = keep & ~(completion_mask & ~torch.isfinite(sampler_logprobs)).any(dim=-1)
    return completion_mask & keep[:, None]

"""What a loss sees of one micro-batch, and what it is divided by. Never a model, a tokenizer or a process group.

A micro-batch's loss is a *share of a sum*: it is divided by counts over the whole update (`Denominators`), so that
adding the shares of every micro-batch and every rank gives the update's loss, and adding their gradients its gradient.
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

    Column t of row s is the t-th completion token of sequence s. What stands where `loss_mask` is False may be
    anything, NaN included. A micro-batch without rows or columns is allowed: a rank that has no work.
    """

    logprobs: Float[Tensor, "sequences tokens"]
    """Of the sampled tokens under the policy being trained, at the sampling temperature. Carries the gradient."""
    old_logprobs: Float[Tensor, "sequences tokens"]
    """Under the policy the ratio is taken against (`algorithm.old_logprobs`)."""
    sampler_logprobs: Float[Tensor, "sequences tokens"] | None
    """As the rollout engine reported them; needed by `algorithm.sampler_correction` only."""
    reference_logprobs: Float[Tensor, "sequences tokens"] | None
    """Under the reference policy; needed by a KL term in the loss, and by the `kl` curve."""
    entropy: Float[Tensor, "sequences tokens"]
    """Of the policy's next-token distribution; a curve only, no gradient is taken through it."""
    loss_mask: Bool[Tensor, "sequences tokens"]
    """True where a token carries gradient."""
    advantages: Float[Tensor, " sequences"]


@dataclass(frozen=True)
class Denominators:
    """Counts over one whole update: every rank, every micro-batch, after masking."""

    tokens: int
    """Tokens that carry gradient."""
    sequences: int
    """Sequences with at least one such token."""

    def __add__(self, other: Denominators) -> Denominators:
        return Denominators(self.tokens + other.tokens, self.sequences + other.sequences)


def count_denominators(loss_mask: Bool[Tensor, "sequences tokens"]) -> Denominators:
    """The part that `loss_mask` adds to the update's denominators. An empty mask adds (0, 0)."""
    return Denominators(tokens=int(loss_mask.sum()), sequences=int(loss_mask.any(dim=-1).sum()))


def make_loss_mask(
    completion_mask: Bool[Tensor, "sequences tokens"],
    truncated: Bool[Tensor, " sequences"],
    spec: AlgorithmSpec,
    sampler_logprobs: Float[Tensor, "sequences tokens"] | None = None,
) -> Bool[Tensor, "sequences tokens"]:
    """Which tokens carry gradient.

    `completion_mask` is True for what the engine sampled, its end-of-sequence token included, by the engine's finish
    reason and never by token values. Truncated completions are left out under `mask_truncated`; a completion with a
    NaN or infinite sampler log-probability is left out whole.
    """
    keep = torch.ones_like(truncated)
    if spec.mask_truncated:
        keep = keep & ~truncated
    if sampler_logprobs is not None:
        keep = keep & ~(completion_mask & ~torch.isfinite(sampler_logprobs)).any(dim=-1)
    return completion_mask & keep[:, None]

"""Estimates from differences of log-probabilities (in nats): the KL divergence and importance weights."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rl.spec import AlgorithmSpec


def kl_estimate(log_ratio: Tensor, estimator: Literal["k1", "k2", "k3"]) -> Tensor:
    """Schulman's estimates of KL(p || q) from samples of p, elementwise; `log_ratio` is d = log p - log q.

    k1 = d, k2 = d^2 / 2, k3 = exp(-d) + d - 1 (http://joschu.net/blog/kl-approx.html).
    """
    if estimator == "k1":
        return log_ratio
    if estimator == "k2":
        return 0.5 * log_ratio.square()
    return torch.exp(-log_ratio) + log_ratio - 1.0


def sampler_weights(old_logprobs: Tensor, sampler_logprobs: Tensor, mask: Tensor, spec: AlgorithmSpec) -> Tensor:
    """Truncated importance weights min(pi_old / pi_sample, `sampler_correction_cap`), without gradient.

    The arguments are [sequences, tokens]. `sampler_correction` decides the level: `token` gives one weight per token,
    [sequences, tokens]; `sequence` gives the product over the tokens of `mask`, [sequences, 1]; `none` gives ones.
    Tokens outside `mask` get weight min(1, cap).
    """
    log_weight = torch.where(mask, old_logprobs - sampler_logprobs, 0.0).detach()
    if spec.sampler_correction == "none":
        return torch.ones_like(log_weight)
    if spec.sampler_correction == "sequence":
        log_weight = log_weight.sum(dim=-1, keepdim=True)
    return log_weight.exp().clamp(max=spec.sampler_correction_cap)

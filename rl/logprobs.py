"""Log-probabilities and entropies of given tokens from hidden states, without the whole [tokens, vocabulary] matrix.

The projection to the vocabulary is computed in chunks of tokens, and again in the backward pass. From the logits on,
all arithmetic is in fp32 (float64 for a float64 model), whatever the precision of the model.
"""
# ruff: noqa: F722 - jaxtyping's shape strings are not Python

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor


def token_logprobs(
    hidden: Float[Tensor, "tokens hidden"],
    weight: Float[Tensor, "vocabulary hidden"],
    bias: Float[Tensor, " vocabulary"] | None,
    target: Int[Tensor, " tokens"],
    temperature: float,
    chunk_tokens: int,
) -> tuple[Float[Tensor, " tokens"], Float[Tensor, " tokens"]]:
    """(log-probability of `target`, entropy) under softmax((hidden @ weight.T + bias) / temperature), in nats.

    Log-probabilities are differentiable, entropies are not. At most `chunk_tokens` rows of logits exist at a time. The
    matrix products run in the dtype of `hidden`; the gradient of `weight` has the dtype of `weight`.
    """
    logprob, entropy = _TokenLogprobs.apply(hidden, weight, bias, target, temperature, chunk_tokens)  # type: ignore[misc]
    return logprob, entropy


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        temperature: float,
        chunk: int,
    ) -> tuple[Tensor, Tensor]:
        ctx.weight_dtype = weight.dtype
        weight = weight.to(hidden.dtype)
        wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        logprob = hidden.new_empty(len(hidden), dtype=wide)
        entropy = hidden.new_empty(len(hidden), dtype=wide)
        log_z = hidden.new_empty(len(hidden), dtype=wide)
        for at in range(0, len(hidden), chunk):
            piece = slice(at, at + chunk)
            logits = _logits(hidden[piece], weight, bias, temperature, wide)
            z = logits.logsumexp(dim=-1)
            log_z[piece] = z
            logprob[piece] = logits.gather(1, target[piece, None])[:, 0] - z
            # H = log Z - E[logit]
            p = (logits - z[:, None]).exp_()
            entropy[piece] = z - p.mul_(logits).sum(dim=-1)
        ctx.save_for_backward(hidden, weight, bias, target, log_z)
        ctx.temperature, ctx.chunk, ctx.wide = temperature, chunk, wide
        ctx.mark_non_differentiable(entropy)
        return logprob, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradient = gradients[0]
        hidden, weight, bias, target, log_z = ctx.saved_tensors
        need_hidden, need_weight, need_bias = ctx.needs_input_grad[:3]
        hidden_grad = torch.empty_like(hidden) if need_hidden else None
        weight_grad = torch.zeros(weight.shape, dtype=ctx.weight_dtype, device=weight.device) if need_weight else None
        bias_grad = torch.zeros_like(bias) if need_bias else None
        for at in range(0, len(hidden), ctx.chunk):
            piece = slice(at, at + ctx.chunk)
            # d logprob / d logits = (onehot - softmax) / T
            logits_grad = _logits(hidden[piece], weight, bias, ctx.temperature, ctx.wide)
            logits_grad.sub_(log_z[piece, None]).exp_()
            scale = (gradient[piece] / ctx.temperature)[:, None]
            logits_grad.mul_(-scale).scatter_add_(1, target[piece, None], scale)
            narrow = logits_grad.to(hidden.dtype)
            if hidden_grad is not None:
                hidden_grad[piece] = narrow @ weight
            if weight_grad is not None:
                weight_grad += narrow.T @ hidden[piece]
            if bias_grad is not None:
                bias_grad += logits_grad.sum(dim=0).to(bias_grad.dtype)
        return hidden_grad, weight_grad, bias_grad, None, None, None


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, wide: torch.dtype) -> Tensor:
    bias = None if bias is None else bias.to(hidden.dtype)
    return torch.nn.functional.linear(hidden, weight, bias).to(wide).div_(temperature)

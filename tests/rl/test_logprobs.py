"""Chunked log-probabilities and entropies equal those from the whole matrix of logits, and so do their gradients."""

from __future__ import annotations

import pytest
import torch

from rl.logprobs import token_logprobs


def random_inputs(bias: bool, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    """(hidden [9, 5], weight [11, 5], bias [11] or None, target [9]), the first three with gradient."""
    generator = torch.Generator().manual_seed(0)

    def values(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    hidden, weight, offset = values(9, 5), values(11, 5), values(11) if bias else None
    target = torch.randint(0, 11, (9,), generator=generator)
    return hidden, weight, offset, target  # type: ignore[return-value]


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
@pytest.mark.parametrize("chunk", [1, 4, 100])
@pytest.mark.parametrize("bias", [False, True])
def test_values_equal_those_of_the_whole_matrix(chunk: int, bias: bool, temperature: float) -> None:
    hidden, weight, offset, target = random_inputs(bias)
    logprobs, entropy = token_logprobs(hidden, weight, offset, target, temperature, chunk)
    expected = (torch.nn.functional.linear(hidden, weight, offset) / temperature).log_softmax(dim=-1)
    torch.testing.assert_close(logprobs, expected.gather(1, target[:, None])[:, 0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(entropy, -(expected.exp() * expected).sum(dim=-1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("chunk", [1, 4, 100])
@pytest.mark.parametrize("bias", [False, True])
def test_gradient_equals_finite_differences(chunk: int, bias: bool) -> None:
    hidden, weight, offset, target = random_inputs(bias)

    def logprobs(*inputs: torch.Tensor) -> torch.Tensor:
        return token_logprobs(inputs[0], inputs[1], inputs[2] if bias else None, target, 0.7, chunk)[0]

    inputs = (hidden, weight, offset) if offset is not None else (hidden, weight)
    assert torch.autograd.gradcheck(logprobs, inputs)


def test_entropy_has_no_gradient() -> None:
    hidden, weight, _, target = random_inputs(bias=False)
    logprobs, entropy = token_logprobs(hidden, weight, None, target, 1.0, 4)
    assert logprobs.requires_grad
    assert not entropy.requires_grad


def test_log_probabilities_of_a_bf16_model_are_fp32() -> None:
    hidden = torch.randn(4, 8, dtype=torch.bfloat16)
    logprobs, entropy = token_logprobs(hidden, torch.randn(6, 8), None, torch.zeros(4, dtype=torch.long), 1.0, 2)
    assert logprobs.dtype == entropy.dtype == torch.float32


def test_gradient_of_the_weight_has_the_dtype_of_the_weight() -> None:
    hidden, _, _, target = random_inputs(bias=False, dtype=torch.bfloat16)
    weight = torch.randn(11, 5, dtype=torch.float32, requires_grad=True)
    token_logprobs(hidden, weight, None, target, 1.0, 4)[0].sum().backward()
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32
    assert hidden.grad is not None
    assert hidden.grad.dtype == torch.bfloat16


def test_no_tokens_give_no_values() -> None:
    hidden = torch.zeros(0, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(11, 5, dtype=torch.float64, requires_grad=True)
    logprobs, entropy = token_logprobs(hidden, weight, None, torch.zeros(0, dtype=torch.long), 1.0, 4)
    assert (logprobs.shape, entropy.shape) == ((0,), (0,))
    logprobs.sum().backward()
    assert weight.grad is not None
    assert not weight.grad.any()

"""The KL estimates and importance weights, against values computed by hand and exact expectations."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from rl.estimators import kl_estimate, sampler_weights
from rl.spec import AlgorithmSpec

LN2 = math.log(2.0)


def spec(**settings: Any) -> AlgorithmSpec:
    return AlgorithmSpec(name="test", **settings)


@pytest.mark.parametrize(
    ("estimator", "by_hand"),
    [("k1", [LN2, -LN2, 0.0]), ("k2", [LN2**2 / 2, LN2**2 / 2, 0.0]), ("k3", [LN2 - 0.5, 1 - LN2, 0.0])],
)
def test_estimates_have_the_values_computed_by_hand(estimator: Any, by_hand: list[float]) -> None:
    log_ratio = torch.tensor([LN2, -LN2, 0.0], dtype=torch.float64)
    assert kl_estimate(log_ratio, estimator).tolist() == pytest.approx(by_hand, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_k1_and_k3_are_unbiased(estimator: Any) -> None:
    p = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    q = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)
    log_ratio = (p / q).log()
    assert (p * kl_estimate(log_ratio, estimator)).sum().item() == pytest.approx((p * log_ratio).sum().item())


def test_k3_is_not_negative_up_to_rounding() -> None:
    log_ratio = torch.linspace(-5, 5, 1001, dtype=torch.float64)
    assert kl_estimate(log_ratio, "k3").min() >= -1e-15


# pi_old / pi_sample: 2 and 1/4 in row 0; 4 in row 1, whose second token is masked.
OLD = torch.tensor([[2.0, 0.25], [4.0, 7.0]], dtype=torch.float64).log()
SAMPLER = torch.zeros(2, 2, dtype=torch.float64)
MASK = torch.tensor([[True, True], [True, False]])


@pytest.mark.parametrize(
    ("level", "by_hand"),
    [("token", [[1.5, 0.25], [1.5, 1.0]]), ("sequence", [[0.5], [1.5]]), ("none", [[1.0, 1.0]] * 2)],
)
def test_weights_are_ratios_capped_per_token_or_sequence(level: str, by_hand: list[list[float]]) -> None:
    weights = sampler_weights(OLD, SAMPLER, MASK, spec(sampler_correction=level, sampler_correction_cap=1.5))
    torch.testing.assert_close(weights, torch.tensor(by_hand, dtype=torch.float64), rtol=1e-12, atol=0)


def test_weights_have_no_gradient() -> None:
    old = OLD.clone().requires_grad_()
    assert not sampler_weights(old, SAMPLER, MASK, spec(sampler_correction="token")).requires_grad


def test_masked_nan_does_not_change_a_weight() -> None:
    sampler = SAMPLER.masked_fill(~MASK, float("nan"))
    for level in ("token", "sequence"):
        settings = spec(sampler_correction=level)
        assert torch.equal(sampler_weights(OLD, sampler, MASK, settings), sampler_weights(OLD, SAMPLER, MASK, settings))

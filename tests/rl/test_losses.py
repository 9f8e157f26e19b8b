"""Loss values and gradients against values computed by hand on a 2 x 3 batch, and against finite differences."""

import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rl.batch import Denominators, LossBatch, count_denominators
from rl.losses import policy_loss
from rl.spec import AlgorithmSpec

LN2 = math.log(2.0)
MASK = torch.tensor([[True, True, True], [True, True, False]])
LOGPROBS = torch.tensor([[-1.0, -2.0, -3.0], [-1.0, -2.0, -9.0]], dtype=torch.float64)
RATIOS = torch.tensor([[1.5, 1.0, 0.5], [0.5, 1.5, 77.0]], dtype=torch.float64)
ADVANTAGES = torch.tensor([2.0, -1.0], dtype=torch.float64)
# With eps = 0.2 and these ratios, the token losses of the clipped surrogate are:
#   row 0, A = 2:  -min(3, 2.4) = -2.4   -min(2, 2) = -2   -min(1, 1.6) = -1       sum -5.4
#   row 1, A = -1: -min(-0.5, -0.8) = 0.8   -min(-1.5, -1.2) = 1.5                 sum  2.3


def hand_batch(ratios: Tensor = RATIOS, **changes: Any) -> LossBatch:
    logprobs = LOGPROBS.clone().requires_grad_()
    batch = LossBatch(
        logprobs=logprobs,
        old_logprobs=LOGPROBS - ratios.log(),
        sampler_logprobs=None,
        reference_logprobs=None,
        entropy=torch.ones_like(LOGPROBS),
        loss_mask=MASK,
        advantages=ADVANTAGES,
    )
    return dataclasses.replace(batch, **changes)


def loss_of(spec: AlgorithmSpec, batch: LossBatch | None = None) -> float:
    batch = batch or hand_batch()
    return policy_loss(batch, spec, count_denominators(batch.loss_mask))[0].item()


def grpo(**settings: Any) -> AlgorithmSpec:
    return AlgorithmSpec(name="test", **settings)


@pytest.mark.parametrize(
    ("spec", "by_hand"),
    [
        (grpo(), (-5.4 / 3 + 2.3 / 2) / 2),
        (grpo(aggregation="token_mean"), (-5.4 + 2.3) / 5),
        (grpo(aggregation="constant", aggregation_constant=10), (-5.4 + 2.3) / (2 * 10)),
        # eps_high = 0.28: the first token of row 0 has loss -1.28 x 2
        (grpo(aggregation="token_mean", clip_eps_high=0.28), (-2.56 - 2 - 1 + 2.3) / 5),
        # dual clip at 1.3: the second token of row 1 has a loss of at most 1.3
        (grpo(aggregation="token_mean", dual_clip=1.3), (-5.4 + 0.8 + 1.3) / 5),
        # cispo, capped at 1.2: -min(r, 1.2) x A x logp = 2.4 + 4 + 3 - 0.5 - 2.4
        (grpo(surrogate="cispo", clip_eps_low=0.0, clip_eps_high=1.2, aggregation="token_mean"), 6.5 / 5),
        # cispo with a lower bound of 0.75: the two ratios of 0.5 become 0.75
        (
            grpo(surrogate="cispo", clip_eps_low=0.75, clip_eps_high=1.2, aggregation="token_mean"),
            (6.5 + 1.5 - 0.25) / 5,
        ),
    ],
)
def test_loss_has_the_value_computed_by_hand(spec: AlgorithmSpec, by_hand: float):
    assert loss_of(spec) == pytest.approx(by_hand, rel=1e-12)


def test_gspo_has_one_ratio_per_sequence_the_geometric_mean_of_its_token_ratios():
    # cube root of 2 x 1 x 4 = 2; square root of 1/4 x 1 = 1/2
    batch = hand_batch(torch.tensor([[2.0, 1.0, 4.0], [0.25, 1.0, 3.0]], dtype=torch.float64))
    spec = grpo(ratio_level="sequence", clip_eps_low=3e-4, clip_eps_high=4e-4)
    loss, sums = policy_loss(batch, spec, count_denominators(MASK))
    # -min(2 x 2, 1.0004 x 2) and -min(-1/2, -0.9997), mean of the two sequences
    assert loss.item() == pytest.approx((-2.0008 + 0.9997) / 2, rel=1e-12)
    curves = sums.curves(grad_norm=0.0, lr=0.0, ratio_is_one=False)
    assert curves.ratio.value == pytest.approx(1.25)
    assert (curves.ratio.count, curves.ratio_min, curves.ratio_max) == (2, pytest.approx(0.5), pytest.approx(2.0))
    assert curves.clip_low is not None
    assert curves.clip_low.value == 0.5


def test_gspo_distributes_its_gradient_evenly_over_the_tokens_of_a_sequence():
    batch = hand_batch(torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 3.0]], dtype=torch.float64))
    policy_loss(batch, grpo(ratio_level="sequence"), count_denominators(MASK))[0].backward()
    # d/dlogp of -A x ratio / 2 sequences, and the ratio's exponent is a mean over 3 and over 2 tokens
    expected = torch.tensor([[-1 / 3] * 3, [1 / 4, 1 / 4, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(batch.logprobs.grad, expected, rtol=1e-12, atol=0)


def test_clip_removes_the_gradient_only_where_it_acts_given_the_sign_of_the_advantage():
    batch = hand_batch()
    policy_loss(batch, grpo(aggregation="token_mean"), count_denominators(MASK))[0].backward()
    # clipped: row 0 token 0 (r > 1.2, A > 0) and row 1 token 0 (r < 0.8, A < 0); elsewhere -A r / 5
    expected = torch.tensor([[0.0, -0.4, -0.2], [0.0, 0.3, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(batch.logprobs.grad, expected, rtol=1e-12, atol=0)


def test_dual_clip_removes_the_gradient_of_a_large_ratio_with_negative_advantage():
    batch = hand_batch()
    policy_loss(batch, grpo(aggregation="token_mean", dual_clip=1.3), count_denominators(MASK))[0].backward()
    assert batch.logprobs.grad is not None
    assert batch.logprobs.grad[1, 1] == 0.0
    assert batch.logprobs.grad[0, 2] == pytest.approx(-0.2)


def test_cispo_keeps_the_gradient_of_a_token_with_clipped_weight():
    batch = hand_batch()
    spec = grpo(surrogate="cispo", clip_eps_low=0.0, clip_eps_high=1.2, aggregation="token_mean")
    policy_loss(batch, spec, count_denominators(MASK))[0].backward()
    expected = torch.tensor([[-2.4, -2.0, -1.0], [0.5, 1.2, 0.0]], dtype=torch.float64) / 5
    torch.testing.assert_close(batch.logprobs.grad, expected, rtol=1e-12, atol=0)


def test_gradient_on_policy_is_the_policy_gradient_and_not_zero():
    batch = hand_batch(torch.ones(2, 3, dtype=torch.float64))
    policy_loss(batch, grpo(aggregation="token_mean"), count_denominators(MASK))[0].backward()
    expected = torch.where(MASK, -ADVANTAGES[:, None] / 5, 0.0)
    torch.testing.assert_close(batch.logprobs.grad, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("estimator", "by_hand", "slope"),
    # log pi - log pi_ref = ln 2 everywhere: k2 = ln(2)^2 / 2, k3 = 1/2 + ln 2 - 1; slopes d and 1 - exp(-d)
    [("k2", LN2**2 / 2, LN2), ("k3", LN2 - 0.5, 0.5)],
)
def test_kl_term_changes_loss_and_gradient_by_the_values_computed_by_hand(estimator, by_hand, slope):
    plain, with_kl = hand_batch(), hand_batch(reference_logprobs=LOGPROBS - LN2)
    spec = grpo(aggregation="token_mean", kl_coef=0.1, kl_estimator=estimator)
    loss = policy_loss(with_kl, spec, count_denominators(MASK))[0]
    base = policy_loss(plain, grpo(aggregation="token_mean"), count_denominators(MASK))[0]
    assert (loss - base).item() == pytest.approx(0.1 * by_hand, rel=1e-12)
    loss.backward()
    base.backward()
    assert with_kl.logprobs.grad is not None
    assert plain.logprobs.grad is not None
    added = with_kl.logprobs.grad - plain.logprobs.grad
    torch.testing.assert_close(added, MASK * torch.tensor(0.1 * slope / 5, dtype=torch.float64), rtol=1e-12, atol=1e-15)


def test_kl_curve_is_unscaled_and_reported_for_any_coefficient():
    for coef, placement in ((0.0, "loss"), (0.1, "loss"), (0.1, "reward")):
        batch = hand_batch(reference_logprobs=LOGPROBS - LN2)
        spec = grpo(kl_coef=coef, kl_placement=placement)
        curves = policy_loss(batch, spec, count_denominators(MASK))[1].curves(grad_norm=0, lr=0, ratio_is_one=False)
        assert curves.kl is not None
        assert curves.kl.value == pytest.approx(LN2 - 0.5)


def test_kl_curve_is_undefined_and_a_kl_term_is_an_error_without_reference():
    curves = policy_loss(hand_batch(), grpo(), Denominators(5, 2))[1].curves(grad_norm=0, lr=0, ratio_is_one=False)
    assert curves.kl is None
    with pytest.raises(ValueError, match="reference"):
        loss_of(grpo(kl_coef=0.1))


@pytest.mark.parametrize(
    ("level", "weights"),
    # pi_old / pi_sample is 2, 0.5 and 1 in row 0, 4 and 1 in row 1; the cap is 1.5
    [("token", [[1.5, 0.5, 1.0], [1.5, 1.0, 0.0]]), ("sequence", [[1.0, 1.0, 1.0], [1.5, 1.5, 0.0]])],
)
def test_sampler_correction_multiplies_the_policy_loss_of_each_token_by_its_capped_weight(level, weights):
    raw = torch.tensor([[2.0, 0.5, 1.0], [4.0, 1.0, 9.0]], dtype=torch.float64)
    plain = hand_batch()
    batch = dataclasses.replace(plain, sampler_logprobs=plain.old_logprobs - raw.log())
    token_losses = torch.tensor([[-2.4, -2.0, -1.0], [0.8, 1.5, 0.0]], dtype=torch.float64)
    by_hand = (token_losses * torch.tensor(weights, dtype=torch.float64)).sum().item() / 5
    spec = grpo(aggregation="token_mean", sampler_correction=level, sampler_correction_cap=1.5)
    assert loss_of(spec, batch) == pytest.approx(by_hand, rel=1e-12)
    with pytest.raises(ValueError, match="sampler"):
        loss_of(spec)


def test_sampler_correction_does_not_change_the_kl_term():
    plain = hand_batch(advantages=torch.zeros(2, dtype=torch.float64), reference_logprobs=LOGPROBS - LN2)
    batch = dataclasses.replace(plain, sampler_logprobs=plain.old_logprobs - LN2)
    spec = grpo(kl_coef=0.1, sampler_correction="token")
    assert loss_of(spec, batch) == pytest.approx(0.1 * (LN2 - 0.5))


def test_dr_grpo_divides_by_the_configured_constant_not_by_the_padded_width():
    spec = grpo(aggregation="constant", aggregation_constant=10)
    batch = hand_batch()
    wide = dataclasses.replace(
        batch,
        **{
            name: torch.nn.functional.pad(getattr(batch, name), (0, 40))
            for name in ("logprobs", "old_logprobs", "entropy", "loss_mask")
        },
    )
    assert loss_of(spec, wide) == loss_of(spec, batch)
    assert loss_of(dataclasses.replace(spec, aggregation_constant=20), batch) == pytest.approx(loss_of(spec, batch) / 2)
    with pytest.raises(ValueError, match="aggregation_constant"):
        loss_of(grpo(aggregation="constant"))


@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "constant"])
def test_fully_masked_batch_has_zero_loss_zero_gradient_and_undefined_curves(aggregation):
    batch = hand_batch(loss_mask=torch.zeros(2, 3, dtype=torch.bool))
    spec = grpo(aggregation=aggregation, aggregation_constant=10)
    loss, sums = policy_loss(batch, spec, count_denominators(batch.loss_mask))
    loss.backward()
    assert loss.item() == 0.0
    assert batch.logprobs.grad is not None
    assert not batch.logprobs.grad.any()
    curves = sums.curves(grad_norm=0.0, lr=0.0, ratio_is_one=False)
    assert curves.ratio.value is None
    assert (curves.ratio_min, curves.ratio_max) == (None, None)


SETTINGS = [
    {"surrogate": surrogate, "ratio_level": level, "aggregation": aggregation, "clip_eps_high": high, "dual_clip": dual}
    for (surrogate, high, dual), level, aggregation in itertools.product(
        [("clip", 0.2, None), ("clip", 0.28, 1.3), ("cispo", 5.0, None)],
        ["token", "sequence"],
        ["sequence_mean", "token_mean", "constant"],
    )
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(map(str, s.values())))
def test_gradient_equals_finite_differences_in_float64(settings):
    spec = grpo(
        **settings, aggregation_constant=7, kl_coef=0.3, sampler_correction="token", kl_estimator="k3", clip_eps_low=0.2
    )
    generator = torch.Generator().manual_seed(3)
    old = -3 * torch.rand(4, 5, generator=generator, dtype=torch.float64)
    batch = LossBatch(
        logprobs=old + 0.7 * torch.randn(4, 5, generator=generator, dtype=torch.float64),
        old_logprobs=old,
        sampler_logprobs=old + 0.3 * torch.randn(4, 5, generator=generator, dtype=torch.float64),
        reference_logprobs=old + 0.3 * torch.randn(4, 5, generator=generator, dtype=torch.float64),
        entropy=torch.rand(4, 5, generator=generator, dtype=torch.float64),
        loss_mask=torch.rand(4, 5, generator=generator) < 0.8,
        advantages=torch.tensor([1.3, -0.4, -2.0, 0.7], dtype=torch.float64),
    )

    def loss(logprobs: Tensor) -> Tensor:
        return policy_loss(dataclasses.replace(batch, logprobs=logprobs), spec, Denominators(16, 4))[0]

    if spec.surrogate == "clip":
        assert torch.autograd.gradcheck(loss, (batch.logprobs.requires_grad_(),), eps=1e-6, atol=1e-9, rtol=1e-6)
        return
    # The weight of CISPO has no gradient by definition, so the loss is linear in log pi.
    logprobs = batch.logprobs.requires_grad_()
    (grad,) = torch.autograd.grad(loss(logprobs), logprobs)
    log_ratio = torch.where(batch.loss_mask, logprobs.detach() - old, 0.0)
    lengths = batch.loss_mask.sum(1, keepdim=True).clamp(min=1)
    if spec.ratio_level == "sequence":
        log_ratio = (log_ratio.sum(1, keepdim=True) / lengths).expand(4, 5)
    weight = log_ratio.exp().clamp(0.2, 5.0) * (old - batch.sampler_logprobs).exp().clamp(max=2.0)  # type: ignore
    share = {"sequence_mean": 4 * lengths, "token_mean": 16, "constant": 4 * 7}[spec.aggregation]
    kl_slope = 0.3 * (1 - (batch.reference_logprobs - logprobs.detach()).exp())  # type: ignore
    by_hand = (-weight * batch.advantages[:, None] + kl_slope) / share
    torch.testing.assert_close(grad, torch.where(batch.loss_mask, by_hand, 0.0), rtol=1e-10, atol=1e-14)


def test_clipped_ratio_too_large_for_fp32_does_not_change_the_other_gradients():
    logprobs = torch.tensor([[-1.0, -1.0]], requires_grad=True)
    batch = LossBatch(
        logprobs=logprobs,
        old_logprobs=torch.tensor([[-200.0, -1.0]]),
        sampler_logprobs=None,
        reference_logprobs=None,
        entropy=torch.ones(1, 2),
        loss_mask=torch.ones(1, 2, dtype=torch.bool),
        advantages=torch.tensor([1.0]),
    )
    policy_loss(batch, grpo(aggregation="token_mean"), Denominators(2, 1))[0].backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [[0.0, -0.5]]

"""Curves: sums and counts add up over any split, extremes are extremes of extremes, undefined values are None."""

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl.batch import LossBatch, count_denominators
from rl.codec import message_from_json, to_json
from rl.curves import RolloutSums, SamplerSums, UpdateSums, ratio_is_one, step_curves
from rl.losses import policy_loss
from rl.spec import AlgorithmSpec, Mean, PromptCounts, StepReport, TokenCounts, UpdateCurves


def spec(**settings: Any) -> AlgorithmSpec:
    return AlgorithmSpec(name="test", **settings)


def update_sums(
    ratios: list[list[float]], advantages: list[float], settings: AlgorithmSpec | None = None
) -> UpdateSums:
    r = torch.tensor(ratios, dtype=torch.float64)
    logprobs = torch.full_like(r, -1.0).requires_grad_()
    batch = LossBatch(
        logprobs=logprobs,
        old_logprobs=logprobs.detach() - r.log(),
        sampler_logprobs=None,
        reference_logprobs=None,
        entropy=torch.full_like(r, 0.5),
        loss_mask=torch.ones_like(r, dtype=torch.bool),
        advantages=torch.tensor(advantages, dtype=torch.float64),
    )
    return policy_loss(batch, settings or spec(), count_denominators(batch.loss_mask))[1]


def curves_of(sums: UpdateSums, ratio_is_one: bool = False) -> UpdateCurves:
    return sums.curves(grad_norm=2.0, lr=1e-5, ratio_is_one=ratio_is_one)


def test_clip_counts_only_tokens_where_the_clip_acts_given_the_sign_of_the_advantage():
    # Low ratios with A > 0 and high ratios with A < 0 are outside of the range, but the clip does not act on them.
    got = curves_of(update_sums([[0.5, 1.5, 1.0, 1.5], [0.5, 0.5, 1.0, 1.5]], [1.0, -1.0]))
    assert got.clip_high == Mean(2, 8)
    assert got.clip_low == Mean(2, 8)
    assert got.clip_frac == Mean(4, 8)
    assert curves_of(update_sums([[0.5, 1.5, 1.0, 1.5]], [0.0])).clip_frac == Mean(0, 4)


def test_cispo_counts_tokens_outside_of_its_absolute_bounds():
    settings = spec(surrogate="cispo", clip_eps_low=0.1, clip_eps_high=5.0)
    got = curves_of(update_sums([[6.0, 1.5, 0.05], [6.0, 0.05, 1.0]], [1.0, -1.0], settings))
    assert (got.clip_high, got.clip_low) == (Mean(1, 6), Mean(1, 6))


def test_clip_is_undefined_where_the_ratio_is_one_by_construction():
    got = curves_of(update_sums([[1.0, 1.0]], [1.0]), ratio_is_one=True)
    assert (got.clip_low, got.clip_high, got.clip_frac) == (None, None, None)
    assert got.ratio == Mean(2, 2)
    assert ratio_is_one(spec(), 0)
    assert not ratio_is_one(spec(), 1)
    assert not ratio_is_one(spec(old_logprobs="sampler"), 0)


def test_clip_fraction_of_a_step_is_that_of_its_last_update():
    first = curves_of(update_sums([[1.0, 1.0]], [1.0]), ratio_is_one=True)
    last = curves_of(update_sums([[1.5, 1.0]], [1.0]))
    curves = step_curves(rollout_sums(), SamplerSums.empty(), [first, last])
    assert curves.clip_frac == Mean(1, 2)
    assert curves.over_updates("ratio") == Mean(4.5, 4)
    assert step_curves(rollout_sums(), SamplerSums.empty(), [first]).clip_frac is None


def test_extremes_of_summed_parts_are_extremes_of_their_extremes():
    parts = [update_sums([[0.5, 2.0]], [1.0]), update_sums([[0.9, 4.0]], [1.0]), UpdateSums.empty()]
    got = curves_of(parts[0] + parts[1] + parts[2])
    assert (got.ratio_min, got.ratio_max) == (pytest.approx(0.5), pytest.approx(4.0))
    assert got.ratio.value == pytest.approx(7.4 / 4)


def test_sums_can_be_reduced_as_two_flat_float64_tensors():
    a, b = update_sums([[0.5, 2.0]], [1.0]), update_sums([[0.9, 4.0, 1.0]], [-1.0])
    reduced = UpdateSums(torch.stack([a.sums, b.sums]).sum(0), torch.stack([a.maxima, b.maxima]).max(0).values)
    assert (reduced.sums.dtype, reduced.maxima.dtype) == (torch.float64, torch.float64)
    assert curves_of(reduced) == curves_of(a + b)


@given(st.lists(st.floats(1e-3, 50), min_size=1, max_size=6))
def test_approximate_kl_is_never_negative(ratios):
    got = curves_of(update_sums([ratios], [1.0]))
    assert got.approx_kl.total >= 0


def test_approximate_kl_is_k3_of_the_old_policy_against_the_new():
    assert curves_of(update_sums([[2.0]], [1.0])).approx_kl.value == pytest.approx(2 - math.log(2) - 1)
    near = curves_of(update_sums([[1 + 1e-9]], [1.0])).approx_kl.value
    assert near is not None
    assert near >= 0


def rollout_sums(**changes: Any) -> RolloutSums:
    values: dict[str, Any] = {
        "reward": [1.1, 0.0, 0.6, 0.1],
        "correct": [1.0, 0.0, 1.0, 0.0],
        "rewards": {"correct": [1.0, 0.0, 1.0, 0.0], "format": [1.0, 0.0, 1.0, 1.0]},
        "errors": [False, True, False, False],
        "lengths": [3, 24, 7, 2],
        "truncated": [False, True, False, False],
        "zero_std": [False, True],
        "phantom_credit": [True, False],
    }
    return RolloutSums.of(**{**values, **changes})


def test_step_curves_have_reward_accuracy_and_every_raw_reward_separately():
    got = step_curves(rollout_sums(), SamplerSums.empty(), [])
    assert got.reward.total == pytest.approx(1.8)
    assert got.acc == Mean(2, 4)
    assert got.rewards == {"correct": Mean(2, 4), "format": Mean(3, 4)}
    assert got.reward_errors == Mean(1, 4)
    assert got.response_length == Mean(36, 4)
    assert (got.response_length_min, got.response_length_max) == (2, 24)
    assert got.truncated == Mean(1, 4)
    assert got.zero_std == Mean(1, 2)
    assert got.phantom_credit == Mean(1, 2)
    assert got.clip_frac is None


def test_completions_with_scorer_errors_count_in_the_means_and_in_the_error_rate():
    got = step_curves(rollout_sums(), SamplerSums.empty(), [])
    assert got.acc.count == got.reward.count == got.reward_errors.count == 4


def test_rollout_sums_of_unequal_and_empty_parts_add_up_to_the_whole():
    values = {
        "reward": [1.1, 0.0, 0.6, 0.1],
        "correct": [1.0, 0.0, 1.0, 0.0],
        "errors": [False, True, False, False],
        "lengths": [3, 24, 7, 2],
        "truncated": [False, True, False, False],
    }
    names = {"correct": [1.0, 0.0, 1.0, 0.0], "format": [1.0, 0.0, 1.0, 1.0]}
    for a, b in itertools.combinations_with_replacement(range(5), 2):
        parts = [
            rollout_sums(
                **{k: v[cut] for k, v in values.items()},
                rewards={k: v[cut] for k, v in names.items()},
                zero_std=[False, True] if i == 0 else [],
                phantom_credit=[True, False] if i == 0 else [],
            )
            for i, cut in enumerate((slice(0, a), slice(a, b), slice(b, 4)))
        ]
        total, whole = parts[0] + parts[1] + parts[2], rollout_sums()
        torch.testing.assert_close(total.sums, whole.sums, rtol=1e-12, atol=0)
        assert total.maxima.equal(whole.maxima)


def test_sums_with_unequal_lengths_or_different_rewards_are_an_error():
    with pytest.raises(ValueError, match="different lengths"):
        rollout_sums(lengths=[1, 2])
    with pytest.raises(ValueError, match="of phantom_credit"):
        rollout_sums(phantom_credit=[True])
    with pytest.raises(ValueError, match="different rewards"):
        _ = rollout_sums() + rollout_sums(rewards={"correct": [0.0] * 4})


def test_sampler_curves_have_the_values_computed_by_hand():
    # pi_old / pi_sample is 2, 1/2 and 1; for the fourth token the engine returned NaN.
    sampler = torch.tensor([[-1.0, -1.0], [-1.0, float("nan")]], dtype=torch.float64)
    old = sampler + torch.tensor([[2.0, 0.5], [1.0, 1.0]], dtype=torch.float64).log()
    old[1, 1] = -1.0
    sums = SamplerSums.of(old, sampler, torch.ones(2, 2, dtype=torch.bool), spec())
    got = step_curves(rollout_sums(), sums, [])
    assert got.sampler_ratio.value == pytest.approx(3.5 / 3)
    assert got.logp_diff.value == pytest.approx(2 * math.log(2) / 3)
    assert got.logp_diff_max == pytest.approx(math.log(2))
    assert got.mismatch_kl.value == pytest.approx((2 - math.log(2) - 1 + 0.5 + math.log(2) - 1) / 3)
    assert got.nonfinite_logprobs == 1
    assert got.sampler_ess is None


def test_logp_diff_shows_a_mismatch_where_the_mean_sampler_ratio_is_one():
    old = torch.tensor([[1.5, 0.5]], dtype=torch.float64).log()
    sums = SamplerSums.of(old, torch.zeros(1, 2, dtype=torch.float64), torch.ones(1, 2, dtype=torch.bool), spec())
    got = step_curves(rollout_sums(), sums, [])
    assert got.sampler_ratio.value == pytest.approx(1.0)
    assert got.logp_diff.value == pytest.approx((math.log(1.5) + math.log(2)) / 2)
    assert got.mismatch_kl.total > 0.1


@pytest.mark.parametrize(
    ("level", "weights"),
    # Token ratios are 2 and 1/4 in row 0, 4 in row 1, capped at 1.5. Sequence ratios are 1/2 and 4.
    [("token", [1.5, 0.25, 1.5]), ("sequence", [0.5, 1.5])],
)
def test_effective_sample_size_is_that_of_the_capped_weights(level, weights):
    old = torch.tensor([[2.0, 0.25], [4.0, 7.0]], dtype=torch.float64).log()
    mask = torch.tensor([[True, True], [True, False]])
    settings = spec(sampler_correction=level, sampler_correction_cap=1.5)
    sums = SamplerSums.of(old, torch.zeros(2, 2, dtype=torch.float64), mask, settings)
    got = step_curves(rollout_sums(), sums, [])
    assert got.sampler_ess == pytest.approx(sum(weights) ** 2 / (len(weights) * sum(w * w for w in weights)))
    # The curve of the sampler ratio is not capped.
    assert got.sampler_ratio.value == pytest.approx((2 + 0.25 + 4) / 3)


def test_step_curves_are_unchanged_by_json():
    updates = [
        curves_of(update_sums([[1.0, 1.0]], [1.0]), ratio_is_one=True),
        curves_of(update_sums([[1.5, 1.0]], [1.0])),
    ]
    report = StepReport(
        step=1,
        policy_version=0,
        staleness=0,
        wall_ns=1,
        phase_card_ns={},
        tokens=TokenCounts(1, 1, 1),
        prompts=PromptCounts(1, 0, 0),
        curves=step_curves(rollout_sums(), SamplerSums.empty(), updates),
        lr=1e-5,
    )
    assert message_from_json(to_json(report)) == report

"""The learner: every algorithm key that acts in it has an effect, updates follow the schedule, and state is restored.

That the result does not depend on ranks, micro-batches and packing is tested in test_split_invariance.py.
"""

import dataclasses
from typing import Any, cast

import pytest
import torch

from rl.phases import PhaseClock
from rl.ranks import SingleRank
from rl.spec import AlgorithmSpec, TrainerSpec, TrialError
from rl.trainers.native.learner import Group, LearnedStep, Learner
from tests.rl.trainers.native import small_learner

BASE = AlgorithmSpec(name="test", lr=1e-3)


@pytest.mark.parametrize(
    ("key", "value", "context"),
    [
        ("updates_per_rollout", 4, {}),
        ("weight_decay", 0.1, {}),
        ("adam_beta1", 0.5, {}),
        ("adam_beta2", 0.9, {}),
        ("adam_eps", 1e-2, {}),
        ("max_grad_norm", 0.1, {"adam_eps": 1e-2}),
        ("lr", 2e-3, {}),
        ("lr_schedule", "cosine", {}),
        ("lr_warmup_updates", 3, {}),
        ("lr_final_frac", 0.9, {"lr_schedule": "linear"}),
        ("advantage_baseline", "leave_one_out", {"adam_eps": 1e-2}),
        ("advantage_scale", "none", {}),
        ("aggregation", "token_mean", {}),
        ("surrogate", "cispo", {}),
        ("ratio_level", "sequence", {}),
        ("kl_coef", 0.1, {}),
        ("kl_placement", "reward", {"kl_coef": 0.1}),
        ("old_logprobs", "sampler", {}),
        ("sampler_correction", "token", {}),
        ("mask_truncated", True, {}),
    ],
)
def test_every_key_of_the_learner_changes_the_final_parameters(key, value, context):
    base = dataclasses.replace(BASE, **context)
    assert getattr(base, key) != value
    other = dataclasses.replace(base, **{key: value})
    changed, unchanged = (small_learner.learn(small_learner.Case(a))["parameters"] for a in (other, base))
    assert changed != unchanged


def make_learner(algorithm: AlgorithmSpec, total_updates: int) -> Learner:
    policy, trainer = small_learner.make_policy(), TrainerSpec(precision="fp32")
    return Learner(policy, None, algorithm, trainer, 1.0, total_updates, SingleRank())


def learned(algorithm: AlgorithmSpec, steps: int = 3, **case: Any) -> list[LearnedStep]:
    """The results of `steps` steps on different rollout batches."""
    learner = make_learner(algorithm, steps * algorithm.updates_per_rollout)
    batches = [small_learner.make_groups(seed=i, **{"groups": 4, **case}) for i in range(steps)]
    return [learner.learn(batch, PhaseClock(cards=1)) for batch in batches]


def parameters_of(learner: Learner) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for _, p in learner.policy.parameters()])


def test_schedule_counts_optimiser_updates_and_ends_at_its_final_share():
    steps = learned(dataclasses.replace(BASE, lr_schedule="linear", lr_final_frac=0.5), steps=3)
    rates = [u.lr for step in steps for u in step.updates]
    assert rates == pytest.approx([1e-3 * (1 - 0.5 * i / 5) for i in range(6)])
    assert rates[-1] == 0.5e-3


def test_step_with_fewer_groups_than_updates_counts_as_all_its_updates_in_the_schedule():
    algorithm = dataclasses.replace(BASE, lr_schedule="linear", updates_per_rollout=3)
    assert [len(s.updates) for s in learned(algorithm, groups=2)] == [2, 2, 2]
    assert [s.updates[0].lr for s in learned(algorithm, groups=2)] == pytest.approx(
        [1e-3, 1e-3 * (1 - 3 / 8), 1e-3 * (1 - 6 / 8)]
    )


def test_reported_gradient_norm_is_that_before_clipping():
    norms = [
        learned(dataclasses.replace(BASE, max_grad_norm=limit), steps=1)[0].updates[0].grad_norm
        for limit in (1e-3, 1e3)
    ]
    assert norms[0] == norms[1]
    assert norms[0] > 1e-2


def test_clip_is_undefined_in_the_first_update_and_defined_in_later_ones():
    first, second = learned(BASE, steps=1)[0].updates
    assert (first.ratio_min, first.ratio_max) == (1.0, 1.0)
    assert first.clip_frac is None
    assert first.grad_norm > 0
    assert second.clip_frac is not None
    assert second.ratio_max != 1.0
    (alone,) = learned(dataclasses.replace(BASE, updates_per_rollout=1), steps=1)[0].updates
    assert alone.clip_frac is None


def with_dropout(learner: Learner, rate: float) -> Learner:
    noise, backbone = torch.nn.Dropout(rate).train(), cast(Any, learner.policy.backbone)
    backbone.layers[0].mlp.register_forward_hook(lambda module, inputs, output: noise(output))
    return learner


@pytest.mark.parametrize("packing", [True, False])
def test_measured_ratio_of_the_first_update_is_one_and_measuring_it_changes_no_weight(packing: bool):
    found = {}
    for check in (False, True):
        learner = make_learner(BASE, 2)
        learner._trainer = dataclasses.replace(learner._trainer, packing=packing, micro_batch_tokens=40)
        first, second = learner.learn(small_learner.make_groups(4), PhaseClock(cards=1), check).updates
        found[check] = parameters_of(learner)
        assert first.ratio_min == pytest.approx(1.0, abs=1e-9)
        assert first.ratio_max == pytest.approx(1.0, abs=1e-9)
        assert (first.ratio_max == 1.0) == (not check)
        assert first.clip_frac is None
        assert second.clip_frac is not None
    assert torch.equal(found[False], found[True])


def test_measured_ratio_of_a_model_with_dropout_is_not_one_and_closes_the_gate():
    from sweeps.config.build import compose

    torch.manual_seed(0)
    groups = small_learner.make_groups(4)
    checked = with_dropout(make_learner(BASE, 2), 0.5).learn(groups, PhaseClock(cards=1), check_ratio=True)
    unchecked = with_dropout(make_learner(BASE, 2), 0.5).learn(groups, PhaseClock(cards=1))
    tolerance = compose(["+stage=smoke"]).gate.ratio_tolerance
    assert abs((checked.updates[0].ratio.value or 1) - 1) > tolerance
    assert (checked.updates[0].approx_kl.value or 0) > tolerance
    assert unchecked.updates[0].ratio.value == 1.0


def test_measured_ratio_finds_packed_rows_that_are_computed_wrongly(monkeypatch: pytest.MonkeyPatch):
    from rl import policy

    learner = make_learner(BASE, 2)
    learner._trainer = dataclasses.replace(learner._trainer, packing=True)
    monkeypatch.setattr(policy, "packed_masks", lambda config, batch, dtype: torch.ones_like(batch.visible()))
    done = learner.learn(small_learner.make_groups(4), PhaseClock(cards=1), check_ratio=True)
    assert abs((done.updates[0].ratio.value or 1) - 1) > 0.01


def test_update_with_only_masked_completions_does_not_change_the_weights():
    learner = make_learner(dataclasses.replace(BASE, weight_decay=0.5), 2)
    before = parameters_of(learner)
    groups = [
        dataclasses.replace(
            g,
            completions=tuple(dataclasses.replace(c, logprobs=(float("nan"),) * len(c.ids)) for c in g.completions),
        )
        for g in small_learner.make_groups(2)
    ]
    done = learner.learn(groups, PhaseClock(cards=1))
    assert parameters_of(learner).equal(before)
    assert (done.loss_tokens, done.trained) == (0, (False, False))
    assert done.sampler.sums[done.sampler.NAMES.index("nonfinite")] > 0


def test_learner_continues_bit_for_bit_from_its_state():
    algorithm = dataclasses.replace(BASE, lr_schedule="cosine", weight_decay=0.1)
    batches = [small_learner.make_groups(4, seed=i) for i in range(4)]
    uninterrupted = make_learner(algorithm, 8)
    for batch in batches:
        uninterrupted.learn(batch, PhaseClock(cards=1))

    first = make_learner(algorithm, 8)
    for batch in batches[:2]:
        first.learn(batch, PhaseClock(cards=1))
    second = make_learner(algorithm, 8)
    second.policy.load_parameters({name: p.detach().clone() for name, p in first.policy.parameters()})
    state = {part: {n: t.clone() for n, t in tensors.items()} for part, tensors in first.state_dict().items()}
    second.load_state_dict({**state, "rng": {}}, first.updates_done, first.base_lr)
    for batch in batches[2:]:
        second.learn(batch, PhaseClock(cards=1))
    assert parameters_of(second).equal(parameters_of(uninterrupted))


def test_new_base_learning_rate_applies_from_the_next_update_on():
    learner = make_learner(BASE, 4)
    first = learner.learn(small_learner.make_groups(4), PhaseClock(cards=1))
    learner.base_lr = 5e-4
    second = learner.learn(small_learner.make_groups(4, seed=1), PhaseClock(cards=1))
    assert [u.lr for u in (*first.updates, *second.updates)] == [1e-3, 1e-3, 5e-4, 5e-4]


def test_gradient_that_is_not_finite_raises_and_keeps_the_weights():
    learner = make_learner(BASE, 2)
    with torch.no_grad():
        learner.policy.head.weight[5, 0] = float("nan")
    before = parameters_of(learner)
    with pytest.raises(TrialError, match=r"gradient norm of optimiser update 0 is nan.*algorithm\.lr below 0\.001"):
        learner.learn(small_learner.make_groups(2), PhaseClock(cards=1))
    torch.testing.assert_close(parameters_of(learner), before, rtol=0, atol=0, equal_nan=True)


def test_kl_in_the_reward_is_subtracted_from_the_optimised_rewards():
    groups = small_learner.make_groups(3)
    algorithm = dataclasses.replace(BASE, kl_coef=0.5, kl_placement="reward", kl_estimator="k3")
    policy, reference = small_learner.make_policy(), small_learner.make_policy(seed=1).frozen_copy()
    learner = Learner(policy, reference, algorithm, TrainerSpec(precision="fp32"), 1.0, 2, SingleRank())
    done = learner.learn(groups, PhaseClock(cards=1))
    given = torch.tensor([g.rewards for g in groups], dtype=torch.float64)
    # The completion with a NaN sampler log-probability has no loss tokens, so its KL is 0.
    assert done.rewards[0, 1] == given[0, 1]
    assert (done.rewards <= given).all()
    assert (done.rewards < given).sum() == given.numel() - 1


def test_group_counts_as_trained_only_with_loss_tokens():
    groups = small_learner.make_groups(2)
    masked = dataclasses.replace(
        groups[0],
        completions=tuple(dataclasses.replace(c, finish="length") for c in groups[0].completions),
    )
    learner = make_learner(dataclasses.replace(BASE, mask_truncated=True), 2)
    done = learner.learn([masked, groups[1]], PhaseClock(cards=1))
    kept = sum(len(c.ids) for c in groups[1].completions if not c.truncated)
    assert done.trained == (False, kept > 0)
    assert done.loss_tokens == kept


def test_time_is_counted_as_logprob_and_train():
    clock = PhaseClock(cards=1)
    make_learner(BASE, 2).learn(small_learner.make_groups(4), clock)
    _, phases = clock.lap()
    assert set(phases) <= {"logprob", "train", "other"}
    assert min(phases["logprob"], phases["train"]) > 0


def test_equal_rewards_are_reported_per_group():
    groups = small_learner.make_groups(3)
    flat = Group(groups[0].question_id, groups[0].prompt, groups[0].completions, (0.35,) * 4)
    done = make_learner(BASE, 2).learn([flat, *groups[1:]], PhaseClock(cards=1))
    assert done.zero_std == (True, *(len(set(g.rewards)) == 1 for g in groups[1:]))

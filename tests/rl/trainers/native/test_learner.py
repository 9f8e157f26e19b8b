"""Every key of conf/algorithm that acts in the learner changes what is learnt; schedule and clip act as they say."""

import dataclasses
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rl.phases import PhaseClock
from rl.ranks import SingleRank
from rl.spec import AlgorithmSpec, TrainerSpec

_spec = importlib.util.spec_from_file_location("tiny_learning", Path(__file__).with_name("tiny_learning.py"))
assert _spec is not None
assert _spec.loader is not None
tiny = importlib.util.module_from_spec(_spec)
sys.modules["tiny_learning"] = tiny
_spec.loader.exec_module(tiny)

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
def test_every_key_of_the_learner_changes_the_parameters_it_ends_with(key, value, context):
    base = dataclasses.replace(BASE, **context)
    assert getattr(base, key) != value
    other = dataclasses.replace(base, **{key: value})
    assert tiny.learn(tiny.Case(other))["parameters"] != tiny.learn(tiny.Case(base))["parameters"]


def learned(algorithm: AlgorithmSpec, steps: int = 3, **case: Any) -> list[Any]:
    """The steps' `LearnedStep`s."""
    total = steps * algorithm.updates_per_rollout
    learner = tiny.Learner(tiny.make_policy(), None, algorithm, TrainerSpec(precision="fp32"), 1.0, total, SingleRank())
    return [learner.learn(tiny.make_groups(seed=i, **{"groups": 4, **case}), PhaseClock(cards=1)) for i in range(steps)]


def test_the_schedule_runs_over_optimiser_updates_and_ends_at_its_final_share():
    steps = learned(dataclasses.replace(BASE, lr_schedule="linear", lr_final_frac=0.5), steps=3)
    rates = [u.lr for step in steps for u in step.updates]
    assert rates == pytest.approx([1e-3 * (1 - 0.5 * i / 5) for i in range(6)])
    assert rates[-1] == 0.5e-3


def test_a_step_with_fewer_groups_than_updates_still_counts_as_its_updates_in_the_schedule():
    algorithm = dataclasses.replace(BASE, lr_schedule="linear", updates_per_rollout=3)
    assert [len(s.updates) for s in learned(algorithm, groups=2)] == [2, 2, 2]
    assert [s.updates[0].lr for s in learned(algorithm, groups=2)] == pytest.approx(
        [1e-3, 1e-3 * (1 - 3 / 8), 1e-3 * (1 - 6 / 8)]
    )


def test_the_gradient_norm_is_that_before_clipping():
    norms = [
        learned(dataclasses.replace(BASE, max_grad_norm=limit), steps=1)[0].updates[0].grad_norm
        for limit in (1e-3, 1e3)
    ]
    assert norms[0] == norms[1]
    assert norms[0] > 1e-2


def test_the_first_update_has_ratio_one_an_undefined_clip_and_a_gradient_and_the_later_ones_a_defined_clip():
    first, second = learned(BASE, steps=1)[0].updates
    assert (first.ratio_min, first.ratio_max) == (1.0, 1.0)
    assert first.clip_frac is None
    assert first.grad_norm > 0
    assert second.clip_frac is not None
    assert second.ratio_max != 1.0
    (alone,) = learned(dataclasses.replace(BASE, updates_per_rollout=1), steps=1)[0].updates
    assert alone.clip_frac is None


def test_an_update_whose_completions_are_all_masked_leaves_the_weights_as_they_are():
    policy = tiny.make_policy()
    before = torch.cat([p.detach().flatten().clone() for _, p in policy.parameters()])
    algorithm = dataclasses.replace(BASE, weight_decay=0.5)
    learner = tiny.Learner(policy, None, algorithm, TrainerSpec(precision="fp32"), 1.0, 2, SingleRank())
    groups = [
        dataclasses.replace(
            g,
            completions=tuple(dataclasses.replace(c, logprobs=(float("nan"),) * len(c.ids)) for c in g.completions),
        )
        for g in tiny.make_groups(2)
    ]
    done = learner.learn(groups, PhaseClock(cards=1))
    after = torch.cat([p.detach().flatten() for _, p in policy.parameters()])
    assert after.equal(before)
    assert (done.loss_tokens, done.trained) == (0, (False, False))
    assert done.sampler.sums[done.sampler.NAMES.index("nonfinite")] > 0

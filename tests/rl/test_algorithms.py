"""Presets of conf/algorithm are complete and documented; every key has an effect; invalid settings are refused."""

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from rl.advantages import advantages, kl_in_reward, overlong_penalty
from rl.algorithms import algorithm_problems, follow_lengths
from rl.batch import LossBatch, count_denominators, make_loss_mask
from rl.codec import from_json
from rl.curves import SamplerSums, ratio_is_one
from rl.losses import policy_loss
from rl.schedule import lr_factor
from rl.spec import (
    AlgorithmSpec,
    EvaluationSpec,
    ModelSpec,
    RolloutSpec,
    TaskSpec,
    TrainerSpec,
    TrialSpec,
)

FOLDER = Path(__file__).parents[2] / "conf" / "algorithm"
NAMES = ("grpo", "dapo", "dr_grpo", "gspo", "cispo")


def preset(name: str) -> AlgorithmSpec:
    algorithm = from_json(AlgorithmSpec, yaml.safe_load((FOLDER / f"{name}.yaml").read_text()))
    return follow_lengths(algorithm, RolloutSpec())


def trial(algorithm: AlgorithmSpec, **changes: Any) -> TrialSpec:
    spec = TrialSpec(
        trial_id="t",
        attempt=1,
        seed=0,
        steps=20,
        prompts_per_step=4,
        group_size=8,
        cards=1,
        model=ModelSpec(kind="tiny"),
        task=TaskSpec(kind="reasoning_gym", name="basic_arithmetic"),
        algorithm=algorithm,
        rollout=RolloutSpec(),
        evaluation=EvaluationSpec(),
        trainer=TrainerSpec(),
        checkpoint_dir="unused",
        cache_dir="unused",
    )
    return dataclasses.replace(spec, **changes)


@pytest.mark.parametrize("name", NAMES)
def test_preset_is_valid_and_sets_every_key(name):
    data = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    assert list(data) == [f.name for f in dataclasses.fields(AlgorithmSpec)]
    assert data["name"] == name
    assert algorithm_problems(trial(preset(name))) == []


@pytest.mark.parametrize("name", NAMES)
def test_every_key_of_a_preset_has_a_comment_on_the_line_above(name):
    lines = (FOLDER / f"{name}.yaml").read_text().splitlines()
    for above, line in zip(["", *lines], lines, strict=False):
        if line and not line.startswith("#"):
            assert above.startswith("# "), f"{name}.yaml: {line}"
    assert "arXiv:" in lines[0]


def test_conf_algorithm_has_no_other_files():
    assert sorted(p.stem for p in FOLDER.glob("*.yaml")) == sorted(NAMES)


# ---------------------------------------------------------------------------------------------------------------------
# Mutation: changing one key alone must change a computed value
# ---------------------------------------------------------------------------------------------------------------------

TOKENS = 6


def everything_computed(spec: AlgorithmSpec) -> dict[str, Any]:
    """Loss, gradient, curves and learning rates that `spec` gives for one fixed rollout batch."""
    g = torch.Generator().manual_seed(0)
    old = -3 * torch.rand(8, TOKENS, generator=g, dtype=torch.float64)
    drift = 1.2 * torch.randn(8, TOKENS, generator=g, dtype=torch.float64)
    sampler = old + 0.9 * torch.randn(8, TOKENS, generator=g, dtype=torch.float64)
    reference = old + 0.5 * torch.randn(8, TOKENS, generator=g, dtype=torch.float64)
    lengths = torch.tensor([6, 5, 4, 6, 3, 2, 5, 1])
    completion = torch.arange(TOKENS) < lengths[:, None]
    mask = make_loss_mask(completion, lengths == TOKENS, spec)
    rewards = torch.tensor([1.0, 0.0, 0.3, 1.0, 0.0, 0.1, 0.7, 1.0], dtype=torch.float64)
    rewards = rewards + overlong_penalty(lengths, TOKENS, spec) - kl_in_reward(old, reference, mask, spec)
    batch = LossBatch(
        logprobs=(old + drift).requires_grad_(),
        old_logprobs=old if spec.old_logprobs == "learner" else sampler,
        sampler_logprobs=sampler,
        reference_logprobs=reference,
        entropy=torch.ones_like(old),
        loss_mask=mask,
        advantages=advantages(rewards.view(2, 4), spec).flatten(),
    )
    loss, sums = policy_loss(batch, spec, count_denominators(mask))
    loss.backward()
    assert batch.logprobs.grad is not None
    return {
        "loss": loss.item(),
        "gradient": batch.logprobs.grad.flatten().tolist(),
        "curves": sums.sums.tolist(),
        "clip defined": not ratio_is_one(spec, 0),
        "sampler": SamplerSums.of(old, sampler, completion, spec).sums.tolist(),
        "rates": [spec.lr * lr_factor(spec, update, 10) for update in range(10)],
    }


CISPO = {"surrogate": "cispo", "clip_eps_low": 0.5, "clip_eps_high": 1.5}
# (key, another value, the other settings under which the key must have an effect)
MUTATIONS: list[tuple[str, Any, dict[str, Any]]] = [
    ("advantage_baseline", "leave_one_out", {}),
    ("advantage_scale", "batch_std", {}),
    ("advantage_scale", "none", {}),
    ("advantage_eps", 0.1, {}),
    ("surrogate", "cispo", {}),
    ("ratio_level", "sequence", {}),
    ("clip_eps_low", 0.1, {}),
    ("clip_eps_high", 0.1, {}),
    ("clip_eps_low", 0.9, CISPO),
    ("clip_eps_high", 2.5, CISPO),
    ("dual_clip", 1.2, {}),
    ("aggregation", "token_mean", {}),
    ("aggregation", "constant", {"aggregation_constant": 5}),
    ("aggregation_constant", 6, {"aggregation": "constant", "aggregation_constant": 5}),
    ("kl_coef", 0.1, {}),
    ("kl_coef", 0.1, {"kl_placement": "reward"}),
    ("kl_estimator", "k2", {"kl_coef": 0.1}),
    ("kl_estimator", "k1", {"kl_coef": 0.1, "kl_placement": "reward"}),
    ("kl_placement", "reward", {"kl_coef": 0.1}),
    ("old_logprobs", "sampler", {}),
    ("sampler_correction", "token", {}),
    ("sampler_correction", "sequence", {}),
    ("sampler_correction_cap", 1.1, {"sampler_correction": "token"}),
    ("mask_truncated", True, {}),
    ("overlong_buffer_tokens", 3, {}),
    ("overlong_penalty", 2.0, {"overlong_buffer_tokens": 3}),
    ("lr", 2e-5, {}),
    ("lr_schedule", "linear", {}),
    ("lr_schedule", "cosine", {}),
    ("lr_warmup_updates", 4, {}),
    ("lr_final_frac", 0.5, {"lr_schedule": "cosine"}),
]
# Keys with an effect in the learner (tests/rl/trainers/native/test_learner.py), in the loop (test_trainer.py) or in the
# planner (rate scaling).
TESTED_ELSEWHERE = {
    *("name", "updates_per_rollout", "drop_zero_variance_groups", "max_resample_rounds"),
    "zero_variance_of",
    *("weight_decay", "adam_beta1", "adam_beta2", "adam_eps", "max_grad_norm", "lr_reference_completions"),
}


@pytest.mark.parametrize(("key", "value", "context"), MUTATIONS)
def test_every_key_changes_a_computed_value(key, value, context):
    base = AlgorithmSpec(name="test", **context)
    assert getattr(base, key) != value
    assert everything_computed(dataclasses.replace(base, **{key: value})) != everything_computed(base)


def test_every_key_has_a_mutation():
    assert {key for key, _, _ in MUTATIONS} | TESTED_ELSEWHERE == {f.name for f in dataclasses.fields(AlgorithmSpec)}


@pytest.mark.parametrize("coef", [0.001, 0.1])
def test_kl_coefficient_changes_the_gradient(coef):
    plain = everything_computed(preset("dapo"))
    with_kl = everything_computed(dataclasses.replace(preset("dapo"), kl_coef=coef))
    difference = [b - a for a, b in zip(plain["gradient"], with_kl["gradient"], strict=True)]
    assert math.hypot(*difference) > 1e-2 * coef


# ---------------------------------------------------------------------------------------------------------------------
# Invalid settings
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "changes", "message"),
    [
        ({}, {"group_size": 1}, "group_size=1.*at least 2"),
        ({"kl_coef": 0.1, "kl_estimator": "k1"}, {}, "kl_estimator=k1.*expectation on-policy is zero.*k3"),
        (
            {"kl_coef": 0.1, "kl_placement": "reward", "drop_zero_variance_groups": True},
            {},
            "drop_zero_variance_groups with kl_placement=reward",
        ),
        ({"kl_coef": -0.1}, {}, "kl_coef=-0.1"),
        ({"aggregation": "constant"}, {}, "aggregation_constant.*max_completion_tokens=24"),
        ({"aggregation_constant": 24}, {}, "aggregation_constant=24 has no effect"),
        ({"dual_clip": 0.9}, {}, "dual_clip=0.9 must be above 1"),
        ({**CISPO, "dual_clip": 3.0}, {}, "dual_clip=3.0 has no effect on cispo"),
        ({**CISPO, "clip_eps_high": 0.2}, {}, "absolute bounds"),
        ({"clip_eps_low": 1.5}, {}, "clip_eps_low=1.5"),
        ({"old_logprobs": "sampler", "sampler_correction": "token"}, {}, "sampler_correction has no effect"),
        ({"sampler_correction": "token", "sampler_correction_cap": 0.0}, {}, "sampler_correction_cap=0.0"),
        ({"advantage_eps": 0.0}, {}, "advantage_eps=0.0.*1e-4"),
        ({"drop_zero_variance_groups": True, "max_resample_rounds": 0}, {}, "max_resample_rounds=0"),
        ({"overlong_buffer_tokens": 24}, {}, "overlong_buffer_tokens=24"),
        ({"overlong_penalty": -1.0}, {}, "overlong_penalty=-1.0"),
        ({"updates_per_rollout": 5}, {}, "updates_per_rollout=5.*prompts_per_step=4"),
        ({"updates_per_rollout": 0}, {}, "updates_per_rollout=0"),
        ({"lr": 0.0}, {}, "lr=0.0"),
        ({"lr_final_frac": 1.5}, {}, "lr_final_frac=1.5"),
        ({"lr_warmup_updates": 41}, {}, "lr_warmup_updates=41.*40 optimiser updates"),
        ({"lr_reference_completions": 0}, {}, "lr_reference_completions=0"),
        ({"adam_beta2": 1.0}, {}, "adam_beta2=1.0"),
        ({"max_grad_norm": 0.0}, {}, "max_grad_norm=0.0"),
    ],
)
def test_invalid_setting_is_named_with_valid_values(settings, changes, message):
    problems = algorithm_problems(trial(AlgorithmSpec(name="test", **settings), **changes))
    assert len(problems) == 1
    assert re.search(message, problems[0])


def test_all_problems_are_reported_together():
    algorithm = AlgorithmSpec(name="test", lr=0.0, dual_clip=0.5, kl_coef=0.1, kl_estimator="k1")
    assert len(algorithm_problems(trial(algorithm, group_size=1))) == 4


def test_k1_is_valid_in_the_reward():
    algorithm = AlgorithmSpec(name="test", kl_coef=0.1, kl_estimator="k1", kl_placement="reward")
    assert algorithm_problems(trial(algorithm)) == []


def test_k1_in_the_loss_has_zero_expected_gradient_and_k2_and_k3_have_not():
    """The reason why k1 is refused in the loss, as an exact expectation over a policy of three tokens."""
    logits = torch.tensor([0.3, -0.5, 1.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()
    logp = logits.log_softmax(0)
    d, p = logp - reference, logp.exp().detach()
    size = {
        name: torch.autograd.grad((p * term).sum(), logits, retain_graph=True)[0].norm().item()
        for name, term in {"k1": d, "k2": d.square() / 2, "k3": torch.exp(-d) + d - 1}.items()
    }
    assert size["k1"] < 1e-15
    assert min(size["k2"], size["k3"]) > 0.05
    # The expected gradient of k2 is that of KL(pi || ref), the one of k3 is that of KL(ref || pi).
    for term, kl in (
        (d.square() / 2, (logp.exp() * d).sum()),
        (torch.exp(-d) + d - 1, (reference.exp() * -d).sum()),
    ):
        expected = torch.autograd.grad((p * term).sum(), logits, retain_graph=True)[0]
        true = torch.autograd.grad(kl, logits, retain_graph=True)[0]
        torch.testing.assert_close(expected, true, rtol=1e-12, atol=1e-15)

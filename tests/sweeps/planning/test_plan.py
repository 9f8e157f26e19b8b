"""The plan: which trials there are, what makes two of them the same, and what scaling rules give."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from sweeps.config.build import compose
from sweeps.config.trial_spec import result_identity
from sweeps.planning.plan import make_plan, scaled_lr, trial_spec


def test_default_smoke_resolves_to_three_different_trials_of_four_points():
    plan = make_plan(compose(["+stage=smoke"]))
    assert plan.points == 4
    assert [(t.prompts_per_step, t.group_size, t.names) for t in plan.trials] == [
        (2, 8, ("hold", "linear")),
        (4, 8, ("hold",)),
        (4, 8, ("linear",)),
    ]


def test_all_rules_agree_at_the_reference_and_keep_their_formulas_elsewhere():
    for rule in ("hold", "sqrt", "linear", "clip_frac"):
        assert scaled_lr(rule, 3e-6, 16, 16) == 3e-6
    assert scaled_lr("hold", 1e-5, 64, 16) == 1e-5
    assert scaled_lr("sqrt", 1e-5, 64, 16) == pytest.approx(2e-5)
    assert scaled_lr("linear", 1e-5, 64, 16) == pytest.approx(4e-5)
    assert scaled_lr("sqrt", 1e-5, 8, 16) == pytest.approx(1e-5 / math.sqrt(2))
    with pytest.raises(ValueError, match="quadratic"):
        scaled_lr("quadratic", 1e-5, 8, 16)


def test_an_adaptive_learning_rate_is_another_trial_than_the_same_fixed_rate():
    plan = make_plan(compose(["+stage=smoke", "search.prompts_per_step=[2]", "search.lr_scaling=[hold,clip_frac]"]))
    assert len(plan.trials) == 2
    assert {t.adaptive_lr for t in plan.trials} == {False, True}


@pytest.mark.parametrize(
    "override",
    ["paths.root=elsewhere", "trainer.micro_batch_tokens=123", "'budget.sweep_limit=3 USD'", "trainer.threads=1"],
)
def test_what_cannot_change_a_result_leaves_the_ids_and_the_plan_alone(override: str):
    override = override.strip("'")
    assert make_plan(compose(["+stage=smoke", override])).digest == make_plan(compose(["+stage=smoke"])).digest


@pytest.mark.parametrize(
    "override",
    ["algorithm.lr=3e-5", "search.seeds=[1]", "task.eval_questions=32", "rollout.temperature=0.9", "stage.steps=19"],
)
def test_what_can_change_a_result_changes_every_id(override: str):
    before = {t.trial_id for t in make_plan(compose(["+stage=smoke"])).trials}
    after = {t.trial_id for t in make_plan(compose(["+stage=smoke", override])).trials}
    assert not before & after


def test_every_field_of_a_trial_is_either_in_its_id_or_left_out_on_purpose():
    cfg = compose(["+stage=smoke"])
    trial = make_plan(cfg).trials[0]
    spec = trial_spec(cfg, trial, attempt=3, sweep_dir=Path("somewhere"))
    named = set(result_identity(spec, adaptive_lr=False))
    left_out = {f.name for f in dataclasses.fields(spec)} - named
    assert left_out == {"trial_id", "attempt", "cards", "checkpoint_dir", "cache_dir"}
    assert spec.attempt == 3
    assert spec.algorithm.lr == trial.lr


def test_search_trials_repeats_the_grid_over_further_seeds_until_there_are_so_many():
    once = make_plan(compose(["+stage=smoke", "trainer=simulated"])).trials
    plan = make_plan(compose(["+stage=smoke", "trainer=simulated", "search.trials=11"]))
    assert len(once) == 3
    assert len(plan.trials) == 11
    assert [t.seed for t in plan.trials] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 2
    assert [t.trial_id for t in plan.trials][:3] == [t.trial_id for t in once]
    assert plan.points == 4 * 3 + 3


def test_large_groups_over_few_prompts_get_a_warning_with_the_reason():
    plan = make_plan(compose(["+stage=smoke", "search.group_size=[16]"]))
    assert len(plan.warnings) == 1
    assert "diminish" in plan.warnings[0]
    assert not make_plan(compose(["+stage=smoke"])).warnings

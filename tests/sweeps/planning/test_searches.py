"""Plans of random and Optuna searches, and of grids over further keys. Tests `sweeps/planning/plan.py`."""

from __future__ import annotations

import shlex

import pytest

from sweeps.config.build import compose
from sweeps.config.overrides import CONF_DIR
from sweeps.planning.plan import make_plan, trial_spec
from tests.sweeps.search_spaces import LR_RANGE, ONE_POINT, smoke


def test_a_longer_random_search_begins_with_the_trials_of_a_shorter_one():
    few, more = (make_plan(smoke("search=random", f"search.trials={n}", LR_RANGE)).trials for n in (5, 12))
    assert more[:5] == few
    assert make_plan(smoke("search=random", "search.trials=5", "search.sampler_seed=1", LR_RANGE)).trials != few


def test_a_random_search_plans_every_point_once():
    plan = make_plan(smoke("search=random", "search.trials=25", "search.seeds=[3,4]", LR_RANGE))
    assert (len(plan.trials), plan.proposals) == (25, 0)
    assert len({t.trial_id for t in plan.trials}) == 25
    assert [t.seed for t in plan.trials] == [3, 4] * 12 + [3]
    assert all(a.point == b.point for a, b in zip(plan.trials[:-1:2], plan.trials[1::2], strict=True))


def test_points_that_resolve_to_the_same_trial_are_drawn_once():
    """At the reference all scaling rules agree: of the two rules of a point only one is run."""
    same = ("search.prompts_per_step=[4]", "algorithm.lr_reference_completions=16", "search.lr_scaling=[hold,linear]")
    plan = make_plan(smoke("search=random", "search.trials=2", *same, "search.space.algorithm.kl_coef=[0.0,0.1]"))
    assert {t.overrides["algorithm.kl_coef"] for t in plan.trials} == {0.0, 0.1}


def test_a_varied_trial_has_the_id_and_spec_of_one_with_typed_values(tmp_path):
    cfg = smoke(*ONE_POINT, "search.space.rollout.temperature=[0.8]", "search.space.algorithm.lr=[3e-5]")
    (varied,) = make_plan(cfg).trials
    (typed,) = make_plan(smoke(*ONE_POINT, "rollout.temperature=0.8", "algorithm.lr=3e-5")).trials
    assert varied.trial_id == typed.trial_id
    spec = trial_spec(cfg, varied, attempt=1, sweep_dir=tmp_path)
    assert (spec.rollout.temperature, spec.algorithm.lr) == (0.8, 3e-5)


def test_a_scaling_rule_scales_the_learning_rate_of_the_point():
    scaled = ("search.prompts_per_step=[8]", "search.lr_scaling=[linear]", "search.space.algorithm.lr=[3e-5]")
    (trial,) = make_plan(smoke(*scaled, "algorithm.lr_reference_completions=16")).trials
    assert trial.lr == pytest.approx(6e-5)
    assert trial.point["algorithm.lr"] == 3e-5


@pytest.mark.parametrize(
    "changed",
    [
        "search.trials=17",
        "search.sampler_seed=1",
        "search.startup_trials=5",
        "search.seeds=[1]",
        "algorithm.kl_coef=0.5",
        "search.space.algorithm.lr={low:1e-6,high:1.1e-4,log:true}",
        "search.pruning=median",
        "search=random",
    ],
)
def test_a_search_is_identified_by_its_space_its_count_and_its_seed(changed: str):
    typed = ("search=optuna", LR_RANGE, "evaluation.every_steps=5")
    same = make_plan(smoke(*typed))
    assert make_plan(smoke(*typed, "paths.root=elsewhere")).digest == same.digest
    assert make_plan(smoke(*typed, changed)).digest != same.digest


@pytest.mark.parametrize("method", ["grid", "random", "optuna"])
def test_large_groups_over_few_prompts_get_a_warning_with_every_search_method(method: str):
    space = ("search.space.group_size=[8,16]", "search.space.rollout.temperature=[0.8,0.9,1.0]")
    plan = make_plan(smoke(f"search={method}", "search.trials=3", "search.prompts_per_step=[4,16]", *space))
    assert any("grows to 16 while prompts_per_step is 4" in w and "diminish" in w for w in plan.warnings)


def test_pruning_on_few_questions_gets_a_warning_with_their_number():
    early = ("search.pruning=median", "evaluation.every_steps=5")
    (warning,) = make_plan(smoke(*early, "task.eval_questions=64")).warnings
    assert "64 answers" in warning
    assert "+-0.12" in warning
    assert make_plan(smoke(*early, "task.eval_questions=100")).warnings == ()
    assert make_plan(smoke("task.eval_questions=16")).warnings == ()


def test_trials_that_are_evaluated_differently_get_a_warning():
    plan = make_plan(smoke(*ONE_POINT, "search.space.task.eval_questions=[32,64]"))
    assert any("task.eval_questions" in w and "do not compare" in w for w in plan.warnings)


def test_the_commands_in_the_guide_give_plans_without_a_warning():
    text = (CONF_DIR.parent / "docs/search.md").read_text().replace("\\\n", "")
    commands = [line for line in text.splitlines() if line.startswith("python sweep.py")]
    assert [make_plan(compose(shlex.split(c)[2:])).size for c in commands] == [20, 60, 40]
    assert not any(make_plan(compose(shlex.split(c)[2:])).warnings for c in commands)

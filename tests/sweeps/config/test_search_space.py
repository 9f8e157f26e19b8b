"""How a search space can be typed."""

from __future__ import annotations

import shlex

import pytest

from rl.codec import from_json
from sweeps.config.build import canonical
from sweeps.config.points import with_values
from sweeps.config.types import ConfigError, SweepConfig
from sweeps.planning.plan import make_plan
from tests.sweeps.search_spaces import KL_COEF_WHEN, KL_PLACEMENT, LR_RANGE, ONE_POINT, smoke


@pytest.mark.parametrize(
    "typed",
    [
        [LR_RANGE, KL_PLACEMENT, KL_COEF_WHEN],
        [f"+{LR_RANGE}", f"++{KL_PLACEMENT}", f"+{KL_COEF_WHEN}"],
        [
            "search.space={algorithm.lr:{low:1e-6,high:1e-4,log:true},algorithm.kl_placement:[loss,reward],"
            "algorithm.kl_coef:{low:0.001,high:0.1,log:true,when:{algorithm.kl_placement:[loss]}}}"
        ],
        [
            "search.space.algorithm={lr:{low:1e-6,high:1e-4,log:true},kl_placement:{choices:[loss,reward]},"
            "kl_coef:{low:0.001,high:0.1,log:true,when:{algorithm:{kl_placement:loss}}}}"
        ],
        [KL_COEF_WHEN, KL_PLACEMENT, LR_RANGE],
    ],
    ids=["key by key", "with plus signs", "at once", "nested", "in another order"],
)
def test_a_search_space_can_be_typed_in_several_ways(typed: list[str]):
    plan = make_plan(smoke("search=random", *typed))
    assert plan == make_plan(smoke("search=random", LR_RANGE, KL_PLACEMENT, KL_COEF_WHEN))
    assert plan.size == 16


def test_a_configuration_with_a_search_space_survives_json():
    cfg = smoke("search=optuna", LR_RANGE, KL_PLACEMENT, KL_COEF_WHEN)
    assert from_json(SweepConfig, canonical(cfg)).search == cfg.search


def test_a_choice_of_presets_varies_all_settings_of_the_algorithm_together():
    typed = ["search.space.algorithm=[grpo,dapo]", "algorithm.kl_coef=0.02", *ONE_POINT]
    cfg = smoke(*typed)
    plan = make_plan(cfg)
    alone = [
        make_plan(smoke(f"algorithm={n}", "algorithm.kl_coef=0.02", *ONE_POINT)).trials[0] for n in ("grpo", "dapo")
    ]
    assert [t.trial_id for t in plan.trials] == [t.trial_id for t in alone]
    assert [with_values(cfg, t.overrides).algorithm.clip_eps_high for t in plan.trials] == [0.2, 0.28]
    assert {with_values(cfg, t.overrides).algorithm.kl_coef for t in plan.trials} == {0.02}


def test_a_choice_of_presets_survives_json_and_combines_with_another_key():
    cfg = smoke("search.space.algorithm=[grpo,dapo]", "search.space.algorithm.lr=[1e-5,2e-5]", *ONE_POINT)
    back = from_json(SweepConfig, canonical(cfg))
    assert back.search == cfg.search
    assert make_plan(back).size == 4


def test_a_single_preset_and_an_unknown_one_are_answered():
    with pytest.raises(ConfigError, match=r"did you mean 'search\.space\.algorithm=\[grpo,dapo\]'"):
        smoke("search.space.algorithm=[grpo,dapoo]")
    with pytest.raises(ConfigError, match=r"write 'search\.space\.algorithm=\[grpo,dapo\]'"):
        smoke("search.space.algorithm.name=[grpo,dapo]")


@pytest.mark.parametrize(
    "typed",
    [
        ["search.space.algorithm.sampler_correction_cap=[2,3]"],
        ["search.space.algorithm.kl_placement=[loss,reward]", "algorithm.kl_coef=0"],
        ["search.space.algorithm.kl_placement=[loss,reward]", "search.space.algorithm.kl_coef=[0.0,0.1]"],
        ["search.space.model.lora_alpha=[8,16]"],
        ["search.space.algorithm.overlong_penalty=[1,2]"],
        ["search.space.algorithm.lr_final_frac=[0,0.1]"],
        ["search.space.algorithm.lr_reference_completions=[16,32]", "search.lr_scaling=[hold,clip_frac]"],
        ["search.space.rollout.kv_cache_gib=[1,2]", "rollout=transformers"],
        ["search.space.rollout.kv_cache_gib=[1,2]", "rollout=auto"],
        ["search.space.rollout.gpu_memory_utilization=[0.3,0.4]", "rollout=vllm"],
        ["search.space.rollout.kv_cache_gib=[1,2]", "rollout=vllm", "machine=h100", "trainer=simulated"],
        ["search.space.model.revision=[a,b]"],
        ["search.space.task.question_field=[a,b]"],
        ["search.space.task.name=[a,b]", "task=gsm8k"],
        ["search.space.task.reward_weights.format=[0.1,0.2]", "task.format_pattern="],
        ["search.space.task.format_pattern=[a,b]", "task.reward_weights.format=0"],
    ],
    ids=" ".join,
)
def test_a_key_without_effect_under_the_other_settings_is_refused_where_it_is_varied(typed: list[str]):
    with pytest.raises(ConfigError, match="has no effect"):
        smoke(*typed)


@pytest.mark.parametrize(
    "typed",
    [
        ["search.space.algorithm.lr_reference_completions=[16,32]", "search.lr_scaling=[sqrt]"],
        ["search.space.rollout.kv_cache_gib=[1,2]", "rollout=vllm"],
        ["search.space.task.reward_weights.format=[0.1,0.2]"],
        ["search.space.task.name=[chain_sum,products]"],
    ],
    ids=" ".join,
)
def test_the_same_keys_are_varied_where_they_have_an_effect(typed: list[str]):
    assert make_plan(smoke("search.prompts_per_step=[4]", "search.lr_scaling=[hold]", *typed)).size == 2


def test_the_suggested_condition_leaves_out_the_points_without_effect():
    with pytest.raises(ConfigError) as refused:
        smoke("search.space.algorithm.kl_placement=[loss,reward]", "search.space.algorithm.kl_coef=[0.0,0.1]")
    (suggested,) = shlex.split(str(refused.value).partition("write ")[2])
    assert make_plan(smoke(suggested, "search.space.algorithm.kl_coef=[0.0,0.1]", *ONE_POINT)).size == 3


def test_the_suggested_condition_can_name_a_list_of_the_search():
    lists = ("search.prompts_per_step=[4]", "search.lr_scaling=[hold,sqrt]")
    with pytest.raises(ConfigError) as refused:
        smoke("search.space.algorithm.lr_reference_completions=[8,16]", *lists)
    (suggested,) = shlex.split(str(refused.value).partition("write ")[2])
    assert "when:{lr_scaling:[sqrt]}" in suggested
    assert make_plan(smoke(suggested, *lists)).size == 3

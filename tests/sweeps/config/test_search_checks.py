"""What a search is refused for, and the remedy that the message names."""

from __future__ import annotations

import pytest

from sweeps.config.types import ConfigError
from sweeps.planning.plan import make_plan
from tests.sweeps.search_spaces import KL_COEF_WHEN, KL_PLACEMENT, LR_RANGE, smoke

REFUSED = [
    (
        ["search.space.algorithm.lrr=[1,2]"],
        ("no key 'search.space.algorithm.lrr'", "did you mean search.space.algorithm.lr?"),
    ),
    (["search.space.model=[1,2]"], ("model is a group of keys",)),
    (["search.space.algorithm=[1,2]"], ("has 1", "the presets are cispo, dapo")),
    (["search.space=3"], ("should map keys",)),
    (["search.space.algorithm.lr=3e-6"], ("is one value", "algorithm.lr=3e-06")),
    (["search.space.group_size=4"], ("is one value", "search.group_size=4")),
    (["search.space.search.group_size=[4,8]"], ("write search.space.group_size",)),
    (["search.space.algorithm.lr={lo:1,high:2}"], ("has lo", "low and high")),
    (["search.space.algorithm.lr={low:1e-6}"], ("low below its high",)),
    (["search.space.algorithm.lr={low:1e-4,high:1e-6}"], ("low below its high",)),
    (["search.space.algorithm.lr={low:1e-4,high:1e-6,choices:[1]}"], ("either a list of values, or low and high",)),
    (["search.space.algorithm.lr=[]"], ("either a list of values, or low and high",)),
    (["search.space.algorithm.lr={low:0,high:1e-6,log:true}"], ("above 0 on a logarithmic scale",)),
    (["search.space.algorithm.lr={low:0,high:1e-6}"], ("search.space.algorithm.lr at 0.0", "must be above 0")),
    (["search.space.rollout.temperature={low:0.5,high:1,step:2}"], ("step=2", "at most high - low")),
    (["search.space.rollout.temperature={low:0.5,high:1,step:0.1,log:true}"], ("log and step",)),
    (["search.space.rollout.temperature={choices:[0.5,1.0],log:true}"], ("log and step belong to a range",)),
    (["search.space.prompts_per_step={low:2,high:8,step:1.5}"], ("takes whole numbers",)),
    (["search.space.prompts_per_step={low:2.5,high:8}"], ("prompts_per_step=2.5", "type int")),
    (["search.space.rollout.top_p=[0.9,1.0]"], ("search.space.rollout.top_p at 0.9", "do not model")),
    (["search.space.algorithm.surrogate={low:1,high:2}"], ("is not a number",)),
    (["search.space.algorithm.surrogate=[clip,ppo]"], ("'ppo'", "'cispo'")),
    (["search.space.lr_scaling=[hold,cubic]"], ("'cubic'", "hold, sqrt, linear, clip_frac")),
    (["search.space.group_size=[1,8]"], ("search.group_size=1 trains nothing",)),
    (["search.space.algorithm.updates_per_rollout=[2,4]"], ("at the point", "updates_per_rollout=4")),
    (["search.space.trainer.micro_batch_tokens=[1024,2048]"], ("cannot change a trial's result",)),
    (["search.space.trainer.simulated.acc_final=[0.5,0.6]"], ("cannot change a trial's result",)),
    (["search.space.paths.root=[a,b]"], ("cannot change a trial's result",)),
    (["search.space.stage.steps=[10,20]"], ("the same length",)),
    (["search.space.trainer.name=[native,simulated]"], ("one trainer runs all trials",)),
    (["search.space.search.seeds=[0,1]"], ("search.seeds=[0,1,2]",)),
    ([KL_COEF_WHEN], ("names algorithm.kl_placement, which is not varied",)),
    ([KL_PLACEMENT, KL_COEF_WHEN.replace(":loss", ":los")], ("algorithm.kl_placement=los", "loss, reward")),
    ([LR_RANGE, "search.space.algorithm.kl_coef={low:0,high:1,when:{algorithm.lr:1e-5}}"], ("a range",)),
    (
        [
            "search.space.algorithm.kl_placement={choices:[loss,reward],when:{algorithm.kl_coef:0.1}}",
            "search.space.algorithm.kl_coef={choices:[0.1,0.2],when:{algorithm.kl_placement:loss}}",
        ],
        ("the condition of", "depends on"),
    ),
    (["search.trials=null"], ("search=random needs search.trials=N",)),
    (["search.sampler_seed=-1"], ("search.sampler_seed=-1",)),
    (["search.startup_trials=0"], ("search.startup_trials=0",)),
    (["search.pruning=asha"], ("evaluation.every_steps=0", "makes none")),
    (["search.pruning=median", "evaluation.every_steps=20"], ("makes none in 20 steps",)),
    (["search.pruning_factor=1"], ("search.pruning_factor=1",)),
    (["search.pruning_min_trials=1"], ("search.pruning_min_trials=1",)),
    (["search.pruning_percentile=100"], ("search.pruning_percentile=100",)),
    (["search.pruning_warmup_completions=0"], ("search.pruning_warmup_completions=0",)),
    (
        ["search.pruning=asha", "evaluation.every_steps=5", "search.space.evaluation.temperature=[0.5,1.0]"],
        ("evaluated", "search.pruning=asha"),
    ),
    (["search=optuna", "search.space.task.eval_questions=[32,64]"], ("evaluated", "search=optuna")),
    (["search=grid", LR_RANGE], ("is a range, and search=grid",)),
]


@pytest.mark.parametrize(("typed", "parts"), REFUSED, ids=lambda value: value[0][:60])
def test_a_wrong_search_is_refused_with_its_key_and_the_remedy(typed: list[str], parts: tuple[str, ...]):
    with pytest.raises(ConfigError) as error:
        smoke("search=random", *typed)
    assert all(part in str(error.value) for part in parts), str(error.value)


def test_more_trials_than_the_search_space_has_are_refused_with_their_number():
    for method in ("random", "optuna"):
        with pytest.raises(ConfigError, match="no more than 3 different trials; ask for 3"):
            make_plan(smoke(f"search={method}", "search.trials=4"))
    assert make_plan(smoke("search=random", "search.trials=3")).size == 3

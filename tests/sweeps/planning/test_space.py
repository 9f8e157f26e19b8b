"""The search space: what can be typed, what is refused and why, and what points are drawn from it."""

from __future__ import annotations

import itertools
import math
import shlex
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl.codec import from_json, to_json
from sweeps.config.build import CONF_DIR, canonical, compose
from sweeps.config.types import ConfigError, SweepConfig
from sweeps.driver.summary import next_command
from sweeps.planning.plan import PlannedTrial, make_plan, trial_spec
from sweeps.planning.space import Axis, axes, draw, draws, grid, recipes, with_values
from sweeps.report import terminal
from sweeps.search.best import as_typed, best, instead_of
from tests.sweeps.in_process import a_sweep

LR = "search.space.algorithm.lr={low:1e-6,high:1e-4,log:true}"
PLACED = "search.space.algorithm.kl_placement=[loss,reward]"
WHEN = "search.space.algorithm.kl_coef={low:0.001,high:0.1,log:true,when:{algorithm.kl_placement:loss}}"
ONE = ("search.prompts_per_step=[8]", "search.lr_scaling=[hold]")


def smoke(*overrides: str) -> SweepConfig:
    return compose(["+stage=smoke", *overrides])


# ---------------------------------------------------------------------------------------------------------------------
# What is typed
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "typed",
    [
        [LR, PLACED, WHEN],
        [f"+{LR}", f"++{PLACED}", f"+{WHEN}"],
        [
            "search.space={algorithm.lr:{low:1e-6,high:1e-4,log:true},algorithm.kl_placement:[loss,reward],"
            "algorithm.kl_coef:{low:0.001,high:0.1,log:true,when:{algorithm.kl_placement:[loss]}}}"
        ],
        [
            "search.space.algorithm={lr:{low:1e-6,high:1e-4,log:true},kl_placement:{choices:[loss,reward]},"
            "kl_coef:{low:0.001,high:0.1,log:true,when:{algorithm:{kl_placement:loss}}}}"
        ],
        [WHEN, PLACED, LR],
    ],
    ids=["key by key", "with plus signs", "at once", "nested", "in another order"],
)
def test_a_space_can_be_typed_in_several_ways_and_means_the_same(typed: list[str]):
    plan = make_plan(smoke("search=random", *typed))
    assert plan == make_plan(smoke("search=random", LR, PLACED, WHEN))
    assert plan.size == 16


REFUSED = [
    (["search.space.algorithm.lrr=[1,2]"], ("no key 'algorithm.lrr'", "did you mean algorithm.lr?")),
    (["search.space.algorithm=[1,2]"], ("algorithm is a group of keys",)),
    (["search.space=3"], ("should map keys",)),
    (["search.space.algorithm.lr=3e-6"], ("is one value", "algorithm.lr=3e-06")),
    (["search.space.group_size=4"], ("is one value", "search.group_size=4")),
    (["search.space.search.group_size=[4,8]"], ("write search.space.group_size",)),
    (["search.space.algorithm.lr={lo:1,high:2}"], ("has lo", "low and high")),
    (["search.space.algorithm.lr={low:1e-6}"], ("low below its high",)),
    (["search.space.algorithm.lr={low:1e-4,high:1e-6}"], ("low below its high",)),
    (["search.space.algorithm.lr={low:1e-4,high:1e-6,choices:[1]}"], ("either a list of values, or low and high",)),
    (["search.space.algorithm.lr=[]"], ("either a list of values, or low and high",)),
    (["search.space.algorithm.lr={low:0,high:1e-6,log:true}"], ("begins above 0",)),
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
    (["search.space.stage.steps=[10,20]"], ("of the same length",)),
    (["search.space.trainer.name=[native,simulated]"], ("one trainer runs all trials",)),
    (["search.space.search.seeds=[0,1]"], ("search.seeds=[0,1,2]",)),
    ([WHEN], ("names algorithm.kl_placement, which is not varied",)),
    ([PLACED, WHEN.replace(":loss", ":los")], ("algorithm.kl_placement=los", "loss, reward")),
    ([LR, "search.space.algorithm.kl_coef={low:0,high:1,when:{algorithm.lr:1e-5}}"], ("a range",)),
    (
        [
            "search.space.algorithm.kl_placement={choices:[loss,reward],when:{algorithm.kl_coef:0.1}}",
            "search.space.algorithm.kl_coef={choices:[0.1,0.2],when:{algorithm.kl_placement:loss}}",
        ],
        ("depends on", "in turn"),
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
        ("examined with", "search.pruning=asha"),
    ),
    (["search=optuna", "search.space.task.eval_questions=[32,64]"], ("examined with", "search=optuna")),
    (["search=grid", LR], ("is a range, and search=grid",)),
]


@pytest.mark.parametrize(("typed", "said"), REFUSED, ids=lambda value: value[0][:60])
def test_what_cannot_be_searched_is_refused_with_what_would_be_right(typed: list[str], said: tuple[str, ...]):
    with pytest.raises(ConfigError) as error:
        smoke("search=random", *typed)
    assert all(part in str(error.value) for part in said), str(error.value)


def test_more_trials_than_the_space_has_are_refused_with_how_many_there_are():
    for method in ("random", "optuna"):
        with pytest.raises(ConfigError, match="no more than 3 different trials; ask for 3"):
            make_plan(smoke(f"search={method}", "search.trials=4"))
    assert make_plan(smoke("search=random", "search.trials=3")).size == 3


def test_keys_of_every_part_of_a_trial_can_be_varied():
    other = {
        "model.lora_rank": [4, 8],
        "task.prompt_template": ["{question}", "Q: {question}"],
        "algorithm.clip_eps_high": [0.2, 0.28],
        "algorithm.drop_zero_variance_groups": [True, False],
        "rollout.max_completion_tokens": [16, 24],
        "evaluation.samples_per_question": [1, 2],
        "trainer.precision": ["fp32", "bf16"],
        "task.reward_weights.format": [0.1, 0.2],
        "algorithm.dual_clip": [None, 3.0],
    }
    for key, (one, two) in other.items():
        cfg = with_values(smoke(*ONE), {key: one})
        trials = {make_plan(with_values(cfg, {key: v})).trials[0].trial_id for v in (one, two)}
        assert len(trials) == 2, key


# ---------------------------------------------------------------------------------------------------------------------
# What is drawn
# ---------------------------------------------------------------------------------------------------------------------


def an_axis(**more) -> Axis:
    neutral = {"choices": (), "low": 0.0, "high": 0.0, "log": False, "step": None, "whole": False, "when": {}}
    return Axis(**{"key": "a", **neutral, **more})


@given(st.floats(0, 1, exclude_max=True))
def test_a_draw_lies_within_its_axis_and_on_its_steps(share: float):
    assert 1e-6 <= an_axis(low=1e-6, high=1e-4, log=True).at(share) <= 1e-4
    assert an_axis(low=2, high=16, step=4.0, whole=True).at(share) in (2, 6, 10, 14)
    assert an_axis(low=0.7, high=1.2, step=0.1).at(share) in (0.7, 0.8, 0.9, 1.0, 1.1, 1.2)
    assert an_axis(low=1, high=8, log=True, whole=True).at(share) in range(1, 9)
    assert an_axis(choices=("x", "y")).at(share) in ("x", "y")


def test_a_logarithmic_axis_gives_every_decade_the_same_share():
    axis = an_axis(low=1e-6, high=1e-3, log=True)
    decades = Counter(math.floor(math.log10(axis.at((i + 0.5) / 300))) for i in range(300))
    assert decades == {-6: 100, -5: 100, -4: 100}


def test_a_number_is_drawn_with_the_digits_that_are_shown():
    values = {an_axis(low=1e-6, high=1e-3, log=True).at(i / 100) for i in range(100)}
    assert all(float(f"{v:.4g}") == v for v in values)


def test_a_key_is_varied_only_where_its_condition_holds():
    space = axes(smoke("search=random", LR, PLACED, WHEN))
    assert [a.key for a in space].index("algorithm.kl_placement") < [a.key for a in space].index("algorithm.kl_coef")
    for point in itertools.islice(draws(space, 0), 50):
        assert ("algorithm.kl_coef" in point) == (point["algorithm.kl_placement"] == "loss")
        assert "algorithm.lr" in point


def test_conditions_hold_over_two_levels():
    chain = (
        "search.space.algorithm.aggregation=[sequence_mean,token_mean]",
        "search.space.algorithm.kl_placement={choices:[loss,reward],when:{algorithm.aggregation:token_mean}}",
        WHEN,
    )
    for point in itertools.islice(draws(axes(smoke("search=random", *chain)), 0), 60):
        if point["algorithm.aggregation"] == "sequence_mean":
            assert "algorithm.kl_placement" not in point
        assert ("algorithm.kl_coef" in point) == (point.get("algorithm.kl_placement") == "loss")


def test_a_draw_is_a_function_of_its_seed_and_a_further_axis_leaves_the_others_alone():
    few = axes(smoke("search=random", LR))
    more = axes(smoke("search=random", LR, PLACED, WHEN))
    for seed in map(str, range(50)):
        assert draw(few, seed) == draw(few, seed)
        assert draw(few, seed).items() <= draw(more, seed).items()


def test_more_trials_of_the_same_search_begin_with_the_same_ones():
    few, more = (make_plan(smoke("search=random", f"search.trials={n}", LR)).trials for n in (5, 12))
    assert more[:5] == few
    assert make_plan(smoke("search=random", "search.trials=5", "search.sampler_seed=1", LR)).trials != few


def test_every_point_of_a_random_search_is_in_the_plan_and_none_twice():
    plan = make_plan(smoke("search=random", "search.trials=25", "search.seeds=[3,4]", LR))
    assert (len(plan.trials), plan.proposals) == (25, 0)
    assert len({t.trial_id for t in plan.trials}) == 25
    assert [t.seed for t in plan.trials] == [3, 4] * 12 + [3]
    assert all(a.point == b.point for a, b in zip(plan.trials[:-1:2], plan.trials[1::2], strict=True))


def test_points_that_are_the_same_trial_are_drawn_once():
    """At the reference all scaling rules agree: of the two rules of a point only one is run."""
    same = ("search.prompts_per_step=[4]", "algorithm.lr_reference_completions=16", "search.lr_scaling=[hold,linear]")
    plan = make_plan(smoke("search=random", "search.trials=2", *same, "search.space.algorithm.kl_coef=[0.0,0.1]"))
    assert {t.overrides["algorithm.kl_coef"] for t in plan.trials} == {0.0, 0.1}


def test_a_grid_over_any_key_does_not_multiply_what_a_condition_leaves_out():
    coefficient = "search.space.algorithm.kl_coef={choices:[0.01,0.1],when:{algorithm.kl_placement:loss}}"
    cfg = smoke(*ONE, PLACED, coefficient)
    points = grid(axes(cfg))
    assert len(points) == 3
    plan = make_plan(cfg)
    assert [t.varied for t in plan.trials] == [
        "kl_placement=loss kl_coef=0.01",
        "kl_placement=loss kl_coef=0.1",
        "kl_placement=reward",
    ]
    assert make_plan(replace(cfg, search=replace(cfg.search, trials=6))).size == 6


# ---------------------------------------------------------------------------------------------------------------------
# What comes of a point
# ---------------------------------------------------------------------------------------------------------------------


def test_a_trial_is_specified_as_if_its_values_had_been_typed(tmp_path):
    cfg = smoke(*ONE, "search.space.rollout.temperature=[0.8]", "search.space.algorithm.lr=[3e-5]")
    (varied,) = make_plan(cfg).trials
    (typed,) = make_plan(smoke(*ONE, "rollout.temperature=0.8", "algorithm.lr=3e-5")).trials
    assert varied.trial_id == typed.trial_id
    spec = trial_spec(cfg, varied, attempt=1, sweep_dir=tmp_path)
    assert (spec.rollout.temperature, spec.algorithm.lr) == (0.8, 3e-5)


def test_a_scaling_rule_scales_the_rate_of_the_point():
    scaled = ("search.prompts_per_step=[8]", "search.lr_scaling=[linear]", "search.space.algorithm.lr=[3e-5]")
    (trial,) = make_plan(smoke(*scaled, "algorithm.lr_reference_completions=16")).trials
    assert trial.lr == pytest.approx(6e-5)
    assert trial.point["algorithm.lr"] == 3e-5


def test_a_trial_planned_by_an_earlier_version_has_no_further_values():
    (trial,) = make_plan(smoke(*ONE)).trials
    row = to_json(trial)
    del row["overrides"]
    assert from_json(PlannedTrial, row) == trial


def test_a_configuration_with_a_space_is_read_back_as_it_was():
    cfg = smoke("search=optuna", LR, PLACED, WHEN)
    assert from_json(SweepConfig, canonical(cfg)).search == cfg.search


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
def test_a_search_is_recognised_by_its_space_its_count_and_its_seed(changed: str):
    typed = ("search=optuna", LR, "evaluation.every_steps=5")
    same = make_plan(smoke(*typed))
    assert make_plan(smoke(*typed, "paths.root=elsewhere")).digest == same.digest
    assert make_plan(smoke(*typed, changed)).digest != same.digest


def test_every_model_and_task_that_can_be_asked_for_is_known_before_anything_starts():
    cfg = smoke("search=random", "search.space.model.kind=[tiny,smollm2_135m]", LR)
    assert {at.model.kind for at in recipes(cfg)} == {"tiny", "smollm2_135m"}
    assert recipes(smoke(*ONE, LR, "search=random")) == [smoke(*ONE, LR, "search=random")]


@pytest.mark.parametrize("method", ["grid", "random", "optuna"])
def test_large_groups_over_few_prompts_get_a_warning_however_points_are_chosen(method: str):
    space = ("search.space.group_size=[8,16]", "search.space.rollout.temperature=[0.8,0.9,1.0]")
    plan = make_plan(smoke(f"search={method}", "search.trials=3", "search.prompts_per_step=[4,16]", *space))
    assert any("grows to 16 while prompts_per_step is 4" in w and "diminish" in w for w in plan.warnings)


def test_ending_trials_by_few_questions_gets_a_warning_with_how_few_they_are():
    early = ("search.pruning=median", "evaluation.every_steps=5")
    (warning,) = make_plan(smoke(*early, "task.eval_questions=64")).warnings
    assert "64 answers" in warning
    assert "+-0.12" in warning
    assert make_plan(smoke(*early, "task.eval_questions=100")).warnings == ()
    assert make_plan(smoke("task.eval_questions=16")).warnings == ()


def test_trials_that_are_examined_differently_get_a_warning():
    plan = make_plan(smoke(*ONE, "search.space.task.eval_questions=[32,64]"))
    assert any("task.eval_questions" in w and "do not compare" in w for w in plan.warnings)


def test_the_best_point_can_be_typed_and_stands_for_what_was_typed_before(tmp_path):
    space = ("search.space.rollout.temperature=[0.8,0.9]", "search.space.algorithm.dual_clip=[null,3.0]")
    sweep = a_sweep(tmp_path, *ONE, *space, "stage.steps=2").run()
    found = best(sweep.cfg, sweep.journal.record)
    assert found is not None
    assert (found.points, found.seeds) == (4, 1)
    assert found.accuracy == max(t.summary.acc or 0 for t in sweep.journal.record.trials.values())
    typed = instead_of(["+stage=smoke", "rollout.temperature=1.0", "model=tiny"], found.values)
    cfg = compose([*typed, *found.batch])
    assert cfg.rollout.temperature in (0.8, 0.9)
    assert typed[:2] == ["+stage=smoke", "model=tiny"]
    assert found.batch == ("search.prompts_per_step=[8]", "search.group_size=[8]", "search.lr_scaling=[hold]")


def test_values_are_written_as_they_are_typed():
    values = [None, True, 3, 1e-5, "clip", "Q: {question}", ["a", "b"]]
    assert [as_typed(v) for v in values] == ["null", "true", "3", "1e-05", "clip", '"Q: {question}"', "[a,b]"]


def test_the_next_stage_is_not_proposed_with_this_ones_search():
    assert "search" not in next_command(
        "single", ["+stage=smoke", "search=optuna", LR, "search.trials=3", "model=tiny"]
    )


def test_the_guides_commands_are_plans_without_a_warning():
    text = (CONF_DIR.parent / "docs/search.md").read_text().replace("\\\n", "")
    commands = [line for line in text.splitlines() if line.startswith("python sweep.py")]
    assert [make_plan(compose(shlex.split(c)[2:])).size for c in commands] == [20, 60, 40]
    assert not any(make_plan(compose(shlex.split(c)[2:])).warnings for c in commands)


def test_a_plan_of_many_trials_is_not_printed_whole(capsys):
    from sweeps.driver.driver import run

    run(smoke("search.trials=100", "search.prompts_per_step=[2]", "trainer=simulated", "dry_run=true"))
    printed = capsys.readouterr().out
    assert printed.count(" 2 x 8 ") == terminal.MOST_ROWS
    assert f" {100 - terminal.MOST_ROWS} more" in printed


def test_plans_fit_into_a_hundred_columns(capsys):
    from sweeps.driver.driver import run

    wide = (
        "search.space.rollout.temperature={low:0.7,high:1.2,step:0.1}",
        "search.space.algorithm.adam_beta2=[0.95,0.999]",
    )
    for method in ("random", "optuna"):
        run(smoke(f"search={method}", LR, PLACED, WHEN, *wide, "trainer=simulated", "dry_run=true"))
    printed = capsys.readouterr().out
    table = [line for line in printed.splitlines() if not line.startswith("  machine ")]
    assert max(map(len, table)) <= terminal.WIDTH
    assert "points proposed by Optuna's TPE" in printed
    assert "algorithm.kl_placement=loss" in printed
    assert "16 trials" in printed

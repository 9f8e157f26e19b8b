"""Axes of the search space: draws, steps, conditions, and the grid."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sweeps.config.axes import Axis, axes, draw, draws, grid, recipes
from sweeps.planning.plan import make_plan
from tests.sweeps.search_spaces import KL_COEF_WHEN, KL_PLACEMENT, LR_RANGE, ONE_POINT, smoke


def an_axis(**more) -> Axis:
    neutral = {"choices": (), "low": 0.0, "high": 0.0, "log": False, "step": None, "whole": False, "when": {}}
    return Axis(**{"key": "a", **neutral, **more})


@given(st.floats(0, 1, exclude_max=True))
def test_a_draw_is_within_its_axis_and_on_its_steps(share: float):
    assert 1e-6 <= an_axis(low=1e-6, high=1e-4, log=True).at(share) <= 1e-4
    assert an_axis(low=2, high=16, step=4.0, whole=True).at(share) in (2, 6, 10, 14)
    assert an_axis(low=0.7, high=1.2, step=0.1).at(share) in (0.7, 0.8, 0.9, 1.0, 1.1, 1.2)
    assert an_axis(low=1, high=8, log=True, whole=True).at(share) in range(1, 9)
    assert an_axis(choices=("x", "y")).at(share) in ("x", "y")


def test_a_logarithmic_axis_gives_every_decade_the_same_share():
    axis = an_axis(low=1e-6, high=1e-3, log=True)
    decades = Counter(math.floor(math.log10(axis.at((i + 0.5) / 300))) for i in range(300))
    assert decades == {-6: 100, -5: 100, -4: 100}


def test_a_number_is_drawn_with_the_digits_that_tables_show():
    values = {an_axis(low=1e-6, high=1e-3, log=True).at(i / 100) for i in range(100)}
    assert all(float(f"{v:.4g}") == v for v in values)


def test_a_key_is_varied_only_where_its_condition_is_met():
    space = axes(smoke("search=random", LR_RANGE, KL_PLACEMENT, KL_COEF_WHEN))
    assert [a.key for a in space].index("algorithm.kl_placement") < [a.key for a in space].index("algorithm.kl_coef")
    for point in itertools.islice(draws(space, 0), 50):
        assert ("algorithm.kl_coef" in point) == (point["algorithm.kl_placement"] == "loss")
        assert "algorithm.lr" in point


def test_conditions_work_over_two_levels():
    chain = (
        "search.space.algorithm.aggregation=[sequence_mean,token_mean]",
        "search.space.algorithm.kl_placement={choices:[loss,reward],when:{algorithm.aggregation:token_mean}}",
        KL_COEF_WHEN,
    )
    for point in itertools.islice(draws(axes(smoke("search=random", *chain)), 0), 60):
        if point["algorithm.aggregation"] == "sequence_mean":
            assert "algorithm.kl_placement" not in point
        assert ("algorithm.kl_coef" in point) == (point.get("algorithm.kl_placement") == "loss")


def test_a_draw_depends_on_its_seed_only_and_a_further_axis_does_not_change_the_others():
    few = axes(smoke("search=random", LR_RANGE))
    more = axes(smoke("search=random", LR_RANGE, KL_PLACEMENT, KL_COEF_WHEN))
    for seed in map(str, range(50)):
        assert draw(few, seed) == draw(few, seed)
        assert draw(few, seed).items() <= draw(more, seed).items()


def test_a_key_whose_condition_is_not_met_does_not_multiply_the_grid():
    coefficient = "search.space.algorithm.kl_coef={choices:[0.01,0.1],when:{algorithm.kl_placement:loss}}"
    cfg = smoke(*ONE_POINT, KL_PLACEMENT, coefficient)
    points = grid(axes(cfg))
    assert len(points) == 3
    plan = make_plan(cfg)
    assert [t.varied for t in plan.trials] == [
        "kl_placement=loss kl_coef=0.01",
        "kl_placement=loss kl_coef=0.1",
        "kl_placement=reward",
    ]
    assert make_plan(replace(cfg, search=replace(cfg.search, trials=6))).size == 6


def test_every_model_and_task_of_the_search_space_is_known_before_anything_starts():
    cfg = smoke("search=random", "search.space.model.kind=[tiny,smollm2_135m]", LR_RANGE)
    assert {at.model.kind for at in recipes(cfg)} == {"tiny", "smollm2_135m"}
    assert recipes(smoke(*ONE_POINT, LR_RANGE, "search=random")) == [smoke(*ONE_POINT, LR_RANGE, "search=random")]

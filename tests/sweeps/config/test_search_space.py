"""How a search space can be typed."""

from __future__ import annotations

import pytest

from rl.codec import from_json
from sweeps.config.build import canonical
from sweeps.config.types import SweepConfig
from sweeps.planning.plan import make_plan
from tests.sweeps.search_spaces import KL_COEF_WHEN, KL_PLACEMENT, LR_RANGE, smoke


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

"""Overrides that several tests of the search space share."""

from __future__ import annotations

from sweeps.config.build import compose
from sweeps.config.types import SweepConfig

LR_RANGE = "search.space.algorithm.lr={low:1e-6,high:1e-4,log:true}"

KL_PLACEMENT = "search.space.algorithm.kl_placement=[loss,reward]"

KL_COEF_WHEN = "search.space.algorithm.kl_coef={low:0.001,high:0.1,log:true,when:{algorithm.kl_placement:loss}}"

ONE_POINT = ("search.prompts_per_step=[8]", "search.lr_scaling=[hold]")


def smoke(*overrides: str) -> SweepConfig:
    return compose(["+stage=smoke", *overrides])

"""The clip_frac rule: its ranges, when it abstains, and what prevents a raise."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import pytest

from rl.spec import AlgorithmSpec, StepReport
from sweeps.journal.trial_summary import TrialSummary
from sweeps.protocol.lr_rule import advise
from tests.sweeps.reports import a_step

GRPO = AlgorithmSpec("grpo")


def after(steps: Iterable[StepReport]) -> TrialSummary:
    summary = TrialSummary()
    for step in steps:
        summary.add(step)
    return summary


def steps(**kwargs):
    return [a_step(n, **kwargs) for n in range(1, 11)]


@pytest.mark.parametrize(
    ("clip_frac", "action"),
    [
        (0.0, "raise"),
        (0.019, "raise"),
        (0.025, "keep"),
        (0.05, "keep"),
        (0.15, "keep"),
        (0.20, "keep"),
        (0.21, "lower"),
        (0.9, "lower"),
    ],
)
def test_each_range_of_clip_frac_has_its_advice(clip_frac: float, action: str):
    advice = advise(after(steps(clip_frac=clip_frac)), GRPO)
    assert advice.action == action
    assert advice.clip_frac == pytest.approx(clip_frac)


def test_abstains_where_the_ratio_is_one_by_construction():
    assert advise(after(steps(clip_frac=None)), GRPO).action == "abstain"


@pytest.mark.parametrize("change", [{"surrogate": "cispo"}, {"ratio_level": "sequence"}])
def test_abstains_where_clip_frac_has_another_meaning(change: dict):
    assert advise(after(steps(clip_frac=0.5)), dataclasses.replace(GRPO, **change)).action == "abstain"


def test_abstains_on_too_few_steps():
    assert advise(after([a_step(1)]), GRPO).action == "abstain"


def test_a_low_clip_frac_is_no_reason_to_raise_against_kl_entropy_or_gradient_norm():
    assert advise(after(steps(clip_frac=0.0, kl=0.2)), GRPO).action == "keep"
    collapsed = [a_step(1, entropy=1.0), *[a_step(n, entropy=0.1) for n in range(2, 11)]]
    assert advise(after(collapsed), GRPO).action == "keep"
    spiking = [*steps(clip_frac=0.0)[:-1], a_step(10, clip_frac=0.0, grad_norm=500.0)]
    assert advise(after(spiking), GRPO).action == "keep"


def test_only_the_last_steps_are_judged():
    early_storm = [a_step(n, clip_frac=0.5) for n in range(1, 6)] + [a_step(n, clip_frac=0.05) for n in range(6, 11)]
    assert advise(after(early_storm), GRPO).action == "keep"


def test_every_advice_prints_its_basis():
    basis = advise(after(steps()), GRPO).basis
    for text in ("eps 0.2/0.2", "token ratio", "2 updates per rollout", "staleness 0"):
        assert text in basis

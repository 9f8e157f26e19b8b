"""The rules of a stage on the reports of trials: who is stopped, and what is kept after the end."""

from __future__ import annotations

from collections.abc import Iterable

from sweeps.config.build import compose
from sweeps.protocol.stage_rules import stage_rules
from sweeps.protocol.trial_rules import TrialRules
from tests.sweeps.reports import a_step

SINGLE = stage_rules(compose(["+stage=single", "trainer=simulated", "machine=rtx4090"])).rules


def stopped_at(rewards: Iterable[float]) -> int | None:
    rules = TrialRules(SINGLE)
    for step, reward in enumerate(rewards, start=1):
        # A little noise: an exact constant has no noise to measure.
        rules.add("t", a_step(step, reward=reward * (1.0 + 0.05 * (-1) ** step)), cards=1)
        if rules.failed_stop("t"):
            return step
    return None


def test_a_run_whose_reward_collapses_is_stopped_within_one_window() -> None:
    at = stopped_at([0.5] * 60 + [0.0] * 140)
    assert at is not None
    assert 70 < at <= 80


def test_a_healthy_run_and_a_run_that_recovers_are_kept() -> None:
    assert stopped_at([0.2 + 0.003 * step for step in range(200)]) is None
    assert stopped_at([0.5] * 60 + [0.0] * 12 + [0.5] * 128) is None


def test_a_step_that_is_reported_again_counts_once() -> None:
    once, twice = TrialRules(SINGLE), TrialRules(SINGLE)
    for step in range(1, 41):
        once.add("t", a_step(step), cards=1)
        twice.add("t", a_step(step), cards=1)
        twice.add("t", a_step(max(1, step - 3), reward=9.0), cards=1)
    assert once.results() == twice.results()


def test_the_results_of_a_trial_stay_the_same_after_its_end() -> None:
    rules = TrialRules(SINGLE)
    for step in range(1, 61):
        rules.add("t", a_step(step), cards=1)
    before = rules.results()
    rules.end("t")
    rules.add("t", a_step(61, reward=-1.0), cards=1)
    assert rules.results() == before
    assert rules.failed_stop("t") is None
    assert before["finite numbers"]["t"].outcome == "passed"

"""The metric gate: what closes it, and the reason that it gives."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest

from rl.spec import Mean, StepReport
from sweeps.config.build import compose
from sweeps.config.types import GateConfig
from sweeps.journal.events import GateVerdict
from sweeps.journal.journal import AttemptRecord, SweepRecord, TrialRecord
from sweeps.journal.outcomes import AttemptOutcome
from sweeps.planning.plan import PlannedTrial
from sweeps.protocol.gates import metric_gate
from sweeps.protocol.stage_rules import stage_rules
from sweeps.protocol.trial_rules import TrialRules
from tests.sweeps.reports import a_step, an_evaluation

STEPS = 5


@dataclass
class Record(SweepRecord):
    steps: list[StepReport] = field(default_factory=list)
    """Those of `trial0`."""


def a_record(
    outcome: AttemptOutcome = AttemptOutcome.COMPLETED, *, correct_after: int = 30, done: int = STEPS, **step_settings
) -> Record:
    planned = PlannedTrial("trial0", 2, 8, 0, 1e-5, "hold", ("hold",), adaptive_lr=False)
    trial = TrialRecord(planned, attempts=[AttemptRecord(1, "lease", 0, 0, outcome)])
    steps = [a_step(n, **step_settings) for n in range(1, done + 1)]
    for message in [an_evaluation(0, correct=20), *steps, an_evaluation(STEPS, correct=correct_after)]:
        trial.summary.add(message)
    return Record("smoke-1", stage="smoke", trials={"trial0": trial}, steps=steps)


def judge(record: Record, *, force: str = "") -> GateVerdict:
    rules = TrialRules(stage_rules(compose(["+stage=smoke", f"stage.steps={STEPS}"])).rules)
    for step in record.steps:
        rules.add("trial0", step, cards=1)
    return metric_gate(record, STEPS, GateConfig(0.01, "", force, start_anyway="", acknowledge=""), rules)


def closing(verdict: GateVerdict) -> list[str]:
    return [c.name for c in verdict.checks if c.ok is False]


def test_healthy_curves_open_it():
    verdict = judge(a_record())
    assert verdict.open
    assert all(c.ok for c in verdict.checks)


@pytest.mark.parametrize("outcome", ["crashed", "preempted", "budget", "cancelled"])
def test_a_trial_that_did_not_finish_closes_it_and_is_named(outcome: str):
    verdict = judge(a_record(AttemptOutcome(outcome)))
    assert closing(verdict) == ["all steps done"]
    assert "trial0" in verdict.checks[0].reason


def test_a_missing_step_closes_it_even_if_the_trial_says_completed():
    assert closing(judge(a_record(done=STEPS - 1))) == ["all steps done"]


@pytest.mark.parametrize("ratio", [1.02, 0.97, math.nan, 2.0])
def test_a_ratio_off_one_on_the_first_update_closes_it(ratio: float):
    assert "ratio 1 on the first update" in closing(judge(a_record(first_ratio=ratio)))


def test_a_stale_rollout_is_not_judged_by_its_ratio():
    verdict = judge(a_record(first_ratio=1.5, staleness=1))
    assert verdict.open
    assert verdict.checks[1].ok is None


@pytest.mark.parametrize("bad", [{"grad_norm": math.inf}, {"entropy": math.nan}, {"reward": math.nan}])
def test_a_number_that_is_not_finite_closes_it_and_is_named(bad: dict):
    verdict = judge(a_record(**bad))
    assert "finite numbers" in closing(verdict)
    reason = next(c.reason for c in verdict.checks if c.name == "finite numbers")
    assert next(iter(bad)) in reason


def test_a_sampler_with_stale_weights_closes_it():
    assert closing(judge(a_record(logp_diff=0.47))) == ["sampler agrees with learner"]
    assert judge(a_record(logp_diff=0.04)).open


def test_accuracy_that_fell_in_every_trial_closes_it_and_in_one_of_two_is_only_named():
    record = a_record(correct_after=2)
    assert closing(judge(record)) == ["accuracy kept"]
    record.trials["trial1"] = a_record().trials["trial0"]
    verdict = judge(record)
    assert verdict.open
    assert "trial0 by 0.28" in next(c.reason for c in verdict.checks if c.name == "accuracy kept")


def test_accuracy_that_fell_within_the_noise_of_the_evaluation_closes_nothing():
    assert judge(a_record(correct_after=19)).open


def reason(verdict: GateVerdict, name: str) -> str:
    return next(c.reason for c in verdict.checks if c.name == name)


def test_a_scorer_that_always_raises_closes_it_and_its_first_error_is_named():
    verdict = judge(a_record(scorer_errors=16, scorer_error="TypeError: score() takes 1 argument", equal_groups=2))
    assert closing(verdict) == ["scorer works", "rewards differ"]
    assert "80 of 80 completions of trial0 (100.0%" in reason(verdict, "scorer works")
    assert "TypeError: score() takes 1 argument" in reason(verdict, "scorer works")


def test_a_scorer_that_fails_for_less_than_one_percent_is_only_named():
    record = a_record()
    record.trials["trial0"].summary.scorer_errors += Mean(1, 1000)
    verdict = judge(record)
    assert verdict.open
    assert "1 of 1080 completions" in reason(verdict, "scorer works")


def test_equal_rewards_in_every_group_of_every_trial_close_it():
    verdict = judge(a_record(equal_groups=2, reward=0.0))
    assert closing(verdict) == ["rewards differ"]
    assert "no gradient" in reason(verdict, "rewards differ")


def test_one_trial_with_a_gradient_keeps_it_open_and_names_the_others():
    record = a_record(equal_groups=2)
    record.trials["trial1"] = a_record(equal_groups=1).trials["trial0"]
    verdict = judge(record)
    assert verdict.open
    assert "none in trial0" in reason(verdict, "rewards differ")


def test_an_evaluation_without_answers_closes_it():
    record = a_record()
    record.trials["trial0"].summary.add(an_evaluation(STEPS + 1, correct=0, questions=0))
    assert "evaluations have answers" in closing(judge(record))


def test_a_curve_that_was_never_reported_closes_it_and_one_undefined_by_the_settings_is_named():
    record = a_record(clip_frac=None)
    verdict = judge(record)
    assert verdict.open
    assert reason(verdict, "curves reported").startswith("clip_frac is undefined")
    record.trials["trial0"].summary.missing_curves = ("entropy",)
    verdict = judge(record)
    assert closing(verdict) == ["curves reported"]
    assert "entropy had no value in any step of trial0" in reason(verdict, "curves reported")


def test_without_a_proven_gain_the_verdict_is_inconclusive_and_says_what_would_show_one():
    verdict = judge(a_record(correct_after=22))
    assert verdict.open
    assert verdict.status == "inconclusive"
    assert "task.eval_questions" in reason(verdict, "gain proven")
    assert judge(a_record(correct_after=30)).status == "open"


def test_cards_that_were_not_released_close_it():
    record = a_record()
    record.unreleased.append("trial0/1")
    assert closing(judge(record)) == ["cards released"]


def test_force_opens_it_and_keeps_the_reason_and_the_unhealthy_verdict():
    verdict = judge(a_record(AttemptOutcome.CRASHED), force="low, but ok")
    assert verdict.open
    assert not verdict.healthy
    assert verdict.forced == "low, but ok"

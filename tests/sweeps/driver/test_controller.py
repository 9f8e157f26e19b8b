"""The decisions of the controller and what it writes, with a real ledger and the fake clock."""

from __future__ import annotations

import itertools
from decimal import Decimal

import pytest

from rl.spec import Stop, StopKind
from rl.trainers.simulated import SimulatedTrainer
from sweeps.executors.in_process import InProcessExecutor
from sweeps.journal.journal import TrialState, load
from sweeps.journal.outcomes import AttemptOutcome
from tests.sweeps.in_process import a_sweep


def test_every_trial_of_the_plan_ends_completed_with_each_step_once(tmp_path):
    sweep = a_sweep(tmp_path).run()
    trials = sweep.journal.record.trials.values()
    assert len(trials) == 3
    for trial in trials:
        assert trial.state is TrialState.COMPLETED
        reports = sweep.reports()[trial.trial_id]
        assert sorted(reports.steps) == list(range(1, 21))
        assert sorted(reports.evaluations) == [0, 20]
    assert sweep.verdict().open


def test_the_whole_plan_is_in_the_journal_before_the_first_attempt(tmp_path):
    sweep = a_sweep(tmp_path)
    sweep.run()
    kinds = [e.kind for e in sweep.ledger.events.read("sweep:smoke-test-1")]
    assert kinds[0] == "sweep_planned"
    assert kinds.index("sweep_planned") < kinds.index("attempt_started")


def test_the_state_is_the_replay_of_the_journal(tmp_path):
    sweep = a_sweep(tmp_path).run()
    assert load(sweep.ledger, "smoke-test-1") == sweep.journal.record


def test_one_card_runs_one_attempt_at_a_time(tmp_path):
    sweep = a_sweep(tmp_path).run()
    usages = sorted(sweep.ledger.usages.find(), key=lambda u: u.from_ns)
    assert len(usages) == 3
    for before, after in itertools.pairwise(usages):
        assert before.to_ns is not None
        assert before.to_ns <= after.from_ns


def test_eight_cards_run_their_trials_at_once(tmp_path):
    sweep = a_sweep(tmp_path, "machine=h100x8", "search.trials=8").run()
    starts = {u.from_ns for u in sweep.ledger.usages.find()}
    assert len(starts) == 1
    assert {u.cards for u in sweep.ledger.usages.find()} == {Decimal(1)}


def test_max_concurrent_holds_where_more_cards_are_free(tmp_path):
    sweep = a_sweep(tmp_path, "machine=h100x8", "search.trials=8", "search.max_concurrent=2").run()
    edges = sorted(edge for u in sweep.ledger.usages.find() for edge in [(u.from_ns, 1), (u.to_ns, -1)])
    running = peak = 0
    for _, change in edges:
        running += change
        peak = max(peak, running)
    assert peak == 2


def test_a_preempted_trial_resumes_from_its_checkpoint_and_is_not_failed(tmp_path):
    sweep = a_sweep(tmp_path, "trainer.simulated.preempt_at_step=15").run()
    for trial in sweep.journal.record.trials.values():
        assert trial.state is TrialState.COMPLETED
        assert [a.outcome for a in trial.attempts] == ["preempted", "completed"]
        assert trial.attempts[1].from_step == 10
        steps = sweep.reports()[trial.trial_id].steps
        assert sorted(steps) == list(range(1, 21))
        redone = [n for n, step in steps.items() if step.replay]
        assert redone == [11, 12, 13, 14]


@pytest.mark.parametrize(
    ("fault", "text"),
    [("crash_at_step", "died"), ("hang_at_step", "hangs")],
)
def test_a_trial_that_crashes_or_hangs_too_often_is_failed_and_the_others_continue(tmp_path, fault: str, text: str):
    never = ("retry.crashes=0", "retry.hangs=0")
    sweep = a_sweep(tmp_path, f"trainer.simulated.{fault}=5", *never).run()
    for trial in sweep.journal.record.trials.values():
        assert trial.state is TrialState.FAILED
        assert text in trial.attempts[0].message.lower()
    verdict = sweep.verdict()
    assert not verdict.open
    assert not any(u.to_ns is None for u in sweep.ledger.usages.find())


@pytest.mark.parametrize(("fault", "outcome"), [("crash_at_step", "crashed"), ("hang_at_step", "hung")])
def test_a_trial_that_crashed_or_hung_once_resumes_from_its_checkpoint(tmp_path, fault: str, outcome: str):
    sweep = a_sweep(tmp_path, f"trainer.simulated.{fault}=15").run()
    for trial in sweep.journal.record.trials.values():
        assert [a.outcome for a in trial.attempts] == [outcome, "completed"]
        assert trial.attempts[1].from_step == 10
        assert sorted(sweep.reports()[trial.trial_id].steps) == list(range(1, 21))


def test_each_crash_waits_twice_as_long_as_the_one_before(tmp_path):
    every = ("trainer.simulated.crash_at_step=5", "trainer.simulated.faults_every_attempt=true")
    sweep = a_sweep(tmp_path, *every, "retry.crashes=3", "retry.backoff_seconds=100", "search.lr_scaling=[hold]")
    sweep.run()
    for trial in sweep.journal.record.trials.values():
        assert trial.state is TrialState.FAILED
        assert [a.outcome for a in trial.attempts] == ["crashed"] * 4
        waits = [(b.started_ns - (a.ended_ns or 0)) / 1e9 for a, b in itertools.pairwise(trial.attempts)]
        assert all(wait >= least for wait, least in zip(waits, [100, 200, 400], strict=True)), waits


def test_a_trial_that_waits_for_its_retry_is_planned_and_other_trials_use_the_card(tmp_path):
    fault = ("trainer.simulated.crash_at_step=5", "retry.backoff_seconds=600")
    sweep = a_sweep(tmp_path, *fault).run()
    usages = sorted(sweep.ledger.usages.find(), key=lambda u: u.from_ns)
    assert [u.key.attempt for u in usages] == [1, 1, 1, 2, 2, 2]
    assert {u.outcome for u in usages if u.key.attempt == 1} == {"FAILED"}


def test_out_of_memory_is_retried_once_with_half_the_micro_batch(tmp_path):
    fits = a_sweep(
        tmp_path / "a", "trainer.micro_batch_tokens=1024", "trainer.simulated.out_of_memory_above_tokens=512"
    )
    for trial in fits.run().journal.record.trials.values():
        assert [a.outcome for a in trial.attempts] == ["out_of_memory", "completed"]
        assert trial.micro_batch_tokens == 512
    still = a_sweep(
        tmp_path / "b", "trainer.micro_batch_tokens=1024", "trainer.simulated.out_of_memory_above_tokens=64"
    )
    for trial in still.run().journal.record.trials.values():
        assert [a.outcome for a in trial.attempts] == ["out_of_memory"] * 2
        assert trial.state is TrialState.FAILED


def test_preemptions_are_limited_only_when_configured(tmp_path):
    every = ("trainer.simulated.preempt_at_step=15", "trainer.simulated.faults_every_attempt=true")
    sweep = a_sweep(tmp_path, *every, "retry.preemptions=4").run()
    for trial in sweep.journal.record.trials.values():
        assert [a.outcome for a in trial.attempts] == ["preempted"] * 5
        assert trial.state is TrialState.PREEMPTED


def test_a_raised_learning_rate_is_one_command_in_the_journal(tmp_path):
    sweep = a_sweep(tmp_path, "search.lr_scaling=[clip_frac]", "search.prompts_per_step=[2]").run()
    commands = [e.body["command"] for e in sweep.ledger.events.read("sweep:smoke-test-1") if e.kind == "command"]
    raises = [c for c in commands if c["type"] == "set_lr" and c["lr"] > sweep.cfg.algorithm.lr]
    assert len(raises) <= 1
    assert all(c["type"] == "set_lr" for c in commands)


def test_an_abandoned_sweep_leaves_closed_usages_and_trials_that_can_be_resumed(tmp_path):
    sweep = a_sweep(tmp_path)
    attempt = sweep.controller.next_attempt()
    assert attempt is not None
    sweep.controller.on_granted(attempt)
    sweep.controller.stop(Stop(StopKind.INTERRUPTED))
    sweep.controller.end_all(AttemptOutcome.INTERRUPTED, "ended by the sweep")
    assert next(t.state for t in sweep.journal.record.trials.values()) is TrialState.PREEMPTED
    assert all(u.to_ns is not None for u in sweep.ledger.usages.find())
    assert sweep.controller.done()


def test_a_trial_whose_numbers_are_not_finite_gives_a_warning_and_closes_the_gate(tmp_path):
    sweep = a_sweep(tmp_path, "search.prompts_per_step=[2]", "trainer.simulated.diverge_at_step=4")
    sweep.executor = InProcessExecutor(sweep.clock, lambda clock: SimulatedTrainer(clock, nan_on_divergence=True))
    sweep.run()
    verdict = sweep.verdict()
    assert not verdict.open
    assert "finite numbers" in [c.name for c in verdict.checks if c.ok is False]

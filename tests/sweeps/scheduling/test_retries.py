"""Which ends of an attempt are retried, how often, and with which micro-batch."""

from __future__ import annotations

import pytest

from sweeps.config.types import RetryConfig
from sweeps.journal.journal import AttemptRecord, TrialRecord
from sweeps.journal.outcomes import AttemptOutcome
from sweeps.planning.plan import PlannedTrial
from sweeps.scheduling.retries import LONGEST_BACKOFF_SECONDS, retry_after

POLICY = RetryConfig(crashes=2, backoff_seconds=10, out_of_memory=1, hangs=1, hung_after_seconds=60, preemptions=None)


def a_trial(*outcomes: str, forgiven: int = 0) -> TrialRecord:
    planned = PlannedTrial("t", 8, 8, 0, 1e-5, "hold", ("hold",), adaptive_lr=False)
    attempts = [AttemptRecord(n, "lease", 0, 0, AttemptOutcome(outcome)) for n, outcome in enumerate(outcomes, 1)]
    return TrialRecord(planned, attempts, attempts_forgiven=forgiven)


@pytest.mark.parametrize("outcome", ["bad_configuration", "completed", "pruned", "budget", "cancelled", "interrupted"])
def test_a_trial_that_cannot_run_or_was_stopped_is_never_retried(outcome: str):
    assert retry_after(a_trial(outcome), AttemptOutcome(outcome), POLICY, 1024) is None


def test_preemptions_do_not_count_against_crashes():
    outcomes = ["preempted"] * 50 + ["crashed"]
    retry = retry_after(a_trial(*outcomes), AttemptOutcome.CRASHED, POLICY, 1024)
    assert retry is not None
    assert retry.wait_seconds == 10


def test_a_further_crash_waits_twice_as_long_and_the_last_is_final():
    waits = []
    for n in (1, 2):
        retry = retry_after(a_trial(*["crashed"] * n), AttemptOutcome.CRASHED, POLICY, 1024)
        assert retry is not None
        waits.append(retry.wait_seconds)
    assert waits == [10, 20]
    assert retry_after(a_trial(*["crashed"] * 3), AttemptOutcome.CRASHED, POLICY, 1024) is None


def test_no_wait_is_longer_than_ten_minutes():
    policy = RetryConfig(
        crashes=100, backoff_seconds=10, out_of_memory=1, hangs=1, hung_after_seconds=60, preemptions=0
    )
    retry = retry_after(a_trial(*["crashed"] * 60), AttemptOutcome.CRASHED, policy, 1024)
    assert retry is not None
    assert retry.wait_seconds == LONGEST_BACKOFF_SECONDS
    assert retry_after(a_trial("preempted"), AttemptOutcome.PREEMPTED, policy, 1024) is None


def test_a_micro_batch_that_cannot_be_halved_is_not_retried():
    assert retry_after(a_trial("out_of_memory"), AttemptOutcome.OUT_OF_MEMORY, POLICY, 20) is None
    retry = retry_after(a_trial("out_of_memory"), AttemptOutcome.OUT_OF_MEMORY, POLICY, 1024)
    assert retry is not None
    assert retry.micro_batch_tokens == 512


def test_what_was_forgiven_does_not_count():
    trial = a_trial("crashed", "crashed", "crashed", "crashed", forgiven=3)
    retry = retry_after(trial, AttemptOutcome.CRASHED, POLICY, 1024)
    assert retry is not None
    assert retry.wait_seconds == 10

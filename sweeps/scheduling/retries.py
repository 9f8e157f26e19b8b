"""What an attempt's end means for its trial: whether it is retried, when, and with which micro-batch.

Pure: from what the journal knows of a trial to a decision. The driver writes the decision into the journal beside the
end itself, so that it holds after a restart.
"""

from __future__ import annotations

from dataclasses import dataclass

from sweeps.config.types import RetryConfig
from sweeps.journal.journal import TrialRecord
from sweeps.journal.outcomes import AttemptOutcome

LONGEST_BACKOFF_SECONDS = 600.0
LEAST_MICRO_BATCH_TOKENS = 16


@dataclass(frozen=True)
class Retry:
    """A further attempt, on the cards that are free `wait_seconds` after the last one ended, or later."""

    wait_seconds: float
    reason: str
    micro_batch_tokens: int | None = None
    """None: as the last attempt."""


def retry_after(
    trial: TrialRecord, outcome: AttemptOutcome, policy: RetryConfig, micro_batch_tokens: int
) -> Retry | None:
    """What to do after an attempt that ended in `outcome`; None: nothing more.

    A preemption does not count as a failure. After a crash, the retry waits `backoff_seconds`, doubled each further
    time. After running out of memory, the micro-batch is halved, which gives the same loss. A trial that cannot run as
    configured or that was stopped is never retried.

    Args:
        trial: the record, the attempt that ended being its last.
        micro_batch_tokens: of that attempt.
    """
    before = [a.outcome for a in trial.attempts[trial.attempts_forgiven : -1]]
    match outcome:
        case AttemptOutcome.PREEMPTED:
            times = before.count(AttemptOutcome.PREEMPTED)
            if policy.preemptions is not None and times >= policy.preemptions:
                return None
            return Retry(0.0, "preempted, which does not count as a failure")
        case AttemptOutcome.CRASHED:
            times = before.count(AttemptOutcome.CRASHED)
            if times >= policy.crashes:
                return None
            wait = min(policy.backoff_seconds * 2**times, LONGEST_BACKOFF_SECONDS)
            return Retry(wait, f"crashed: retry {times + 1} of {policy.crashes}")
        case AttemptOutcome.HUNG:
            times = before.count(AttemptOutcome.HUNG)
            return Retry(0.0, f"hung: retry {times + 1} of {policy.hangs}") if times < policy.hangs else None
        case AttemptOutcome.OUT_OF_MEMORY:
            smaller = micro_batch_tokens // 2
            if before.count(AttemptOutcome.OUT_OF_MEMORY) >= policy.out_of_memory or smaller < LEAST_MICRO_BATCH_TOKENS:
                return None
            reason = f"out of memory: again with trainer.micro_batch_tokens={smaller}, which gives the same loss"
            return Retry(0.0, reason, smaller)
        case _:
            return None

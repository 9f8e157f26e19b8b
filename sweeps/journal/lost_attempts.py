"""Ends the attempts of drivers that died. The ledger has closed their usages at the driver's last heartbeat.

Tested in tests/chaos and tests/sweeps/cli/test_main.py.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cost.ledger.ledger import Ledger
from sweeps.journal.journal import Journal, SweepRecord, TrialState
from sweeps.journal.outcomes import AttemptOutcome


def end_lost_attempts(journal: Journal, alive: Collection[tuple[str, int]] = ()) -> None:
    """Append the end of each running attempt of a sweep, except for those in `alive` (trial id, attempt)."""
    for trial in journal.record.trials.values():
        if trial.state is TrialState.RUNNING and (trial.trial_id, trial.attempts[-1].attempt) not in alive:
            outcome, text = AttemptOutcome.LOST, "its driver ended without closing it"
            if trial.pruned is not None:
                outcome, text = AttemptOutcome.PRUNED, trial.pruned
            journal.end_attempt(trial.trial_id, trial.attempts[-1].attempt, outcome, text)


def end_lost_attempts_of_all(ledger: Ledger, records: Sequence[SweepRecord]) -> None:
    """Do so for every sweep, so that a dead sweep does not look as if it were running.

    Call `UsageStore.close_dead` first: an attempt whose usage is then still open is alive.
    """
    for record in records:
        if all(trial.state is not TrialState.RUNNING for trial in record.trials.values()):
            continue
        with ledger.transaction():  # no driver writes between reading the usages and appending the ends
            alive = [
                (u.key.trial_id, u.key.attempt) for u in ledger.usages.find(sweep_id=record.sweep_id, only_open=True)
            ]
            end_lost_attempts(Journal(ledger, record.sweep_id, record), alive)

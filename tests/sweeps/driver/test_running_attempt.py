"""The state of a running attempt: phases that are not in the ledger yet, and checkpoints that must be committed."""

from __future__ import annotations

from pathlib import Path

import pytest

from cost.records import UsageKey
from rl.spec import CheckpointWritten
from sweeps.config.build import compose
from sweeps.driver.running_attempt import RunningAttempt
from sweeps.executors import Attempt
from sweeps.planning.plan import make_plan, trial_spec
from tests.sweeps.reports import a_step

KEY = UsageKey("lease-1", "t1", 1)


def a_checkpoint(step: int) -> CheckpointWritten:
    return CheckpointWritten(step, "/c", 10, 5, {"checkpoint": 5})


@pytest.fixture
def running(tmp_path: Path) -> RunningAttempt:
    cfg = compose(["+stage=smoke", "trainer=simulated"])
    spec = trial_spec(cfg, make_plan(cfg).trials[0], attempt=1, sweep_dir=tmp_path)
    return RunningAttempt(Attempt(spec, None), KEY)


def test_phases_up_to_a_checkpoint_and_after_it_stay_apart(running: RunningAttempt):
    step = a_step(1)
    for sequence, message in enumerate([step, a_checkpoint(1), step, step]):
        running.add_phases(sequence, message)
    once = dict(step.phase_card_ns)
    assert running.take_phases() == [
        (KEY, 1, once | {"checkpoint": once.get("checkpoint", 0) + 5}),
        (KEY, 3, {phase: 2 * card_ns for phase, card_ns in once.items()}),
    ]


def test_phases_are_taken_once(running: RunningAttempt):
    running.add_phases(0, a_step(1))
    assert len(running.take_phases()) == 1
    assert running.take_phases() == []


def test_with_one_kept_checkpoint_each_must_be_committed_before_the_reply(running: RunningAttempt):
    assert running.checkpoint_must_be_written(a_checkpoint(1), 0, keep_checkpoints=1)
    assert running.checkpoint_must_be_written(a_checkpoint(2), 0, keep_checkpoints=1)


def test_with_two_kept_checkpoints_one_of_them_must_be_committed(running: RunningAttempt):
    assert not running.checkpoint_must_be_written(a_checkpoint(1), 0, keep_checkpoints=2)
    assert running.checkpoint_must_be_written(a_checkpoint(2), 0, keep_checkpoints=2), "no flush since the last one"
    assert not running.checkpoint_must_be_written(a_checkpoint(3), 1, keep_checkpoints=2), "the last one is committed"


def test_other_messages_need_no_commit(running: RunningAttempt):
    assert not running.checkpoint_must_be_written(a_step(1), 0, keep_checkpoints=1)

"""The journal: batched messages, decisions in order, and the same state from each way of reading."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cost.clock import FakeClock
from cost.ledger.ledger import Ledger
from cost.records import LOST_WORK_OUTCOMES, IntegrityError, NewEvent
from rl.spec import CheckpointWritten, Started
from sweeps.journal.event_codec import encode, messages_in
from sweeps.journal.events import MessagesReported, OperatorRequest, TrialSummarised, WarningIssued
from sweeps.journal.journal import (
    MAX_WAIT_NS,
    MAX_WAITING_MESSAGES,
    STREAM_PREFIX,
    Journal,
    TrialState,
    load,
    replay,
    sweep_events,
)
from sweeps.journal.messages import record_message
from sweeps.journal.outcomes import AttemptOutcome
from tests.sweeps.in_process import Sweep, a_sweep
from tests.sweeps.reports import a_step, an_evaluation

SWEEP = "smoke-test-1"
SECOND_NS = 10**9


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Sweep]:
    """A sweep whose first attempt has its card and has not reported yet."""
    sweep = a_sweep(tmp_path, "search.prompts_per_step=[2]")
    attempt = sweep.controller.next_attempt()
    assert attempt is not None
    sweep.controller.on_granted(attempt)
    yield sweep
    sweep.ledger.close()


def the_attempt(sweep: Sweep):
    (running,) = sweep.controller._attempts.values()
    return running.attempt


def on_disk(sweep: Sweep):
    """What another process would read now."""
    with Ledger.open(sweep.cfg.paths.root + "/ledger.db", read_only=True) as reader:
        return load(reader, SWEEP)


def a_checkpoint(step: int, folder: str = "/c") -> CheckpointWritten:
    return CheckpointWritten(step, f"{folder}/step-{step}", 10, 5, {"checkpoint": 5})


def test_an_event_has_many_messages_in_the_order_of_their_arrival(tmp_path):
    sweep = a_sweep(tmp_path, "machine=h100x8", "search.trials=8").run()
    events = list(sweep_events(sweep.ledger, SWEEP))
    received = [message for event in events for message in messages_in(event)]
    assert len(received) > 3 * sum(event.kind == MessagesReported.kind for event in events)
    assert [m.at_ns for m in received] == sorted(m.at_ns for m in received)
    assert len({m.key for m in received}) == len(received)
    for trial_id in sweep.journal.record.trials:
        mine = [m.sequence for m in received if m.trial_id == trial_id]
        assert mine == list(range(len(mine)))
    starts = {e.body["trial_id"]: e.sequence for e in events if e.kind == "attempt_started"}
    ends = {e.body["trial_id"]: e.sequence for e in events if e.kind == "attempt_ended"}
    for event in events:
        for message in messages_in(event):
            assert starts[message.trial_id] < event.sequence < ends[message.trial_id]


@pytest.mark.parametrize(
    "fault", [(), ("trainer.simulated.preempt_at_step=15",), ("trainer.simulated.crash_at_step=5",)]
)
def test_load_replay_and_catch_up_give_the_same_state_at_every_moment(tmp_path, fault: tuple[str, ...]):
    sweep = a_sweep(tmp_path, "search.prompts_per_step=[2]", *fault).run()
    events = list(sweep_events(sweep.ledger, SWEEP))
    assert replay(SWEEP, events) == load(sweep.ledger, SWEEP) == sweep.journal.record
    clock = FakeClock()
    with Ledger.open(tmp_path / "other.db", clock) as other:
        for event in events:
            clock.advance(event.at_ns - clock.utc)
            other.events.append_all(STREAM_PREFIX + SWEEP, [NewEvent(event.kind, event.body, event.key)])
            so_far = list(sweep_events(other, SWEEP))
            assert load(other, SWEEP) == replay(SWEEP, so_far)


def test_messages_wait_for_a_second_or_until_there_are_many(running):
    controller, attempt = running.controller, the_attempt(running)
    started = Started(0, 0, 1, "simulated", "simulated", 1, 1, 1, 1, {})
    controller.on_message(attempt, 0, started)
    controller.on_message(attempt, 1, a_step(1))
    trial = running.journal.record.trials[attempt.trial_id]
    assert trial.summary.step == 1
    assert on_disk(running).trials[attempt.trial_id].summary.step == 0
    running.clock.advance(MAX_WAIT_NS)
    controller.on_tick()
    assert on_disk(running).trials[attempt.trial_id].summary.step == 1
    for number in range(2, 2 + MAX_WAITING_MESSAGES):
        controller.on_message(attempt, number, a_step(number))
    assert on_disk(running).trials[attempt.trial_id].summary.step == MAX_WAITING_MESSAGES + 1


def test_checkpoints_and_evaluations_are_committed_before_the_reply(running):
    controller, attempt = running.controller, the_attempt(running)
    controller.on_message(attempt, 0, a_step(1))
    controller.on_message(attempt, 1, a_checkpoint(1))
    known = on_disk(running).trials[attempt.trial_id]
    assert (known.summary.step, known.checkpoint) == (1, a_checkpoint(1))
    controller.on_message(attempt, 2, an_evaluation(1, correct=3))
    assert on_disk(running).trials[attempt.trial_id].summary.acc == 3 / 64
    controller.on_message(attempt, 3, a_step(2))
    controller.on_ended(attempt, AttemptOutcome.COMPLETED, "")
    known = on_disk(running).trials[attempt.trial_id]
    assert (known.state, known.summary.step) == (TrialState.COMPLETED, 2)


def test_with_two_kept_checkpoints_the_previous_one_is_committed(tmp_path):
    sweep = a_sweep(tmp_path, "search.prompts_per_step=[2]", "trainer.keep_checkpoints=2")
    attempt = sweep.controller.next_attempt()
    assert attempt is not None
    sweep.controller.on_granted(attempt)
    for number in (1, 2):
        sweep.controller.on_message(attempt, number - 1, a_checkpoint(number))
        known = on_disk(sweep).trials[attempt.trial_id].checkpoint
        assert known == {1: None, 2: a_checkpoint(2)}[number]


def test_a_repeated_message_changes_nothing_and_a_different_one_of_its_number_is_refused(running):
    controller, attempt = running.controller, the_attempt(running)
    first = controller.on_message(attempt, 0, a_step(1))
    assert controller.on_message(attempt, 0, a_step(1)) == first
    events = [e for e in sweep_events(running.ledger, SWEEP) if e.kind == MessagesReported.kind]
    assert sum(len(list(messages_in(e))) for e in events) == 1
    with pytest.raises(IntegrityError, match="was received before"):
        controller.on_message(attempt, 0, a_step(1, reward=0.25))


def test_messages_survive_a_failed_transaction(running):
    journal, attempt = running.journal, the_attempt(running)
    journal.add_message(attempt.trial_id, 1, 0, a_step(1))
    with contextlib.suppress(RuntimeError), journal.transaction():
        journal.append(WarningIssued("lost with it"))
        raise RuntimeError
    journal.add_message(attempt.trial_id, 1, 1, a_step(2))
    journal.flush()
    assert [w.sequence for e in sweep_events(running.ledger, SWEEP) for w in messages_in(e)] == [0, 1]
    assert load(running.ledger, SWEEP) == journal.record
    assert "warning" not in running.ledger.events.kinds(STREAM_PREFIX + SWEEP)


def test_events_of_another_process_are_applied_in_their_order(running):
    with Ledger.open(running.cfg.paths.root + "/ledger.db", running.clock) as theirs:
        Journal(theirs, SWEEP).append(OperatorRequest("stop", "enough"))
    attempt = the_attempt(running)
    running.journal.add_message(attempt.trial_id, 1, 0, a_step(1))
    running.journal.append(WarningIssued("after it"))
    assert running.journal.record.stop_requested == "enough"
    assert load(running.ledger, SWEEP) == running.journal.record


def test_work_after_the_last_checkpoint_is_exact_to_the_nanosecond(tmp_path):
    from cost.ledger import queries

    sweep = a_sweep(tmp_path, "search.prompts_per_step=[2]", "trainer.simulated.preempt_at_step=15").run()
    with sweep.ledger.read() as connection:
        after = queries.phase_totals_after_checkpoint(connection, sorted(LOST_WORK_OUTCOMES))
        totals = queries.phase_totals(connection)
        usages = queries.usages(connection)
    recorded = [m for e in sweep_events(sweep.ledger, SWEEP) for m in messages_in(e)]
    for number, usage in usages.items():
        mine = [m for m in recorded if (m.trial_id, m.attempt) == (usage.key.trial_id, usage.key.attempt)]
        last = max((i for i, m in enumerate(mine) if m.body["type"] == "checkpoint"), default=-1)
        for messages, found in [(mine, totals[number]), (mine[last + 1 :], after.get(number))]:
            if found is not None:
                assert sum(found.values()) == sum(sum(m.body["phase_card_ns"].values()) for m in messages)
    assert len(after) == len(sweep.journal.record.trials)


def test_an_end_comes_with_a_summary_whose_size_does_not_grow_with_the_steps(tmp_path):
    sizes = []
    for steps in (20, 80):
        sweep = a_sweep(tmp_path / str(steps), "search.prompts_per_step=[2]", f"stage.steps={steps}").run()
        events = [e for e in sweep_events(sweep.ledger, SWEEP) if e.kind == TrialSummarised.kind]
        assert len(events) == len(sweep.journal.record.trials)
        sizes.append(max(len(json.dumps(e.body)) for e in events))
    assert sizes[1] < 1.2 * sizes[0]


def test_a_repeated_step_counts_once_in_the_summary_and_replaces_its_report(running):
    attempt = the_attempt(running)
    summary = running.journal.record.trials[attempt.trial_id].summary
    for step in (a_step(1, wall_ns=SECOND_NS), a_step(2, wall_ns=SECOND_NS), a_step(2, wall_ns=5 * SECOND_NS)):
        summary.add(step)
    summary.add(an_evaluation(0, correct=3))
    summary.add(an_evaluation(0, correct=4))
    assert (summary.step, summary.wall_ns, len(summary.window)) == (2, 2 * SECOND_NS, 2)
    assert (summary.acc, len(summary.accuracies), summary.last_evaluation) == (3 / 64, 1, None)
    assert summary.step_times == {"1.00e+09": 2}


def test_a_message_keeps_text_that_utf_8_cannot_encode(tmp_path):
    odd = CheckpointWritten(1, "/models/\udce9t\u00e9", 1, 1, {"checkpoint": 1})
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        two = tuple(record_message("t1", 1, number, number, odd) for number in range(2))
        ledger.events.append_all("odd", [encode(MessagesReported(two), "k")])
        assert [m.message for e in ledger.events.read("odd") for m in messages_in(e)] == [odd, odd]


def test_equal_numbers_in_another_spelling_are_the_same_event(tmp_path):
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        ledger.events.append_all("s", [NewEvent("message", '{"lr":1e-05}', "k")])
        assert ledger.events.append_all("s", [NewEvent("message", '{"lr":1e-5}', "k")]) == []
        with pytest.raises(IntegrityError, match="exists with other content"):
            ledger.events.append_all("s", [NewEvent("message", '{"lr":2e-5}', "k")])

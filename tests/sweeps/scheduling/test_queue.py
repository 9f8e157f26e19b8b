"""The queue of trials that wait for cards."""

from __future__ import annotations

from sweeps.scheduling.queue import TrialQueue


def a_queue() -> TrialQueue:
    """`first` and `second` are due at once, `retry` at 100 ns."""
    queue = TrialQueue()
    queue.add("retry", 100)
    queue.add("first")
    queue.add("second")
    return queue


def test_due_trials_leave_in_the_order_in_which_they_were_added():
    queue = a_queue()
    assert [queue.pop_first(0, lambda _: True) for _ in range(3)] == ["first", "second", None]
    assert queue.trial_ids() == ["retry"]


def test_a_retry_is_due_from_its_moment_on():
    queue = TrialQueue()
    queue.add("retry", 100)
    assert not queue.has_due(99)
    assert queue.has_due(100)
    assert queue.pop_first(99, lambda _: True) is None
    assert queue.pop_first(100, lambda _: True) == "retry"


def test_a_trial_that_does_not_fit_lets_the_next_one_that_fits_pass():
    queue = a_queue()
    assert queue.pop_first(100, lambda trial_id: trial_id == "retry") == "retry"
    assert queue.pop_first(100, lambda trial_id: trial_id != "first") == "second"
    assert queue.pop_first(100, lambda _: False) is None
    assert queue.trial_ids() == ["first"]


def test_a_removed_trial_never_leaves_the_queue():
    queue = a_queue()
    queue.remove("first")
    assert len(queue) == 2
    assert queue.pop() == "second"


def test_all_due_waits_for_the_last_retry():
    queue = a_queue()
    assert not queue.all_due(99)
    assert queue.all_due(100)
    assert TrialQueue().all_due(0), "nothing waits"

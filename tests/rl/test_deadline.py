"""A call that hangs ends with an error that names the call."""

from __future__ import annotations

import threading

import pytest

from rl.deadline import DeadlineError, within


def test_hanging_weight_sync_raises_an_error_that_names_role_and_rank():
    never = threading.Event()
    with pytest.raises(DeadlineError, match=r"weight sync to rollout engine rank 3 did not end within 0\.05 s"):
        within(0.05, "weight sync to rollout engine rank 3", never.wait)
    never.set()


def test_call_that_ends_in_time_returns_or_raises_its_own_error():
    done: list[int] = []
    within(30, "a quick call", lambda: done.append(1))
    assert done == [1]

    def fails() -> None:
        raise ValueError("a sync to policy version 3")

    with pytest.raises(ValueError, match="policy version 3"):
        within(30, "a call that fails", fails)

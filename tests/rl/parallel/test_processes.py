"""Rank processes: results by rank, and errors that name the rank."""

import os
import signal
import threading

import pytest

from rl.deadline import DeadlineError
from rl.parallel.processes import RankProcesses, RanksError


class Adder:
    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def add(self, x, y):
        return (self.rank, x + y)

    def wait(self):
        threading.Event().wait()


@pytest.fixture
def ranks():
    processes = RankProcesses(3, Adder)
    yield processes
    processes.close()


def test_results_come_in_the_order_of_ranks(ranks):
    assert ranks.run("add", [(), (1, 2), (3, 4)], lambda: "own", 60.0) == ["own", (1, 3), (2, 7)]


def test_a_rank_that_dies_is_named_while_rank_0_still_waits_for_it(ranks):
    ranks.run("add", [(0, 0)] * 3, lambda: None, 60.0)
    os.kill(ranks.pids()[1], signal.SIGKILL)
    released = threading.Event()
    with pytest.raises(RanksError, match=r"rank 2 of 3 died in add .*-9"):
        ranks.run("add", [(0, 0)] * 3, released.wait, 60.0)
    released.set()


def test_an_exception_of_a_rank_is_raised_in_rank_0(ranks):
    with pytest.raises(TypeError, match="unsupported operand"):
        ranks.run("add", [(0, 0), (0, 0), (None, 0)], lambda: None, 60.0)


def test_an_exception_of_rank_0_is_raised(ranks):
    with pytest.raises(ZeroDivisionError):
        ranks.run("wait", [()] * 3, lambda: 1 // 0, 60.0)


def test_a_rank_that_exceeds_the_deadline_is_named(ranks):
    ranks.run("add", [(0, 0)] * 3, lambda: None, 60.0)
    with pytest.raises(DeadlineError, match=r"wait did not end within 0\.2 s on rank 1, 2 of 3"):
        ranks.run("wait", [()] * 3, lambda: None, 0.2)


def test_closing_ends_the_processes(ranks):
    pids = ranks.pids()
    ranks.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

"""kill -9 of a simulated sweep at random points, each followed by a resume: no work lost or done twice, exact costs.

A point that fails is reproduced with `python -m tests.chaos.killing PLAN SEED`.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.chaos.killing import KILLED_ANYWHERE, Case, Outcome, kill_and_resume, summary

KILLS_PER_SWEEP = 6


@pytest.fixture(scope="module")
def workers() -> Iterator[ProcessPoolExecutor]:
    """Processes of one thread each, from which drivers can be forked: this one may have threads of other tests."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count() or 1, mp_context=context) as pool:
        yield pool


def run(pool: ProcessPoolExecutor, folder: Path, cases: list[Case]) -> list[Outcome]:
    folders = [folder / f"{number:03d}" for number in range(len(cases))]
    for one in folders:
        one.mkdir(parents=True)
    return list(pool.map(kill_and_resume, cases, folders))


def kill_at_points(pool: ProcessPoolExecutor, folder: Path, points: int, first_seed: int) -> list[Outcome]:
    """Run sweeps of every plan in turn, until this many kills have happened."""
    outcomes: list[Outcome] = []
    for seed in itertools.count(first_seed):
        cases = [Case(plan.name, seed, KILLS_PER_SWEEP) for plan in KILLED_ANYWHERE]
        outcomes += run(pool, folder / str(seed), cases)
        if sum(len(o.killed) for o in outcomes) >= points:
            return outcomes
    raise AssertionError


def assert_nothing_wrong(outcomes: list[Outcome]) -> None:
    wrong = [str(outcome) for outcome in outcomes if outcome.wrong]
    assert not wrong, f"{len(wrong)} of {len(outcomes)} sweeps:\n" + "\n".join(wrong[:5])


def test_a_sweep_killed_at_any_point_is_resumed_and_its_ledger_is_exact(workers, tmp_path):
    outcomes = kill_at_points(workers, tmp_path, 120, first_seed=0)
    assert_nothing_wrong(outcomes)
    print(summary(outcomes))


@pytest.mark.slow  # as above, at 500 points: minutes
@pytest.mark.timeout(1800)
def test_five_hundred_points(workers, tmp_path):
    outcomes = kill_at_points(workers, tmp_path, 500, first_seed=1000)
    assert_nothing_wrong(outcomes)
    print(summary(outcomes))


def test_mlflow_has_every_step_once_after_a_killed_sweep_was_delivered_again(workers, tmp_path):
    assert_nothing_wrong(run(workers, tmp_path, [Case("preempted", 2, 4, mlflow=True)]))


@pytest.mark.slow  # opening MLflow's store takes seconds for every driver
@pytest.mark.timeout(1800)
def test_mlflow_after_many_killed_sweeps(workers, tmp_path):
    cases = [Case(plan.name, seed, 4, mlflow=True) for seed in (3, 4, 5) for plan in KILLED_ANYWHERE]
    assert_nothing_wrong(run(workers, tmp_path, cases))

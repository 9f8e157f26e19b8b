"""Which steps of a run count, and which runs are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cost.forecast.measured_run import OffStep, usable_steps
from cost.forecast.sampling import ForecastError
from tests.cost.forecast.runs import ns, run, step


def test_equal_steps_all_count() -> None:
    usable = usable_steps(run(20))
    assert len(usable.steps) == 20
    assert usable.left_out == {}


@pytest.mark.parametrize(("numbers", "text"), [((1, 2, 2), "repeats"), ((1, 3, 2), "comes after step 3")])
def test_step_numbers_that_do_not_rise_are_refused(numbers: tuple[int, ...], text: str) -> None:
    with pytest.raises(ForecastError, match=text):
        usable_steps(run([step(n) for n in numbers]))


def test_a_step_done_again_after_a_restore_is_left_out() -> None:
    steps = [*(step(n) for n in range(1, 8)), replace(step(6), replay=True), step(8)]
    usable = usable_steps(run(steps))
    assert [s.step for s in usable.steps] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert usable.left_out == {"done again after a restore": 1}


def test_slow_first_steps_are_warm_up() -> None:
    seconds = [60.0, 40.0, 10.0, 10.2, 9.9, 10.1, 10.0, 9.8, 10.1, 10.0, 10.1, 9.9]
    usable = usable_steps(run([step(i, rollout=s) for i, s in enumerate(seconds, start=1)]))
    assert [s.step for s in usable.warm_up] == [1, 2]
    assert usable.left_out == {"warm-up": 2}


def test_a_first_step_within_the_usual_spread_is_no_warm_up() -> None:
    seconds = [12.0, 9.0, 11.0, 8.0, 12.5, 10.0, 9.5, 11.5]
    assert usable_steps(run([step(i, rollout=s) for i, s in enumerate(seconds, start=1)])).warm_up == ()


def test_a_slow_step_later_is_no_warm_up() -> None:
    seconds = [10.0, 10.1, 9.9, 60.0, 10.0, 10.1, 9.8, 10.0]
    assert len(usable_steps(run([step(i, rollout=s) for i, s in enumerate(seconds, start=1)])).steps) == 8


def test_steps_of_a_filling_queue_are_left_out() -> None:
    staleness = [0, 1, 2, 3, 4, 4, 4, 4, 4, 4, 4, 4]
    steps = [replace(step(i), staleness=float(s)) for i, s in enumerate(staleness, start=1)]
    usable = usable_steps(run(steps, asynchronous=True))
    assert [s.step for s in usable.steps] == [5, 6, 7, 8, 9, 10, 11, 12]
    assert usable.left_out == {"queue still filling": 4}


def test_a_queue_that_fills_to_the_last_step_leaves_too_few_steps() -> None:
    steps = [replace(step(i), staleness=float(i)) for i in range(1, 21)]
    assert len(usable_steps(run(steps, asynchronous=True)).steps) < 5


def test_staleness_of_a_synchronous_run_is_not_a_queue() -> None:
    steps = [replace(step(i), staleness=float(i)) for i in range(1, 21)]
    assert len(usable_steps(run(steps)).steps) == 20


def test_an_asynchronous_run_without_staleness_is_noted() -> None:
    assert "filling queue cannot be recognised" in usable_steps(run(20, asynchronous=True)).notes[0]


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (step(1, completions=0), "at least 1"),
        (step(1, rollout=-1.0), "must not be negative"),
        (step(1, rollout=0.0), "sum to more than 0"),
        (replace(step(1), tokens=-1), "tokens"),
    ],
)
def test_impossible_steps_are_refused(bad, text: str) -> None:
    with pytest.raises(ForecastError, match=text):
        usable_steps(run([bad]))


def test_steps_longer_than_the_elapsed_time_are_refused() -> None:
    with pytest.raises(ForecastError, match=r"60\.000 s more than elapsed_ns"):
        usable_steps(run(20, elapsed_ns=ns(100.0)))


def test_unknown_kinds_of_off_step_time_are_refused() -> None:
    with pytest.raises(ForecastError, match="off-step kind 'lunch'"):
        usable_steps(replace(run(20), off_steps=(OffStep("lunch", 1),)))

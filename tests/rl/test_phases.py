"""The stopwatch for phases: every nanosecond of a lap belongs to exactly one phase."""

from __future__ import annotations

import pytest

from rl.phases import PhaseClock
from rl.spec import PHASES


class Time:
    """A settable clock."""

    def __init__(self) -> None:
        self.now_ns = 1_000

    def __call__(self) -> int:
        return self.now_ns


def spend(clock: PhaseClock, time: Time, phase: str, ns: int) -> None:
    with clock.phase(phase):
        time.now_ns += ns


def test_lap_gives_wall_time_and_card_time_per_phase() -> None:
    time = Time()
    clock = PhaseClock(cards=2, now_ns=time)
    spend(clock, time, "rollout", 30)
    time.now_ns += 7
    spend(clock, time, "train", 10)
    spend(clock, time, "rollout", 5)
    assert clock.lap() == (52, {"rollout": 70, "train": 20, "other": 14})


def test_phases_of_a_lap_add_up_to_wall_time_times_cards() -> None:
    time = Time()
    clock = PhaseClock(cards=3, now_ns=time)
    for n, phase in enumerate(PHASES):
        spend(clock, time, phase, n + 1)
        time.now_ns += 1
    wall, phases = clock.lap()
    assert sum(phases.values()) == 3 * wall


def test_next_lap_starts_where_the_last_one_ended() -> None:
    time = Time()
    clock = PhaseClock(cards=1, now_ns=time)
    time.now_ns += 4
    assert clock.lap() == (4, {"other": 4})
    spend(clock, time, "sync", 6)
    assert clock.lap() == (6, {"sync": 6})
    assert clock.lap() == (0, {})


def test_time_of_a_phase_that_raises_is_counted() -> None:
    time = Time()
    clock = PhaseClock(cards=1, now_ns=time)

    def fail() -> None:
        with clock.phase("reward"):
            time.now_ns += 9
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    spend(clock, time, "train", 1)
    assert clock.lap() == (10, {"reward": 9, "train": 1})


def test_unknown_phase_is_refused() -> None:
    clock = PhaseClock(cards=1)
    with pytest.raises(ValueError, match="there is no phase 'thinking'; there are: startup"), clock.phase("thinking"):
        pass


def test_phases_do_not_nest() -> None:
    clock = PhaseClock(cards=1)
    with (
        clock.phase("train"),
        pytest.raises(ValueError, match="phase 'sync' starts inside phase 'train'"),
        clock.phase("sync"),
    ):
        pass


def test_phase_ends_when_the_card_has_done_its_work() -> None:
    time = Time()

    def finish_queued_work() -> None:
        time.now_ns += 50

    clock = PhaseClock(cards=1, now_ns=time, wait_for_card=finish_queued_work)
    spend(clock, time, "logprob", 3)
    spend(clock, time, "train", 4)
    assert clock.lap() == (107, {"logprob": 53, "train": 54})

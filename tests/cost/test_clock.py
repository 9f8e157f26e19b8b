from cost.clock import NS_PER_SECOND, DriverClock, FakeClock, SystemClock


def test_driver_time_is_anchor_plus_monotonic_delta():
    clock = FakeClock()
    driver = DriverClock(clock)
    start = driver.now_ns()
    clock.advance(7)
    assert driver.now_ns() == start + 7


def test_a_step_of_the_wall_clock_is_recorded_and_not_believed():
    clock = FakeClock()
    driver = DriverClock(clock)
    start = driver.now_ns()
    clock.step_wall(-3600 * NS_PER_SECOND)
    clock.advance_seconds(10)
    assert driver.now_ns() == start + 10 * NS_PER_SECOND
    assert [step.step_ns for step in driver.steps] == [-3600 * NS_PER_SECOND]
    assert driver.now_ns() == start + 10 * NS_PER_SECOND
    assert len(driver.steps) == 1, "one step is recorded once"


def test_slewing_is_no_step():
    clock = FakeClock()
    driver = DriverClock(clock)
    clock.step_wall(NS_PER_SECOND // 10)
    driver.now_ns()
    assert driver.steps == []


def test_the_system_clock_moves_forward_and_knows_its_boot():
    clock = SystemClock()
    first = clock.monotonic_ns()
    assert clock.monotonic_ns() >= first
    assert clock.boot_id() == SystemClock().boot_id() != ""
    assert clock.utc_ns() > 1_700_000_000 * NS_PER_SECOND


def test_a_driver_continues_from_a_later_instant_and_records_the_clock_step():
    clock = FakeClock()
    driver = DriverClock(clock)
    driver.not_before(clock.utc + 3600 * NS_PER_SECOND)
    assert driver.now_ns() == clock.utc + 3600 * NS_PER_SECOND
    clock.advance(5)
    assert driver.now_ns() == clock.utc + 3600 * NS_PER_SECOND
    assert [step.step_ns for step in driver.steps] == [-3600 * NS_PER_SECOND]
    driver.not_before(0)
    assert driver.now_ns() == clock.utc + 3600 * NS_PER_SECOND

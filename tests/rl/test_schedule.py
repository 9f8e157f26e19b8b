"""The learning-rate schedule counts optimiser updates, and its last value is exact."""

import pytest

from rl.schedule import lr_factor
from rl.spec import AlgorithmSpec, ConfigurationError


def factors(total: int, **settings) -> list[float]:
    spec = AlgorithmSpec(name="test", **settings)
    return [lr_factor(spec, update, total) for update in range(total)]


def test_constant_schedule_has_factor_one():
    assert factors(200) == [1.0] * 200


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 1, 20])
@pytest.mark.parametrize("final", [0.0, 0.1, 1.0])
def test_factor_at_the_last_update_is_exactly_the_configured_share(schedule, warmup, final):
    got = factors(400, lr_schedule=schedule, lr_warmup_updates=warmup, lr_final_frac=final)
    assert got[-1] == final
    assert max(got) == 1.0
    # A schedule that counts the wrong unit, such as two updates per step, reaches zero half-way.
    assert min(got[:-1]) > 0
    falling = got[max(warmup - 1, 0) :]
    assert falling == sorted(falling, reverse=True)


def test_warm_up_is_linear_reaches_one_and_never_gives_zero():
    assert factors(6, lr_warmup_updates=4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert factors(6, lr_warmup_updates=4, lr_schedule="linear") == [0.25, 0.5, 0.75, 1.0, 0.5, 0.0]


def test_linear_and_cosine_have_the_values_computed_by_hand():
    assert factors(5, lr_schedule="linear", lr_final_frac=0.2) == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])
    assert factors(5, lr_schedule="cosine", lr_final_frac=0.0) == pytest.approx(
        [1.0, 0.8535533905932737, 0.5, 0.14644660940672627, 0.0]
    )


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_run_of_one_update_trains_at_the_full_rate(schedule):
    assert factors(1, lr_schedule=schedule) == [1.0]


def test_update_outside_of_the_run_is_an_error():
    spec = AlgorithmSpec(name="test")
    for update in (-1, 10):
        with pytest.raises(ValueError, match="outside a run of 10"):
            lr_factor(spec, update, 10)


def test_warm_up_longer_than_the_run_is_refused():
    with pytest.raises(ConfigurationError, match="lr_warmup_updates=11"):
        lr_factor(AlgorithmSpec(name="test", lr_warmup_updates=11), 0, 10)

"""Placements of cards from phase seconds, against values computed by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cost.forecast.card_split import card_splits
from cost.forecast.priors import Priors
from cost.forecast.sampling import ForecastError
from cost.forecast.step_profile import fit_profile
from tests.cost.forecast.runs import NS, run, step

HALVES = Priors(
    serial_share=0.0, serial_share_error=0.0, card_log_error_per_doubling=0.0, size_log_error=0.0,
    size_log_error_per_doubling=0.0, async_rollout_share=0.5, async_rollout_log_error=0.0,
)  # fmt: skip
"""Perfect scaling over cards, and asynchronous sampling in half of the time."""


def profile(rollout: float, train: float, cards: int = 8):
    steps = [step(i, completions=512, cards=cards, rollout=rollout, train=train, sync=1.0) for i in range(1, 21)]
    return fit_profile([run(steps)])


def splits(rollout: float, train: float, priors: Priors = HALVES, **options: Any):
    return {s.placement: s for s in card_splits(profile(rollout, train), 512, 8, priors=priors, **options)}


def test_colocate_is_the_measured_step() -> None:
    colocate = splits(30.0, 10.0)["colocate"]
    assert colocate.step_ns.p50 / NS == pytest.approx(41.0)
    assert (colocate.basis, colocate.idle_share) == ("measured", 0.0)


def test_overlap_gives_most_cards_to_the_longer_role() -> None:
    # 30 s and 10 s on eight cards: six cards sample in 40 s while two train in 40 s; then a second of sync.
    split = splits(30.0, 10.0)["one_step_off"]
    assert (split.rollout_cards, split.train_cards) == (6, 2)
    assert split.step_ns.p50 / NS == pytest.approx(41.0)
    assert split.idle_share == pytest.approx(1.0 / 41.0, abs=1e-3)


def test_fully_asynchronous_sampling_needs_fewer_cards() -> None:
    # Half of 30 s: five cards sample in 24 s, three train in 26.7 s.
    split = splits(30.0, 10.0)["fully_async"]
    assert (split.rollout_cards, split.train_cards) == (5, 3)
    assert split.step_ns.p50 / NS == pytest.approx(10.0 * 8 / 3 + 1.0)


def test_disaggregated_waits_and_is_the_slowest_with_perfect_scaling() -> None:
    found = card_splits(profile(30.0, 10.0), 512, 8, priors=HALVES)
    assert found[-1].placement == "disaggregated"
    # r cards and 8 - r: 240 / r + 80 / (8 - r) is least at r = 5.
    assert found[-1].step_ns.p50 / NS == pytest.approx(240 / 5 + 80 / 3 + 1.0)
    assert found[-1].idle_share > 0.4


def test_roles_get_at_least_the_cards_that_they_need() -> None:
    assert splits(30.0, 10.0, fewest_train_cards=4)["one_step_off"].train_cards == 4
    assert splits(10.0, 30.0, fewest_rollout_cards=4)["one_step_off"].rollout_cards == 4


def test_splits_are_ordered_by_the_median_step() -> None:
    found = card_splits(profile(30.0, 10.0), 512, 8)
    assert [s.step_ns.p50 for s in found] == sorted(s.step_ns.p50 for s in found)
    assert {s.placement for s in found} == {"colocate", "disaggregated", "one_step_off", "fully_async"}


def test_one_card_can_only_be_colocated() -> None:
    found = card_splits(fit_profile([run(20)]), 64, 1)
    assert [s.placement for s in found] == ["colocate"]


def test_phases_of_an_asynchronous_run_are_refused() -> None:
    steps = [replace(step(i), staleness=1.0) for i in range(1, 21)]
    with pytest.raises(ForecastError, match="overlap"):
        card_splits(fit_profile([run(steps, asynchronous=True)]), 64, 8)


def test_a_profile_without_phases_is_refused() -> None:
    whole = [step(i, step=8.0) for i in range(1, 21)]
    with pytest.raises(ForecastError, match="rollout and train seconds are needed, the profile has step"):
        card_splits(fit_profile([run(whole)]), 64, 8)

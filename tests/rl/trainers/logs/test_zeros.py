"""Missing is not zero: curves that are 0 in every row."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from rl.trainers.logs import ImportedRun, read_bytes

HEALTHY = {
    "reward": 0.5,
    "clip_frac": 0.01,
    "approx_kl": 0.001,
    "kl": 0.02,
    "entropy": 0.5,
    "response_length": 90.0,
    "grad_norm": 0.4,
    "lr": 1e-6,
    "loss": 0.03,
    "reward_std": 0.3,
    "zero_std_frac": 0.5,
    "truncated_frac": 0.1,
}


def run_of(changes: Mapping[str, float | None] = HEALTHY, rows: int = 4) -> ImportedRun:
    values = {name: value for name, value in {**HEALTHY, **changes}.items() if value is not None}
    lines = [{"step": i, **values, "reward": values["reward"] + i * 0.01} for i in range(1, rows + 1)]
    return read_bytes(("\n".join(json.dumps(line) for line in lines) + "\n").encode())


def kinds(run: ImportedRun) -> dict[str | None, str]:
    return {note.curve: note.kind for note in run.notes if note.curve}


def test_a_healthy_run_has_no_curve_of_zeros() -> None:
    assert kinds(run_of()) == {}


@pytest.mark.parametrize("curve", ["kl", "entropy", "response_length", "grad_norm", "reward_std"])
def test_a_metric_that_was_never_computed_is_removed(curve: str) -> None:
    run = run_of({curve: 0.0})
    assert kinds(run) == {curve: "unwired"}
    assert run.curve(curve) == []
    assert all(curve not in row.curves() for row in run.rows)


def test_a_rate_that_is_printed_too_coarsely_is_removed() -> None:
    run = run_of({"lr": 0.0})
    assert kinds(run) == {"lr": "rounded"}
    assert run.facts.lr is None


def test_a_loss_that_is_printed_too_coarsely_is_removed() -> None:
    assert kinds(run_of({"loss": 0.0})) == {"loss": "rounded"}


def test_a_policy_distance_is_rounded_away_where_something_is_clipped() -> None:
    run = run_of({"approx_kl": 0.0})
    assert kinds(run) == {"approx_kl": "rounded"}
    assert run.curve("approx_kl") == []


def test_one_update_per_rollout_gives_zeros_that_are_right() -> None:
    run = run_of({"clip_frac": 0.0, "approx_kl": 0.0, "loss": 0.0, "kl": None})
    assert kinds(run) == dict.fromkeys(("clip_frac", "approx_kl", "loss"), "zero_by_construction")
    assert [row.clip_frac for row in run.rows] == [0.0] * 4
    assert "with one update per rollout" in run.notes_of("zero_by_construction")[0].text


def test_a_ratio_of_exactly_1_says_nothing() -> None:
    assert kinds(run_of({"ratio_mean": 1.0})) == {"ratio_mean": "zero_by_construction"}


@pytest.mark.parametrize("curve", ["truncated_frac", "zero_std_frac", "acc"])
def test_zeros_that_happen_are_ordinary_values(curve: str) -> None:
    run = run_of({curve: 0.0})
    assert kinds(run) == {}
    assert [value for _, value in run.curve(curve)] == [0.0] * 4


def test_no_gradient_is_right_where_no_group_teaches() -> None:
    run = run_of({"grad_norm": 0.0, "zero_std_frac": 1.0, "reward_std": 0.0})
    assert kinds(run) == {}
    assert [row.grad_norm for row in run.rows] == [0.0] * 4


def test_two_rows_prove_nothing() -> None:
    assert kinds(run_of({"kl": 0.0, "lr": 0.0}, rows=2)) == {}


def test_a_single_value_other_than_0_makes_the_zeros_values() -> None:
    rows = [{"step": i, "reward": 0.1 * i, "kl": 0.0 if i < 9 else 0.001, "lr": 1e-6} for i in range(1, 10)]
    run = read_bytes(("\n".join(json.dumps(row) for row in rows) + "\n").encode())
    assert [value for _, value in run.curve("kl")] == [0.0] * 8 + [0.001]


def test_negative_zero_is_zero() -> None:
    assert str(run_of({"loss": -0.0, "kl": None}).rows[0].loss) == "0.0"


def test_negative_rewards_are_noted_because_shares_of_the_best_have_no_meaning() -> None:
    assert "negative" in run_of({"reward": -2.0}).notes_of("meaning")[0].text


@pytest.mark.parametrize("curve", ["acc", "clip_frac", "truncated_frac", "zero_std_frac"])
def test_a_share_above_1_is_no_share_and_is_removed(curve: str) -> None:
    run = run_of({curve: 37.5})
    assert run.curve(curve) == []
    assert (
        run.notes_of("meaning")[0].text
        == f"{curve} is up to 37.5: it is no share (a percentage, or a count). It is removed."
    )


def test_a_kl_that_is_large_in_the_first_step_is_to_another_model() -> None:
    assert "the reference seems to be another model" in run_of({"kl": 1.1}).notes_of("meaning")[0].text

"""Step numbers: restarts, repetitions, disorder, gaps."""

from __future__ import annotations

import json

import pytest

from rl.codec import from_json, to_json
from rl.trainers.logs import ImportedRun, read_bytes


def run_of(*steps: int, value: float | None = None) -> ImportedRun:
    """A file with one row for each step; rewards differ from row to row, unless a value is given."""
    rows = [
        {"step": s, "reward": i / 100 if value is None else value, "kl": 0.01, "lr": 1e-5} for i, s in enumerate(steps)
    ]
    return read_bytes(("\n".join(json.dumps(row) for row in rows) + "\n").encode())


def places(run: ImportedRun) -> list[tuple[int, int]]:
    return [(row.attempt, row.step) for row in run.rows]


def test_steps_in_order_need_no_note() -> None:
    run = run_of(1, 2, 3)
    assert places(run) == [(1, 1), (1, 2), (1, 3)]
    assert run.notes == ()


def test_a_resume_from_a_checkpoint_is_an_attempt_that_replaces_what_it_repeats() -> None:
    run = run_of(1, 2, 3, 4, 5, 3, 4, 5, 6)
    assert places(run) == [(1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (2, 3), (2, 4), (2, 5), (2, 6)]
    assert [(row.attempt, row.step) for row in run.lineage] == [(1, 1), (1, 2), (2, 3), (2, 4), (2, 5), (2, 6)]
    assert run.curve("reward") == [(1, 0.0), (2, 0.01), (3, 0.05), (4, 0.06), (5, 0.07), (6, 0.08)]
    assert run.notes_of("restarted")[0].text == "The step counter starts again once: step 3 (line 6)."


def test_a_fresh_start_leaves_nothing_of_the_attempt_before_in_the_lineage() -> None:
    run = run_of(1, 2, 3, 1, 2)
    assert [(row.attempt, row.step) for row in run.lineage] == [(2, 1), (2, 2)]
    assert run.steps == 2


def test_a_row_that_is_repeated_word_for_word_is_kept_once() -> None:
    run = run_of(1, 2, 2, 3, value=0.5)
    assert places(run) == [(1, 1), (1, 2), (1, 3)]
    assert run.notes_of("repeated_steps")[0].text == "1 rows are in the log more than once; each is kept once."


def test_rows_that_were_logged_late_are_sorted() -> None:
    run = run_of(1, 2, 4, 3, 5, 7, 6, 8)
    assert places(run) == [(1, step) for step in range(1, 9)]
    assert run.notes_of("out_of_order")[0].text == "2 rows were logged after rows of later steps; they are sorted."
    assert run.curve("reward")[2] == (3, 0.03)


def test_missing_steps_are_named() -> None:
    run = run_of(1, 2, 3, 8, 9, 11)
    assert run.notes_of("missing_steps")[0].text == "No rows for steps 4 to 7, 10."


def test_a_counter_from_0_becomes_one_from_1() -> None:
    run = run_of(0, 1, 2)
    assert [row.step for row in run.rows] == [1, 2, 3]
    assert run.notes_of("step_numbers")[0].text == "The log counts steps from 0; its step 0 is step 1 here."


@pytest.mark.parametrize("step", [-1, 1.5, "x", None, 1e12, True])
def test_what_is_no_step_number_is_not_used_as_one(step: object) -> None:
    rows = [{"step": step, "reward": 0.1, "kl": 0.2}, {"step": step, "reward": 0.2, "kl": 0.3}]
    run = read_bytes("\n".join(json.dumps(row) for row in rows).encode() + b"\n")
    assert [row.step for row in run.rows] == [1, 2]
    assert "rows are counted" in run.notes_of("step_numbers")[0].text


def test_steps_may_be_text_or_floats() -> None:
    rows = [{"step": "1", "reward": 0.1, "kl": 0.2}, {"step": 2.0, "reward": 0.2, "kl": 0.3}]
    assert [row.step for row in read_bytes("\n".join(json.dumps(row) for row in rows).encode() + b"\n").rows] == [1, 2]


def test_a_line_without_a_step_among_others_is_left_out() -> None:
    rows = [{"step": i, "reward": 0.1 * i, "kl": 0.1} for i in (1, 2, 3)]
    rows.insert(2, {"reward": 0.9, "kl": 0.9})
    run = read_bytes(("\n".join(json.dumps(row) for row in rows) + "\n").encode())
    assert [(row.step, row.reward) for row in run.rows] == [(1, 0.1), (2, 0.2), (3, pytest.approx(0.3))]
    assert run.notes_of("skipped")[0].text == "1 rows without a step number are left out."


def test_an_imported_run_is_the_same_after_a_journey_through_json() -> None:
    run = run_of(1, 2, 3, 2, 3, 4)
    assert from_json(ImportedRun, json.loads(json.dumps(to_json(run)))) == run

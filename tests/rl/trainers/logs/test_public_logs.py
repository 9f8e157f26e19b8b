"""Excerpts of real logs against numbers that were extracted from the whole logs by other means."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from rl.trainers.logs import ImportedRun, Row, read_run

DATA = Path(__file__).parents[5] / "shared" / "data"
RUNS = DATA / "grpo_runs"

pytestmark = pytest.mark.skipif(not RUNS.is_dir(), reason="the public logs are not on this machine")

CURVES = (
    *("reward", "reward_std", "acc", "entropy", "kl", "approx_kl", "clip_frac", "response_length", "truncated_frac"),
    *("zero_std_frac", "grad_norm", "lr", "loss", "step_seconds", "rollout_seconds", "train_seconds"),
)

EXCERPTS = {
    "console__15_minimind.log": "15_minimind",
    "json_array__02_baseline.json": "02_baseline",
    "json_array__02_mu_2.json": "02_mu_2",
    "notebook_table__12_DeepSeek_R1_0528_Qwen3_8B_GRPO.csv": "12_r1_qwen3_8b",
    "notebook_table__12_Qwen3_4B-GRPO.csv": "12_qwen3_4b",
    "notebook_table__12_gpt_oss_20B_GRPO_BF16.csv": "12_gpt_oss_20b",
    "notebook_table_html__12_Qwen3_4B.html": "12_qwen3_4b",
    "trainer_state__06_threestage.json": "06_threestage_stage2",
    "trainer_state__06_wordle_4090.json": "06_wordle_4090",
    "trainer_state__11_openrs.json": "11_openrs_repro",
    "trl_dict__01_rho1.00_seed43.log": "01_exp1a_rho1.00_seed43",
    "trl_dict__01_rho3.00_seed42.log": "01_exp1a_rho3.00_seed42",
    "trl_dict__08_finqa.log": "08_finqa_long2400",
    "trl_dict_in_progress_bar__11_openrs.log": "11_openrs_repro",
    "trl_dict_strings__01_gate2_rho0.70_seed44.log": "01_gate2_rho0.70_seed44",
    "verl_console__03_rl_train.log": "03_rl_train",
    "verl_console__03_train_v5.log": "03_train_v5_reward",
    "verl_console_old__13_logic_rl.log": "13_logic_rl",
}

NOT_IN_THE_EXCERPT = {
    # Reward is known to be correctness from elsewhere.
    "acc": ("01_",),
    # From progress bars, of which these excerpts have none.
    "step_seconds": ("01_gate2", "trainer_state__11"),
}
"""Curves that are in the extract but not in the excerpt, by the start of a run's or a file's name."""

ROWS_LEFT_OUT = {"01_exp1a_rho1.00_seed43": 11, "01_exp1a_rho3.00_seed42": 11, "08_finqa_long2400": 2371}
"""Excerpts without step numbers: how many rows lie between the first 15 and the last."""


def expected(run_id: str) -> list[dict[str, str]]:
    with (RUNS / "curves" / f"{run_id}.csv").open() as file:
        return list(csv.DictReader(file))


def pairs(run: ImportedRun, run_id: str) -> list[tuple[Row, dict[str, str]]]:
    """Each row of the excerpt with the one of the extract."""
    rows = expected(run_id)
    if run_id in ROWS_LEFT_OUT:
        gap = ROWS_LEFT_OUT[run_id]
        return [(row, rows[i if i < 15 else i + gap]) for i, row in enumerate(run.rows)]
    by_step = {int(row["step"]): row for row in rows}
    return [(row, by_step[row.step]) for row in run.rows]


@pytest.mark.parametrize("name", sorted(EXCERPTS))
def test_every_value_of_an_excerpt_is_that_of_the_extract(name: str) -> None:
    run_id = EXCERPTS[name]
    run = read_run(RUNS / "raw" / name)
    compared, wrong = 0, []
    for row, numbers in pairs(run, run_id):
        ours = row.curves()
        for curve in CURVES:
            text, value = numbers[curve], ours.get(curve)
            if text and value is not None:
                compared += 1
                if value != pytest.approx(float(text), rel=6e-6, abs=1e-12):
                    wrong.append(f"step {row.step}: {curve} is {value}, but {text} in the extract")
            elif text and not is_not_in_the_excerpt(curve, name, run_id):
                wrong.append(f"step {row.step}: {curve} is missing, but {text} in the extract")
            elif value is not None and not text:
                wrong.append(f"step {row.step}: {curve} is {value}, but missing in the extract")
    assert wrong == []
    assert compared >= 3 * len(run.rows) >= 27


def is_not_in_the_excerpt(curve: str, name: str, run_id: str) -> bool:
    starts = NOT_IN_THE_EXCERPT.get(curve, ())
    return any(run_id.startswith(start) or name.startswith(start) for start in starts)


def recorded(run_id: str) -> dict[str, str]:
    with (RUNS / "runs.csv").open() as file:
        return next(row for row in csv.DictReader(file) if row["run_id"] == run_id)


@pytest.mark.parametrize("name", sorted(set(EXCERPTS) - {n for n, r in EXCERPTS.items() if r in ROWS_LEFT_OUT}))
def test_the_last_step_and_the_steps_of_a_row_are_those_of_the_bank(name: str) -> None:
    run, record = read_run(RUNS / "raw" / name), recorded(EXCERPTS[name])
    assert run.steps == int(record["steps_total"])
    assert run.rows_are_means_of == int(record["rows_are_means_of"])


@pytest.mark.parametrize("name", sorted(n for n, r in EXCERPTS.items() if r in ROWS_LEFT_OUT))
def test_rows_that_were_cut_out_of_a_log_without_step_numbers_are_noticed(name: str) -> None:
    run = read_run(RUNS / "raw" / name)
    assert "before line 16" in run.notes_of("missing_steps")[0].text
    assert run.rows_are_means_of == 1
    assert "nothing in the log states" in run.notes_of("step_numbers")[0].text


@pytest.mark.parametrize("name", sorted(EXCERPTS))
def test_curves_of_zeros_are_named_as_in_the_bank(name: str) -> None:
    run, record = read_run(RUNS / "raw" / name), recorded(EXCERPTS[name])
    by_construction = {note.curve for note in run.notes_of("zero_by_construction")}
    removed = {note.curve for note in (*run.notes_of("unwired"), *run.notes_of("rounded"))}
    assert by_construction == set(re.findall(r"[a-z_]+", record["zero_by_construction"])) & set(CURVES)
    assert removed == set(re.findall(r"[a-z_]+", record["unwired"])) & set(CURVES)


def test_two_logs_of_one_run_agree() -> None:
    console = read_run(RUNS / "raw" / "trl_dict_in_progress_bar__11_openrs.log")
    state = read_run(RUNS / "raw" / "trainer_state__11_openrs.json")
    assert [row.step for row in console.rows] == [row.step for row in state.rows] == list(range(5, 55, 5))
    for ours, theirs in zip(console.rows, state.rows, strict=True):
        assert {**ours.curves(), "step_seconds": None} == {**theirs.curves(), "step_seconds": None}
    assert console.elapsed_seconds == float(recorded("11_openrs_repro")["total_elapsed_seconds"])
    assert console.facts.steps_planned == state.facts.steps_planned == 100
    assert [note.text for note in state.notes_of("stopped_early")] == ["The log ends at step 50 of 100."]


def test_a_counter_that_starts_again_makes_attempts() -> None:
    path = RUNS / "raw" / "metrics_jsonl__rookworld_a.jsonl"
    run = read_run(path)
    assert [row.step for row in run.rows] == [1, 1, 1, 1, 1, 1, 1, 2, 1, 2, 1, 2, 1, 2]
    assert run.attempts == 10
    assert [row.step for row in run.lineage] == [1, 2]
    assert run.lineage[-1].reward == json.loads(path.read_text().splitlines()[-1])["mean_reward"]
    assert "9 times" in run.notes_of("restarted")[0].text


def test_a_whole_log_of_verl_from_2024() -> None:
    path = DATA / "verl_logs" / "qwen2.5-0.5b-gsm8k-ppo.log"
    run = read_run(path)
    assert [row.step for row in run.rows] == list(range(1, 436))
    scores = [(e.step, e.value) for e in run.evaluations if e.name == "val/test_score/openai/gsm8k"]
    assert scores[0] == (0, pytest.approx(0.0008, abs=5e-5))
    assert scores[-1] == (435, pytest.approx(0.5686, abs=5e-5))
    assert len(scores) == 45
    assert [step for step, _ in scores] == [0, *range(10, 440, 10), 435]
    assert all(row.lr == 1e-6 for row in run.rows)
    assert run.facts.known() == {
        "model": "Qwen/Qwen2.5-0.5B-Instruct",
        "prompts_per_step": 256,
        "lr": 1e-6,
        "updates_per_rollout": 4,
        "max_completion_tokens": 512,
        "cards": 1,
        "steps_planned": 435,
    }
    first = re.search(r"step:0 - timing/gen:([\d.]+)", path.read_text(errors="replace"))
    assert first is not None
    assert run.rows[0].phase_seconds["rollout"] == float(first[1])
    assert {note.kind for note in run.notes} == {"step_numbers", "derived", "meaning"}


def test_an_extract_is_read_as_a_log_itself() -> None:
    run = read_run(RUNS / "curves" / "03_rl_train.csv")
    assert len(run.rows) == 699
    first = expected("03_rl_train")[0]
    assert run.rows[0].grad_norm == float(first["grad_norm"])
    assert run.rows[0].phase_seconds == {
        phase: float(first[f"{phase}_seconds"]) for phase in ("rollout", "train", "other")
    }

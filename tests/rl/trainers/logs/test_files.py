"""JSON, tables and notebooks, and what compressors and editors do to files."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rl.trainers.logs import ImportedRun, LogError, read_bytes, read_run

TRL = {
    "loss": 0.1,
    "grad_norm": 0.5,
    "learning_rate": 1e-6,
    "reward": 0.25,
    "completions/mean_length": 99.0,
    "kl": 0.01,
}
OURS = {
    "reward": 0.5,
    "acc": 0.4,
    "ratio_mean": 1.01,
    "clip_frac": 0.02,
    "kl": 0.001,
    "entropy": 0.7,
    "response_length": 88.0,
    "grad_norm": 0.3,
    "reward_std": 0.2,
    "approx_kl": 0.003,
    "truncated_frac": 0.1,
    "zero_std_frac": 0.25,
    "lr": 1e-5,
    "loss": 0.05,
    "sampler_ratio_mean": 1.0,
    "logp_diff_mean": 0.01,
    "logp_diff_max": 0.5,
    "mismatch_kl": 0.002,
    "staleness": 1.0,
    "step_seconds": 10.0,
    "rollout_seconds": 6.0,
    "train_seconds": 4.0,
}


def lines(rows: Sequence[Mapping[str, Any]]) -> bytes:
    return ("\n".join(json.dumps(row) for row in rows) + "\n").encode()


def steps(values: Mapping[str, Any], count: int = 4, k: int = 1) -> list[dict[str, Any]]:
    return [{"step": k * i, **values} for i in range(1, count + 1)]


def numbered(run: ImportedRun) -> list[tuple[int, int]]:
    return [(row.step, row.rows_are_means_of) for row in run.rows]


# ---------------------------------------------------------------------------------------------------------------------
# JSON
# ---------------------------------------------------------------------------------------------------------------------


def test_our_own_names_are_read_as_they_are() -> None:
    run = read_bytes(lines(steps(OURS)))
    assert (run.trainer, run.format) == ("generic", "JSON lines")
    assert run.rows[0].curves() == OURS
    assert numbered(run) == [(1, 1), (2, 1), (3, 1), (4, 1)]
    assert run.unmapped == ()


def test_json_lines_of_trl_are_means_over_the_steps_since_the_row_before() -> None:
    run = read_bytes(lines(steps(TRL, k=10)))
    assert run.trainer == "trl"
    assert numbered(run) == [(10, 10), (20, 10), (30, 10), (40, 10)]
    assert run.rows_are_means_of == run.facts.logging_steps == 10


def test_a_single_row_of_trl_is_not_taken_for_the_mean_of_all_steps_before_it() -> None:
    assert numbered(read_bytes(lines([{"step": 400, **TRL}]))) == [(400, 1)]


def test_a_first_row_of_one_step_shortens_the_second() -> None:
    run = read_bytes(lines([{"step": 1, **TRL}, *steps(TRL, k=10)]))
    assert numbered(run) == [(1, 1), (10, 9), (20, 10), (30, 10), (40, 10)]


def test_rows_of_other_programs_are_not_taken_for_means() -> None:
    run = read_bytes(lines(steps(OURS, k=10)))
    assert numbered(run) == [(10, 1), (20, 1), (30, 1), (40, 1)]
    assert "not as a mean of 10" in run.notes_of("step_numbers")[0].text


def test_parts_of_one_step_on_several_lines_are_put_together() -> None:
    """As prime-rl's trainer and orchestrator write them into one file."""
    rows = []
    for step in (1, 2):
        rows += [
            {"step": step, "time": 1.0, "optim/lr": 1e-6, "optim/grad_norm": 0.1},
            {"step": step, "time": 2.0, "entropy/all/mean": 0.5, "mismatch_kl/all/mean": 0.001, "loss/mean": 0.2},
            {"step": step, "time": 3.0, "time/step": 30.0, "time/forward_backward": 9.0, "time/broadcast_weights": 1.0},
            {
                "step": step,
                "time": 4.0,
                "train/agg/effective/default/reward/mean": 0.4,
                "train/agg/effective/default/is_truncated/mean": 0.1,
                "train/agg/all/default/solved_none": 0.25,
                "train/agg/all/default/solved_all": 0.125,
                "off_policy/mean": 1.5,
                "time/step": 33.0,
            },
        ]
    rows.append({"step": 2, "eval/aime/effective/default/avg@4": 0.3, "eval/aime/all/default/has_error/mean": 0.0})
    run = read_bytes(lines(rows))
    assert run.trainer == "prime-rl"
    assert numbered(run) == [(1, 1), (2, 1)]
    assert run.rows[1].curves() == {
        "reward": 0.4,
        "entropy": 0.5,
        "grad_norm": 0.1,
        "truncated_frac": 0.1,
        "zero_std_frac": 0.375,
        "lr": 1e-6,
        "loss": 0.2,
        "mismatch_kl": 0.001,
        "staleness": 1.5,
        "step_seconds": 30.0,
        "train_seconds": 9.0,
        "sync_seconds": 1.0,
    }
    assert [(e.step, e.value) for e in run.evaluations if e.curve == "reward"] == [(2, 0.3)]
    assert not run.notes_of("restarted")


def test_the_file_logger_of_verl_wraps_its_metrics() -> None:
    data = {"critic/rewards/mean": 0.5, "actor/grad_norm": 0.2, "response_length/mean": 55.0, "timing_s/gen": 3.0}
    run = read_bytes(lines([{"step": i, "data": data} for i in (1, 2)]))
    assert run.trainer == "verl"
    assert run.rows[0].curves() == {
        "reward": 0.5,
        "response_length": 55.0,
        "grad_norm": 0.2,
        "step_seconds": 3.0,
        "rollout_seconds": 3.0,
    }


def test_prefixes_of_dashboards_do_not_matter() -> None:
    run = read_bytes(lines([{"train/global_step": i, **{f"train/{n}": v for n, v in TRL.items()}} for i in (1, 2)]))
    assert run.trainer == "trl"
    assert run.rows[0].reward == 0.25
    assert numbered(run) == [(1, 1), (2, 1)]


def test_nested_metrics_are_read_by_their_path() -> None:
    run = read_bytes(lines([{"step": 1, "train": {"reward": 0.5, "kl": 0.1, "grad_norm": 0.2}}]))
    assert run.rows[0].curves() == {"reward": 0.5, "kl": 0.1, "grad_norm": 0.2}


def test_null_is_missing_and_nan_is_a_value() -> None:
    run = read_bytes(b'{"step": 1, "reward": null, "kl": NaN, "grad_norm": Infinity, "entropy": 0.5}\n')
    first = run.rows[0]
    assert math.isnan(first.kl or 0.0)
    assert (first.reward, first.grad_norm, first.entropy) == (None, math.inf, 0.5)


def test_lines_that_are_no_json_are_skipped_and_counted() -> None:
    text = lines(steps(OURS, 2)) + b"\xff\x00garbage\n{broken: 1}\n" + lines(steps(OURS, 4)[2:])
    run = read_bytes(text)
    assert len(run.rows) == 4
    assert [note.text for note in run.notes_of("skipped")] == [
        "1 line with bytes that are not text (first: line 3).",
        "1 lines could not be read (first: line 4).",
    ]


def test_a_file_that_ends_inside_a_line_is_noted() -> None:
    run = read_bytes(lines(steps(OURS))[:-40])
    assert len(run.rows) == 3
    assert run.notes_of("cut")[0].text == "The file ends inside line 4."


def test_a_json_array() -> None:
    run = read_bytes(json.dumps(steps(OURS, 10), indent=1).encode())
    assert run.format == "a JSON array of steps"
    assert [row.step for row in run.rows] == list(range(1, 11))
    assert run.rows[9].curves() == OURS


def test_a_json_array_that_is_cut() -> None:
    text = json.dumps(steps(OURS, 10), indent=1)
    run = read_bytes(text[: text.index('"step": 8') + 100].encode())
    assert [row.step for row in run.rows] == list(range(1, 8))
    assert run.notes_of("cut")[0].text == "The file ends early: the entries before the damage are read."


def state(count: int = 6) -> dict[str, Any]:
    history: list[dict[str, Any]] = [{**row, "epoch": 0.1} for row in steps(TRL, count, k=5)]
    history.insert(2, {"step": 10, "eval_reward": 0.3, "eval_loss": 0.1, "eval_runtime": 7.0, "epoch": 0.1})
    return {"max_steps": 50, "logging_steps": 5, "global_step": 5 * count, "log_history": history, "best_metric": None}


def test_trainer_state() -> None:
    run = read_bytes(json.dumps(state()).encode())
    assert (run.trainer, run.format) == ("trl", "trainer_state.json")
    assert numbered(run) == [(5 * i, 5) for i in range(1, 7)]
    assert [(e.step, e.value) for e in run.evaluations if e.curve == "reward"] == [(10, 0.3)]
    assert (run.facts.steps_planned, run.facts.logging_steps) == (50, 5)
    assert run.notes_of("stopped_early")[0].text == "The log ends at step 30 of 50."


def test_a_trainer_state_that_is_cut() -> None:
    text = json.dumps(state(), indent=2)
    run = read_bytes(text[: text.rindex('"reward"')].encode())
    assert len(run.rows) == 5
    assert run.facts.steps_planned == 50
    assert run.notes_of("cut")


@pytest.mark.parametrize(
    "columns",
    [
        {"step": [1, 2], "reward": [0.1, 0.2], "kl": [0.0, 0.3], "grad_norm": [1.0, 2.0]},
        {
            "train/reward": {"1": 0.1, "2": 0.2},
            "train/kl": {"1": 0.0, "2": 0.3},
            "train/grad_norm": {"1": 1.0, "2": 2.0},
        },
    ],
)
def test_json_columns(columns: dict[str, Any]) -> None:
    run = read_bytes(json.dumps(columns).encode())
    assert [(row.step, row.reward, row.kl, row.grad_norm) for row in run.rows] == [
        (1, 0.1, 0.0, 1.0),
        (2, 0.2, 0.3, 2.0),
    ]


# ---------------------------------------------------------------------------------------------------------------------
# Tables
# ---------------------------------------------------------------------------------------------------------------------

HEADER = (
    "Step",
    "Training Loss",
    "reward",
    "reward_std",
    "completions / mean_length",
    "kl",
    "rewards / correct / mean",
)
CELLS = [
    ("1", "0.012500", "-2.250000", "0.500000", "640.000000", "0.062500", "0.250000"),
    ("2", "0.0131", "-1.5", "3", "700", "0.07", "0.5"),
]
EXPECTED = {
    "reward": -2.25,
    "kl": 0.062500,
    "response_length": 640.0,
    "reward_std": 0.5,
    "loss": 0.0125,
    "reward_correct": 0.25,
}


def html() -> str:
    def cells(tag: str, values: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{value}</{tag}>" for value in values) + "</tr>"

    bar = "<div><progress value='2' max='2'></progress> [2/2 1:02:03, Epoch 1/1]</div>"
    return f"{bar}<table border=1>{cells('th', HEADER)}{''.join(cells('td', row) for row in CELLS)}</table>"


def markdown() -> str:
    rows = [HEADER, ["---"] * len(HEADER), *CELLS]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(",".join(row) for row in (HEADER, *CELLS)) + "\n",
        "\n".join("\t".join(row) for row in (HEADER, *CELLS)) + "\n",
        "\n".join(";".join(f'"{cell}"' for cell in row) for row in (HEADER, *CELLS)) + "\n",
        "\n".join("  ".join(row) for row in (HEADER, *CELLS)) + "\n",
        markdown(),
        html(),
    ],
    ids=["comma", "tab", "semicolon", "spaces", "markdown", "html"],
)
def test_tables_of_notebooks(text: str) -> None:
    run = read_bytes(text.encode())
    assert run.trainer == "trl"
    assert run.rows[0].curves() == EXPECTED
    assert [row.step for row in run.rows] == [1, 2]


def test_the_bar_above_a_notebooks_table_tells_the_time() -> None:
    run = read_bytes(html().encode())
    assert run.elapsed_seconds == 3723.0
    assert run.facts.steps_planned == 2


def test_the_outputs_of_a_notebook_file() -> None:
    cells = [
        {"cell_type": "markdown", "source": "| step | reward |"},
        {"outputs": [{"output_type": "stream", "text": ["loading\n", "{'loss': 0.5, 'reward': 0.1, 'epoch': 0.1}\n"]}]},
        {"outputs": [{"data": {"text/html": [html()], "text/plain": ["<IPython>"]}}]},
    ]
    run = read_bytes(json.dumps({"cells": cells, "nbformat": 4}).encode())
    assert run.rows[0].curves() == EXPECTED


def test_columns_of_a_dashboards_export() -> None:
    header = '"Step","run-7 - train/reward","run-7 - train/reward__MIN","run-7 - train/kl"'
    run = read_bytes(f'{header}\n"1","0.5","0.1","0.02"\n"2","","",""\n'.encode())
    assert [(row.step, row.reward, row.kl) for row in run.rows] == [(1, 0.5, 0.02)]


def test_an_empty_cell_is_missing() -> None:
    run = read_bytes(b"step,reward,kl,acc\n1,0.5,,0\n2,,0.1,0.25\n")
    assert [(row.reward, row.kl, row.acc) for row in run.rows] == [(0.5, None, 0.0), (None, 0.1, 0.25)]


def test_the_last_number_of_a_table_without_a_line_end_may_be_cut() -> None:
    run = read_bytes(b"step,reward,kl\n1,0.5,0.01\n2,0.5,0.0")
    assert [row.kl for row in run.rows] == [0.01, None]
    assert run.notes_of("cut")


def test_a_row_that_is_cut_short_keeps_what_it_has() -> None:
    run = read_bytes(b"step,reward,kl\n1,0.5,0.01\nx,y,z\n3,0.5\n")
    assert [(row.step, row.reward, row.kl) for row in run.rows] == [(1, 0.5, 0.01), (3, 0.5, None)]
    assert run.notes_of("skipped")[0].text == "1 rows of the table could not be read (first: line 3)."


# ---------------------------------------------------------------------------------------------------------------------
# Bytes
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_encodings_and_line_ends(encoding: str, line_end: str) -> None:
    text = lines(steps(OURS)).decode().replace("\n", line_end)
    assert read_bytes(text.encode(encoding)).rows[3].curves() == OURS


def test_gzip_is_recognised_whatever_the_name(tmp_path: Path) -> None:
    path = tmp_path / "metrics.log"
    path.write_bytes(gzip.compress(lines(steps(OURS, 2))) + gzip.compress(lines(steps(OURS, 4)[2:])))
    assert [row.step for row in read_run(path).rows] == [1, 2, 3, 4]


def test_a_compressed_file_that_is_cut_gives_what_came_before() -> None:
    rows = [{"step": i, **dict.fromkeys(OURS, i * 7919 % 1000 / 1000 + 0.001)} for i in range(1, 400)]
    whole = gzip.compress(lines(rows))
    run = read_bytes(whole[: len(whole) // 2])
    assert 50 < len(run.rows) < 399
    assert [row.step for row in run.rows] == list(range(1, len(run.rows) + 1))
    assert any("compressed" in note.text for note in run.notes_of("cut"))


def test_padding_of_a_crashed_machine_is_noted_and_no_row() -> None:
    run = read_bytes(lines(steps(OURS)) + b"\0" * 4096)
    assert len(run.rows) == 4
    assert run.notes_of("skipped")


def test_a_path_is_read_and_a_missing_one_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines(steps(OURS)))
    assert read_run(str(path)) == read_run(path) == read_bytes(lines(steps(OURS)))
    with pytest.raises(LogError, match="cannot be read: No such file"):
        read_run(tmp_path / "b.jsonl")
    with pytest.raises(LogError, match="cannot be read: Is a directory"):
        read_run(tmp_path)

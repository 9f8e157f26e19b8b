"""`python -m sweeps forecast`: machines side by side, rent or not, score, and bad input."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from sweeps.cli.main import app
from sweeps.config.build import compose
from sweeps.driver.driver import run


def invoke(root, *arguments: str):
    return CliRunner().invoke(app, ["forecast", *arguments, "--root", str(root)])


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forecast")
    assert run(compose(["+stage=smoke", "trainer=simulated", f"paths.root={folder}"])) == 0
    return folder


def test_the_next_stage_on_the_measured_machine(root) -> None:
    result = invoke(root, "--to", "single")
    assert result.exit_code == 0, result.output
    assert "from 60 measured steps" in result.output
    assert "measured" in result.output
    assert max(len(line) for line in result.output.splitlines()) <= 100


def test_machines_side_by_side_show_the_cost_of_speed(root) -> None:
    result = invoke(root, "--to", "multi", "--machine", "h100x8", "--machine", "rtx5090", "--machine", "a100x8")
    assert result.exit_code == 0, result.output
    assert [line.split()[0] for line in result.output.splitlines()[2:6]] == ["cpu", "h100x8", "rtx5090", "a100x8"]
    assert "per hour saved (at P50)" in " ".join(result.output.split())
    assert max(len(line) for line in result.output.splitlines()) <= 100


def test_json_has_integers_that_sum(root) -> None:
    found = json.loads(invoke(root, "--to", "single", "--json").output)
    (made,) = found["forecasts"]
    assert sum(c["p50_ns"] for c in made["forecast"]["categories"]) == made["forecast"]["card_ns"]["p50"]
    assert sum(c["p90_pico"] for c in made["money"]["categories"]) == made["money"]["total_pico"]["p90"]


def test_renting_ends_in_a_sentence_with_reasons(root) -> None:
    result = invoke(root, "--rent", "--to", "multi", "--machine", "h100x8")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1] == "Do not rent."
    assert "equal completions" in result.output


def test_a_budget_that_is_too_small_refuses_a_machine(root) -> None:
    result = invoke(root, "--rent", "--to", "multi", "--machine", "h100x8", "--budget", "1 USD")
    assert "is over the budget of 1.00 USD" in " ".join(result.output.split())


def test_renting_needs_a_machine_to_compare(root) -> None:
    result = invoke(root, "--rent")
    assert result.exit_code == 2
    assert "--machine" in result.output


def test_the_data_sheet_alone_needs_no_ledger(tmp_path) -> None:
    result = invoke(tmp_path, "--from", "none", "--to", "single", "model=hf", "model.path=org/Qwen3-0.6B")
    assert result.exit_code == 0, result.output
    assert "from model size and data sheets alone" in result.output
    assert "prior" in result.output
    assert not (tmp_path / "ledger.db").exists()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--to", "nowhere"), "nowhere"),
        (("--machine", "nowhere"), "nowhere"),
        (("--bring-up", "soon"), "bring-up"),
        (("--extra", "storage"), "NAME=AMOUNT"),
        (("--budget", "10", "--rent", "--machine", "h100x8"), "10"),
        (("task=gsm8k",), "the profile's task"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(root, arguments, part) -> None:
    result = invoke(root, *arguments)
    assert result.exit_code == 2, result.output
    assert part in result.output
    assert "Traceback" not in result.output


def test_a_sweep_with_too_few_steps_is_refused_with_the_number_needed(tmp_path) -> None:
    assert run(compose(["+stage=smoke", "trainer=simulated", "stage.steps=1", f"paths.root={tmp_path}"])) in (0, 3)
    result = invoke(tmp_path, "--to", "single")
    assert result.exit_code == 2, result.output
    assert "A profile needs at least 5" in result.output


def test_without_a_ledger_the_message_has_the_remedy(tmp_path) -> None:
    result = invoke(tmp_path, "--to", "single")
    assert result.exit_code == 2
    assert "python sweep.py +stage=smoke" in result.output

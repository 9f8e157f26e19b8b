"""How plans are printed."""

from __future__ import annotations

from sweeps.driver.driver import run
from sweeps.report.console import MAX_ROWS, WIDTH
from tests.sweeps.search_spaces import KL_COEF_WHEN, KL_PLACEMENT, LR_RANGE, smoke


def test_a_plan_of_many_trials_is_printed_shortened(capsys):
    run(smoke("search.trials=100", "search.prompts_per_step=[2]", "trainer=simulated", "dry_run=true"))
    printed = capsys.readouterr().out
    assert printed.count(" 2 x 8 ") == MAX_ROWS
    assert f" {100 - MAX_ROWS} more" in printed


def test_plans_fit_into_a_hundred_columns(capsys):
    wide = (
        "search.space.rollout.temperature={low:0.7,high:1.2,step:0.1}",
        "search.space.algorithm.adam_beta2=[0.95,0.999]",
    )
    for method in ("random", "optuna"):
        run(smoke(f"search={method}", LR_RANGE, KL_PLACEMENT, KL_COEF_WHEN, *wide, "trainer=simulated", "dry_run=true"))
    printed = capsys.readouterr().out
    table = [line for line in printed.splitlines() if not line.startswith("  machine ")]
    assert max(map(len, table)) <= WIDTH
    assert "points proposed by Optuna's TPE" in printed
    assert "algorithm.kl_placement=loss" in printed
    assert "16 trials" in printed

"""The commands that are printed at the end of a sweep."""

from __future__ import annotations

from sweeps.driver.summary import next_command
from tests.sweeps.search_spaces import LR_RANGE


def test_the_command_for_the_next_stage_leaves_out_the_overrides_of_this_stage() -> None:
    typed = [
        "+stage=smoke",
        "model=tiny",
        "search.seeds=[0,1]",
        "resume=never",
        'gate.force="low, but ok"',
        "trainer.simulated.crash_at_step=3",
        "paths.root=a folder",
    ]
    assert next_command("single", typed) == "python sweep.py +stage=single model=tiny 'paths.root=a folder'"


def test_the_command_for_the_next_stage_leaves_out_the_search_of_this_one() -> None:
    command = next_command("single", ["+stage=smoke", "search=optuna", LR_RANGE, "search.trials=3", "model=tiny"])
    assert "search" not in command

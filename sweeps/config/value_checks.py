"""Checks of the values of a configuration, with a sentence for each problem.

The checks read nothing, except whether a named file or folder exists. Problems of a model, a task or a price are
reported when it is loaded, still before anything is billed. `sweeps/config/search_checks.py` checks the search space.

Tested in tests/sweeps/config/test_messages.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sweeps.config.bounds import at_least, not_finite
from sweeps.config.budget_checks import budget_problems
from sweeps.config.machine_checks import machine_problems
from sweeps.config.recipe_checks import recipe_problems
from sweeps.config.types import SweepConfig

_SWEEP_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


def value_problems(config: SweepConfig) -> list[str]:
    """Everything that is wrong, each with its key and what would be right; empty when nothing is."""
    if found := list(not_finite(config)):
        return found
    checks = (_run, _search_lists, recipe_problems, machine_problems, budget_problems)
    return [text for check in checks for text in check(config)]


def _run(config: SweepConfig) -> Iterator[str]:
    yield from at_least(config, 1, "stage.steps", "stage.min_cards")
    if not _SWEEP_NAME.fullmatch(config.resume):
        yield f"resume={config.resume!r} should be auto, never, failed, or the name of a sweep (a folder in paths.root)"
    for key in ("root", "cache"):
        if not getattr(config.paths, key).strip():
            yield f"paths.{key} is empty; it should be a folder"


def _search_lists(config: SweepConfig) -> Iterator[str]:
    search = config.search
    for axis in ("prompts_per_step", "group_size", "lr_scaling", "seeds"):
        if not getattr(search, axis):
            yield f"search.{axis}=[] has no value; it should have at least one"
    for prompts in search.prompts_per_step:
        if prompts < 1:
            yield f"search.prompts_per_step={prompts} should be 1 or more: a step needs at least one question"
    for group in search.group_size:
        if group < 2:
            yield (
                f"search.group_size={group} trains nothing: an advantage compares the completions of one prompt with "
                "each other; it should be 2 or more (8 is the usual choice)"
            )
    for seed in search.seeds:
        if seed < 0:
            yield f"search.seeds={seed} should be 0 or more"
    yield from at_least(config, 0, "search.max_concurrent")

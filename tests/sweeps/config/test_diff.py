"""What differs between two configurations."""

from __future__ import annotations

from sweeps.config.build import canonical, compose
from sweeps.config.diff import changed_keys

SMOKE = canonical(compose(["+stage=smoke"]))


def changes(*overrides: str) -> list[str]:
    return changed_keys(SMOKE, canonical(compose(["+stage=smoke", *overrides])))


def test_equal_configurations_differ_in_nothing() -> None:
    assert changes() == []


def test_each_changed_key_is_shown_with_its_old_and_its_new_value() -> None:
    assert changes("algorithm.lr=0.00003", "search.seeds=[0,1]", "task.system_prompt=hello") == [
        "task.system_prompt:  -> hello",
        "algorithm.lr: 1e-05 -> 3e-05",
        "search.seeds: [0] -> [0, 1]",
    ]


def test_a_key_of_one_side_only_is_compared_with_none() -> None:
    assert changes("+task.params.allow_negation=true") == ["task.params.allow_negation: (none) -> True"]
    with_key = canonical(compose(["+stage=smoke", "+task.params.allow_negation=true"]))
    assert changed_keys(with_key, SMOKE) == ["task.params.allow_negation: True -> (none)"]


def test_sections_without_effect_on_the_plan_are_left_out() -> None:
    assert changes("budget.sweep_limit=1 USD", "retry.crashes=9", "paths.root=elsewhere", "resume=never") == []


def test_a_long_value_is_cut() -> None:
    (change,) = changes(f'task.system_prompt="{"x" * 100}"')
    assert change == f"task.system_prompt:  -> {'x' * 37}..."

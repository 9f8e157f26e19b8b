"""Derived seeds are reproducible, and differ for different parts."""

from __future__ import annotations

import itertools

from rl.seeds import derived_seed


def test_seed_is_the_same_on_every_machine() -> None:
    assert derived_seed(3, "rollout", 1, 0) == 2851839255418758991


def test_seeds_are_63_bit_and_differ_for_different_parts() -> None:
    seeds = [derived_seed(*parts) for parts in itertools.product((0, 1), ("weights", "rollout"), range(100))]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_parts_are_not_simply_joined() -> None:
    assert derived_seed(1, 12) != derived_seed(11, 2)

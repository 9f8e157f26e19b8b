"""The curves of a step as named numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sweeps.journal.metrics import step_metrics
from tests.sweeps.reports import SECOND_NS, a_step


def test_throughput_counts_every_card_of_the_trial():
    step = a_step(1, wall_ns=10 * SECOND_NS)
    step = replace(step, tokens=replace(step.tokens, completion=8_000))
    for cards in (1, 4, 8):
        assert step_metrics(step, cards)["tokens_per_s"] == pytest.approx(800 / cards)

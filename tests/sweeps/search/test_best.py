"""The best point of a search, and how it is typed in the next command."""

from __future__ import annotations

import statistics

from sweeps.config.build import compose
from sweeps.search.best import as_typed, best, instead_of
from tests.sweeps.in_process import a_sweep
from tests.sweeps.search_spaces import ONE_POINT


def test_the_best_point_can_be_typed_and_replaces_earlier_overrides(tmp_path):
    space = ("search.space.rollout.temperature=[0.8,0.9]", "search.space.algorithm.dual_clip=[null,3.0]")
    sweep = a_sweep(tmp_path, *ONE_POINT, *space, "stage.steps=2").run()
    found = best(sweep.cfg, sweep.journal.record)
    assert found is not None
    assert (found.points, found.seeds) == (4, 1)
    assert found.start == statistics.fmean(
        t.summary.first_evaluation.accuracy or 0
        for t in sweep.journal.record.trials.values()
        if t.summary.first_evaluation is not None and t.summary.acc == found.accuracy
    )
    assert found.accuracy == max(t.summary.acc or 0 for t in sweep.journal.record.trials.values())
    typed = instead_of(["+stage=smoke", "rollout.temperature=1.0", "model=tiny"], found.values)
    cfg = compose([*typed, *found.batch])
    assert cfg.rollout.temperature in (0.8, 0.9)
    assert typed[:2] == ["+stage=smoke", "model=tiny"]
    assert found.batch == ("search.prompts_per_step=[8]", "search.group_size=[8]", "search.lr_scaling=[hold]")


def test_values_are_written_as_a_person_types_them():
    values = [None, True, 3, 1e-5, "clip", "Q: {question}", ["a", "b"]]
    assert [as_typed(v) for v in values] == ["null", "true", "3", "1e-05", "clip", '"Q: {question}"', "[a,b]"]

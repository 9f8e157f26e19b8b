"""Our losses against TRL's own code, on one frozen batch in float64."""

import importlib.util
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="TRL is in the bench extra")

_spec = importlib.util.spec_from_file_location(
    "grpo_vs_trl", Path(__file__).parents[2] / "benchmarks" / "grpo_vs_trl.py"
)
assert _spec is not None
assert _spec.loader is not None
bench = importlib.util.module_from_spec(_spec)
sys.modules["grpo_vs_trl"] = bench
_spec.loader.exec_module(bench)


@pytest.mark.parametrize("case", bench.TRL_SETTINGS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_loss_gradient_advantages_and_curves_agree_with_trl_to_1e_9(case, seed):
    differences = bench.compare(case, bench.frozen_batch(seed))
    assert set(bench.QUANTITIES) - set(differences) == ({"clip_low"} if case.startswith("cispo") else set())
    assert max(differences.values()) <= bench.LIMIT, differences


def test_the_frozen_batch_reaches_both_clips_and_the_dual_clip_so_that_agreeing_means_something():
    data = bench.frozen_batch()
    grpo = bench.our_quantities("grpo", data)
    assert grpo["clip_low"] > 0.02
    assert grpo["clip_high"] > 0.02
    assert bench.our_quantities("cispo, low cap", data)["clip_high"] > 0.02
    assert bench.our_quantities("grpo, dual clip", data)["loss"] != grpo["loss"]
    assert bench.our_quantities("grpo, sequence correction", data)["loss"] != grpo["loss"]


def test_the_script_exits_1_when_a_difference_is_above_the_limit(monkeypatch, capsys):
    monkeypatch.setattr(bench, "TRL_SETTINGS", {"grpo": {"loss_type": "dapo"}})
    assert bench.main(["--parity"]) == 1
    assert "DIFFERS" in capsys.readouterr().out
    monkeypatch.setattr(bench, "TRL_SETTINGS", {"dapo": {"loss_type": "dapo"}})
    assert bench.main(["--parity"]) == 0

"""Losses, gradients and curves against TRL's own code, on one fixed batch in float64."""

import pytest

pytest.importorskip("trl", reason="TRL is in the bench extra")

from benchmarks import grpo_vs_trl as bench


@pytest.mark.parametrize("case", bench.TRL_SETTINGS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_loss_gradient_advantages_and_curves_agree_with_trl_to_1e_9(case, seed):
    differences = bench.compare(case, bench.fixed_batch(seed))
    assert set(bench.QUANTITIES) - set(differences) == ({"clip_low"} if case.startswith("cispo") else set())
    assert max(differences.values()) <= bench.LIMIT, differences


def test_fixed_batch_reaches_both_clips_and_the_dual_clip():
    data = bench.fixed_batch()
    grpo = bench.our_quantities("grpo", data)
    assert grpo["clip_low"] > 0.02
    assert grpo["clip_high"] > 0.02
    assert bench.our_quantities("cispo, low cap", data)["clip_high"] > 0.02
    assert bench.our_quantities("grpo, dual clip", data)["loss"] != grpo["loss"]
    assert bench.our_quantities("grpo, sequence correction", data)["loss"] != grpo["loss"]


def test_script_exits_with_1_if_a_difference_is_above_the_limit(monkeypatch, capsys):
    monkeypatch.setattr(bench, "TRL_SETTINGS", {"grpo": {"loss_type": "dapo"}})
    assert bench.main(["--parity"]) == 1
    assert "DIFFERS" in capsys.readouterr().out
    monkeypatch.setattr(bench, "TRL_SETTINGS", {"dapo": {"loss_type": "dapo"}})
    assert bench.main(["--parity"]) == 0

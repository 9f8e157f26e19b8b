"""The probe at load: an architecture trains on right log-probabilities, or is refused with the key to change."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

from rl.checks.probe import ProbeReport, probe_engine, probe_model
from rl.policy import Policy, load_policy
from rl.rollout.simulated_engine import SimulatedEngine
from rl.rollout.transformers_engine import TransformersEngine
from rl.spec import ConfigurationError, ModelSpec, RolloutSpec, TrainerSpec
from tests.rl.random_llama import random_llama_policy
from tests.rl.small_models import ARCHITECTURES, WINDOW, save_model

CPU = torch.device("cpu")
LONGEST = 90
HYBRIDS = {"qwen3_next", "bamba", "falcon_h1"}


def loaded(folder: Path, attention: Any = "sdpa", **settings: Any) -> tuple[Policy, ModelSpec, TrainerSpec]:
    model = ModelSpec("hf", path=str(folder), attention=attention)
    trainer = TrainerSpec(**{"precision": "fp32", **settings})
    return load_policy(folder, model, trainer, CPU), model, trainer


def probed(folder: Path, attention: Any = "sdpa", **settings: Any) -> ProbeReport:
    return probe_model(*loaded(folder, attention, **settings), LONGEST)


@pytest.mark.parametrize(
    ("attention", "checkpointing", "precision"),
    [("sdpa", False, "fp32"), ("eager", True, "fp32"), ("sdpa", True, "bf16"), ("eager", False, "bf16")],
)
@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_all_forms_of_rows_agree_and_recurrent_layers_are_padded(
    tmp_path: Path, architecture: str, attention: str, checkpointing: bool, precision: str
) -> None:
    save_model(tmp_path, architecture)
    report = probed(tmp_path, attention, gradient_checkpointing=checkpointing, precision=precision)
    assert report.packing == (architecture not in HYBRIDS)
    assert WINDOW < report.longest_row_tokens <= LONGEST


@pytest.mark.parametrize("architecture", sorted(HYBRIDS))
def test_packing_of_recurrent_layers_is_refused_with_a_setting_that_works(tmp_path: Path, architecture: str) -> None:
    save_model(tmp_path, architecture)
    with pytest.raises(ConfigurationError, match=r"layers of type .*Use trainer\.packing=false"):
        probed(tmp_path, packing=True)
    assert not probed(tmp_path, packing=False).packing


def test_window_that_the_mask_leaves_out_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rl import policy

    save_model(tmp_path, "mistral")

    def without_window(config: Any, batch: Any, dtype: torch.dtype) -> torch.Tensor:
        return batch.visible()

    monkeypatch.setattr(policy, "packed_masks", without_window)
    with pytest.raises(ConfigurationError, match=r"packed rows differ from single rows by .*trainer\.packing=false"):
        probed(tmp_path, packing=True)
    report = probed(tmp_path, packing="auto")
    assert not report.packing
    assert any("rows are padded, not packed: packed rows differ" in note for note in report.notes)


def test_boolean_mask_given_to_eager_attention_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rl import policy

    save_model(tmp_path, "llama")
    monkeypatch.setattr(policy, "packed_masks", lambda config, batch, dtype: batch.visible())
    with pytest.raises(ConfigurationError, match="packed rows differ from single rows"):
        probed(tmp_path, "eager", packing=True)


def test_padded_rows_that_see_their_neighbours_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tmp_path, "llama")
    policy, model, trainer = loaded(tmp_path)
    backbone: Any = policy.backbone
    embed = backbone.embed_tokens

    class MixesRows(nn.Module):
        weight = embed.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return embed(ids) + embed(ids).mean(dim=0, keepdim=True)

    backbone.embed_tokens = MixesRows()
    with pytest.raises(ConfigurationError, match=r"padded rows differently .*trainer\.micro_batch_tokens=1"):
        probe_model(policy, model, trainer, LONGEST)


def test_soft_cap_that_sdpa_leaves_out_is_refused_and_eager_is_right(tmp_path: Path) -> None:
    save_model(tmp_path, "gemma2", attn_logit_softcapping=0.5)
    with pytest.raises(ConfigurationError, match=r"sdpa leaves out a part .*use model\.attention=eager"):
        probed(tmp_path, "sdpa")
    assert probed(tmp_path, "eager").packing


def test_noise_in_the_mode_that_trains_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    policy, model, trainer = loaded(tmp_path, gradient_checkpointing=True)
    noise, backbone = nn.Dropout(0.3).train(), cast(Any, policy.backbone)
    backbone.layers[0].mlp.register_forward_hook(lambda module, inputs, output: noise(output))
    with pytest.raises(ConfigurationError, match=r"random in the mode that trains.*trainer\.gradient_checkpointing"):
        probe_model(policy, model, trainer, LONGEST)


def test_windows_that_no_row_of_the_trial_reaches_are_reported(tmp_path: Path) -> None:
    save_model(tmp_path, "mistral", sliding_window=200)
    report = probed(tmp_path)
    assert report.longest_row_tokens < LONGEST
    assert any("not reached" in note and "sliding_window=200" in note for note in report.notes)


def test_probe_leaves_the_random_state_and_the_attention_implementation_alone(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    policy, model, trainer = loaded(tmp_path)
    before = torch.get_rng_state()
    probe_model(policy, model, trainer, LONGEST)
    assert torch.equal(torch.get_rng_state(), before)
    assert cast(Any, policy.model).config._attn_implementation == "sdpa"


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_transformers_engine_agrees_with_the_learner_on_every_architecture(tmp_path: Path, architecture: str) -> None:
    save_model(tmp_path, architecture)
    policy, _, _ = loaded(tmp_path)
    engine = TransformersEngine(RolloutSpec("transformers"), policy, 0)
    assert "agree" in probe_engine(engine, policy, RolloutSpec("transformers"), LONGEST)


def test_engine_with_other_weights_is_refused() -> None:
    policy, other = random_llama_policy(20), random_llama_policy(20, seed=1)
    rollout = RolloutSpec("transformers")
    with pytest.raises(ConfigurationError, match=r"transformers and the learner compute different .*use rollout=vllm"):
        probe_engine(TransformersEngine(rollout, other, 0), policy, rollout, 40)


def test_engine_that_cannot_sample_is_refused_before_the_first_step() -> None:
    policy = random_llama_policy(20)
    engine = TransformersEngine(RolloutSpec("transformers"), policy, 0)
    engine._policy = dataclasses.replace(engine._policy, model=nn.Linear(2, 2))
    with pytest.raises(ConfigurationError, match="cannot sample from LlamaForCausalLM"):
        probe_engine(engine, policy, RolloutSpec("transformers"), 40)


def test_simulated_engine_is_not_compared() -> None:
    policy = random_llama_policy(20)
    rollout = RolloutSpec("simulated")
    assert "not compared" in probe_engine(SimulatedEngine(rollout, policy, 0), policy, rollout, 40)

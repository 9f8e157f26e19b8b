"""The shape of a model from its config.json, without weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rl.memory.architecture import read_architecture
from rl.spec import ConfigurationError
from tests.rl.model_folders import LLAMA_8B, write_config


def test_the_parameters_of_an_8b_are_counted_without_allocating_them(tmp_path: Path):
    model = read_architecture(write_config(tmp_path, "llama", LLAMA_8B))
    assert model.name == "LlamaForCausalLM"
    assert model.parameters == 8_030_261_248
    assert model.linear_parameters == 32 * (4096 * 4096 * 2 + 4096 * 1024 * 2 + 3 * 4096 * 14336)
    assert (model.query_width, model.key_width, model.mlp_width, model.layers) == (4096, 1024, 14336, 32)
    assert model.gated
    assert not model.tied
    assert model.positions == 8192


def test_adapters_are_counted_as_peft_makes_them(tmp_path: Path):
    import peft
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 3}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    folder = write_config(tmp_path, "llama", config)
    model = read_architecture(folder)
    targets = ["q_proj", "v_proj", "down_proj"]
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
        adapted = peft.get_peft_model(network, peft.LoraConfig(r=4, target_modules=targets))
    expected = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    assert model.adapter_parameters(4, targets) == expected
    assert len(model.adapted(["all-linear"])) == 3 * 7
    assert model.adapted(["no_such_layer"]) == ()


@pytest.mark.parametrize(
    ("model_type", "gated", "query_norm", "norm_keeps_output"),
    [("qwen2", True, False, True), ("qwen3", True, True, True), ("opt", False, False, False)],
)
def test_the_layers_of_other_architectures_are_recognised(tmp_path, model_type, gated, query_norm, norm_keeps_output):
    config = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config |= {"ffn_dim": 64, "word_embed_proj_dim": 32} if model_type == "opt" else {"intermediate_size": 64}
    model = read_architecture(write_config(tmp_path, model_type, config))
    assert (model.gated, model.query_norm, model.norm_keeps_output) == (gated, query_norm, norm_keeps_output)
    assert model.mlp_width == 64


def test_a_folder_without_a_usable_config_is_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="has no config"):
        read_architecture(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "unheard_of"}))
    with pytest.raises(ConfigurationError, match="no causal language model"):
        read_architecture(tmp_path)

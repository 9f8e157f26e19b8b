"""Small random models of many architectures, saved as folders that `load_policy` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

VOCABULARY = 64
WINDOW = 16

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}
_UNCAPPED = {"final_logit_softcapping": None, "attn_logit_softcapping": None}

# Architecture: (name of the configuration class in transformers, keys beside those of _SHAPE).
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    # Its configuration has a window and no `layer_types`.
    "mistral": ("MistralConfig", {"sliding_window": WINDOW}),
    "phi3": ("Phi3Config", {"sliding_window": WINDOW}),
    "qwen2_window": ("Qwen2Config", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    "gemma2": ("Gemma2Config", {"sliding_window": WINDOW, "head_dim": 8, **_UNCAPPED}),
    "gemma3": (
        "Gemma3TextConfig",
        {"sliding_window": WINDOW, "head_dim": 8, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "router_jitter_noise": 0.3}),
    "opt": (
        "OPTConfig",
        {"ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.3, "dropout": 0.3, "attention_dropout": 0.2}
        | {"layerdrop": 0.2},
    ),
    "qwen3_next": (
        "Qwen3NextConfig",
        {"layer_types": ["linear_attention", "full_attention"], "head_dim": 8, "num_experts": 4}
        | {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
        | {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
        | {"linear_key_head_dim": 8, "linear_value_head_dim": 8},
    ),
    "bamba": ("BambaConfig", {"attn_layer_indices": [1], "mamba_expand": 2, **_MAMBA}),
    "falcon_h1": ("FalconH1Config", {"mamba_d_ssm": 64, "lm_head_multiplier": 1.0, **_MAMBA}),
}


def save_model(folder: Path, architecture: str, **changes: Any) -> Path:
    """Save a random model of `architecture` and a tokenizer into `folder`. `changes` are keys of its configuration."""
    import transformers
    from tokenizers import Tokenizer, models

    name, keys = ARCHITECTURES[architecture]
    config = getattr(transformers, name)(**{**_SHAPE, **keys, **changes})
    torch.manual_seed(0)
    model: Any = transformers.AutoModelForCausalLM.from_config(config)
    model.generation_config.eos_token_id = 1
    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCABULARY)}))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="t1").save_pretrained(folder)
    return folder

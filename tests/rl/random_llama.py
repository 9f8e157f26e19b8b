"""A small Llama with seeded random weights, for tests that need a policy but no trained model."""

from __future__ import annotations

from typing import Any

import torch

from rl.policy import Policy


def random_llama_policy(
    vocabulary: int,
    *,
    seed: int = 0,
    hidden: int = 16,
    intermediate: int = 24,
    heads: int = 2,
    kv_heads: int = 1,
    positions: int = 64,
    initializer_range: float = 0.4,
    dtype: torch.dtype = torch.float32,
    eos_ids: frozenset[int] = frozenset({1}),
    chunk_tokens: int = 5,
) -> Policy:
    """A policy of two layers with a tied head, pad id 0 and no tokenizer, on the CPU."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        initializer_range=initializer_range,
        bos_token_id=None,
        eos_token_id=1,
        architectures=["LlamaForCausalLM"],
    )
    model: Any = LlamaForCausalLM(config)
    if dtype == torch.float64:
        for layer in model.model.layers:  # Llama's own norm computes in fp32, whatever the dtype of the model
            layer.input_layernorm = torch.nn.RMSNorm(hidden, eps=1e-6)
            layer.post_attention_layernorm = torch.nn.RMSNorm(hidden, eps=1e-6)
        model.model.norm = torch.nn.RMSNorm(hidden, eps=1e-6)
    return Policy(
        model=model.to(dtype).eval(),
        tokenizer=None,
        eos_ids=eos_ids,
        pad_id=0,
        device=torch.device("cpu"),
        autocast=False,
        chunk_tokens=chunk_tokens,
    )

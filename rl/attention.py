"""What a model's attention layers need to compute packed rows, and which lengths change how a model computes.

A packed row needs an explicit mask. Every attention implementation takes its own form: `sdpa` takes booleans, `eager`
takes numbers that are added to the scores, `flash_attention_2` takes no such mask. Models with a sliding window need a
mask with that window, and models with several types of layers need one mask per type.

Tested in tests/rl/test_policy.py and tests/rl/checks/test_probe.py.
"""
# ruff: noqa: F722 - jaxtyping's shape strings are not Python

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from rl.layout import MicroBatch

FULL, SLIDING = "full_attention", "sliding_attention"
_MASKED_IMPLEMENTATIONS = ("sdpa", "eager")
_DYNAMIC_ROPE = ("dynamic", "longrope")


def packing_obstacle(config: Any) -> str | None:
    """Why a model with this transformers configuration cannot compute packed rows; None: nothing is known against it.

    Whether the model then computes them correctly is measured by `rl.checks.probe`.
    """
    implementation = config._attn_implementation
    if implementation not in _MASKED_IMPLEMENTATIONS:
        return f"model.attention={implementation} takes no mask"
    others = _layer_types(config) - {FULL, SLIDING}
    if others:
        return f"the model has layers of type {', '.join(sorted(others))}, which cannot skip the tokens of other rows"
    return None


def packed_masks(config: Any, batch: MicroBatch, dtype: torch.dtype) -> Tensor | dict[str, Tensor]:
    """The masks of a packed micro-batch in the form that the model takes: one mask, or one per type of layer.

    `dtype` is that of the model's embeddings.
    """

    def mask(window: int | None) -> Tensor:
        visible = batch.visible(window)
        return _additive(visible, dtype) if config._attn_implementation == "eager" else visible

    window = getattr(_text(config), "sliding_window", None)
    types = _layer_types(config)
    if not types:
        return mask(window)
    if types == {FULL}:
        return mask(None)
    return {kind: mask(window if kind == SLIDING else None) for kind in sorted(types)}


def special_lengths(config: Any) -> dict[str, int]:
    """Lengths in tokens above which a model computes differently, by the name of the key: windows, chunks, rope.

    Longer rows must be compared to know that a form of layout is right for all rows.
    """
    text = _text(config)
    found = {
        name: value
        for name, value in vars(text).items()
        if isinstance(value, int) and not isinstance(value, bool) and _is_window(name)
    }
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    for part in [rope, *(v for v in rope.values() if isinstance(v, Mapping))]:
        kind = part.get("rope_type", part.get("type"))
        if kind in _DYNAMIC_ROPE:
            original = part.get("original_max_position_embeddings") or text.max_position_embeddings
            found["original_max_position_embeddings"] = int(original)
    return {name: value for name, value in found.items() if value > 0}


def _is_window(name: str) -> bool:
    return name in ("sliding_window", "window_size") or ("chunk" in name and "feed_forward" not in name)


def _text(config: Any) -> Any:
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _layer_types(config: Any) -> set[str]:
    text = _text(config)
    types = getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None) or ()
    return set(types)


def _additive(visible: Bool[Tensor, "rows 1 length length"], dtype: torch.dtype) -> Tensor:
    """0 where a token may be attended to, and the lowest number of `dtype` elsewhere."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, torch.finfo(dtype).min)

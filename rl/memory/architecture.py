"""The shape of a model: its parameters by kind and the widths of its layers, from `config.json` alone.

The model is built on torch's meta device, which allocates no memory, so the parameters are counted exactly for any
architecture that `transformers` knows. Importing this module is light; torch is imported by `read_architecture`.

Tested in tests/rl/memory/test_architecture.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rl.spec import ConfigurationError

_LAYER = re.compile(r"\.(\d+)\.")
_ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)
_ATTENTION_OUTPUTS = {"o_proj", "out_proj", "dense", "c_proj", "wo"}


@dataclass(frozen=True)
class Linear:
    """A linear layer of the model, without the projection to the vocabulary."""

    name: str
    """Dotted name of the module."""
    inputs: int
    outputs: int
    place: Literal["attention_input", "attention_output", "mlp_input", "mlp_output"]
    """Which activation of its layer it reads."""

    @property
    def parameters(self) -> int:
        return self.inputs * self.outputs


@dataclass(frozen=True)
class Architecture:
    """What the memory of a trial depends on. Widths are features per token."""

    name: str
    """Class of the model, such as LlamaForCausalLM."""
    parameters: int
    """All parameters; a tied projection to the vocabulary counts once."""
    linears: tuple[Linear, ...]
    vocabulary: int
    """Rows of the embedding."""
    hidden: int
    tied: bool
    """The projection to the vocabulary is the embedding."""
    layers: int
    heads: int
    query_width: int
    key_width: int
    """Width of the keys of one token in one layer, which is also the width of the values."""
    mlp_width: int
    """Width inside the MLP that one token uses."""
    gated: bool
    """The MLP multiplies two projections (SwiGLU)."""
    mlp_tensors: int
    """Tensors of the MLP's width that autograd keeps, without the input of the last layer."""
    norm_keeps_output: bool
    """The norms are written in several operations, and autograd keeps the normalised values beside the input."""
    query_norm: bool
    """Queries and keys are normalised (Qwen3)."""
    positions: int | None
    """Longest context; None: not limited by the configuration."""

    @property
    def linear_parameters(self) -> int:
        return sum(linear.parameters for linear in self.linears)

    @property
    def head_parameters(self) -> int:
        return self.vocabulary * self.hidden

    def adapted(self, targets: Sequence[str]) -> tuple[Linear, ...]:
        """The layers that get a LoRA adapter, as PEFT selects them: by the end of their name, or `all-linear`."""
        if "all-linear" in targets:
            return self.linears
        return tuple(x for x in self.linears if any(x.name == t or x.name.endswith(f".{t}") for t in targets))

    def adapter_parameters(self, rank: int, targets: Sequence[str]) -> int:
        return sum(rank * (x.inputs + x.outputs) for x in self.adapted(targets))


def read_architecture(folder: Path) -> Architecture:
    """The architecture that `config.json` in `folder` describes. No weights are read.

    Raises:
        ConfigurationError: there is no `config.json`, or `transformers` knows no causal language model for it.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if not (folder / "config.json").is_file():
        raise ConfigurationError(f"{folder} has no config.json: save a model there with save_pretrained")
    try:
        config = AutoConfig.from_pretrained(folder)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except Exception as error:  # transformers raises errors of many kinds for a configuration that it cannot build
        raise ConfigurationError(
            f"{folder / 'config.json'} describes no causal language model that transformers can build: "
            f"{type(error).__name__}: {error}"
        ) from error
    return _architecture(model, config)


def _architecture(model: Any, config: Any) -> Architecture:
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    text = config.get_text_config(decoder=True)
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    hidden, heads = int(text.hidden_size), int(text.num_attention_heads)
    head_width = int(getattr(text, "head_dim", None) or hidden // heads)
    key_heads = int(getattr(text, "num_key_value_heads", None) or heads)
    linears = []
    for name, module in model.named_modules():
        if module is head or not _LAYER.search(name):
            continue
        if isinstance(module, nn.Linear):
            inputs, outputs = module.in_features, module.out_features
        elif isinstance(module, Conv1D):
            inputs, outputs = module.weight.shape
        else:
            continue
        linears.append(Linear(name, inputs, outputs, _place(name, inputs, hidden)))
    layers = int(text.num_hidden_layers)
    first_layer = [x for x in linears if _LAYER.findall(x.name)[:1] == [str(layers - 1)]]
    into_mlp = sum(x.outputs for x in first_layer if x.place == "mlp_input")
    width = _mlp_width(text, first_layer)
    gated = into_mlp >= 2 * width if into_mlp else True
    norms = [m for name, m in model.named_modules() if "norm" in name.rpartition(".")[2] or "ln" in name]
    function = str(getattr(text, "hidden_act", None) or getattr(text, "activation_function", ""))
    # gate, activated gate and up projection; or the input of one activation function, which may be written out
    kept = 3 if gated else 4 if function in ("gelu_new", "gelu_python", "gelu_fast") else 1
    return Architecture(
        name=type(model).__name__,
        parameters=sum(p.numel() for p in model.parameters()),
        linears=tuple(linears),
        vocabulary=int(embedding.weight.shape[0]),
        hidden=hidden,
        tied=head is not None and head.weight is embedding.weight,
        layers=layers,
        heads=heads,
        query_width=heads * head_width,
        key_width=key_heads * head_width,
        mlp_width=width,
        gated=gated,
        mlp_tensors=kept,
        norm_keeps_output=not any(isinstance(m, nn.LayerNorm | nn.RMSNorm) for m in norms),
        query_norm=any(name.endswith("q_norm") for name, _ in model.named_modules()),
        positions=getattr(text, "max_position_embeddings", None),
    )


def _place(name: str, inputs: int, hidden: int) -> Any:
    leaf = name.rpartition(".")[2]
    if _ATTENTION.search(name):
        return "attention_output" if leaf in _ATTENTION_OUTPUTS else "attention_input"
    return "mlp_input" if inputs == hidden and leaf not in ("down_proj", "fc2", "c_proj") else "mlp_output"


def _mlp_width(text: Any, layer: Sequence[Linear]) -> int:
    """The width inside the MLP; with a mixture of experts, of all experts that one token is routed to."""
    experts = getattr(text, "num_experts_per_tok", None)
    expert_width = getattr(text, "moe_intermediate_size", None) or getattr(text, "intermediate_size", None)
    if experts and expert_width:
        return int(experts) * int(expert_width)
    if outputs := [x.inputs for x in layer if x.place == "mlp_output"]:
        return max(outputs)
    return int(expert_width or 4 * text.hidden_size)

"""The peak memory of one trial on one card: weights, gradients, optimiser, reference, engine, activations, head, masks.

The formulas follow the native trainer: fp32 weights that are trained, bf16 autocast with `trainer.precision=bf16`, a
frozen copy of the policy in the transformers engine, AdamW with two fp32 moments. Activations are the tensors that
autograd keeps for the backward pass, counted per token and layer as in V. Korthikanti et al. 2022 (arXiv:2205.05198,
section 4.1), for SwiGLU or plain MLPs and for grouped queries.

Pure: no torch, no files.

Tested in tests/rl/memory/test_measured_peak.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from rl.memory.architecture import Architecture, Linear
from rl.spec import TrialSpec

FP32, BF16, FP64 = 4, 2, 8
CUDA_CONTEXT_BYTES = 600 * 2**20
"""Kernels and libraries of a process on a card; torch and cuBLAS on recent cards take 0.4 to 0.7 GiB."""
CPU_LIBRARY_BYTES = {FP32: 16 * 2**20, BF16: 48 * 2**20}
"""Buffers and compiled kernels of BLAS and oneDNN on a CPU, by the width of the numbers, as measured."""
SAMPLED_LOGIT_BYTES = 3 * FP32 + 2 * FP64
"""Per completion and vocabulary entry: logits, log-probabilities, probabilities, and their cumulative sum in fp64."""


@dataclass(frozen=True)
class Part:
    """One part of the memory at the peak."""

    name: str
    bytes: int


@dataclass(frozen=True)
class MemoryUse:
    """The memory of a card at the peak of a trial."""

    peak: Literal["training", "sampling"]
    """What the trial does at the peak."""
    parts: tuple[Part, ...]
    """Largest first."""

    @property
    def peak_bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


@dataclass(frozen=True)
class _Batch:
    """The largest micro-batch that the settings allow."""

    rows: int
    length: int
    """Positions of a row."""
    completions: int
    """Completions in the micro-batch."""
    per_update: int
    """Micro-batches of one optimiser update."""

    @property
    def tokens(self) -> int:
        return self.rows * self.length


def predict(
    model: Architecture,
    spec: TrialSpec,
    *,
    device: Literal["cpu", "cuda"],
    engine: str,
    prompt_tokens: int | None = None,
    card_bytes: int = 0,
) -> MemoryUse:
    """The memory at the peak of the trial, on one card.

    Where `trainer.precision` or `trainer.packing` is chosen during the run, the choice with the larger peak counts.

    Args:
        engine: `transformers` or `vllm`, what `rollout.engine=auto` selects on the machine.
        prompt_tokens: length of the longest prompt; None: `rollout.max_prompt_tokens`.
        card_bytes: memory of the card, of which vllm takes `rollout.gpu_memory_utilization`.
    """
    prompt = prompt_tokens or spec.rollout.max_prompt_tokens
    uses = [_use(model, chosen, device, engine, prompt, card_bytes) for chosen in _choices(spec, device)]
    return max(uses, key=lambda use: use.peak_bytes)


def _choices(spec: TrialSpec, device: str) -> list[TrialSpec]:
    """The specification with each value that an `auto` can become on this device."""
    trainer = spec.trainer
    automatic = ("bf16",) if device == "cuda" else ("fp32", "bf16")
    precisions = automatic if str(trainer.precision) == "auto" else (trainer.precision,)
    packings = (True, False) if str(trainer.packing) == "auto" else (trainer.packing,)
    return [
        replace(spec, trainer=replace(trainer, precision=precision, packing=packing))
        for precision in precisions
        for packing in packings
    ]


def _use(model: Architecture, spec: TrialSpec, device: str, engine: str, prompt: int, card_bytes: int) -> MemoryUse:
    resident = _resident(model, spec, device, engine, card_bytes)
    training = _training(model, spec, _largest_batch(spec, prompt))
    sampling = _sampling(model, spec, prompt) if engine == "transformers" else {}
    if sum(training.values()) >= sum(sampling.values()):
        return MemoryUse("training", _parts(resident | training))
    return MemoryUse("sampling", _parts(resident | sampling))


def _parts(sizes: dict[str, int]) -> tuple[Part, ...]:
    return tuple(Part(name, size) for name, size in sorted(sizes.items(), key=lambda x: -x[1]) if size > 0)


# ---------------------------------------------------------------------------------------------------------------------
# Resident in every phase
# ---------------------------------------------------------------------------------------------------------------------


def _resident(model: Architecture, spec: TrialSpec, device: str, engine: str, card_bytes: int) -> dict[str, int]:
    trained = _trained_parameters(model, spec)
    adapters = trained if spec.model.lora_rank else 0
    sizes = {"weights": _weight_bytes(model, spec) + adapters * FP32, "optimiser": 2 * trained * FP32}
    if spec.algorithm.kl_coef > 0 and not spec.model.lora_rank:
        sizes["reference"] = _frozen_copy_bytes(model, spec)
    if engine == "transformers":
        sizes["engine weights"] = _frozen_copy_bytes(model, spec)
    elif device == "cuda":
        sizes["engine (vllm)"] = max(
            int(spec.rollout.gpu_memory_utilization * card_bytes), _least_vllm_bytes(model, spec)
        )
    else:
        sizes["engine (vllm)"] = model.parameters * _width(spec) + spec.rollout.kv_cache_gib * 2**30
    sizes["libraries"] = CUDA_CONTEXT_BYTES if device == "cuda" else CPU_LIBRARY_BYTES[_width(spec)]
    return sizes


def _least_vllm_bytes(model: Architecture, spec: TrialSpec) -> int:
    """The weights, and the key-value cache of one completion: with less vllm does not start."""
    tokens = spec.rollout.max_prompt_tokens + spec.rollout.max_completion_tokens
    return (model.parameters + tokens * 2 * model.key_width * model.layers) * _width(spec)


def _trained_parameters(model: Architecture, spec: TrialSpec) -> int:
    if spec.model.lora_rank:
        return model.adapter_parameters(spec.model.lora_rank, spec.model.lora_targets)
    return model.parameters


def _weight_bytes(model: Architecture, spec: TrialSpec) -> int:
    """Trained weights are fp32. Under LoRA the frozen linear layers have the precision of the trainer."""
    if not spec.model.lora_rank:
        return model.parameters * FP32
    linear = _linear_parameters(model)
    return linear * _width(spec) + (model.parameters - linear) * FP32


def _frozen_copy_bytes(model: Architecture, spec: TrialSpec) -> int:
    """Of a copy that shares the weights that are not trained.

    Under autocast it has bf16 linear layers, and a head of its own where the head was tied.
    """
    width = _width(spec)
    tied_head = model.head_parameters * BF16 if model.tied and width == BF16 else 0
    if spec.model.lora_rank:
        return _trained_parameters(model, spec) * width + tied_head
    linear = _linear_parameters(model)
    return linear * width + (model.parameters - linear) * FP32 + tied_head


def _linear_parameters(model: Architecture) -> int:
    """Weights of linear layers, with the projection to the vocabulary where it is not the embedding."""
    return model.linear_parameters + (0 if model.tied else model.head_parameters)


def _width(spec: TrialSpec) -> int:
    """Bytes of a number inside the layers."""
    return FP32 if spec.trainer.precision == "fp32" else BF16


# ---------------------------------------------------------------------------------------------------------------------
# Training
# ---------------------------------------------------------------------------------------------------------------------


def _largest_batch(spec: TrialSpec, prompt: int) -> _Batch:
    """The micro-batch with all completions at their longest; see `rl.layout.micro_batches`."""
    limit, fed = spec.trainer.micro_batch_tokens, max(spec.rollout.max_completion_tokens - 1, 1)
    per_row = 1
    if spec.trainer.packing:
        per_row = min(spec.group_size, max(1, (limit - prompt) // fed))
    length = prompt + per_row * fed
    all_rows = math.ceil(
        spec.completions_per_step / per_row / min(spec.algorithm.updates_per_rollout, spec.prompts_per_step)
    )
    rows = min(max(1, limit // length), all_rows)
    return _Batch(rows, length, rows * per_row, math.ceil(all_rows / rows))


def _training(model: Architecture, spec: TrialSpec, batch: _Batch) -> dict[str, int]:
    """At the start of a backward pass, where all activations exist, or at its end, where all gradients exist."""
    gradients = _trained_parameters(model, spec) * FP32
    layer = _layer_bytes(model, spec, batch)
    whole_layers, inputs = model.layers, 0
    if spec.trainer.gradient_checkpointing:  # one layer is recomputed at a time, from its input
        whole_layers, inputs = 1, model.layers * batch.tokens * model.hidden * FP32
    in_flight = batch.tokens * (model.hidden + 2 * model.mlp_width) * _width(spec)
    tied = model.head_parameters * FP32 if model.tied and not spec.model.lora_rank else 0
    head = _head_bytes(model, spec, batch)
    start = {
        "gradients": gradients if batch.per_update > 1 else 0,
        "activations": inputs + whole_layers * layer.activations + max(0, in_flight - head),  # the head is done first
        "masks": whole_layers * layer.masks,
        "weights in bf16": _weight_casts(model, spec),
        "head": head,
    }
    end = {"gradients": gradients + tied, "activations": layer.activations + in_flight, "masks": layer.masks}
    return max(start, end, key=lambda sizes: sum(sizes.values()))


@dataclass(frozen=True)
class _LayerBytes:
    """What autograd keeps of one layer."""

    activations: int
    masks: int


def _layer_bytes(model: Architecture, spec: TrialSpec, batch: _Batch) -> _LayerBytes:
    width, tokens = _width(spec), batch.tokens
    hidden, query, mlp = model.hidden, model.query_width, model.mlp_width
    lora = spec.model.lora_rank > 0
    per_token = 2 * hidden * FP32  # the residual stream before each norm, fp32 in either precision
    if model.norm_keeps_output and not lora:
        per_token += 2 * hidden * FP32  # normalised, for the gradient of the norm
    if model.query_norm:
        per_token += (query + model.key_width) * (FP32 + width)
    layer = [x for x in model.linears if ".0." in x.name or x.name.startswith("0.")]
    needed = {x.name for x in (model.adapted(spec.model.lora_targets) if lora else model.linears)}
    for place in ("attention_input", "mlp_input"):
        readers = [x for x in layer if x.place == place and x.name in needed]
        per_token += _inputs_bytes(readers, width, each=width == BF16)
    # queries and the output; keys and values, which a mask of packed rows needs once per query head
    per_token += 2 * (query + (query if spec.trainer.packing else model.key_width)) * width
    per_token += model.mlp_tensors * mlp * width
    if any(x.place == "mlp_output" and x.name in needed for x in layer) or not layer:
        per_token += mlp * width
    if lora:
        per_token += spec.model.lora_rank * width * sum(1 for x in layer if x.name in needed)
    scores = batch.rows * batch.length**2
    if spec.model.attention == "eager":
        return _LayerBytes(tokens * per_token + scores * model.heads * (FP32 + (BF16 if width == BF16 else 0)), 0)
    masks = scores * width if spec.model.attention == "sdpa" and spec.trainer.packing else 0
    return _LayerBytes(tokens * per_token, masks)


def _inputs_bytes(readers: list[Linear], width: int, *, each: bool) -> int:
    """Per token: the input that `readers` share. `each`: every reader keeps a copy in its own precision."""
    if not readers:
        return 0
    return sum(x.inputs for x in readers) * width if each else readers[0].inputs * width


def _weight_casts(model: Architecture, spec: TrialSpec) -> int:
    """Autocast keeps a bf16 copy of every fp32 linear layer from the forward to the backward pass."""
    if _width(spec) == FP32 or spec.model.lora_rank:
        return 0
    layers = 1 if spec.trainer.gradient_checkpointing else model.layers
    return model.linear_parameters * BF16 * layers // model.layers


def _head_bytes(model: Architecture, spec: TrialSpec, batch: _Batch) -> int:
    """The projection to the vocabulary: logits of a chunk, and the gradient of its weight."""
    width = _width(spec)
    tokens = batch.completions * spec.rollout.max_completion_tokens
    logits = min(spec.trainer.logprob_chunk_tokens, tokens) * model.vocabulary
    hidden = tokens * model.hidden * (FP32 + width)
    narrow = BF16 if width == BF16 else 0
    gradient = 0 if spec.model.lora_rank else model.head_parameters * (FP32 + width)
    forward = logits * 2 * FP32
    backward = logits * (FP32 + narrow) + gradient
    stored_in_bf16 = spec.model.lora_rank > 0 and not model.tied
    cast = 0 if stored_in_bf16 else model.head_parameters * narrow
    return hidden + cast + max(forward, backward)


# ---------------------------------------------------------------------------------------------------------------------
# Sampling with the transformers engine
# ---------------------------------------------------------------------------------------------------------------------


def _sampling(model: Architecture, spec: TrialSpec, prompt: int) -> dict[str, int]:
    """The key-value cache at its longest, its copy of one layer, and the logits of one token per completion."""
    rollout = spec.rollout
    answers = spec.task.eval_questions * spec.evaluation.samples_per_question
    rows = max(spec.completions_per_step, answers)
    largest_group = max(spec.group_size, spec.evaluation.samples_per_question)
    rows = min(rows, max(rollout.max_batch_completions, largest_group))
    length = prompt + rollout.max_completion_tokens
    # Keys pass through rotary embeddings, which are fp32 under autocast with fp32 norms; values do not.
    per_token = model.key_width * (FP32 + _width(spec))
    layer = rows * length * per_token
    repeated = 2 * rows * length * model.query_width * _width(spec) if model.query_width != model.key_width else 0
    return {
        "key-value cache": layer * model.layers + max(layer, repeated),
        "sampled logits": rows * model.vocabulary * SAMPLED_LOGIT_BYTES,
    }

"""The policy: a causal language model, its tokenizer, and log-probabilities of completions under it.

Trained weights are always fp32, because bf16 would round away an update of 1e-6; `bf16` means autocast. A frozen copy
of the policy serves as the reference, or as the weights of a rollout engine.
"""
# ruff: noqa: F722 - jaxtyping's shape strings are not Python

from __future__ import annotations

import contextlib
import copy
import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rl.attention import packed_masks
from rl.layout import MicroBatch
from rl.logprobs import token_logprobs
from rl.precision import choose_precision
from rl.ranks import whole
from rl.spec import ConfigurationError, ModelSpec, TrainerSpec

_NOISE = re.compile(r"drop|jitter")
"""In the names of rates of random noise in transformers: `attention_dropout`, `embd_pdrop`, `router_jitter_noise`."""


@dataclass(frozen=True)
class Policy:
    """A model, and how its log-probabilities are computed.

    The policy version is not stored here: the rollout engine counts it.
    """

    model: nn.Module
    tokenizer: Any
    eos_ids: frozenset[int]
    """All end-of-sequence ids: those of the tokenizer and those of the generation configuration."""
    pad_id: int
    device: torch.device
    autocast: bool
    """Whether layers run in bf16 (`trainer.precision=bf16`)."""
    chunk_tokens: int
    """Tokens per chunk of the projection to the vocabulary (`trainer.logprob_chunk_tokens`)."""

    @property
    def backbone(self) -> nn.Module:
        return _backbone(self.model)

    @property
    def head(self) -> nn.Linear:
        """The projection to the vocabulary."""
        return _head(self.model)

    @property
    def pair_cost(self) -> float:
        """Work of attention between two tokens, as a share of the work of all other layers on one token.

        In floating-point operations: 4 per layer and channel of the heads, against 2 per parameter of the layers.
        """
        backbone: Any = self.backbone
        text = backbone.config.get_text_config()
        channels = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        channels *= text.num_attention_heads
        weights = sum(p.numel() for p in backbone.parameters()) - backbone.get_input_embeddings().weight.numel()
        return 2 * text.num_hidden_layers * channels / max(weights, 1)

    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        """(name, parameter) of all trained parameters, in the same order in every process."""
        return [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]

    def forward(
        self, batch: MicroBatch, temperature: float
    ) -> tuple[Float[Tensor, "sequences width"], Float[Tensor, "sequences width"]]:
        """(log-probabilities, entropies) of the completion tokens of `batch` at `temperature`, in nats; 0 as padding.

        The projection to the vocabulary runs only for positions that predict a completion token. Log-probabilities are
        differentiable, entropies are not.
        """
        sharded = getattr(self.model, "sharded_forward", None)  # set by rl.parallel.shard
        if sharded is not None:
            return sharded(self, batch, temperature)
        return self.forward_on_whole_weights(batch, temperature)

    def forward_on_whole_weights(
        self, batch: MicroBatch, temperature: float
    ) -> tuple[Float[Tensor, "sequences width"], Float[Tensor, "sequences width"]]:
        """`forward`, where the weights of the embeddings and of the projection to the vocabulary are not sharded."""
        batch = batch.to(self.device)
        with self.compute():
            hidden = self.backbone(
                input_ids=batch.input_ids,
                attention_mask=self._attention_mask(batch),
                position_ids=batch.position_ids,
                use_cache=False,
            ).last_hidden_state
            hidden = hidden.flatten(0, 1)[batch.source]
        if self.autocast:
            hidden = hidden.to(torch.bfloat16)
        logprobs, entropy = token_logprobs(
            hidden, self.head.weight, self.head.bias, batch.target, temperature, self.chunk_tokens
        )
        shape = (len(batch.sequences), batch.width)
        empty = logprobs.new_zeros(shape[0] * shape[1])
        return empty.scatter(0, batch.place, logprobs).view(shape), empty.scatter(0, batch.place, entropy).view(shape)

    def _attention_mask(self, batch: MicroBatch) -> Any:
        """None for a padded micro-batch: causal attention alone is right, and lets torch choose its fastest kernel."""
        if batch.segment is None:
            return None
        model: Any = self.model
        return packed_masks(model.config, batch, model.get_input_embeddings().weight.dtype)

    def compute(self) -> contextlib.AbstractContextManager[Any]:
        """Context manager that sets the precision of the model's layers: autocast to bf16, or nothing."""
        return autocast(self.device, self.autocast)

    @contextlib.contextmanager
    def reference_weights(self) -> Iterator[None]:
        """Context manager that turns the LoRA adapters off, so that the policy serves as its own reference."""
        with self.model.disable_adapter():  # type: ignore[operator]
            yield

    def frozen_copy(self) -> Policy:
        """A copy without gradients: the reference, or the weights of a rollout engine.

        Under autocast the copy stores the weights of linear layers in bf16. Autocast would cast them to bf16 at every
        use, so the results are the same, with half the memory and without the casts. Weights that are not trained are
        shared with the copy.
        """
        shared = {id(p): p for p in self.model.parameters() if not p.requires_grad}
        model: Any = copy.deepcopy(self.model, shared).requires_grad_(False).eval()
        model.gradient_checkpointing_disable()
        if self.autocast:
            if _is_tied(model):
                head = nn.Linear(1, 1, bias=False)
                head.weight = nn.Parameter(_head(model).weight.detach().clone(), requires_grad=False)
                model.set_output_embeddings(head)
            for module in model.modules():
                if isinstance(module, nn.Linear):
                    module.to(torch.bfloat16)
        return dataclasses.replace(self, model=model)

    @torch.no_grad()
    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """(name, weight) of all weights, under the names of the model's architecture.

        LoRA adapters are merged in. A tied projection to the vocabulary is yielded too.
        """
        adapted = hasattr(self.model, "get_base_model")
        network: Any = self.model.get_base_model() if adapted else self.model  # type: ignore[operator]
        modules = dict(network.named_modules())
        for name, weight in network.state_dict().items():
            if ".lora_" in name:
                continue
            owner, _, leaf = name.rpartition(".")
            if owner.endswith(".base_layer"):
                owner = owner.removesuffix(".base_layer")
                if leaf == "weight":
                    weight = weight + modules[owner].get_delta_weight("default")
            yield f"{owner}.{leaf}", weight

    @torch.no_grad()
    def load_parameters(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the trained parameters to `tensors`, by name.

        Raises:
            ConfigurationError: names or shapes are not those of this model.
        """
        parameters = dict(self.parameters())
        if {n: p.shape for n, p in parameters.items()} != {n: t.shape for n, t in tensors.items()}:
            raise ConfigurationError(
                "the checkpoint has the weights of another model: resume with the model that it was written with"
            )
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])

    @torch.no_grad()
    def copy_trained_from(self, trained: Policy) -> None:
        """Update this frozen copy from `trained`, the policy that it was copied from.

        All ranks must call this at the same time where `trained` is sharded.
        """
        own = dict(self.model.named_parameters())
        for name, parameter in trained.parameters():
            own[name].copy_(whole(parameter))
        if _is_tied(trained.model) and not _is_tied(self.model):
            _head(self.model).weight.copy_(whole(_head(trained.model).weight))


def autocast(device: torch.device, bf16: bool) -> contextlib.AbstractContextManager[Any]:
    """Context manager in which layers compute in bf16, or in the precision of their weights."""
    return torch.autocast(device.type, dtype=torch.bfloat16) if bf16 else contextlib.nullcontext()


def load_policy(folder: Path, model: ModelSpec, trainer: TrainerSpec, device: torch.device) -> Policy:
    """Load the weights in `folder` and prepare them for training: no dropout, LoRA, gradient checkpointing.

    Trained weights are fp32. With LoRA and `trainer.precision=bf16` the frozen linear layers are bf16, which is the
    precision that they compute in.

    Raises:
        ConfigurationError: the logits are not a plain linear layer of the last hidden states, the tokenizer has no
            end-of-sequence token, or no module matches `model.lora_targets`.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    precision = choose_precision(device).precision if trainer.precision == "auto" else trainer.precision
    bf16 = precision == "bf16"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    # With LoRA in bf16 the frozen layers keep the precision of the files: in fp32 they would take twice the memory.
    frozen_in_bf16 = bf16 and model.lora_rank > 0
    network: Any = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype="auto" if frozen_in_bf16 else torch.float32,
        attn_implementation=model.attention,
        use_safetensors=True,
    )
    eos_ids = _eos_ids(tokenizer, network)
    if not eos_ids:
        raise ConfigurationError(
            f"neither the tokenizer nor generation_config.json in {folder} names an end-of-sequence token, so "
            "completions would never end; add eos_token to its tokenizer_config.json"
        )
    _without_noise(network)
    if model.attention == "flash_attention_2" and not bf16:
        raise ConfigurationError(
            "model.attention=flash_attention_2 computes in bf16 only, and trainer.precision is fp32 here; use "
            "trainer.precision=bf16, or model.attention=sdpa"
        )
    if model.lora_rank:
        network = _with_lora(network, model)
    if frozen_in_bf16:
        _store_frozen_layers_in_bf16(network)
    network.to(device)
    with autocast(device, frozen_in_bf16 or model.attention == "flash_attention_2"):
        _check_head(network, device)
    network.eval()
    if trainer.gradient_checkpointing:
        network.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if model.lora_rank:
            network.enable_input_require_grads()
        network.train()  # transformers recomputes activations in training mode only; dropout is off in any case
    return Policy(
        model=network,
        tokenizer=tokenizer,
        eos_ids=frozenset(eos_ids),
        pad_id=_pad_id(tokenizer, network, eos_ids),
        device=device,
        autocast=bf16,
        chunk_tokens=trainer.logprob_chunk_tokens,
    )


def _backbone_owner(model: Any) -> Any:
    """The model of transformers, without the wrapper that adds LoRA adapters."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _backbone(model: Any) -> Any:
    return _backbone_owner(model).base_model


def _head(model: Any) -> nn.Linear:
    return model.get_output_embeddings()


def _is_tied(model: Any) -> bool:
    return _head(model).weight is model.get_input_embeddings().weight


def _eos_ids(tokenizer: Any, network: Any) -> set[int]:
    found: set[int] = set()
    for source in (tokenizer.eos_token_id, network.generation_config.eos_token_id):
        found.update([source] if isinstance(source, int) else source or [])
    return found


def _pad_id(tokenizer: Any, network: Any, eos_ids: set[int]) -> int:
    """Any id of the model's vocabulary serves as padding; that of some tokenizers is outside of it."""
    pad_id = tokenizer.pad_token_id
    return pad_id if pad_id is not None and pad_id < network.get_input_embeddings().num_embeddings else min(eos_ids)


def _without_noise(network: Any) -> None:
    """Turn dropout and router noise off: with random forward passes the ratio of a policy to itself would not be 1.

    Models store these rates as modules, as attributes of modules, or in their configuration. `rl.checks.probe` finds
    what is left.
    """
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    for owner in (network.config, *network.modules()):
        for name, value in vars(owner).items():
            if isinstance(value, float) and _NOISE.search(name):
                setattr(owner, name, 0.0)


def _check_head(network: Any, device: torch.device) -> None:
    """Refuse architectures that scale or cap their logits: `Policy.forward` would return wrong log-probabilities."""
    head = network.get_output_embeddings()
    ids = torch.arange(4, device=device)[None] % network.config.vocab_size
    with torch.no_grad():
        whole = network(input_ids=ids, use_cache=False).logits
        ours = head(_backbone(network)(input_ids=ids, use_cache=False).last_hidden_state)
    if not isinstance(head, nn.Linear) or not torch.allclose(whole, ours, rtol=1e-4, atol=1e-4):
        raise ConfigurationError(
            f"{type(_backbone_owner(network)).__name__} is not supported: its logits are not a plain linear layer of "
            "its last hidden states (they are scaled or capped). Use a model of a Llama, Qwen or Mistral architecture"
        )


def _store_frozen_layers_in_bf16(network: Any) -> None:
    """Convert linear layers without trained weights to bf16, and everything else to fp32.

    Autocast would cast these layers at every use, so the results are the same, with half the memory. Embeddings and
    norms are fp32, and so is a projection to the vocabulary that shares the weights of the embeddings.
    """
    embedding = network.get_input_embeddings().weight
    for module in network.modules():
        linear = isinstance(module, nn.Linear) and module.weight is not embedding and not module.weight.requires_grad
        for parameter in module.parameters(recurse=False):
            parameter.data = parameter.data.to(torch.bfloat16 if linear else torch.float32)


def _with_lora(network: Any, model: ModelSpec) -> Any:
    import peft

    config = peft.LoraConfig(
        r=model.lora_rank,
        lora_alpha=model.lora_alpha,  # type: ignore[arg-type]  # annotated as int; a float works as well
        target_modules=list(model.lora_targets),
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    try:
        return peft.get_peft_model(network, config)
    except ValueError as error:
        raise ConfigurationError(f"model.lora_targets={', '.join(model.lora_targets)}: {error}") from error

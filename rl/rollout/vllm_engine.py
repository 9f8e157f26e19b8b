"""A rollout engine on vLLM in this process: weights are passed in memory, and prefix caching is on.

On CUDA the engine uses the share `gpu_memory_utilization` of the card's memory, beside the learner. On a CPU (community
build) it uses a key-value cache of `kv_cache_gib`. vLLM is imported when an engine is created, never before.

Tested in tests/rl/rollout/test_engine_conformance.py.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from rl.policy import Policy
from rl.rollout.engine import Completion, Sampling, batches_of_prompts, check_prompts, check_version
from rl.seeds import derived_seed
from rl.spec import ConfigurationError, OutOfMemoryError, RolloutSpec

_MEMORY_MESSAGES = (
    "Free memory on device",
    "No available memory for the cache blocks",
    "cache is needed, which is larger",
)
"""Parts of vLLM's messages about too little memory."""


class VllmEngine:
    """Samples with vLLM. A process can have one such engine."""

    name = "vllm"

    def __init__(self, spec: RolloutSpec, policy: Policy, version: int) -> None:
        _prepare_environment(spec, policy.device)
        try:
            vllm: Any = importlib.import_module("vllm")
        except ImportError as error:
            raise ConfigurationError(
                "rollout.engine=vllm, but vllm cannot be imported: install it on a machine with CUDA (`uv pip install "
                f"'.[vllm]'`), or use rollout.engine=transformers ({error})"
            ) from error
        self._spec = spec
        self._eos_ids = policy.eos_ids
        self._version = version
        self._dtype = torch.bfloat16 if policy.autocast else torch.float32
        self._seed_requests = _seeds_requests(policy.device)
        max_model_len = _max_model_len(spec, policy.model.config)
        _check_free_memory(spec, policy.device)
        threads = torch.get_num_threads()
        try:
            with tempfile.TemporaryDirectory(prefix="vllm-model-") as folder, _memory_errors(spec):
                _export(policy, Path(folder), self._dtype)
                self._llm: Any = vllm.LLM(
                    model=folder,
                    skip_tokenizer_init=True,
                    dtype="bfloat16" if policy.autocast else "float32",
                    max_model_len=max_model_len,
                    max_num_seqs=spec.max_batch_completions,
                    gpu_memory_utilization=spec.gpu_memory_utilization,
                    # CUDA graphs save time on a card only.
                    enforce_eager=policy.device.type == "cpu",
                    enable_prefix_caching=True,
                    # Log-probabilities at the sampling temperature, not those of the model's raw logits.
                    logprobs_mode="processed_logprobs",
                    generation_config="vllm",
                    disable_log_stats=True,
                    seed=0,
                )
        except ValueError as error:  # limits and head sizes that vllm cannot serve
            raise ConfigurationError(
                f"rollout.engine=vllm refuses this model or these limits (rollout.max_prompt_tokens="
                f"{spec.max_prompt_tokens}, rollout.max_completion_tokens={spec.max_completion_tokens}, "
                f"rollout.gpu_memory_utilization={spec.gpu_memory_utilization}): {error}"
            ) from error
        torch.set_num_threads(threads)

    @property
    def policy_version(self) -> int:
        return self._version

    def sync(self, policy: Policy, version: int) -> None:
        check_version(self._version, version)
        # A tied head is passed too: on a CPU the engine has a repacked copy of it, which would stay stale.
        # One weight exists at a time in the engine's precision: with LoRA each is merged when it is read.
        weights = ((name, weight.to(self._dtype)) for name, weight in policy.weights())
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("vllm did not drop its prefix cache after a weight sync, so completions would be stale")
        self._version = version

    def close(self) -> None:
        self._llm = None
        gc.collect()

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[list[Completion]]:
        parameters: Any = importlib.import_module("vllm").SamplingParams
        check_prompts(prompts, self._spec.max_prompt_tokens)
        completions: list[list[Completion]] = []
        for batch in batches_of_prompts(len(prompts), sampling.n, self._spec.max_batch_completions):
            with self._seeded(derived_seed(sampling.seed, sampling.first_prompt + batch.start)):
                outputs = self._llm.generate(
                    [{"prompt_token_ids": list(prompts[i])} for i in batch],
                    [
                        parameters(
                            n=sampling.n,
                            temperature=sampling.temperature,
                            max_tokens=sampling.max_tokens,
                            seed=derived_seed(sampling.seed, sampling.first_prompt + i) % 2**31
                            if self._seed_requests
                            else None,
                            stop_token_ids=sorted(self._eos_ids),
                            logprobs=0,
                            detokenize=False,
                        )
                        for i in batch
                    ],
                    use_tqdm=False,
                )
            for output in outputs:
                samples = sorted(output.outputs, key=lambda o: o.index)
                completions.append([self._completion(sample) for sample in samples])
        return completions

    @contextlib.contextmanager
    def _seeded(self, seed: int) -> Iterator[None]:
        """Without seeds per request: seed torch's random streams for one batch, and restore them afterwards."""
        if self._seed_requests:
            yield
            return
        with torch.random.fork_rng():
            torch.manual_seed(seed % 2**63)
            yield

    def _completion(self, sample: Any) -> Completion:
        ids = tuple(sample.token_ids)
        return Completion(
            ids=ids,
            # Looked up by id: the mapping also contains likelier tokens, in any order.
            logprobs=tuple(
                float(position[token].logprob) for token, position in zip(ids, sample.logprobs, strict=True)
            ),
            finish="stop" if sample.finish_reason == "stop" else "length",
            policy_version=self._version,
        )


def _prepare_environment(spec: RolloutSpec, device: torch.device) -> None:
    """Set the environment variables that vLLM reads at import. Variables that the user has set are kept."""
    # In this process, so that weights can be passed as tensors.
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")
    if device.type == "cpu":
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(spec.kv_cache_gib))


def _seeds_requests(device: torch.device) -> bool:
    """Whether every request has a seed of its own, so that a completion does not depend on the batch it is sampled in.

    On a card vLLM then draws row by row, one kernel per row and token. So there a batch has one seed, except with
    deterministic algorithms. The same prompts with the same seed in the same batches give the same completions.
    """
    return device.type == "cpu" or torch.are_deterministic_algorithms_enabled()


def _max_model_len(spec: RolloutSpec, config: Any) -> int:
    """Tokens of the longest sequence: prompt and completion, at most the positions of the model.

    Raises:
        ConfigurationError: no prompt fits beside the longest completion.
    """
    wanted = spec.max_prompt_tokens + spec.max_completion_tokens
    positions = getattr(config.get_text_config(), "max_position_embeddings", None) or wanted
    if spec.max_completion_tokens >= positions:
        raise ConfigurationError(
            f"rollout.max_completion_tokens={spec.max_completion_tokens} leaves no room for a prompt in the model's "
            f"{positions} positions; use {positions // 2} or less"
        )
    return min(wanted, positions)


def _check_free_memory(spec: RolloutSpec, device: torch.device) -> None:
    """Refuse to load an engine whose share of the card is not free.

    Raises:
        OutOfMemoryError: names the share that is free.
    """
    if device.type != "cuda":
        return
    free, total = torch.cuda.mem_get_info(device)
    if free < spec.gpu_memory_utilization * total:
        raise _too_little_memory(spec, f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB of the card are free")


@contextlib.contextmanager
def _memory_errors(spec: RolloutSpec) -> Iterator[None]:
    """Turn vLLM's errors about too little memory, which are plain ValueErrors, into `OutOfMemoryError`."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        if any(text in str(error) for text in _MEMORY_MESSAGES):
            raise _too_little_memory(spec, str(error)) from error
        raise


def _too_little_memory(spec: RolloutSpec, reason: str) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"vllm does not get its memory (rollout.gpu_memory_utilization={spec.gpu_memory_utilization}, "
        f"rollout.kv_cache_gib={spec.kv_cache_gib}): {reason}. Change the share of the engine, use a smaller "
        "trainer.micro_batch_tokens or rollout.max_completion_tokens, or a card with more memory"
    )


def _export(policy: Policy, folder: Path, dtype: torch.dtype) -> None:
    """Write the policy's weights and configuration into `folder`, as vLLM loads them. No tokenizer is needed."""
    from safetensors.torch import save_file

    config: Any = policy.model.config
    weights = {name: weight.to(dtype).cpu().contiguous() for name, weight in policy.weights()}
    if config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(folder)

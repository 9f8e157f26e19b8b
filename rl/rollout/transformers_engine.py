"""A rollout engine on a plain transformers model: runs wherever the policy runs; the reference for other engines.

Each prompt is computed once, and its cache is repeated for its n completions. Rows that have ended are removed from the
batch once they are a share of it, since a removal copies the cache. Every completion has its own random stream, seeded
by (seed, prompt, sample), so completions do not depend on how prompts are batched. Log-probabilities are fp32, at the
sampling temperature.

Tested in tests/rl/rollout/test_engine_conformance.py.
"""
# ruff: noqa: F722 - jaxtyping's shape strings are not Python

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from rl.policy import Policy
from rl.rollout.engine import Completion, Sampling, batches_of_prompts, check_prompts, check_version
from rl.spec import RolloutSpec

_REMOVE_ENDED_SHARE = 0.25
"""Share of the rows of a batch that must have ended before they are removed."""
_TOKENS_PER_SYNC = {"cpu": 1, "cuda": 8}
"""By type of device: tokens between two looks of the host for ended rows. On a card each look waits for all kernels."""


@dataclass
class _Batch:
    """The completions of one batch while they are sampled: one row each, all on the device of the policy."""

    uniforms: Float64[Tensor, "rows max_tokens"]
    """One uniform random number in [0, 1) per token."""
    ids: Int[Tensor, "rows max_tokens"]
    logprobs: Float[Tensor, "rows max_tokens"]
    ended: Bool[Tensor, " rows"]


class TransformersEngine:
    """Samples with a frozen copy of the policy's weights, so `sync` alone changes what it samples."""

    name = "transformers"

    def __init__(self, spec: RolloutSpec, policy: Policy, version: int) -> None:
        self._spec = spec
        self._policy = policy.frozen_copy()
        self._version = version

    @property
    def policy_version(self) -> int:
        return self._version

    def sync(self, policy: Policy, version: int) -> None:
        check_version(self._version, version)
        self._policy.copy_trained_from(policy)
        self._version = version

    def close(self) -> None:
        pass

    @torch.no_grad()
    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[list[Completion]]:
        check_prompts(prompts, self._spec.max_prompt_tokens)
        completions: list[Completion] = []
        for batch in batches_of_prompts(len(prompts), sampling.n, self._spec.max_batch_completions):
            completions += self._sample([prompts[i] for i in batch], sampling.first_prompt + batch.start, sampling)
        return [completions[i : i + sampling.n] for i in range(0, len(completions), sampling.n)]

    def _sample(self, prompts: Sequence[Sequence[int]], first: int, sampling: Sampling) -> list[Completion]:
        """n completions for each prompt. `first` is the number of the first prompt (`Sampling.first_prompt`)."""
        device, n = self._policy.device, sampling.n
        batch = _new_batch(range(first, first + len(prompts)), sampling, device)
        eos = torch.tensor(sorted(self._policy.eos_ids), device=device)
        tokens_per_sync = _TOKENS_PER_SYNC[device.type]
        ids, mask = _left_padded(prompts, self._policy.pad_id, device)
        with self._policy.compute():
            logits, cache = self._step(ids, mask, (mask.cumsum(dim=1) - 1).clamp(min=0), None)
            # From here on each row is one completion; `alive` has the rows of `batch` that are computed.
            repeated = torch.arange(len(prompts), device=device).repeat_interleave(n)
            cache.reorder_cache(repeated)
            logits, mask = logits[repeated], mask[repeated]
            alive = torch.arange(len(repeated), device=device)
            for t in range(sampling.max_tokens):
                chosen, logprobs = _choose(logits, batch.uniforms[alive, t], sampling.temperature)
                batch.ids[alive, t], batch.logprobs[alive, t] = chosen, logprobs
                batch.ended[alive] |= torch.isin(chosen, eos)
                if t + 1 == sampling.max_tokens:
                    break
                if (t + 1) % tokens_per_sync == 0:
                    going = (~batch.ended[alive]).nonzero()[:, 0]
                    if not len(going):
                        break
                    if len(alive) - len(going) >= _REMOVE_ENDED_SHARE * len(alive):
                        cache.reorder_cache(going)
                        mask, chosen, alive = mask[going], chosen[going], alive[going]
                mask = torch.cat([mask, mask.new_ones(len(alive), 1)], dim=1)
                logits, cache = self._step(chosen[:, None], mask, mask.sum(dim=1, keepdim=True) - 1, cache)
        return self._completions(batch)

    def _completions(self, batch: _Batch) -> list[Completion]:
        """Each row up to its first end-of-sequence token: a row may go on being computed after it has ended."""
        completions = []
        for ids, logprobs in zip(batch.ids.tolist(), batch.logprobs.tolist(), strict=True):
            end = next((t for t, token in enumerate(ids) if token in self._policy.eos_ids), None)
            length = len(ids) if end is None else end + 1
            finish = "length" if end is None else "stop"
            completions.append(Completion(tuple(ids[:length]), tuple(logprobs[:length]), finish, self._version))
        return completions

    def _step(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> tuple[Float[Tensor, "rows v"], Any]:
        """(fp32 logits of the token after the last of `ids`, the extended key-value cache)."""
        out = self._policy.backbone(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        )
        return self._policy.head(out.last_hidden_state[:, -1]).float(), out.past_key_values


def _new_batch(prompts: range, sampling: Sampling, device: torch.device) -> _Batch:
    """A batch without tokens: `sampling.n` rows for each of the prompts with these numbers."""
    uniforms = [
        np.random.default_rng([sampling.seed, prompt, k]).random(sampling.max_tokens)
        for prompt in prompts
        for k in range(sampling.n)
    ]
    shape = (len(uniforms), sampling.max_tokens)
    return _Batch(
        uniforms=torch.from_numpy(np.stack(uniforms)).to(device),
        ids=torch.full(shape, -1, dtype=torch.long, device=device),
        logprobs=torch.zeros(shape, device=device),
        ended=torch.zeros(shape[0], dtype=torch.bool, device=device),
    )


def _choose(
    logits: Float[Tensor, "rows v"], uniform: Float64[Tensor, " rows"], temperature: float
) -> tuple[Int[Tensor, " rows"], Float[Tensor, " rows"]]:
    """(one sampled token per row, its log-probability). Temperature 0: the likeliest token."""
    logprobs = (logits / (temperature or 1.0)).log_softmax(dim=-1)
    if temperature == 0.0:
        chosen = logits.argmax(dim=-1)
    else:
        # Inverse transform sampling, in float64: a cumulative sum over the vocabulary in fp32 loses the tail.
        cumulative = _cumulative_sum(logprobs.exp())
        target = (uniform[:, None] * cumulative[:, -1:]).contiguous()
        chosen = torch.searchsorted(cumulative, target, right=True)[:, 0].clamp(max=logits.shape[1] - 1)
    return chosen, logprobs.gather(1, chosen[:, None])[:, 0]


def _cumulative_sum(p: Float[Tensor, "rows v"]) -> Float64[Tensor, "rows v"]:
    """The cumulative sum of each row in float64.

    With deterministic algorithms torch refuses a cumulative sum of floats on CUDA, so there it is computed by products
    with triangular matrices.
    """
    if p.device.type == "cuda" and torch.are_deterministic_algorithms_enabled():
        return _cumulative_sum_by_products(p)
    return p.cumsum(dim=-1, dtype=torch.float64)


def _cumulative_sum_by_products(p: Float[Tensor, "rows v"], block: int = 256) -> Float64[Tensor, "rows v"]:
    """The cumulative sum within blocks of `block` columns, plus the sum of all blocks before."""
    rows, columns = p.shape
    blocks = -(-columns // block)
    padded = torch.nn.functional.pad(p.double(), (0, blocks * block - columns)).view(rows, blocks, block)
    within = padded @ torch.ones(block, block, dtype=torch.float64, device=p.device).triu()
    before = within[:, :, -1] @ torch.ones(blocks, blocks, dtype=torch.float64, device=p.device).triu(1)
    return (within + before[:, :, None]).view(rows, -1)[:, :columns].contiguous()


def _left_padded(prompts: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(ids, mask), both [prompts, longest]. Padding is on the left, so that all prompts end in the last column."""
    longest = max(map(len, prompts))
    ids = torch.full((len(prompts), longest), pad_id, dtype=torch.long)
    mask = torch.zeros((len(prompts), longest), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    return ids.to(device), mask.to(device)

"""A rollout engine on a plain transformers model: runs wherever the policy runs; the reference for other engines.

Each prompt is computed once, and its key-value cache is repeated for its n completions. Rows that have ended are
removed from the batch. Every completion has its own random stream, seeded by (seed, prompt, sample), so completions do
not depend on how prompts are batched. Log-probabilities are fp32, at the sampling temperature.

Tested in tests/rl/rollout/test_engine_conformance.py.
"""
# ruff: noqa: F722 - jaxtyping's shape strings are not Python

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from rl.policy import Policy
from rl.rollout.engine import Completion, Sampling, batches_of_prompts, check_prompts, check_version
from rl.spec import RolloutSpec


@dataclass
class _Draft:
    """A completion while it is being sampled."""

    uniforms: Float64[np.ndarray, " max_tokens"]
    """One uniform random number in [0, 1) per token."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stopped: bool = False


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
        drafts: list[_Draft] = []
        for batch in batches_of_prompts(len(prompts), sampling.n, self._spec.max_batch_completions):
            drafts += self._sample([prompts[i] for i in batch], batch.start, sampling)
        completions = [
            Completion(tuple(d.ids), tuple(d.logprobs), "stop" if d.stopped else "length", self._version)
            for d in drafts
        ]
        return [completions[i : i + sampling.n] for i in range(0, len(completions), sampling.n)]

    def _sample(self, prompts: Sequence[Sequence[int]], first: int, sampling: Sampling) -> list[_Draft]:
        """n finished drafts for each prompt. `first` is the index of the first prompt within the call of `generate`."""
        drafts = [
            _Draft(np.random.default_rng([sampling.seed, first + p, k]).random(sampling.max_tokens))
            for p in range(len(prompts))
            for k in range(sampling.n)
        ]
        device = self._policy.device
        ids, mask = _left_padded(prompts, self._policy.pad_id, device)
        with self._policy.compute():
            logits, cache = self._step(ids, mask, (mask.cumsum(dim=1) - 1).clamp(min=0), None)
            # From here on each row is one completion; `alive` maps rows to drafts.
            logits = logits.repeat_interleave(sampling.n, dim=0)
            if sampling.n > 1:
                cache.batch_repeat_interleave(sampling.n)
            mask = mask.repeat_interleave(sampling.n, dim=0)
            alive = list(range(len(drafts)))
            while True:
                chosen = self._choose(logits, [drafts[i] for i in alive], sampling.temperature)
                rows = [r for r, i in enumerate(alive) if not _ended(drafts[i], sampling.max_tokens)]
                if not rows:
                    return drafts
                if len(rows) < len(alive):
                    keep = torch.tensor(rows, device=device)
                    cache.batch_select_indices(keep)
                    mask, chosen, alive = mask[keep], chosen[keep], [alive[r] for r in rows]
                mask = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)
                logits, cache = self._step(chosen[:, None], mask, mask.sum(dim=1, keepdim=True) - 1, cache)

    def _step(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> tuple[Float[Tensor, "rows v"], Any]:
        """(fp32 logits of the token after the last of `ids`, the extended key-value cache)."""
        out = self._policy.backbone(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        )
        return self._policy.head(out.last_hidden_state[:, -1]).float(), out.past_key_values

    def _choose(self, logits: Tensor, drafts: Sequence[_Draft], temperature: float) -> Int[Tensor, " rows"]:
        """Sample one token per row and append it, with its log-probability, to its draft. Returns the token ids."""
        logprobs = (logits / (temperature or 1.0)).log_softmax(dim=-1)
        if temperature == 0.0:
            chosen = logits.argmax(dim=-1)
        else:
            # Inverse transform sampling, in float64: a cumulative sum over the vocabulary in fp32 loses the tail.
            cumulative = logprobs.exp().cumsum(dim=-1, dtype=torch.float64)
            uniform = torch.tensor([d.uniforms[len(d.ids)] for d in drafts], device=logits.device)
            target = (uniform[:, None] * cumulative[:, -1:]).contiguous()
            chosen = torch.searchsorted(cumulative, target, right=True)[:, 0].clamp(max=logits.shape[1] - 1)
        picked = logprobs.gather(1, chosen[:, None])[:, 0].tolist()
        for draft, token, logprob in zip(drafts, chosen.tolist(), picked, strict=True):
            draft.ids.append(token)
            draft.logprobs.append(logprob)
            draft.stopped = token in self._policy.eos_ids
        return chosen


def _ended(draft: _Draft, max_tokens: int) -> bool:
    return draft.stopped or len(draft.ids) >= max_tokens


def _left_padded(prompts: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(ids, mask), both [prompts, longest]. Padding is on the left, so that all prompts end in the last column."""
    longest = max(map(len, prompts))
    ids = torch.full((len(prompts), longest), pad_id, dtype=torch.long)
    mask = torch.zeros((len(prompts), longest), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    return ids.to(device), mask.to(device)

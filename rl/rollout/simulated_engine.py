"""A rollout engine without a model: every token is drawn from one fixed distribution, whatever the context.

It makes the parts around an engine (loop, rewards, off-policy corrections, gates) testable at no cost. It reports the
log-probabilities of the distribution that it samples from, which is not the policy. The difference is the curve
`logp_diff`, which closes the metric gate.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from rl.policy import Policy
from rl.rollout.engine import Completion, Sampling, check_prompts, check_version
from rl.seeds import derived_seed
from rl.spec import RolloutSpec


class SimulatedEngine:
    """A unigram model. Its logits are the row means of the policy's projection to the vocabulary at the last sync."""

    name = "simulated"

    def __init__(self, spec: RolloutSpec, policy: Policy, version: int) -> None:
        self._spec = spec
        self._version = version
        self._copy_weights(policy)

    @property
    def policy_version(self) -> int:
        return self._version

    def sync(self, policy: Policy, version: int) -> None:
        check_version(self._version, version)
        self._copy_weights(policy)
        self._version = version

    def close(self) -> None:
        pass

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[list[Completion]]:
        check_prompts(prompts, self._spec.max_prompt_tokens)
        logprobs = torch.log_softmax(self._logits / (sampling.temperature or 1.0), dim=0).numpy()
        return [
            [self._draw(sampling, logprobs, prompt, sample) for sample in range(sampling.n)]
            for prompt in range(len(prompts))
        ]

    def _copy_weights(self, policy: Policy) -> None:
        weight = policy.head.weight.detach().double().cpu()
        self._logits = weight.mean(dim=1) * weight.shape[1] ** 0.5
        self._eos_ids = policy.eos_ids

    def _draw(self, sampling: Sampling, logprobs: np.ndarray, prompt: int, sample: int) -> Completion:
        if sampling.temperature == 0:
            drawn = np.full(sampling.max_tokens, int(logprobs.argmax()))
        else:
            random = np.random.default_rng(derived_seed(sampling.seed, sampling.first_prompt + prompt, sample))
            p = np.exp(logprobs)
            drawn = random.choice(len(p), size=sampling.max_tokens, p=p / p.sum())
        ids: list[int] = []
        for token in drawn.tolist():
            ids.append(token)
            if token in self._eos_ids:
                break
        finish = "stop" if ids[-1] in self._eos_ids else "length"
        return Completion(tuple(ids), tuple(float(logprobs[i]) for i in ids), finish, self._version)

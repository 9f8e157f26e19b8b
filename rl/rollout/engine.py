"""What every rollout engine is given and gives back. Holds no model and imports nothing heavy."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from rl.spec import ConfigurationError, RolloutSpec

if TYPE_CHECKING:
    from rl.policy import Policy


@dataclass(frozen=True)
class Completion:
    """What was sampled after a prompt. An end-of-sequence token is part of it if and only if it was sampled."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of the sampled ids, in nats, under what was sampled from (temperature applied); greedy: at temperature 1."""
    finish: Literal["stop", "length"]
    """stop: it ended itself with an end-of-sequence token. length: it was cut at `max_tokens`."""
    policy_version: int

    @property
    def truncated(self) -> bool:
        return self.finish == "length"


@dataclass(frozen=True)
class Sampling:
    """How to sample. Nothing that the learner's log-probabilities cannot model is offered."""

    n: int
    """Completions per prompt."""
    temperature: float
    """0: greedy."""
    max_tokens: int
    seed: int
    """Same seed, same prompts: same completions."""


class RolloutEngine(Protocol):
    """Samples completions with weights of its own, which `sync` replaces."""

    name: str

    @property
    def policy_version(self) -> int:
        """The version of the weights that the next completion is sampled with."""
        ...

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[list[Completion]]:
        """`sampling.n` completions for each prompt (token ids), in the order of the prompts.

        Raises:
            ValueError: an empty prompt, or one that is longer than the engine's `max_prompt_tokens`.
        """
        ...

    def sync(self, policy: Policy, version: int) -> None:
        """Take over the policy's weights and forget everything computed with the former ones (prefix caches).

        Raises:
            ValueError: `version` is not above `policy_version`: a sync that changes nothing is a fault upstream.
        """
        ...

    def close(self) -> None:
        """Release memory and processes. Closing twice is fine."""
        ...


def create_engine(spec: RolloutSpec, policy: Policy, version: int) -> RolloutEngine:
    """The engine that `spec.engine` names, loaded with the policy's weights.

    `auto` is vllm on CUDA where it is installed, transformers otherwise.

    Raises:
        ConfigurationError: settings that the learner cannot model, or an engine that is not installed.
    """
    check_sampling(spec)
    name = spec.engine
    if name == "auto":
        name = "vllm" if policy.device.type == "cuda" and importlib.util.find_spec("vllm") else "transformers"
    if name == "vllm":
        from rl.rollout.vllm_engine import VllmEngine

        return VllmEngine(spec, policy, version)
    if name == "transformers":
        from rl.rollout.transformers_engine import TransformersEngine

        return TransformersEngine(spec, policy, version)
    from rl.rollout.simulated_engine import SimulatedEngine

    return SimulatedEngine(spec, policy, version)


def check_sampling(spec: RolloutSpec) -> None:
    """Refuse what would make sampling and training two different distributions.

    Raises:
        ConfigurationError: names the setting, its value and the neutral value.
    """
    neutral = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    for name, value in neutral.items():
        if getattr(spec, name) != value:
            raise ConfigurationError(
                f"rollout.{name}={getattr(spec, name)}: it changes what is sampled and not the log-probabilities that "
                f"are trained, so the ratio would be wrong; use rollout.{name}={value}"
            )
    if spec.temperature <= 0:
        raise ConfigurationError(
            f"rollout.temperature={spec.temperature}: greedy completions of a prompt are all alike and teach nothing; "
            "use a temperature above 0 (1.0 is usual)"
        )
    for name in ("max_prompt_tokens", "max_completion_tokens", "max_batch_completions"):
        if getattr(spec, name) < 1:
            raise ConfigurationError(f"rollout.{name}={getattr(spec, name)} must be at least 1")


def check_prompts(prompts: Sequence[Sequence[int]], max_prompt_tokens: int) -> None:
    """Raises ValueError for the first empty or over-long prompt; nothing is ever cut to fit."""
    for i, prompt in enumerate(prompts):
        if not 1 <= len(prompt) <= max_prompt_tokens:
            raise ValueError(
                f"prompt {i} has {len(prompt)} tokens; a prompt needs at least 1 and at most {max_prompt_tokens} "
                "(rollout.max_prompt_tokens)"
            )


def check_version(now: int, new: int) -> None:
    """Raises ValueError unless the policy version advances."""
    if new <= now:
        raise ValueError(f"a sync to policy version {new}, and the engine has version {now} already: it must advance")


def derived_seed(*parts: int | str) -> int:
    """A 63-bit seed from what it is for; different parts, unrelated seeds."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def turns(prompts: int, n: int, max_batch_completions: int) -> Iterator[range]:
    """Ranges of prompts whose completions fit one batch; at least one prompt each."""
    per_turn = max(1, max_batch_completions // n)
    for start in range(0, prompts, per_turn):
        yield range(start, min(start + per_turn, prompts))

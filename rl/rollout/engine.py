"""The interface of rollout engines, and the checks that all engines share. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from rl.spec import ConfigurationError, RolloutSpec

if TYPE_CHECKING:
    from rl.policy import Policy


@dataclass(frozen=True)
class Completion:
    """The tokens sampled after a prompt. They include an end-of-sequence token if and only if it was sampled."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Log-probabilities of `ids` in nats at the sampling temperature; at temperature 1 for greedy sampling."""
    finish: Literal["stop", "length"]
    """stop: the last token is an end-of-sequence token. length: `max_tokens` was reached without one."""
    policy_version: int
    """Version of the weights that sampled it."""

    @property
    def truncated(self) -> bool:
        return self.finish == "length"


@dataclass(frozen=True)
class Sampling:
    """Settings of one call of `generate`. Settings that the learner's log-probabilities cannot model are left out."""

    n: int
    """Completions per prompt."""
    temperature: float
    """0: greedy."""
    max_tokens: int
    """Largest number of tokens of a completion."""
    seed: int
    """The same prompts with the same seed give the same completions."""
    first_prompt: int = 0
    """Number of the first prompt of the call. A prompt draws from the stream of its number, so a call on a part of some
    prompts gives the completions of the call on all of them."""


class RolloutEngine(Protocol):
    """Samples completions with its own copy of the policy's weights, which `sync` updates."""

    name: str

    @property
    def policy_version(self) -> int:
        """Version of the engine's weights."""
        ...

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[list[Completion]]:
        """`sampling.n` completions for each prompt (token ids), in the order of the prompts.

        Raises:
            ValueError: an empty prompt, or one longer than `rollout.max_prompt_tokens`.
        """
        ...

    def sync(self, policy: Policy, version: int) -> None:
        """Copy the weights of `policy` as policy version `version`, and drop all prefix caches.

        Raises:
            ValueError: `version` is not above `policy_version`, so the caller did not advance it.
        """
        ...

    def close(self) -> None:
        """Release memory and processes. May be called twice."""
        ...


def check_sampling(spec: RolloutSpec) -> None:
    """Refuse settings that make sampling and training use different distributions, and sizes below 1.

    Raises:
        ConfigurationError: names the setting, its value and a valid value.
    """
    neutral = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    for name, value in neutral.items():
        if getattr(spec, name) != value:
            raise ConfigurationError(
                f"rollout.{name}={getattr(spec, name)} changes the distribution that is sampled from, but not the "
                f"log-probabilities that are trained, so the ratio would be wrong; use rollout.{name}={value}"
            )
    if spec.temperature <= 0:
        raise ConfigurationError(
            f"rollout.temperature={spec.temperature}: greedy completions of a prompt are all equal and give no "
            "gradient; use a temperature above 0 (1.0 is usual)"
        )
    for name in ("max_prompt_tokens", "max_completion_tokens", "max_batch_completions"):
        if getattr(spec, name) < 1:
            raise ConfigurationError(f"rollout.{name}={getattr(spec, name)} must be at least 1")


def check_prompts(prompts: Sequence[Sequence[int]], max_prompt_tokens: int) -> None:
    """Refuse empty and overlong prompts. Engines never truncate a prompt.

    Raises:
        ValueError: names the first such prompt by its index.
    """
    for i, prompt in enumerate(prompts):
        if not 1 <= len(prompt) <= max_prompt_tokens:
            raise ValueError(
                f"prompt {i} has {len(prompt)} tokens; a prompt needs at least 1 and at most {max_prompt_tokens} "
                "(rollout.max_prompt_tokens)"
            )


def check_version(now: int, new: int) -> None:
    """Refuse a sync that does not advance the policy version.

    Raises:
        ValueError: `new` is not above `now`.
    """
    if new <= now:
        raise ValueError(f"sync to policy version {new}, but the engine already has version {now}: it must advance")


def batches_of_prompts(prompts: int, n: int, max_batch_completions: int) -> Iterator[range]:
    """Ranges of prompt indices that are sampled together: at most `max_batch_completions` completions, at n per prompt.

    A range has at least one prompt, even if its n completions exceed `max_batch_completions`.
    """
    per_batch = max(1, max_batch_completions // n)
    for start in range(0, prompts, per_batch):
        yield range(start, min(start + per_batch, prompts))

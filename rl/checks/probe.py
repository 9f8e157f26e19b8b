"""Checks at load that a model computes what it is trained on, whatever its architecture and attention implementation.

The learner computes many rows at once: padded, or packed with a shared prompt. Some architectures compute such rows
differently from a single row: a sliding window that a mask leaves out, a recurrent state that runs from one completion
into the next, a rotary embedding that depends on the longest row. Training would go on with wrong log-probabilities.
So before the first step the log-probabilities of random tokens are compared, on rows longer than any window that the
rows of the trial can reach. A difference ends the attempt with the key to change.

Tested in tests/rl/checks/test_probe.py with small random models of twelve architectures.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rl.attention import packing_obstacle, special_lengths
from rl.layout import MicroBatch, Sequences, micro_batches
from rl.policy import Policy
from rl.rollout.engine import RolloutEngine, Sampling
from rl.spec import ConfigurationError, ModelSpec, RolloutSpec, TrainerSpec

_SHORT_ROW = 64
"""Length of the probe's longest row in tokens where no window needs more."""
_EAGER_ROW = 256
"""Attention by definition (`eager`) is computed on rows of at most this length: it stores all scores of a layer."""
_MAX_FP32 = 2e-3
"""Largest difference of one log-probability in fp32, in nats. Rounding gives 1e-6 to 1e-4, a wrong mask 0.1 to 10."""
_MEAN_BF16 = 0.1
"""Largest mean difference in bf16, in nats per token. Rounding gives 0.01 to 0.03."""
_MEAN_ENGINE_FP32, _MEAN_ENGINE_BF16 = 0.02, 0.2
"""Largest mean difference between a rollout engine and the learner, in nats per token. Their kernels differ."""


@dataclass(frozen=True)
class ProbeReport:
    """What a probe covered. A probe that finds a difference raises instead."""

    longest_row_tokens: int
    packing: bool
    """Whether packed rows are right for this model. Always False if they were not compared."""
    notes: tuple[str, ...]
    """Sentences for a person: what was compared, and what was not."""


def probe_model(policy: Policy, model: ModelSpec, trainer: TrainerSpec, longest_row_tokens: int) -> ProbeReport:
    """Compare the log-probabilities of single, padded and packed rows, and of two equal passes.

    Args:
        longest_row_tokens: tokens of the longest prompt and the longest completion of the trial. Windows above it never
            act, so no longer row is computed.

    Raises:
        ConfigurationError: a difference. The message says what differs, by how much, and which key to change.
    """
    config: Any = _config(policy)
    windows = special_lengths(config)
    reached = {name: tokens for name, tokens in windows.items() if tokens < longest_row_tokens}
    wanted = max([_SHORT_ROW, *(tokens + 24 for tokens in reached.values())])
    longest = max(min(wanted, longest_row_tokens, _positions(config)), 8)
    groups = _groups(longest, config)
    exact = policy if _needs_autocast(policy, model) else dataclasses.replace(policy, autocast=False)
    with torch.no_grad(), _without_rng_effects(policy.device):
        _check_repeatable(policy, groups, trainer)
        single = _by_completion(exact, _single_rows(groups, policy.pad_id))
        _check_attention(exact, groups, model)
        padded = _by_completion(exact, micro_batches(groups, longest * 8, packing=False, pad_id=policy.pad_id))
        difference = _Difference.of(single, padded, _limit(exact))
        if difference.too_large:
            raise ConfigurationError(
                f"{_name(policy)} computes padded rows differently from single rows: log-probabilities differ by "
                f"{difference} on rows of up to {longest} tokens. Use trainer.micro_batch_tokens=1 and "
                "trainer.packing=false, which compute every row alone"
            )
        packing, note = _packed(exact, groups, single, longest, trainer)
    forms = "single, padded and packed" if packing else "single and padded"
    notes = [f"log-probabilities of {forms} rows agree on rows of up to {longest} tokens"]
    if note:
        notes.append(note)
    unreached = {name: tokens for name, tokens in windows.items() if tokens >= longest}
    if unreached:
        listed = ", ".join(f"{name}={tokens}" for name, tokens in sorted(unreached.items()))
        notes.append(f"not reached, since the rows of this trial are shorter: {listed}")
    return ProbeReport(longest, packing, tuple(notes))


def probe_engine(engine: RolloutEngine, policy: Policy, rollout: RolloutSpec, longest_row_tokens: int) -> str:
    """Compare the log-probabilities that a rollout engine reports with those of the learner, on two short samples.

    Returns a sentence for a person. Nothing is compared for the simulated engine, which samples from another model.

    Raises:
        ConfigurationError: the engine cannot sample from this model, or reports other log-probabilities.
    """
    if engine.name == "simulated":
        return "the simulated engine samples from another model and is not compared with the learner"
    config = _config(policy)
    windows = [w for w in special_lengths(config).values() if w < longest_row_tokens]
    room = min(longest_row_tokens, _positions(config))
    new = min(4, rollout.max_completion_tokens, max(room - 1, 1))
    longest = max(min(max([24, *(w + 8 for w in windows)]), rollout.max_prompt_tokens, room - new), 1)
    random = torch.Generator().manual_seed(1)
    prompts = [_random_ids(n, config, random) for n in (longest, max(longest // 3, 1))]
    try:
        with _without_rng_effects(policy.device):
            sampled = engine.generate(prompts, Sampling(n=2, temperature=rollout.temperature, max_tokens=new, seed=0))
    except (AttributeError, KeyError, IndexError, NotImplementedError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"the rollout engine {engine.name} cannot sample from {_name(policy)} ({type(error).__name__}: {error}); "
            f"use {_other_engine(engine.name)}"
        ) from error
    groups = [
        Sequences(prompt, tuple(c.ids for c in completions))
        for prompt, completions in zip(prompts, sampled, strict=True)
    ]
    with torch.no_grad(), _without_rng_effects(policy.device):
        ours = _by_completion(policy, _single_rows(groups, policy.pad_id), rollout.temperature)
    theirs = [torch.tensor(c.logprobs) for completions in sampled for c in completions]
    limit = _MEAN_ENGINE_BF16 if policy.autocast else _MEAN_ENGINE_FP32
    difference = _Difference.of(ours, theirs, mean_limit=limit)
    if difference.too_large:
        raise ConfigurationError(
            f"the rollout engine {engine.name} and the learner compute different log-probabilities for "
            f"{_name(policy)}: they differ by {difference}; use {_other_engine(engine.name)}"
        )
    return f"the rollout engine and the learner agree to {difference} on prompts of up to {longest} tokens"


@dataclass(frozen=True)
class _Difference:
    """Absolute differences of two lists of log-probabilities, in nats."""

    mean: float
    largest: float
    too_large: bool

    @staticmethod
    def of(one: Sequence[Tensor], two: Sequence[Tensor], mean_limit: float | None) -> _Difference:
        """`mean_limit` bounds the mean, since single tokens differ by rounding; None: all tokens agree as in fp32."""
        d = (torch.cat([*one]).double().cpu() - torch.cat([*two]).double().cpu()).abs().nan_to_num(nan=torch.inf)
        mean, largest = d.mean().item(), d.max().item()
        return _Difference(mean, largest, largest > _MAX_FP32 if mean_limit is None else mean > mean_limit)

    def __str__(self) -> str:
        return f"{self.mean:.2g} nats per token (largest {self.largest:.2g})"


def _limit(policy: Policy, bf16: float = _MEAN_BF16) -> float | None:
    return bf16 if policy.autocast else None


def _check_repeatable(policy: Policy, groups: Sequence[Sequences], trainer: TrainerSpec) -> None:
    """Two passes over the same rows, in the mode and precision that train, must give the same numbers."""
    batches = micro_batches(groups[-1:], 10**6, packing=False, pad_id=policy.pad_id)
    one, two = _by_completion(policy, batches), _by_completion(policy, batches)
    difference = _Difference.of(one, two, _limit(policy, _MEAN_BF16 / 10))
    if not difference.too_large:
        return
    remedy = "this model cannot be trained here; use another model"
    if trainer.gradient_checkpointing:
        remedy = (
            "set the rate of its dropout or router noise to 0 in its config.json, or use "
            "trainer.gradient_checkpointing=false, with which the model runs in evaluation mode"
        )
    raise ConfigurationError(
        f"{_name(policy)} is random in the mode that trains: two passes over the same tokens differ by {difference}, "
        f"so the ratio of the policy to itself would not be 1; {remedy}"
    )


def _check_attention(policy: Policy, groups: Sequence[Sequences], model: ModelSpec) -> None:
    """The attention implementation must compute what the architecture defines, which is what `eager` computes.

    For example, `sdpa` leaves out a soft cap of the attention scores.
    """
    if model.attention == "eager":
        return
    rows = [m for m in _single_rows(groups, policy.pad_id) if m.input_ids.shape[1] <= _EAGER_ROW]
    ours = _by_completion(policy, rows)
    network: Any = policy.model.get_base_model() if hasattr(policy.model, "get_base_model") else policy.model  # type: ignore[operator]
    network.set_attn_implementation("eager")
    try:
        eager = _by_completion(policy, rows)
    finally:
        network.set_attn_implementation(model.attention)
    difference = _Difference.of(ours, eager, _limit(policy))
    if difference.too_large:
        raise ConfigurationError(
            f"model.attention={model.attention} leaves out a part of the attention of {_name(policy)}: "
            f"log-probabilities differ by {difference} from those of its definition; use model.attention=eager"
        )


def _packed(
    policy: Policy, groups: Sequence[Sequences], single: Sequence[Tensor], longest: int, trainer: TrainerSpec
) -> tuple[bool, str | None]:
    """(whether packed rows are right, a sentence if `packing=auto` must do without them)."""
    if trainer.packing is False:
        return False, None
    obstacle = packing_obstacle(_config(policy))
    if obstacle is None:
        batches = micro_batches(groups, longest * 8, packing=True, pad_id=policy.pad_id)
        try:
            difference = _Difference.of(single, _by_completion(policy, batches), _limit(policy))
            if not difference.too_large:
                return True, None
            obstacle = f"packed rows differ from single rows by {difference} on rows of up to {longest} tokens"
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            obstacle = f"the model takes no mask for packed rows ({type(error).__name__}: {error})"
    if trainer.packing is True:
        raise ConfigurationError(
            f"trainer.packing=true, but {_name(policy)} cannot compute packed rows: {obstacle}. Use "
            "trainer.packing=false, or trainer.packing=auto"
        )
    return False, f"rows are padded, not packed: {obstacle}"


def _groups(longest: int, config: Any) -> list[Sequences]:
    """A group with rows of up to `longest` random tokens, and a group of short rows.

    The lengths differ, so that rows are padded. The prompt of the first group is long: windows act on its tokens.
    """
    random = torch.Generator().manual_seed(0)

    def ids(n: int) -> tuple[int, ...]:
        return _random_ids(max(n, 1), config, random)

    first = max(min(12, longest // 3), 1)
    return [
        Sequences(ids(longest - first), (ids(first), ids(first * 3 // 4), ids(first // 2))),
        Sequences(ids(min(longest // 5, _SHORT_ROW)), (ids(first // 2), ids(first))),
    ]


def _random_ids(n: int, config: Any, random: torch.Generator) -> tuple[int, ...]:
    return tuple(torch.randint(0, _text(config).vocab_size, (n,), generator=random).tolist())


def _single_rows(groups: Sequence[Sequences], pad_id: int) -> list[MicroBatch]:
    """One micro-batch per completion, without padding, in the order of the completions."""
    rows = [Sequences(g.prompt, (c,)) for g in groups for c in g.completions]
    return [
        dataclasses.replace(micro_batches([row], 1, False, pad_id)[0], sequences=(i,)) for i, row in enumerate(rows)
    ]


def _by_completion(policy: Policy, batches: Sequence[MicroBatch], temperature: float = 1.0) -> list[Tensor]:
    """The log-probabilities of each completion, in the order of the completions."""
    found: dict[int, Tensor] = {}
    for batch in batches:
        logprobs, _ = policy.forward(batch, temperature)
        mask = batch.completion_mask()
        for row, number in enumerate(batch.sequences):
            found[number] = logprobs[row].cpu()[mask[row]]
    return [found[number] for number in sorted(found)]


@contextlib.contextmanager
def _without_rng_effects(device: torch.device) -> Iterator[None]:
    """Restore torch's random state afterwards, so that a trial does not depend on the probe."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


def _needs_autocast(policy: Policy, model: ModelSpec) -> bool:
    """Whether the model cannot be computed in fp32: a flash kernel, or weights that are stored in bf16."""
    if model.attention == "flash_attention_2":
        return True
    return policy.autocast and any(p.dtype == torch.bfloat16 for p in policy.model.parameters())


def _config(policy: Policy) -> Any:
    return policy.model.config


def _text(config: Any) -> Any:
    return config.get_text_config()


def _positions(config: Any) -> int:
    return getattr(_text(config), "max_position_embeddings", None) or 10**9


def _name(policy: Policy) -> str:
    network: Any = policy.model.get_base_model() if hasattr(policy.model, "get_base_model") else policy.model  # type: ignore[operator]
    return type(network).__name__


def _other_engine(name: str) -> str:
    return "rollout=vllm" if name == "transformers" else "rollout=transformers"

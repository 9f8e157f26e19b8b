"""Whether a trial fits the memory of a card, and which settings or machines would.

Every suggestion was computed with the same model of memory as the verdict. Pure: no torch, no files.

Tested in tests/rl/memory/test_verdict.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rl.memory.architecture import Architecture
from rl.memory.usage import MemoryUse, predict
from rl.spec import TrialSpec

GIB = 2**30
USABLE_ON_CUDA = 0.95
"""Share of a card's nominal memory: drivers keep 1 to 5 %, and the allocator cannot fill every gap."""
SUGGESTED_LORA_RANK = 16
LEAST_MICRO_BATCH_TOKENS = 256
MOST_SETTINGS = 2
"""Suggested combinations of settings for the same machine."""
MOST_MACHINES = 2


@dataclass(frozen=True)
class Card:
    """A card of a machine, for the memory model."""

    machine: str
    """Name in `conf/machine`."""
    memory_gib: float
    device: Literal["cpu", "cuda"]

    @property
    def usable_bytes(self) -> int:
        return int(self.memory_gib * GIB * (USABLE_ON_CUDA if self.device == "cuda" else 1.0))


@dataclass(frozen=True)
class Verdict:
    """What a trial needs on a card, and what the card has."""

    card: Card
    use: MemoryUse
    parameters: int
    suggestions: tuple[str, ...]
    """Overrides that make the trial fit, each a complete set to add to the command; empty where the trial fits."""

    @property
    def fits(self) -> bool:
        return self.use.peak_bytes <= self.card.usable_bytes

    @property
    def missing_bytes(self) -> int:
        return max(0, self.use.peak_bytes - self.card.usable_bytes)

    def __str__(self) -> str:
        needed = (
            f"{_gib(self.use.peak_bytes)} of {_gib(self.card.usable_bytes)} usable on a card of {self.card.machine}"
        )
        parts = ", ".join(f"{p.name} {_gib(p.bytes)}" for p in self.use.parts if p.bytes >= 0.005 * self.use.peak_bytes)
        if self.fits:
            return f"a trial needs about {needed} at its peak, in {self.use.peak} ({parts})"
        remedy = "no setting of this model fits any machine of conf/machine: use a smaller model"
        if self.suggestions:
            remedy = "what fits: " + "; or ".join(self.suggestions)
        return (
            f"model.path, machine={self.card.machine}: a trial does not fit. It needs about {needed}, "
            f"{_gib(self.missing_bytes)} too much, at its peak in {self.use.peak}: {parts}. {remedy}"
        )


def judge(
    model: Architecture,
    spec: TrialSpec,
    card: Card,
    *,
    engine: str,
    prompt_tokens: int | None = None,
    other_cards: Sequence[Card] = (),
) -> Verdict:
    """Whether `spec` fits `card`; if not, what would.

    Args:
        engine, prompt_tokens: as in `predict`.
        other_cards: of other machines, to suggest.
    """

    def use(spec: TrialSpec, card: Card) -> MemoryUse:
        return predict(
            model,
            spec,
            device=card.device,
            engine=engine if spec.rollout.engine == "auto" else spec.rollout.engine,
            prompt_tokens=prompt_tokens,
            card_bytes=int(card.memory_gib * GIB),
        )

    def fits(spec: TrialSpec, card: Card) -> bool:
        return use(spec, card).peak_bytes <= card.usable_bytes

    found = use(spec, card)
    if found.peak_bytes <= card.usable_bytes:
        return Verdict(card, found, model.parameters, ())
    changes = list(_changes(spec, engine, prompt_tokens))
    suggestions = [text for text, changed in changes if fits(changed, card)][:MOST_SETTINGS]
    larger = sorted((c for c in other_cards if c.device == card.device), key=lambda c: (c.memory_gib, c.machine))
    suggestions += _machines([("", spec), *changes], larger, fits)
    return Verdict(card, found, model.parameters, tuple(suggestions))


def _machines(
    changes: Sequence[tuple[str, TrialSpec]], larger: Sequence[Card], fits: Callable[[TrialSpec, Card], bool]
) -> list[str]:
    """The smallest cards that fit, with the first of the changes that fits any."""
    for change, changed in changes:
        if found := [f"machine={c.machine} {change}".strip() for c in larger if fits(changed, c)]:
            return found[:MOST_MACHINES]
    return []


def _changes(spec: TrialSpec, engine: str, prompt_tokens: int | None) -> Iterator[tuple[str, TrialSpec]]:
    """Overrides that need less memory, and the specification with them: those that change results the least first."""
    row = (prompt_tokens or spec.rollout.max_prompt_tokens) + spec.rollout.max_completion_tokens
    tokens = max(row, LEAST_MICRO_BATCH_TOKENS)
    same_result: list[dict[str, object]] = []
    if tokens < spec.trainer.micro_batch_tokens:
        same_result.append({"trainer.micro_batch_tokens": tokens})
    if not spec.trainer.gradient_checkpointing:
        same_result.append({"trainer.gradient_checkpointing": True})
    if spec.rollout.max_batch_completions > 4 * spec.group_size:
        same_result.append({"rollout.max_batch_completions": 4 * spec.group_size})
    if engine == "vllm":
        same_result.append({"rollout.engine": "transformers"})
    precision: dict[str, object] = {"trainer.precision": "bf16"} if spec.trainer.precision != "bf16" else {}
    lora: dict[str, object] = {} if spec.model.lora_rank else {"model.lora_rank": SUGGESTED_LORA_RANK}
    bases = [{}, *([precision] if precision else []), *([precision | lora] if lora else [])]
    for base in bases:
        for count in range(len(same_result) + 1):
            for chosen in itertools.combinations(same_result, count):
                values = {k: v for change in (base, *chosen) for k, v in change.items()}
                if values:
                    yield " ".join(f"{k}={_typed(v)}" for k, v in values.items()), _with(spec, values)


def _with(spec: TrialSpec, values: dict[str, object]) -> TrialSpec:
    for key, value in values.items():
        section, _, name = key.partition(".")
        spec = replace(spec, **{section: replace(getattr(spec, section), **{name: value})})
    return spec


def _typed(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _gib(size: int) -> str:
    gib = size / GIB
    return f"{gib:.1f} GiB" if gib >= 0.95 else f"{gib:.2f} GiB"

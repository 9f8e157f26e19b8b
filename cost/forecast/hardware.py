"""What a data sheet says of a card, and what a model's size implies: ratios between cards, bytes, least memory.

These are inputs of scaled and prior figures, never of measured ones.

Tested in tests/cost/forecast/test_data_sheet.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from cost.forecast.sampling import ForecastError

GIB = 2**30


@dataclass(frozen=True)
class Hardware:
    """One kind of card. `interconnect_gb_per_s` counts both directions together; 0 where cards are not connected."""

    card_type: str
    tflops: float
    """Peak, bf16 dense."""
    memory_gb_per_s: float
    memory_gib: float
    interconnect_gb_per_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("tflops", "memory_gb_per_s", "memory_gib"):
            if not getattr(self, name) > 0:
                raise ForecastError(f"{self.card_type}: {name} must be above 0, not {getattr(self, name)}")
        if self.interconnect_gb_per_s < 0:
            raise ForecastError(f"{self.card_type}: interconnect_gb_per_s must not be negative")


@dataclass(frozen=True)
class ModelSize:
    """Parameters of a model, and how many of them are trained (fewer with LoRA)."""

    parameters: float
    trainable_parameters: float
    bytes_per_weight: int = 2
    """As the sampling engine keeps and receives them: bf16."""
    bytes_per_gradient: int = 4

    def __post_init__(self) -> None:
        if not 0 < self.trainable_parameters <= self.parameters:
            raise ForecastError(
                f"trainable_parameters {self.trainable_parameters:g} must be above 0 and at most the parameters "
                f"{self.parameters:g}"
            )

    @property
    def lora(self) -> bool:
        return self.trainable_parameters < self.parameters

    @property
    def weight_bytes(self) -> float:
        return self.parameters * self.bytes_per_weight

    @property
    def gradient_bytes(self) -> float:
        return self.trainable_parameters * self.bytes_per_gradient


def least_memory_gib(model: ModelSize, cards: int = 1) -> float:
    """A lower bound of the memory per card when training and sampling share the cards, without activations.

    Full: fp32 master weights, gradients and two AdamW moments (16 bytes per trained parameter) split over the cards.
    LoRA: the frozen bf16 base besides, once on every card. The engine's bf16 copy is counted on every card.
    """
    state = 16 * model.trainable_parameters / cards
    base = model.weight_bytes if model.lora else 0.0
    return (state + base + model.weight_bytes) / GIB


def does_not_fit(model: ModelSize, hardware: Hardware, cards: int = 1, usable: float = 0.9) -> str:
    """Why a model cannot be trained on these cards, or an empty text. `usable`: share left beside the framework."""
    need = least_memory_gib(model, cards)
    have = hardware.memory_gib * usable
    if need <= have:
        return ""
    return (
        f"weights, optimiser state and sampling engine need at least {need:.1f} GiB per card; "
        f"{hardware.card_type} has {have:.1f} GiB usable"
    )

"""A StepProfile without a measurement: from the model's size, the tokens and the card's data sheet.

It is a prior, and a forecast that rests on it is marked so and reaches over a factor of 2 at P90.
"""

from __future__ import annotations

from typing import Literal

from cost.forecast.hardware import Hardware, ModelSize
from cost.forecast.priors import DEFAULT_PRIORS, Priors
from cost.forecast.scaling import Size, communication_seconds, straggler_factor
from cost.forecast.step_profile import Level, OffStepFit, StepProfile, Trend

_TRAINING_EFFICIENCY = 0.25
"""Share of the peak that small batches reach."""
_DECODING_EFFICIENCY = 0.5
"""Share of the memory's bandwidth that decoding reaches."""
_SECONDS_PER_DECODE_STEP: dict[str, float] = {"transformers": 0.025, "vllm": 0.006}
"""Besides reading the weights: launches of plain PyTorch, or of an engine with fused kernels and CUDA graphs."""
_LONGEST_TO_MEAN = 1.6
"""The longest completion of a step ends its sampling."""
_REFERENCE_TFLOPS = 989.4
"""Peak at which the training efficiency holds; slower cards reach a larger share of theirs."""
_LARGEST_EFFICIENCY = 0.5
_LOAD_BYTES_PER_SECOND = 1e9


def profile_from_data_sheet(
    model: ModelSize,
    hardware: Hardware,
    size: Size,
    *,
    trainer: str,
    model_name: str,
    task: str,
    prompt_tokens: float,
    completion_tokens: float,
    max_completion_tokens: int,
    engine: Literal["transformers", "vllm"] = "vllm",
    reference_model: bool = False,
    updates_per_step: int = 1,
    priors: Priors = DEFAULT_PRIORS,
) -> StepProfile:
    """A prior profile at one size on one card type, with the work shared over `size.cards` cards.

    A pass forward is 2 floating-point operations per parameter and token and one backward 4 (J. Kaplan et al. 2020,
    arXiv:2001.08361, section 2.1). LoRA needs no gradients of the frozen weights: 4 instead of 6. Decoding reads the
    weights once per token for all completions of a card.
    """
    tokens = size.work * (prompt_tokens + completion_tokens)
    peak = hardware.tflops * 1e12
    efficiency = _TRAINING_EFFICIENCY * (_REFERENCE_TFLOPS / hardware.tflops) ** (1.0 - priors.flops_exponent)
    per_operation = 1.0 / (min(efficiency, _LARGEST_EFFICIENCY) * peak)
    forward = 2.0 * model.parameters * tokens * per_operation
    longest = min(float(max_completion_tokens), _LONGEST_TO_MEAN * completion_tokens)
    read = model.weight_bytes / (_DECODING_EFFICIENCY * hardware.memory_gb_per_s * 1e9)
    phases = {
        "rollout": longest * (read + _SECONDS_PER_DECODE_STEP[engine]) + forward,
        "logprob": forward * (2.0 if reference_model else 1.0),
        "train": forward * (2.0 if model.lora else 3.0),
    }
    if size.cards > 1:
        phases["train"] *= straggler_factor(size, priors)
        for phase, seconds in communication_seconds(model, hardware, size.cards, updates_per_step, priors).items():
            phases[phase] = phases.get(phase, 0.0) + seconds
    level = Level(size.completions, size.completions, size.cards, 1, phases, dict.fromkeys(phases, 0.0))
    load = model.weight_bytes / _LOAD_BYTES_PER_SECOND
    return StepProfile(
        trainer=trainer,
        model=model_name,
        task=task,
        card_type=hardware.card_type,
        asynchronous=False,
        basis="prior",
        levels=(level,),
        residuals=(1.0,),
        incidents=(),
        trend=Trend("tokens", 0.0, float("inf"), 0.0, completion_tokens),
        length_exponents={phase: (0.0 if phase == "sync" else 1.0, 0.0) for phase in phases},
        off_steps=(OffStepFit("model_load", load, 0.7, 0, (), basis="prior"),),
        notes=(
            f"no step was measured: from {model.parameters:.3g} parameters and the data sheet of {hardware.card_type}",
        ),
    )

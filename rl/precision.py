"""Chooses the precision of the layers for `trainer.precision=auto`: bf16 where it is fast on this device, else fp32.

A processor or card with bf16 instructions gets bf16. On any other device both are timed, because emulated bf16 can be
several times slower than fp32.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Precision = Literal["fp32", "bf16"]

_SECONDS_PER_TIMING = 0.4
_MIN_SPEEDUP = 1.1
"""bf16 must be faster by this factor: between two equal times the precise form is the better one."""


@dataclass(frozen=True)
class PrecisionChoice:
    """A precision, and the reason for it as a sentence for a person."""

    precision: Precision
    reason: str


@functools.cache
def choose_precision(device: torch.device) -> PrecisionChoice:
    """The faster precision on `device`. Takes about a second where the instructions do not decide; cached."""
    import torch

    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        native = f"compute capability {major}.{minor}" if major >= 8 else None
    else:
        native = _bf16_instructions()
    if native:
        return PrecisionChoice("bf16", f"{_name(device)} computes bf16 natively ({native})")
    fp32, bf16 = _seconds_per_layer(device, "fp32"), _seconds_per_layer(device, "bf16")
    chosen: Precision = "bf16" if bf16 * _MIN_SPEEDUP < fp32 else "fp32"
    return PrecisionChoice(
        chosen,
        f"{_name(device)} has no bf16 instructions; a layer took {fp32 * 1e3:.3g} ms in fp32 and {bf16 * 1e3:.3g} ms "
        "in bf16",
    )


def _bf16_instructions() -> str | None:
    """The instructions of this processor that compute products of bf16 matrices; None: it has none that are known."""
    import torch

    cpu = torch.cpu
    if cpu._is_amx_tile_supported():
        return "amx"
    return "avx512_bf16" if cpu._is_avx512_bf16_supported() else None


def _name(device: torch.device) -> str:
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else "this processor"


def _seconds_per_layer(device: torch.device, precision: Precision) -> float:
    """Seconds of one forward and backward pass of a linear layer with fp32 weights, under autocast for bf16."""
    import torch

    weight = torch.ones(1024, 1024, device=device, requires_grad=True)
    tokens = torch.ones(512, 1024, device=device)

    def one_pass() -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
            torch.nn.functional.linear(tokens, weight).sum().backward()
        weight.grad = None
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    one_pass()  # loads kernels
    passes, start = 0, time.perf_counter()
    while passes < 2 or time.perf_counter() - start < _SECONDS_PER_TIMING:
        one_pass()
        passes += 1
    return (time.perf_counter() - start) / passes

"""The choice of a precision for `trainer.precision=auto`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from rl import precision
from rl.precision import choose_precision

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def fresh_choice() -> Iterator[None]:
    choose_precision.cache_clear()
    yield
    choose_precision.cache_clear()


def test_processor_with_bf16_instructions_gets_bf16_without_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_bf16_instructions", lambda: "avx512_bf16")
    monkeypatch.setattr(precision, "_seconds_per_layer", lambda device, which: pytest.fail("timed"))
    choice = choose_precision(CPU)
    assert choice.precision == "bf16"
    assert "avx512_bf16" in choice.reason


@pytest.mark.parametrize(("seconds", "expected"), [((1.0, 2.3), "fp32"), ((1.0, 1.0), "fp32"), ((1.0, 0.5), "bf16")])
def test_other_processors_get_the_faster_of_two_timings(
    monkeypatch: pytest.MonkeyPatch, seconds: tuple[float, float], expected: str
) -> None:
    timed = dict(zip(("fp32", "bf16"), seconds, strict=True))
    monkeypatch.setattr(precision, "_bf16_instructions", lambda: None)
    monkeypatch.setattr(precision, "_seconds_per_layer", lambda device, which: timed[which])
    choice = choose_precision(CPU)
    assert choice.precision == expected
    assert "no bf16 instructions" in choice.reason


def test_timing_of_this_processor_takes_about_a_second() -> None:
    assert precision._seconds_per_layer(CPU, "fp32") > 0
    assert precision._seconds_per_layer(CPU, "bf16") > 0


@pytest.mark.parametrize(("capability", "native"), [((8, 0), True), ((9, 0), True), ((7, 5), False)])
def test_cards_of_compute_capability_8_compute_bf16_natively(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], native: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a card")
    monkeypatch.setattr(precision, "_seconds_per_layer", lambda device, which: 1.0)
    choice = choose_precision(torch.device("cuda", 0))
    assert choice.precision == ("bf16" if native else "fp32")
    assert choice.reason.startswith("a card ")

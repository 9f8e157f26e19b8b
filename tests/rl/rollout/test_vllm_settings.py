"""What the vLLM engine decides before vLLM is loaded. The engine itself is tested in test_engine_conformance.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rl.rollout import vllm_engine
from rl.spec import ConfigurationError, OutOfMemoryError, RolloutSpec
from tests.rl.random_llama import random_llama_policy

CUDA = torch.device("cuda", 0)


def config_of(positions: int) -> Any:
    return random_llama_policy(11, positions=positions).model.config


def test_longest_sequence_is_at_most_the_positions_of_the_model() -> None:
    spec = RolloutSpec("vllm", max_prompt_tokens=256, max_completion_tokens=100)
    assert vllm_engine._max_model_len(spec, config_of(1024)) == 356
    assert vllm_engine._max_model_len(spec, config_of(300)) == 300


def test_completions_that_fill_all_positions_are_refused_before_loading() -> None:
    spec = RolloutSpec("vllm", max_completion_tokens=300)
    with pytest.raises(ConfigurationError, match=r"rollout\.max_completion_tokens=300 leaves no room .* 300 positions"):
        vllm_engine._max_model_len(spec, config_of(300))


def test_too_little_free_memory_is_out_of_memory_before_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (8 * 2**30, 24 * 2**30))
    vllm_engine._check_free_memory(RolloutSpec("vllm", gpu_memory_utilization=0.3), CUDA)
    with pytest.raises(OutOfMemoryError, match=r"gpu_memory_utilization=0\.4.*8\.0 of 24\.0 GiB of the card are free"):
        vllm_engine._check_free_memory(RolloutSpec("vllm", gpu_memory_utilization=0.4), CUDA)
    vllm_engine._check_free_memory(RolloutSpec("vllm", gpu_memory_utilization=0.4), torch.device("cpu"))


@pytest.mark.parametrize(
    "message",
    [
        "Free memory on device cuda:0 (3/24 GiB) on startup is less than desired GPU memory utilization (0.4, 9 GiB).",
        "No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
        "(2.0 GiB KV cache is needed, which is larger than the available KV cache memory (1.0 GiB).",
    ],
)
def test_errors_of_vllm_about_memory_are_out_of_memory(message: str) -> None:
    with (
        pytest.raises(OutOfMemoryError, match="vllm does not get its memory"),
        vllm_engine._memory_errors(RolloutSpec()),
    ):
        raise ValueError(message)


def test_other_errors_of_vllm_stay_what_they_are() -> None:
    with pytest.raises(ValueError, match="something else"), vllm_engine._memory_errors(RolloutSpec()):
        raise ValueError("something else")


def test_requests_have_seeds_on_a_cpu_and_with_deterministic_algorithms() -> None:
    assert vllm_engine._seeds_requests(torch.device("cpu"))
    assert not vllm_engine._seeds_requests(CUDA)
    torch.use_deterministic_algorithms(True)
    try:
        assert vllm_engine._seeds_requests(CUDA)
    finally:
        torch.use_deterministic_algorithms(False)

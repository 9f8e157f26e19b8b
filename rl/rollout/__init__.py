"""Rollout engines: they sample completions from the policy's weights. `create_engine` makes the one that is configured.

The libraries of an engine are imported when it is created.

Tested in tests/rl/rollout/test_engine_conformance.py.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from rl.rollout.engine import RolloutEngine, check_sampling
from rl.spec import RolloutSpec

if TYPE_CHECKING:
    from rl.policy import Policy


def create_engine(spec: RolloutSpec, policy: Policy, version: int) -> RolloutEngine:
    """The engine named by `spec.engine`, with the weights of `policy` as policy version `version`.

    `auto` selects vllm on CUDA if vllm is installed, and transformers otherwise.

    Raises:
        ConfigurationError: settings that `check_sampling` refuses, or an engine that is not installed.
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

"""The keys that do nothing under a configuration's other settings: trials that differ in one are equal, and paid twice.

`rl.algorithms.without_effect` has those of the algorithm and of adapters; here are those that need the machine, the
search or the kind of model, task and engine.

Tested in tests/sweeps/config/test_search_space.py.
"""

from __future__ import annotations

from rl.algorithms import without_effect
from sweeps.config.trial_spec import spec_of
from sweeps.config.types import SweepConfig


def unused_keys(config: SweepConfig) -> dict[str, str]:
    """The keys without effect on a trial at the first value of each list, each with the key that switches it off.

    Keys are written as axes are: those of `TRIAL_KEYS` without their section.
    """
    search, model, task, rollout = config.search, config.model, config.task, config.rollout
    device = config.machine.device if config.trainer.device == "auto" else config.trainer.device
    engine_without_vllm = rollout.engine in ("transformers", "simulated")
    rules = (
        (search.lr_scaling[0] in ("hold", "clip_frac"), "lr_scaling", ("algorithm.lr_reference_completions",)),
        (model.kind != "hf", "model.kind", ("model.path", "model.revision")),
        (task.kind != "file", "task.kind", ("task.path", "task.subset")),
        (task.kind == "file", "task.kind", ("task.name",)),  # a label
        (task.kind == "reasoning_gym", "task.kind", ("task.question_field", "task.answer_field")),
        (not task.format_pattern, "task.format_pattern", ("task.reward_weights.format",)),
        (task.reward_weights.get("format") == 0, "task.reward_weights.format", ("task.format_pattern",)),
        (engine_without_vllm, "rollout.engine", ("rollout.gpu_memory_utilization", "rollout.kv_cache_gib")),
        (rollout.engine == "auto", "rollout.engine", ("rollout.kv_cache_gib",)),  # auto takes vllm on CUDA only
        (device == "cpu", "trainer.device", ("rollout.gpu_memory_utilization",)),
        (device == "cuda", "trainer.device", ("rollout.kv_cache_gib",)),
    )
    of_trial = without_effect(
        spec_of(config, prompts_per_step=search.prompts_per_step[0], group_size=search.group_size[0])
    )
    return {key: switch for off, switch, keys in rules if off for key in keys} | of_trial

"""Checks of a trial's algorithm settings. Imports nothing heavy, so that it can run before a machine is acquired."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rl.spec import AlgorithmSpec, RolloutSpec, TrialSpec

OVERLONG_BUFFER_SHARE = 0.2
"""Of the completion limit: 4,096 of 20,480 tokens in the paper of DAPO (arXiv:2503.14476, section 3.4)."""


def follow_lengths(algorithm: AlgorithmSpec, rollout: RolloutSpec) -> AlgorithmSpec:
    """The algorithm with numbers in place of lengths that are to follow `rollout.max_completion_tokens`."""
    limit = rollout.max_completion_tokens
    if algorithm.aggregation == "constant" and algorithm.aggregation_constant is None:
        algorithm = replace(algorithm, aggregation_constant=limit)
    if algorithm.overlong_buffer_tokens is None:
        algorithm = replace(algorithm, overlong_buffer_tokens=round(OVERLONG_BUFFER_SHARE * limit))
    return algorithm


def algorithm_problems(trial: TrialSpec) -> list[str]:
    """All problems of `trial.algorithm` in this trial, one message each; an empty list if it is valid.

    A message gives the key, its value and the values that would be valid.
    """
    return [*_group_problems(trial), *_loss_problems(trial), *_kl_problems(trial), *_optimiser_problems(trial)]


def _group_problems(trial: TrialSpec) -> Iterator[str]:
    a = trial.algorithm
    if trial.group_size < 2:
        yield (
            f"group_size={trial.group_size}: an advantage compares the completions of one prompt, so with fewer than 2 "
            "nothing is trained. Use at least 2 (8 is the usual choice)"
        )
    if a.advantage_scale != "none" and a.advantage_eps <= 0:
        yield f"algorithm.advantage_eps={a.advantage_eps} must be above 0; TRL uses 1e-4"
    if a.drop_zero_variance_groups and a.max_resample_rounds < 1:
        yield (
            f"algorithm.max_resample_rounds={a.max_resample_rounds} with drop_zero_variance_groups: dropped groups "
            "are replaced by new prompts, which takes at least 1 round"
        )
    buffer = a.overlong_buffer_tokens
    if buffer is not None and not 0 <= buffer < trial.rollout.max_completion_tokens:
        yield (
            f"algorithm.overlong_buffer_tokens={buffer} must be 0 (off) or lie below "
            f"rollout.max_completion_tokens={trial.rollout.max_completion_tokens} (DAPO uses a fifth of it)"
        )
    if a.overlong_penalty < 0:
        yield f"algorithm.overlong_penalty={a.overlong_penalty} is subtracted from the reward: it must be at least 0"


def _loss_problems(trial: TrialSpec) -> Iterator[str]:
    a = trial.algorithm
    if a.surrogate == "cispo":
        if not 0 <= a.clip_eps_low < 1 < a.clip_eps_high:
            yield (
                f"algorithm.clip_eps_low={a.clip_eps_low}, clip_eps_high={a.clip_eps_high}: for cispo these are "
                "absolute bounds of the weight, with 0 <= low < 1 < high (0 and 5.0 are usual; 0 means no lower bound)"
            )
        if a.dual_clip is not None:
            yield f"algorithm.dual_clip={a.dual_clip} has no effect on cispo, which clips the weight; set it to null"
    elif not (0 < a.clip_eps_low < 1 and a.clip_eps_high > 0):
        yield (
            f"algorithm.clip_eps_low={a.clip_eps_low}, clip_eps_high={a.clip_eps_high}: the ratio is clipped to "
            "[1 - low, 1 + high], with 0 < low < 1 and high > 0 (0.2 and 0.2 are usual)"
        )
    if a.dual_clip is not None and a.dual_clip <= 1:
        yield f"algorithm.dual_clip={a.dual_clip} must be above 1 (3.0 is usual), or null to turn it off"
    if a.aggregation == "constant" and not (a.aggregation_constant or 0) > 0:
        yield (
            "algorithm.aggregation=constant needs algorithm.aggregation_constant, in tokens: "
            f"rollout.max_completion_tokens={trial.rollout.max_completion_tokens} is usual"
        )
    if a.aggregation != "constant" and a.aggregation_constant is not None:
        yield (
            f"algorithm.aggregation_constant={a.aggregation_constant} has no effect with "
            f"aggregation={a.aggregation}; set it to null, or aggregation to constant"
        )
    if a.sampler_correction != "none":
        if a.old_logprobs == "sampler":
            yield (
                "algorithm.sampler_correction has no effect with old_logprobs=sampler, where the ratio is already "
                "taken to the sampler; use old_logprobs=learner, or sampler_correction=none"
            )
        if a.sampler_correction_cap <= 0:
            yield f"algorithm.sampler_correction_cap={a.sampler_correction_cap} must be above 0 (2.0 is usual)"


def _kl_problems(trial: TrialSpec) -> Iterator[str]:
    a = trial.algorithm
    if a.kl_coef < 0:
        yield f"algorithm.kl_coef={a.kl_coef} must be 0 (off) or above"
    if a.kl_coef > 0 and a.kl_placement == "loss" and a.kl_estimator == "k1":
        yield (
            "algorithm.kl_estimator=k1 with kl_placement=loss: the gradient of k1 = log pi - log pi_ref is that of "
            "log pi alone, whose expectation on-policy is zero, so the term would only add noise. Use k3 (as GRPO) "
            "or k2 in the loss, or kl_placement=reward, where k1 is right"
        )
    by_reward = a.drop_zero_variance_groups and a.zero_variance_of == "reward"
    if a.kl_coef > 0 and a.kl_placement == "reward" and by_reward:
        yield (
            "algorithm.drop_zero_variance_groups with kl_placement=reward: groups are dropped before the KL is "
            "computed, and with a KL in the reward no two rewards are equal. Use kl_placement=loss, or set "
            "zero_variance_of=accuracy or drop_zero_variance_groups=false"
        )


def _optimiser_problems(trial: TrialSpec) -> Iterator[str]:
    a = trial.algorithm
    if not 1 <= a.updates_per_rollout <= trial.prompts_per_step:
        yield (
            f"algorithm.updates_per_rollout={a.updates_per_rollout} must lie between 1 and "
            f"prompts_per_step={trial.prompts_per_step}: every update takes whole groups"
        )
    if a.lr <= 0:
        yield f"algorithm.lr={a.lr} must be above 0"
    if not 0 <= a.lr_final_frac <= 1:
        yield f"algorithm.lr_final_frac={a.lr_final_frac} is a share of the learning rate: it must be from 0 to 1"
    total = trial.steps * a.updates_per_rollout
    if not 0 <= a.lr_warmup_updates <= total:
        yield (
            f"algorithm.lr_warmup_updates={a.lr_warmup_updates} must lie between 0 and the {total} optimiser updates "
            f"of this trial (steps={trial.steps} x updates_per_rollout={a.updates_per_rollout})"
        )
    if a.lr_reference_completions < 1:
        yield f"algorithm.lr_reference_completions={a.lr_reference_completions} must be at least 1"
    if not (0 <= a.adam_beta1 < 1 and 0 <= a.adam_beta2 < 1 and a.adam_eps > 0 and a.weight_decay >= 0):
        yield (
            f"algorithm.adam_beta1={a.adam_beta1}, adam_beta2={a.adam_beta2}, adam_eps={a.adam_eps}, "
            f"weight_decay={a.weight_decay}: betas must lie in [0, 1), adam_eps above 0, weight_decay at 0 or above"
        )
    if a.max_grad_norm <= 0:
        yield f"algorithm.max_grad_norm={a.max_grad_norm} must be above 0 (1.0 is usual; a large value never clips)"


def without_effect(trial: TrialSpec) -> dict[str, str]:
    """The keys that do nothing under the trial's other settings, each with the key that switches it off."""
    a, model = trial.algorithm, trial.model
    rules = (
        (a.advantage_scale == "none", "algorithm.advantage_scale", ("algorithm.advantage_eps",)),
        (a.kl_coef == 0, "algorithm.kl_coef", ("algorithm.kl_estimator", "algorithm.kl_placement")),
        (a.sampler_correction == "none", "algorithm.sampler_correction", ("algorithm.sampler_correction_cap",)),
        (
            not a.drop_zero_variance_groups,
            "algorithm.drop_zero_variance_groups",
            ("algorithm.max_resample_rounds", "algorithm.zero_variance_of"),
        ),
        (a.overlong_buffer_tokens == 0, "algorithm.overlong_buffer_tokens", ("algorithm.overlong_penalty",)),
        (a.lr_schedule == "constant", "algorithm.lr_schedule", ("algorithm.lr_final_frac",)),
        (model.lora_rank == 0, "model.lora_rank", ("model.lora_alpha", "model.lora_targets")),
    )
    return {key: switch for off, switch, keys in rules if off for key in keys}

"""The curves of a step as named numbers, as people see them in MLflow, tables and plots.

Sums and counts become means here. An undefined curve is left out; it is never shown as zero.
"""

from __future__ import annotations

from rl.spec import Mean, StepReport, UpdateCurves

NS_PER_SECOND = 1e9


def step_metrics(report: StepReport, cards: int) -> dict[str, float]:
    """Every defined number of one step. Names are those of docs/curves.md; `*_seconds` are card-seconds."""
    curves = report.curves
    means: dict[str, Mean | None] = {
        "reward": curves.reward,
        "acc": curves.acc,
        "response_length": curves.response_length,
        "truncated_frac": curves.truncated,
        "zero_std_frac": curves.zero_std,
        "phantom_credit_frac": curves.phantom_credit,
        "reward_error_frac": curves.reward_errors,
        "sampler_ratio_mean": curves.sampler_ratio,
        "logp_diff_mean": curves.logp_diff,
        "mismatch_kl": curves.mismatch_kl,
        "entropy": curves.over_updates("entropy"),
        "kl": curves.over_updates("kl"),
        "approx_kl": curves.over_updates("approx_kl"),
        "clip_frac": curves.clip_frac,
        **{f"reward_{name}": mean for name, mean in curves.rewards.items()},
    }
    numbers = {
        "logp_diff_max": curves.logp_diff_max,
        "response_length_max": float(curves.response_length_max),
        "nonfinite_logprobs": float(curves.nonfinite_logprobs),
        "lr": report.lr,
        "staleness": float(report.staleness),
        "policy_version": float(report.policy_version),
        "prompts_trained": float(report.prompts.trained),
        "prompts_filtered": float(report.prompts.filtered),
        "prompts_failed": float(report.prompts.failed),
        "step_seconds": report.wall_ns / NS_PER_SECOND,
        **{f"{phase}_seconds": ns / NS_PER_SECOND for phase, ns in report.phase_card_ns.items()},
    }
    if report.wall_ns:
        per_second = report.tokens.completion / (report.wall_ns / NS_PER_SECOND)
        numbers["tokens_per_s"] = per_second / cards
    if curves.sampler_ess is not None:
        numbers["sampler_ess"] = curves.sampler_ess
    if curves.updates:
        norms = [u.grad_norm for u in curves.updates]
        numbers["grad_norm"] = sum(norms) / len(norms)
        numbers["grad_norm_max"] = max(norms)
        means["ratio_mean"] = curves.updates[-1].ratio
    for index, update in enumerate(curves.updates):
        means |= _of_update(update, index)
    return numbers | {name: mean.value for name, mean in means.items() if mean is not None and mean.value is not None}


def _of_update(update: UpdateCurves, index: int) -> dict[str, Mean | None]:
    return {
        f"ratio_mean_update_{index}": update.ratio,
        f"clip_frac_update_{index}": update.clip_frac,
        f"clip_frac_low_update_{index}": update.clip_low,
        f"clip_frac_high_update_{index}": update.clip_high,
    }

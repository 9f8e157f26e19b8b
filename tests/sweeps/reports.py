"""Well-formed trainer messages for tests, with what a test cares about as arguments."""

from __future__ import annotations

from rl.spec import (
    Curves,
    EvalReport,
    Mean,
    PromptCounts,
    QuestionResult,
    StepReport,
    TokenCounts,
    UpdateCurves,
)

SECOND_NS = 1_000_000_000


def an_update(
    *,
    ratio: float = 1.0,
    clip_frac: float | None = 0.0,
    entropy: float = 1.0,
    grad_norm: float = 1.0,
    kl: float = 0.001,
) -> UpdateCurves:
    clip = None if clip_frac is None else Mean(clip_frac * 1000, 1000)
    none_low = None if clip is None else Mean(0.0, 1000)
    return UpdateCurves(
        ratio=Mean(ratio * 1000, 1000),
        ratio_min=ratio,
        ratio_max=ratio,
        clip_low=none_low,
        clip_high=clip,
        approx_kl=Mean(kl * 1000, 1000),
        kl=Mean(kl * 1000, 1000),
        entropy=Mean(entropy * 1000, 1000),
        grad_norm=grad_norm,
        loss=0.1,
        lr=1e-5,
    )


def a_step(
    step: int,
    *,
    clip_frac: float | None = 0.0,
    first_ratio: float = 1.0,
    entropy: float = 1.0,
    grad_norm: float = 1.0,
    kl: float = 0.001,
    reward: float = 0.5,
    wall_ns: int = 10 * SECOND_NS,
    staleness: int = 0,
    logp_diff: float = 0.003,
    replay: bool = False,
    scorer_errors: int = 0,
    scorer_error: str = "",
    equal_groups: int = 0,
) -> StepReport:
    """16 completions in two groups; `equal_groups` of them have equal rewards."""
    updates = (
        an_update(ratio=first_ratio, clip_frac=None, entropy=entropy, grad_norm=grad_norm, kl=kl),
        an_update(clip_frac=clip_frac, entropy=entropy, grad_norm=grad_norm, kl=kl),
    )
    return StepReport(
        step=step,
        policy_version=2 * (step - 1),
        staleness=staleness,
        wall_ns=wall_ns,
        phase_card_ns={"rollout": wall_ns // 2, "train": wall_ns - wall_ns // 2},
        tokens=TokenCounts(prompt=640, completion=320, loss=320),
        prompts=PromptCounts(trained=2, filtered=0, failed=0),
        curves=Curves(
            reward=Mean(reward * 16, 16),
            acc=Mean(8, 16),
            rewards={"correct": Mean(8, 16)},
            reward_errors=Mean(scorer_errors, 16),
            response_length=Mean(320, 16),
            response_length_min=5,
            response_length_max=24,
            truncated=Mean(1, 16),
            zero_std=Mean(equal_groups, 2),
            updates=updates,
            sampler_ratio=Mean(320, 320),
            logp_diff=Mean(logp_diff * 320, 320),
            logp_diff_max=0.1,
            mismatch_kl=Mean(0.01, 320),
        ),
        lr=1e-5,
        replay=replay,
        scorer_error=scorer_error,
    )


def an_evaluation(step: int, correct: int, questions: int = 64) -> EvalReport:
    results = tuple(QuestionResult(f"q{i}", int(i < correct), 1) for i in range(questions))
    return EvalReport(
        step=step,
        policy_version=2 * step,
        wall_ns=5 * SECOND_NS,
        phase_card_ns={"evaluation": 5 * SECOND_NS},
        results=results,
        response_length=Mean(10.0 * questions, questions),
        truncated=Mean(0, questions),
    )
